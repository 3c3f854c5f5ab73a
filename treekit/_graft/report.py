"""The report of a graft: what became of each leaf, and what accepts those that are left."""

import dataclasses
import glob
import json
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from treekit._base.key_path import Pattern, PatternSet, listed, match_glob, nearest
from treekit._base.table import as_table, in_colours
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.names import Leaf, RenamedTree, Targets

_LISTED = 100  # leaves of one kind that an error lists
_WITH_NEAREST = 10  # of these, those with the nearest names
_INDEX = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")

Kind = Literal["kept", "fresh", "dropped", "refused", "missing"]
_TITLES: dict[str, str] = {
    "fresh": "The old tree has no value for:",
    "refused": "Another shape, which needs convert or resize, or another dtype, which needs cast=True (new | old):",
    "dropped": "The new tree has no place for:",
    "missing": "rename leads to names that the new tree does not have:",
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


def check_strict(
    report: GraftReport, old: Sequence[Leaf], fresh: Sequence[Pattern], renamed: RenamedTree, hints: Sequence[str]
) -> None:
    """Raise a ValueError unless every leaf of both trees is used; it lists the others, and what would accept them.

    Args:
        report: what became of each leaf.
        old: the leaves of the old tree.
        fresh: the patterns of new leaves that keep their values.
        renamed: the old leaves, with the names that `rename` gives them.
        hints: what else to say.
    """
    left = {kind: [row for row in report if row.kind == kind and row.strict] for kind in _TITLES}
    if not any(left.values()):
        return
    lacking, refused, unused = ([row.path for row in left[kind]] for kind in ("fresh", "refused", "dropped"))
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
    there = set(unused)
    if there.intersection(lacking):
        lines += ["A name that both trees have is in states of two classes. From one to another, rename full paths."]
    lines += ["If a name has changed, pass rename={old: new}. To keep these new values and drop these old ones, pass"]
    keep = cover([*lacking, *refused], [row.path for row in report.kept])
    drop = cover(unused, [leaf.name for leaf in old if leaf.name not in there])
    lines += [f"  fresh={_literal([*fresh, *keep])},"] * bool(keep)
    given = _without(renamed, {row.path for row in left["missing"]})
    lines += [f"  rename={_literal(dict.fromkeys(drop) | given)},"] * bool(drop or left["missing"])
    raise ValueError("\n".join(lines))


def _literal(x: PyTree) -> str:
    """Write an argument as one pastes it."""
    if is_mapping(x):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(value)}' for key, value in x.items())}}}"
    if type(x) in (list, tuple):
        return f"[{', '.join(map(_literal, x))}]"
    return json.dumps(x, ensure_ascii=False) if isinstance(x, str) else repr(x)


def cover(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return globs that match all of these names, and none of the others."""

    def above(name: str) -> list[str]:
        parts = glob.escape(name).split(".")
        return [".".join((*parts[:i], "**")) for i in range(1, len(parts) + 1)]

    taken, count = (Counter(each for name in xs for each in above(name)) for xs in (others, names))
    globs: list[str] = []
    for name in names:
        widest = next((each for each in above(name) if not taken[each]), "")
        globs.append(widest if count[widest] > 1 else glob.escape(name) or "**")
    # One `*` for the layers of a model, if that matches nothing else.
    starred = [_INDEX.sub("*", each) for each in globs]
    patterns = PatternSet(starred)
    wrong = {starred[i] for name in others for i in patterns.place(name).ends}
    several = Counter(_INDEX.sub("*", each) for each in set(globs))
    return list(
        dict.fromkeys(
            each if many in wrong or several[many] == 1 else many for each, many in zip(globs, starred, strict=True)
        )
    )


def _without(renamed: RenamedTree, missing: Container[str]) -> dict[str, Targets]:
    """Return the argument `rename` without the targets that lead to these names."""
    there: dict[str, list[str]] = defaultdict(list)
    for leaf in renamed.derived:
        if leaf.name not in missing:
            there[leaf.source].append(leaf.name)
    useful = {leaf.rule for leaf in renamed.derived if leaf.name not in missing}
    useless = {leaf.rule[:2] for leaf in renamed.derived if leaf.rule and leaf.rule not in useful}
    given: dict[str, Targets] = {
        pattern: targets
        if targets is None or isinstance(targets, str)
        else [x for x in targets if (pattern, x) not in useless]
        for pattern, targets in renamed.rename.items()
    }
    special: dict[str, Targets] = {
        leaf.source: there[leaf.source] for leaf in renamed.derived if leaf.name in missing and leaf.rule in useful
    }
    return special | given | special


def other_lengths(sources: Mapping[Leaf, Sequence[Leaf]], new: Iterable[Leaf], old: Iterable[Leaf]) -> str:
    """Say which lists end with entries that are left, in one of the trees; "" if no list does.

    Args:
        sources: the old leaves of new ones.
        new: the new leaves that are left.
        old: the old leaves that are left.
    """
    # Where `rename` stacks or unstacks, it says which axis is the list.
    matched = [(leaf, xs[0]) for leaf, xs in sources.items() if not xs[0].is_stacked]
    longer, shorter = _ends(new, matched), _ends(old, [(x.origins[0], x) for _, x in matched])
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


def _ends(left: Iterable[Leaf], matched: Sequence[tuple[Leaf, Leaf]]) -> dict[str, tuple[int, int]]:
    """Return the lists of which entries at the end are left: their lengths with these, and without them.

    Args:
        left: the leaves that are left.
        matched: the other leaves of the same tree, and where `rename` has put the old leaf of each.
    """
    alike: set[tuple[tuple[str, str], str]] = set()
    last: dict[tuple[str, str], tuple[int, bool]] = {}
    for leaf, source in matched:
        origin = source.origins[0]
        match = match_glob(source.rule.pattern, origin.name) if source.rule else None
        spans = match.regs[1:] if match else ()
        starts = [x.start() + len(origin.name) - len(origin.below) for x in _INDEX.finditer(origin.below)]
        for position, (where, i, rest) in enumerate(_entries(leaf)):
            # Whether `rename` reaches the index: `layers.1.**` and `layers.**` do, `**` does not.
            start = starts[position] if match and position < len(starts) else None
            is_named = start is not None and not any(begin < start < end for begin, end in spans)
            alike.add((where, rest))
            last[where] = max((i, is_named), last.get(where, (0, False)))
    found: dict[str, tuple[int, int]] = {}
    for leaf in left:
        for where, i, rest in _entries(leaf):
            end, is_named = last.get(where, (i, True))
            if (where, rest) in alike and i > end and not is_named:
                found[where[1]] = max(i + 1, found.get(where[1], (0, 0))[0]), end + 1
    return found


def _entries(leaf: Leaf) -> Iterator[tuple[tuple[str, str], int, str]]:
    """Return the lists around a leaf in its state, with its index in each, and its name below that."""
    for match in _INDEX.finditer(leaf.below):
        list_name = leaf.below[: match.start()].removesuffix(".")
        yield (leaf.state.name if leaf.state else "", list_name), int(match[0]), leaf.below[match.end() :]
