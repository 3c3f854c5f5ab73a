"""The report of a graft: what became of each leaf."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from treekit._base.patterns import nearest
from treekit._base.table import as_table, in_colours

_LISTED = 10  # leaves without a value that an error lists, with the nearest names


Kind = Literal["kept", "fresh", "dropped", "refused", "missing"]


@dataclasses.dataclass(frozen=True)
class Grafted:
    """What became of one leaf.

    Attributes:
        path: its key path in the new tree, or in the old tree if it was dropped.
        kind: "kept" (it has the old value), "fresh" (only the new tree has it), "dropped" (only the old tree has it),
            "refused" (the old value has another shape or dtype) or "missing" (`rename` maps an old leaf to several new
            names, and the new tree does not have this one).
        new: a description of what the new tree has there.
        old: a description of what the old tree has, with its path if that differs, and how it was changed.
        strict: whether `strict=True` asks for it: neither for a Python number or a PRNG key that only the new tree has,
            nor for a leaf that `rename` drops.
    """

    path: str
    kind: Kind
    new: str
    old: str
    strict: bool = True


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

    @property
    def missing(self) -> tuple[Grafted, ...]:
        """The names of several to which `rename` maps an old leaf, which the new tree does not have."""
        return self._of("missing")

    def __str__(self) -> str:
        return self._table(False)

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set."""
        print(self._table(in_colours()))

    def _of(self, kind: str) -> tuple[Grafted, ...]:
        return tuple(row for row in self if row.kind == kind)

    def _table(self, colours: bool) -> str:
        groups = [self.refused, self.missing, self.fresh, self.dropped, self.kept]
        counts = [f"{len(self._of(kind))} {kind}" for kind in ("kept", "fresh", "dropped", "refused")]
        counts += [f"{len(self.missing)} missing"] * bool(self.missing)
        ordered = [row for group in groups for row in sorted(group, key=lambda row: not row.strict)]
        rows = [(row.path or "(root)", row.kind, row.new, row.old) for row in ordered]
        return f"{', '.join(counts)} (new | old)\n{as_table(rows, colours)}".rstrip()


def check_strict(report: GraftReport) -> None:
    """Raise a ValueError unless every leaf is kept; it first lists the leaves that have no old value."""
    if not any(row.strict and row.kind != "kept" for row in report):
        return
    lacking = [row for row in report.fresh if row.strict]
    left = [row.path for row in report.dropped if row.strict]
    lines = [f"\n  {row.path or '(the root)'} ({row.new}); {_nearest(row.path, left)}" for row in lacking[:_LISTED]]
    more = f"\n  and {len(lacking) - _LISTED} more" if len(lacking) > _LISTED else ""
    missing = f" The old tree has no value for:{''.join(lines)}{more}" if lacking else ""
    refused = " Refused leaves need convert, resize, or cast=True for another dtype." if report.refused else ""
    raise ValueError(f"graft with strict=True: not every leaf was kept.{missing}{refused}\n{report}")


def _nearest(name: str, names: Sequence[str]) -> str:
    return f"the nearest names left over: {nearest(name, names)}" if names else "no name is left over"
