"""What a violation of a law is, and the error that lists all of them."""

from collections.abc import Iterable
from typing import NamedTuple

# Fixes that several laws share.
REGISTER = "make the class a treekit.node, or register it with treekit.register_node"
FILTER = "treekit.optax.filtered(tx)"
PRESERVE = "treekit.optax.dtype_preserving(tx)"
KEEP_WIDE = "treekit.optax.dtype_preserving(tx, state_dtype=jnp.float32)"


class Violation(NamedTuple):
    """A law that does not hold: what it asks for, what was found instead, what follows from that, and how to fix it."""

    law: str
    found: str
    effect: str
    fix: str

    def __str__(self) -> str:
        found = self.found.replace("\n", "\n    ")
        return f"- {self.law}\n  found: {found}\n  effect: {self.effect}\n  fix: {self.fix}"


class LawsBroken(AssertionError):
    """Laws that do not hold: all of them, as text and as data."""

    def __init__(self, what: str, violations: list[Violation]) -> None:
        laws = count(len(violations), "law")
        super().__init__(f"{what} breaks {laws}:\n" + "\n".join(map(str, violations)))
        self.violations = violations


def raise_violations(what: str, violations: Iterable[Violation]) -> None:
    """Raise one error that lists all violations, if there are any."""
    if found := list(violations):
        raise LawsBroken(what, found)


def count(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun, in the plural where it needs one."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
