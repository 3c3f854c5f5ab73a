"""Report what became of each leaf, and suggest what accepts those that are left."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from treekit._base.describe import count
from treekit._base.dtype import dtype_of, is_weak, issubdtype
from treekit._base.jax import jnp
from treekit._base.key_path import Pattern, PatternSet, listed, nearest
from treekit._base.predicates import is_traced
from treekit._base.table import as_table, in_colours
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.names import Leaf, Matches, Source, StateNode, Targets

_LISTED = 100  # leaves of one kind that an error lists
_WITH_NEAREST = 10  # of these, those with the nearest names
_INDEX = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")

Outcome = Literal["kept", "fresh", "dropped", "refused", "missing"]
_TITLES: dict[str, str] = {
    "fresh": "The old tree has no value for:",
    "refused": "Another shape, which needs convert or resize, or another dtype, which needs cast=True (new | old):",
    "dropped": "The new tree has no place for:",
}


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

    @property
    def not_finite(self) -> int:
        """How many of the numbers that the new tree gets are infinite or NaN."""
        return sum(row.not_finite for row in self)

    def __str__(self) -> str:
        return self._table(False)

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set."""
        print(self._table(in_colours()))

    def _of(self, kind: str) -> tuple[Grafted, ...]:
        return tuple(row for row in self if row.kind == kind)

    def _table(self, colours: bool) -> str:
        counts = [f"{len(self._of(kind))} {kind}" for kind in ("kept", "fresh", "dropped", "refused")]
        counts += [f"{len(self.missing)} missing"] * bool(self.missing)
        counts += [f"{count(self.not_finite, 'number')} not finite"] * bool(self.not_finite)
        order = ["refused", "missing", "fresh", "dropped", "kept"]
        ordered = sorted(self, key=lambda row: (order.index(row.kind), not row.strict))
        rows = [(row.path or "(root)", row.kind, row.new, row.old) for row in ordered]
        return f"{', '.join(counts)} (new | old)\n{as_table(rows, colours)}".rstrip()


def report_of(
    new: Iterable[Leaf],
    old: Iterable[Leaf],
    sources: Iterable[Source],
    matches: Matches,
    values: Mapping[Leaf, object],
) -> GraftReport:
    """Say what became of each leaf; of new leaves, `values` has the old values, and None for one that is refused."""
    used = {source for each in matches.values() for source in each}
    used_leaves = {leaf for source in used for leaf in source.origins}
    rows: list[Grafted] = []
    for leaf in new:
        said = "nothing"
        for source in matches.get(leaf, [])[:1]:
            at = f" at {source.path}" if source.path != leaf.name else ""
            said = f"{source}{at}{', which is not used' if leaf.is_fresh else ', converted' if leaf.convert else ''}"
        outcome: Outcome = "fresh" if leaf not in values else "refused" if values[leaf] is None else "kept"
        not_finite = _not_finite(values.get(leaf))
        said += f", {not_finite:,} not finite" * bool(not_finite)
        rows.append(Grafted(leaf.name, outcome, str(leaf), said, leaf.is_asked or outcome != "fresh", not_finite))
    for x in sources:
        if x not in used and x.entry is None and used_leaves.issuperset(x.origins):
            rows.append(Grafted(x.name, "missing", "nothing", f"{x} at {x.path}", strict=False))
    for leaf in old:
        if leaf not in used_leaves:
            is_dropped = leaf.rules == []
            said = f"{leaf}{', which rename drops' * is_dropped}"
            rows.append(Grafted(leaf.name, "dropped", "nothing", said, not is_dropped))
    return GraftReport(rows)


def _not_finite(x: Any) -> int:
    if not issubdtype(dtype_of(x), jnp.inexact) or is_traced(x) or not getattr(x, "is_fully_addressable", True):
        return 0
    sharding: Any = getattr(x, "sharding", None)
    devices: Any = sharding.device_set if sharding else ()
    # Of an array on the CPU, NumPy needs no copy, and compiles nothing.
    is_finite: Any = jnp.isfinite(x) if any(each.platform != "cpu" for each in devices) else np.isfinite(np.asarray(x))
    return int(is_finite.size - jax.device_get(is_finite.sum()))


def check_rename(sources: Iterable[Source], used: Container[Source], strict: bool, names: Sequence[str]) -> None:
    """Raise a ValueError if a pattern of `rename` leads to no new leaf; with `strict`, if one of its targets does not.

    Args:
        sources: all old values.
        used: those that new leaves match.
        strict: as in `graft`.
        names: the names of the new leaves.
    """
    renamed = [(x, x.rule, x.rule if strict else x.rule.pattern) for x in sources if x.rule]
    useful = {unit for x, _, unit in renamed if x in used}
    for x, rule, unit in renamed:
        if unit not in useful:
            lacks = "has in a state of another class" if x.name in names else "does not have"
            raise ValueError(
                f"rename: {rule.pattern!r} leads to {x.name or '(the root)'}, which the new tree {lacks}. The nearest "
                f"paths: {nearest(x.name, names)}"
            )


def check_strict(
    report: GraftReport,
    old: Iterable[str],
    fresh: Sequence[Pattern],
    rename: Mapping[str, Targets],
    hints: Sequence[str],
) -> None:
    """Raise a ValueError unless every leaf of both trees is used; it lists the others, and what would accept them.

    Args:
        report: what became of each leaf.
        old: the names of the leaves of the old tree.
        fresh: the patterns of new leaves that keep their values.
        rename: as in `graft`.
        hints: what else to say.
    """
    left = {outcome: [row for row in report if row.kind == outcome and row.strict] for outcome in _TITLES}
    if not any(left.values()):
        return
    lacking, refused, unused = ([row.path for row in rows] for rows in left.values())
    lines = ["graft: leaves are left. Pass strict=False for a report instead of this error."]
    for outcome, rows in left.items():
        lines += [_TITLES[outcome]] * bool(rows)
        for i, row in enumerate(rows[:_LISTED]):
            sides = " | ".join(side for side in (row.new, row.old) if side != "nothing")
            is_near = outcome == "fresh" and unused and i < _WITH_NEAREST
            near = f"; the nearest names left over: {nearest(row.path, unused)}" if is_near else ""
            lines.append(f"  {row.path or '(the root)'} ({sides}){near}")
        lines += [f"  and {len(rows) - _LISTED} more"] * (len(rows) > _LISTED)
    lines += hints
    lines += ["If a name has changed, pass rename={old: new}. To keep these new values and drop these old ones, pass"]
    keep = cover([*lacking, *refused], [row.path for row in report.kept])
    drop = cover(unused, set(old).difference(unused))
    lines += [f"  fresh={_literal([*fresh, *keep])},"] * bool(keep)
    lines += [f"  rename={_literal(dict.fromkeys(drop) | dict(rename))},"] * bool(drop)
    raise ValueError("\n".join(lines))


def _literal(x: PyTree) -> str:
    """Write an argument as one pastes it."""
    if is_mapping(x):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(value)}' for key, value in x.items())}}}"
    if type(x) in (list, tuple):
        return f"[{', '.join(map(_literal, x))}]"
    return json.dumps(x, ensure_ascii=False) if isinstance(x, str) else repr(x)


def cover(names: Sequence[str], others: Iterable[str]) -> list[str]:
    """Return globs that match all of these names, and none of the others."""

    def wider(name: str) -> list[str]:
        """Return globs that match a name and others, the widest first; a `*` stands for the layers of a model."""
        parts = name.split(".")
        above = [".".join((*parts[:i], "**")) for i in range(len(parts))]
        return [glob for each in (*above, name) for glob in (each, _INDEX.sub("*", each))] + [f"{name}.**"]

    globs = list(dict.fromkeys(each for name in names for each in wider(name)))
    patterns = PatternSet(globs)
    wrong, right = (Counter(globs[i] for name in xs for i in patterns.place(name).ends) for xs in (others, names))
    best = (next((x for x in wider(name) if right[x] > 1 and not wrong[x]), name or "**") for name in names)
    return list(dict.fromkeys(best))


def hints(lacking: Sequence[Leaf], unused: Sequence[Leaf], has_states: bool, has_matches: bool) -> Iterator[str]:
    """Yield what is likely to be the reason why leaves are left.

    Args:
        lacking: the new leaves that are left.
        unused: the old leaves that are left.
        has_states: whether any leaf of the old tree is in a state.
        has_matches: whether any leaf of the new tree has an old value.
    """
    lists = {x.name.rpartition(".")[0] for x in unused if is_weak(x.value) and x.name.rpartition(".")[2].isdigit()}
    if lists and not (has_matches and lists.isdisjoint(x.name for x in lacking)):
        yield "A list of numbers, as JSON has them, is a leaf for each number: make it an array, jnp.asarray(x)."
    states = {x.slot.kind: x.slot for x in reversed(lacking) if x.slot.kind}
    if states and not has_states:
        yield (
            "If the old tree has plain dicts for optimizer states, they are matched by name alone. If the wrappers "
            "have changed, restore it into old_optimizer.init(old_params) first."
        )
        return
    if any(x.name.endswith("weight_sum") for x in lacking):
        yield (
            "weight_sum is the number of gradients in acc_grads, if they were accumulated without weights: graft the "
            "state at the end of a round, where mini_step is 0, or set it to mini_step. With fresh it is 0, and what "
            "was accumulated is lost."
        )
    if {x.name for x in lacking if x.slot.kind} & {x.name for x in unused if x.slot.kind}:
        yield "A name that both trees have is in states of two classes. From one to another, rename full paths."
    pairs = [(x.slot.keys, states[x.slot.kind].keys) for x in unused if x.slot.kind in states]
    for before, after in [pair for pair in pairs if pair[0] != pair[1]][:1]:
        yield (
            "Both trees have optimizer states, but under other keys, which are names: use "
            f"rename={{{'.'.join((*before, '**'))!r}: {'.'.join((*after, '**'))!r}}}"
        )


def other_lengths(lacking: Iterable[Leaf], new: Iterable[Leaf], unused: Iterable[Leaf], old: Iterable[Leaf]) -> str:
    """Say which lists end with entries that are left, in one of the trees; "" if no list does.

    Args:
        lacking: the new leaves that are left.
        new: the new leaves that have old values.
        unused: the old leaves that are left.
        old: the old leaves that are used.
    """
    lists = [(name, more, fewer) for name, (more, fewer) in _ends(lacking, new).items()]
    lists += [(name, fewer, more) for name, (more, fewer) in _ends(unused, old).items()]
    if not lists:
        return ""
    lengths = [f"{name or 'the root'} (new {m}, old {n})" for name, m, n in lists]
    name, m, n = lists[0]
    start = f"**.{name.rpartition('.')[2]}." if name else ""
    moved = f"i {'+' if m > n else '-'} {abs(m - n)}"
    end = repr(f"{start}{min(m, n)}.**")
    at_end = f"fresh=[{end}]" if m > n else f"rename={{{end}: None}}"
    return (
        f"lengths of lists differ: {listed(lengths)}. Their entries are matched by index. If an entry was inserted "
        "or removed before the end, those after it get wrong values: pass "
        f"rename={{f'{start}{{i}}.**': f'{start}{{{moved}}}.**' for i in range(k, {n})}}, where k is the old index of "
        f"the first entry that moved. If it was the last, say so with {at_end}"
    )


def _ends(left: Iterable[Leaf], matched: Iterable[Leaf]) -> dict[str, tuple[int, int]]:
    """Return the lists of which entries at the end are left: their lengths with these, and without them."""
    entries = [entry for leaf in matched for entry in _entries(leaf)]
    last = {which: i for which, i, _ in sorted(entries, key=lambda entry: entry[1])}
    alike = {(which, rest) for which, _, rest in entries}
    ends: dict[str, tuple[int, int]] = {}
    for leaf in left:
        for which, i, rest in _entries(leaf):
            if (which, rest) in alike and i > last[which]:
                ends[which[1]] = max(i + 1, ends.get(which[1], (0, 0))[0]), last[which] + 1
    return ends


def _entries(leaf: Leaf) -> Iterator[tuple[tuple[StateNode, str], int, str]]:
    """Yield the lists around a leaf, each by its state and its name there, with the index and what is below that."""
    below = leaf.slot.below
    for match in _INDEX.finditer(below):
        yield (leaf.state, below[: match.start()].removesuffix(".")), int(match[0]), below[match.end() :]
