"""Say what accepts the leaves that are left."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.leaves import Leaf, StateNode
from treekit._graft.rename import Targets
from treekit._graft.report import GraftReport
from treekit._graft.sources import Source
from treekit._names.pattern_set import PatternSet
from treekit._names.patterns import Pattern
from treekit._text.lists import listed, nearest

_LISTED = 100  # leaves of one kind that an error lists
_WITH_NEAREST = 10  # of these, those with the nearest names
_DEPTH = 32  # the parts of a name that advice is about; those of a hostile file may have thousands
_INDEX = re.compile(r"(?:(?<=\.)|^)\d{1,18}(?=\.|$)")

_TITLES: dict[str, str] = {
    "fresh": "The old tree has no value for:",
    "refused": "Another shape, which needs convert or resize, or another dtype, which needs cast=True, or convert "
    "where a cast would change the values (new | old):",
    "dropped": "The new tree has no place for:",
}


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
                f"rename: {rule.pattern!r} leads to {x.name or 'the root'}, which the new tree {lacks}. The nearest "
                f"paths: {nearest(x.name, names)}"
            )


def check_strict(
    report: GraftReport,
    old: Iterable[str],
    fresh: Sequence[Pattern],
    rename: Mapping[str, Targets],
    lengths: str,
) -> None:
    """Raise a ValueError unless every leaf of both trees is used; it lists the others, and what would accept them.

    Args:
        report: what became of each leaf.
        old: the names of the leaves of the old tree.
        fresh: the patterns of new leaves that keep their values.
        rename: as in `graft`.
        lengths: what `other_lengths` says.
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
            lines.append(f"  {row.path or 'the root'} ({sides}){near}")
        lines += [f"  and {len(rows) - _LISTED} more"] * (len(rows) > _LISTED)
    lines += [f"The {lengths}"] * bool(lengths)
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
        parts = name.split(".", _DEPTH)
        above = [".".join((*parts[:i], "**")) for i in range(len(parts))]
        if len(parts) > _DEPTH:
            return above
        return [glob for each in (*above, name) for glob in (each, _INDEX.sub("*", each))] + [f"{name}.**"]

    globs = list(dict.fromkeys(each for name in names for each in wider(name)))
    patterns = PatternSet(globs)
    wrong, right = (Counter(globs[i] for name in xs for i in patterns.matching(name)) for xs in (others, names))
    best = (next((x for x in wider(name) if right[x] > 1 and not wrong[x]), name or "**") for name in names)
    return list(dict.fromkeys(best))


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
    for match in itertools.islice(_INDEX.finditer(below), _DEPTH):
        yield (leaf.state, below[: match.start()].removesuffix(".")), int(match[0]), below[match.end() :]
