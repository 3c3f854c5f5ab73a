"""Raise the error of a strict graft: which leaves are left, and which arguments accept them?"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from treekit._graft.rename import Targets
from treekit._graft.report import GraftReport
from treekit._names.pattern_set import PatternSet
from treekit._names.patterns import Pattern
from treekit._text.lists import nearest

_LISTED = 100  # leaves of one kind that an error lists
_WITH_NEAREST = 10  # of these, those with the nearest names
_DEPTH = 32  # the parts of a name for which shorter globs are tried; those of a hostile file may have thousands
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")

_TITLES: dict[str, str] = {
    "fresh": "The old tree has no value for:",
    "refused": "Another shape, which needs convert or resize, or another dtype, which needs cast=True, or convert "
    "where a cast would change the values (new | old):",
    "dropped": "The new tree has no place for:",
}


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
    lines += [f"  fresh={[*fresh, *keep]},"] * bool(keep)
    lines += [f"  rename={dict.fromkeys(drop) | dict(rename)},"] * bool(drop)
    raise ValueError("\n".join(lines))


def cover(names: Sequence[str], others: Iterable[str]) -> list[str]:
    """Return globs that match all of these names and none of the others: for each name, the one that matches the most.

    >>> cover(["head.w", "head.b", "layers.0.scale", "layers.1.scale"], others=["layers.0.w", "layers.1.w"])
    ['head.**', 'layers.*.scale']
    """
    globs = list({glob for name in names for glob in _globs(name)})
    patterns = PatternSet(globs)
    matching = Counter(globs[i] for name in names for i in patterns.matching(name))
    for glob in {globs[i] for name in others for i in patterns.matching(name)}:
        matching[glob] = 0
    return list(dict.fromkeys(max(_globs(name), key=matching.__getitem__) for name in names))


def _globs(name: str) -> list[str]:
    """Return the name itself, and globs that match it and others; a `*` stands for an index.

    >>> _globs("layers.0.w")
    ['layers.0.w', 'layers.*.w', 'layers.0.**', 'layers.*.**', 'layers.**', '**']
    """
    parts = name.split(".", _DEPTH)
    if len(parts) > _DEPTH:
        return [name]
    above = [".".join((*parts[:i], "**")) for i in reversed(range(len(parts)))]
    return list(dict.fromkeys(each for glob in (name or "**", *above) for each in (glob, _INDEX.sub("*", glob))))
