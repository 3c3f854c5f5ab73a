"""The report of a graft: what became of each leaf."""

import dataclasses
from typing import Literal

from treekit._diff.diff import as_table, in_colours


@dataclasses.dataclass(frozen=True)
class Grafted:
    """What became of one leaf.

    Attributes:
        path: its key path in the new tree, or in the old tree if it was dropped.
        kind: "kept" (it has the old value), "fresh" (only the new tree has it), "dropped" (only the old tree has it) or
            "refused" (the old value has another shape or dtype).
        new: a description of what the new tree has there.
        old: a description of what the old tree has, with its path if that differs.
    """

    path: str
    kind: Literal["kept", "fresh", "dropped", "refused"]
    new: str
    old: str


class GraftReport(tuple[Grafted, ...]):
    """What became of each leaf: first the leaves of the new tree in order, then those dropped. `str()` is a table."""

    @property
    def kept(self) -> tuple[Grafted, ...]:
        """The leaves that have the old values."""
        return self._of("kept")

    @property
    def fresh(self) -> tuple[Grafted, ...]:
        """The leaves that only the new tree has."""
        return self._of("fresh")

    @property
    def dropped(self) -> tuple[Grafted, ...]:
        """The leaves that only the old tree has."""
        return self._of("dropped")

    @property
    def refused(self) -> tuple[Grafted, ...]:
        """The leaves whose old values have another shape or dtype."""
        return self._of("refused")

    def __str__(self) -> str:
        return self._table(False)

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set."""
        print(self._table(in_colours()))

    def _of(self, kind: str) -> tuple[Grafted, ...]:
        return tuple(row for row in self if row.kind == kind)

    def _table(self, colours: bool) -> str:
        groups = [self.refused, self.dropped, self.fresh, self.kept]
        counts = ", ".join(f"{len(self._of(kind))} {kind}" for kind in ("kept", "fresh", "dropped", "refused"))
        rows = [(row.path or "(root)", row.kind, row.new, row.old) for group in groups for row in group]
        return f"{counts} (new | old)\n{as_table(rows, colours)}".rstrip()
