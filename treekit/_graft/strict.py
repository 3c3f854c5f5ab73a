"""Raise the error of a strict graft: which leaves are left, and which arguments accept them?"""

from collections.abc import Iterable, Mapping, Sequence

from treekit._graft.rename import Targets
from treekit._graft.report import Grafted, GraftReport
from treekit._names.cover import cover
from treekit._names.patterns import Pattern
from treekit._text.lists import nearest

_LISTED = 100  # leaves of one kind that an error lists
_WITH_NEAREST = 10  # of these, those with the nearest names

_LACKING = "The old tree has no value for:"
_REFUSED = (
    "Another shape, which needs convert or resize, or another dtype, which needs cast=True, or convert where a cast "
    "would change the values (new | old):"
)
_UNUSED = "The new tree has no place for:"


def check_strict(
    report: GraftReport,
    old: Iterable[str],
    fresh: Sequence[Pattern],
    rename: Mapping[str, Targets],
    lengths_differ: str,
) -> None:
    """Raise a ValueError unless every leaf of both trees is used; it lists the others, and what would accept them.

    Args:
        report: what became of each leaf.
        old: the names of the leaves of the old tree.
        fresh: the patterns of new leaves that keep their values.
        rename: as in `graft`.
        lengths_differ: the sentence of `other_lengths`; "" if no lengths differ.
    """
    lacking = [row for row in report.fresh if row.strict]
    refused = [row for row in report.refused if row.strict]
    unused = [row for row in report.dropped if row.strict]
    if not (lacking or refused or unused):
        return
    unused_names = [row.path for row in unused]
    lines = ["graft: leaves are left. Pass strict=False for a report instead of this error."]
    lines += _lines(_LACKING, lacking, unused_names)
    lines += _lines(_REFUSED, refused)
    lines += _lines(_UNUSED, unused)
    if lengths_differ:
        lines.append(f"The {lengths_differ}")
    lines.append(
        "If a name has changed, pass rename={old: new}. To keep these new values and drop these old ones, pass"
    )
    keep = cover([row.path for row in (*lacking, *refused)], others=[row.path for row in report.kept])
    drop = cover(unused_names, others=set(old).difference(unused_names))
    if keep:
        lines.append(f"  fresh={[*fresh, *keep]},")
    if drop:
        lines.append(f"  rename={dict.fromkeys(drop) | dict(rename)},")
    raise ValueError("\n".join(lines))


def _lines(title: str, rows: Sequence[Grafted], unused: Sequence[str] = ()) -> list[str]:
    """Return a title and a line for each leaf, if there are any; the first lines add the nearest unused names."""
    if not rows:
        return []
    lines = [title]
    for i, row in enumerate(rows[:_LISTED]):
        sides = " | ".join(side for side in (row.new, row.old) if side != "nothing")
        near = f"; the nearest names left over: {nearest(row.path, unused)}" if unused and i < _WITH_NEAREST else ""
        lines.append(f"  {row.path or 'the root'} ({sides}){near}")
    if len(rows) > _LISTED:
        lines.append(f"  and {len(rows) - _LISTED} more")
    return lines
