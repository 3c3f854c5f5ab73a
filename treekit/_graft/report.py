"""The report of a graft: what became of each leaf, and what accepts those that are left."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from treekit._base.key_path import Pattern, PatternSet, listed, nearest
from treekit._base.table import as_table, in_colours
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.names import Leaf, State, Targets

_LISTED = 100  # leaves of one kind that an error lists
_WITH_NEAREST = 10  # of these, those with the nearest names
_INDEX = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")

Kind = Literal["kept", "fresh", "dropped", "refused", "missing"]
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
    left = {kind: [row for row in report if row.kind == kind and row.strict] for kind in _TITLES}
    if not any(left.values()):
        return
    lacking, refused, unused = ([row.path for row in rows] for rows in left.values())
    lines = ["graft: leaves are left. Pass strict=False for a report instead of this error."]
    for kind, rows in left.items():
        lines += [_TITLES[kind]] * bool(rows)
        for i, row in enumerate(rows[:_LISTED]):
            sides = " | ".join(side for side in (row.new, row.old) if side != "nothing")
            is_near = kind == "fresh" and unused and i < _WITH_NEAREST
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
        above = [".".join((*parts[:i], "**")) for i in range(len(parts) + 1)]
        globs = [x for each in above[:-1] for x in (each, _INDEX.sub("*", each))]
        return [*globs, _INDEX.sub("*", ".".join(parts)), above[-1]]

    globs = list(dict.fromkeys(each for name in names for each in wider(name)))
    patterns = PatternSet(globs)
    wrong, count = (Counter(globs[i] for name in xs for i in patterns.place(name).ends) for xs in (others, names))
    found: dict[str, None] = {}
    for name in names:
        useful = (each for each in wider(name) if count[each] > 1 and not wrong[each])
        found[next(useful, name or "**")] = None
    return list(found)


def hints(new: Sequence[Leaf], old: Sequence[Leaf], has_states: bool) -> list[str]:
    """Say what is known of optimizer states if these leaves of both trees are left.

    Args:
        new: the leaves of the new tree.
        old: the leaves of the old tree.
        has_states: whether any leaf of the old tree is in a state.
    """
    states = {leaf.state.kind: leaf.state for leaf in reversed(new) if leaf.state}
    if states and not has_states:
        return [
            "If the old tree has plain dicts for optimizer states, they are matched by name alone. If the wrappers "
            "have changed, restore it into old_optimizer.init(old_params) first."
        ]
    found: list[str] = []
    if any(leaf.name.endswith("weight_sum") for leaf in new):
        found.append(
            "weight_sum is the number of gradients in acc_grads, if they were accumulated without weights: graft the "
            "state at the end of a round, where mini_step is 0, or set it to mini_step. With fresh it is 0, and what "
            "was accumulated is lost."
        )
    if {leaf.name for leaf in new if leaf.state} & {leaf.name for leaf in old if leaf.state}:
        found.append("A name that both trees have is in states of two classes. From one to another, rename full paths.")
    for state in (leaf.state for leaf in old if leaf.state):
        other = states.get(state.kind)
        if other and other.keys != state.keys:
            before, after = (".".join((*x.keys, "**")) for x in (state, other))
            found.append(
                "Both trees have optimizer states, but under other keys, which are names: use "
                f"rename={{{before!r}: {after!r}}}"
            )
            break
    return found


def other_lengths(new: Iterable[Leaf], lacking: Iterable[Leaf], old: Iterable[Leaf], unused: Iterable[Leaf]) -> str:
    """Say which lists end with entries that are left, in one of the trees; "" if no list does.

    Args:
        new: the new leaves that have old values.
        lacking: the new leaves that are left.
        old: the old leaves that are used.
        unused: the old leaves that are left.
    """
    longer, shorter = _ends(lacking, new), _ends(unused, old)
    if not (longer or shorter):
        return ""
    lengths = [f"{name or 'the root'} (new {n}, old {end})" for name, (n, end) in longer.items()]
    lengths += [f"{name or 'the root'} (new {end}, old {n})" for name, (n, end) in shorter.items()]
    name, (n, end) = next(iter((longer or shorter).items()))
    start = f"**.{name.rpartition('.')[2]}." if name else ""
    moved = f"i {'+' if longer else '-'} {n - end}"
    at_end = f"fresh=[{f'{start}{end}.**'!r}]" if longer else f"rename={{{f'{start}{end}.**'!r}: None}}"
    return (
        f"lengths of lists differ: {listed(lengths)}. Their entries are matched by index. If an entry was inserted "
        "or removed before the end, those after it get wrong values: pass "
        f"rename={{f'{start}{{i}}.**': f'{start}{{{moved}}}.**' for i in range(k, {end if longer else n})}}, where k "
        f"is the old index of the first entry that moved. If it was the last, say so with {at_end}"
    )


def _ends(left: Iterable[Leaf], matched: Iterable[Leaf]) -> dict[str, tuple[int, int]]:
    """Return the lists of which entries at the end are left: their lengths with these, and without them."""
    alike: set[tuple[State | None, str, str]] = set()
    last: dict[tuple[State | None, str], int] = {}
    for leaf in matched:
        for name, i, rest in _entries(leaf):
            alike.add((leaf.state, name, rest))
            last[leaf.state, name] = max(i, last.get((leaf.state, name), 0))
    found: dict[str, tuple[int, int]] = {}
    for leaf in left:
        for name, i, rest in _entries(leaf):
            if (leaf.state, name, rest) in alike and i > last[leaf.state, name]:
                found[name] = max(i + 1, found.get(name, (0, 0))[0]), last[leaf.state, name] + 1
    return found


def _entries(leaf: Leaf) -> Iterator[tuple[str, int, str]]:
    """Return the lists around a leaf in its state, with its index in each, and its name below that."""
    for match in _INDEX.finditer(leaf.below):
        yield leaf.below[: match.start()].removesuffix("."), int(match[0]), leaf.below[match.end() :]
