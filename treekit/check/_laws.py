"""What a broken law is, and the error that lists those that are."""

from collections.abc import Iterable
from typing import NamedTuple


class Broken(NamedTuple):
    """A broken law: what should hold, what was found instead, what will go wrong, what to do."""

    law: str
    found: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        found = self.found.replace("\n", "\n    ")
        return f"- {self.law}\n  found: {found}\n  so: {self.cause}\n  mend: {self.remedy}"


class LawsBroken(AssertionError):
    """Some laws are broken: all of them, as text and as data."""

    def __init__(self, what: str, broken: list[Broken]) -> None:
        count = "1 law" if len(broken) == 1 else f"{len(broken)} laws"
        super().__init__(f"{what} breaks {count}:\n" + "\n".join(map(str, broken)))
        self.broken = broken


def raise_broken(what: str, laws: Iterable[Broken]) -> None:
    """Raise one error that lists all laws that are broken, if any is."""
    if broken := list(laws):
        raise LawsBroken(what, broken)
