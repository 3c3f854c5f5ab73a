"""One figure that treekit is measured by."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A number, and what it should be.

    Attributes:
        name: unique, and the key under which it is recorded.
        value: what was measured.
        goal: what it should be at most, or at least.
        at_least: whether more is better.
        of_time: whether it depends on time, so differs from run to run, and is only shown.
        note: what it is made up of.
    """

    name: str
    value: float
    goal: float | None = None
    at_least: bool = False
    of_time: bool = False
    note: str = ""

    def is_worse(self, recorded: float) -> bool:
        """Whether it has got worse since it was recorded."""
        return not self.of_time and (self.value < recorded if self.at_least else self.value > recorded)

    @property
    def is_reached(self) -> bool:
        """Whether the figure is at its goal; True without a goal."""
        return self.goal is None or (self.value >= self.goal if self.at_least else self.value <= self.goal)
