"""Report what became of each leaf."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._graft.arguments import Choices
from treekit._graft.leaves import Leaf
from treekit._graft.left import Left
from treekit._graft.matches import Matches
from treekit._graft.values import Refused
from treekit._text.describe import count, describe
from treekit._text.table import Comparison, Shown

Outcome = Literal["kept", "fresh", "dropped", "refused", "missing"]


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
            nor for a leaf that `rename` drops or carries over under other names.
        not_finite: how many of the numbers that the new tree gets are infinite or NaN; 0 for traced arrays, and for
            those that are spread over several processes.
    """

    path: str
    kind: Outcome
    new: str
    old: str
    strict: bool = True
    not_finite: int = 0


class GraftReport(Shown, tuple[Grafted, ...]):
    """What became of each leaf: first the leaves of the new tree in order, then those dropped.

    Its `str()` is a table, `show()` prints it, and a notebook shows it.
    """

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

    @property
    def not_finite(self) -> int:
        """How many of the numbers that the new tree gets are infinite or NaN."""
        return sum(row.not_finite for row in self)

    def _of(self, kind: str) -> tuple[Grafted, ...]:
        return tuple(row for row in self if row.kind == kind)

    def _table(self) -> Comparison:
        counts = [f"{len(self._of(kind))} {kind}" for kind in ("kept", "fresh", "dropped", "refused")]
        counts += [f"{len(self.missing)} missing"] * bool(self.missing)
        counts += [f"{count(self.not_finite, 'number')} not finite"] * bool(self.not_finite)
        order = ["refused", "missing", "fresh", "dropped", "kept"]
        ordered = sorted(self, key=lambda row: (order.index(row.kind), not row.strict))
        rows = [(row.path or "(root)", row.kind, row.new, row.old) for row in ordered]
        return Comparison(("name", "kind", "new", "old"), rows, title=", ".join(counts))


def report_of(
    new: Iterable[Leaf],
    old: Iterable[Leaf],
    left: Left,
    matches: Matches,
    values: Mapping[Leaf, object],
    choices: Choices,
) -> GraftReport:
    """Say what became of each leaf.

    Args:
        new: the new leaves.
        old: the old leaves.
        left: what is left of both.
        matches: the old values that new leaves match.
        values: what new leaves get, and what is refused.
        choices: what the arguments say about leaves.
    """
    rows: list[Grafted] = []
    for leaf in new:
        said = "nothing"
        if leaf in matches:
            source = matches[leaf][0]
            at = f" at {source.path}" if source.path != leaf.name else ""
            said = f"{source}{at}{_what_happened(leaf, values, choices)}"
        value = values.get(leaf)
        outcome: Outcome = "fresh" if leaf not in values else "refused" if isinstance(value, Refused) else "kept"
        not_finite = _not_finite(value)
        said += f", {not_finite:,} not finite" * bool(not_finite)
        is_strict = outcome != "fresh" or (leaf.is_asked and leaf.name not in choices.fresh)
        rows.append(Grafted(leaf.name, outcome, str(leaf), said, strict=is_strict, not_finite=not_finite))
    for x in left.sources:
        if x.entry is None and left.used.issuperset(x.leaves):
            rows.append(Grafted(x.name, "missing", "nothing", f"{x} at {x.path}", strict=False))
    for leaf in old:
        if leaf not in left.used:
            is_dropped = choices.rename.get(leaf.name) == []
            said = f"{leaf}{', which rename drops' * is_dropped}"
            rows.append(Grafted(leaf.name, "dropped", "nothing", said, strict=not is_dropped))
    return GraftReport(rows)


def _what_happened(leaf: Leaf, values: Mapping[Leaf, object], choices: Choices) -> str:
    """Say what happened to the old value that matches a leaf."""
    if leaf not in values:
        return ", which is not used"
    value = values[leaf]
    refused = value if isinstance(value, Refused) else None
    said = ""
    if leaf.name in choices.convert:
        said = f", converted to {describe(refused.value)}" if refused and refused.value is not None else ", converted"
    return said + ", which a cast would change" * bool(refused and refused.is_changed)


def _not_finite(x: Any) -> int:
    if not issubdtype(dtype_of(x), jnp.inexact) or is_traced(x) or not getattr(x, "is_fully_addressable", True):
        return 0
    sharding: Any = getattr(x, "sharding", None)
    devices: Any = sharding.device_set if sharding else ()
    # Of an array on the CPU, NumPy needs no copy, and compiles nothing.
    is_finite: Any = jnp.isfinite(x) if any(each.platform != "cpu" for each in devices) else np.isfinite(np.asarray(x))
    return int(is_finite.size - jax.device_get(is_finite.sum()))
