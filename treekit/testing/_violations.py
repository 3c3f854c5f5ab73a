"""Violations of laws, and the error that lists all of them."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from treekit._text.describe import count, describe_error

# Fixes that several laws suggest.
REGISTER = "make the class a treekit.node, or register it with treekit.register_node"
WRAP = "treekit.optax.chain(tx)"  # passes on floating-point and complex arrays only, and preserves dtypes
KEEP_WIDE = "treekit.training.store_state(tx, jnp.float32)"


class Violation(NamedTuple):
    """A broken law.

    Attributes:
        law: what the law demands.
        found: what was found instead.
        effect: what goes wrong because of it.
        fix: how to fix it.
        name: the name by which the law can be left out; "" if it cannot.
    """

    law: str
    found: str
    effect: str
    fix: str
    name: str = ""

    def __str__(self) -> str:
        indented = self.found.replace("\n", "\n    ")
        law = f"{self.name}: {self.law}" if self.name else self.law
        return f"- {law}\n  found: {indented}\n  effect: {self.effect}\n  fix: {self.fix}"


class Law(NamedTuple):
    """A law.

    Attributes:
        law: what it demands.
        effect: what goes wrong if it is broken.
        fix: how to fix it.
        check: says what was found instead, or returns "" if the law holds. An error that it raises breaks the law too.
    """

    law: str
    effect: str
    fix: str
    check: Callable[..., str]

    def violations(self, name: str, *args: object) -> list[Violation]:
        """Return the violation of this law, which has this name, if there is one."""
        try:
            found = self.check(*args)
        except Exception as error:  # the user's code may raise anything
            found = describe_error(error)
        return [Violation(self.law, found=found, effect=self.effect, fix=self.fix, name=name)] if found else []


class LawsBroken(AssertionError):
    """The error that lists all broken laws, as text and as data."""

    def __init__(self, what: str, violations: list[Violation]) -> None:
        laws = count(len(violations), "law")
        super().__init__(f"{what} breaks {laws}:\n" + "\n".join(map(str, violations)))
        self.what, self.violations = what, violations

    def __reduce__(self) -> tuple[Any, ...]:  # by default, an exception is rebuilt from its text alone
        return type(self), (self.what, self.violations), vars(self)


def raise_violations(what: str, violations: Iterable[Violation]) -> None:
    """Raise one error that lists all violations, if there are any."""
    if found := list(violations):
        raise LawsBroken(what, found)
