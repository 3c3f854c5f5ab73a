"""What matching leaves of both trees, and whether a pattern of `rename` has led nowhere."""

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from treekit._graft.leaves import Leaf
from treekit._graft.matches import Matches
from treekit._graft.sources import Source
from treekit._text.lists import nearest


class Left(NamedTuple):
    """What is left of both trees after matching.

    Attributes:
        lacking: the new leaves that need an old value and have none.
        sources: the old values that no new leaf uses up.
        used: the old leaves of which a value is used.
        unused: the old leaves of which none is used, except those that `rename` drops or displaces.
    """

    lacking: list[Leaf]
    sources: list[Source]
    used: set[Leaf]
    unused: list[Leaf]


def left_of(new: Iterable[Leaf], old: Iterable[Source], matches: Matches, fresh: Container[str]) -> Left:
    """Return what matching leaves of the new leaves and of the old values."""
    used_up = {x for each in matches.values() for x in each}
    used = {leaf for x in used_up for leaf in x.leaves}
    sources = [x for x in old if x not in used_up]
    return Left(
        lacking=[leaf for leaf in new if leaf.is_asked and leaf.name not in fresh and leaf not in matches],
        sources=sources,
        used=used,
        unused=[leaf for x in sources for leaf in x.leaves if leaf not in used],
    )


def check_rename(sources: Iterable[Source], left: Left, strict: bool, names: Sequence[str]) -> None:
    """Raise a ValueError if a pattern of `rename` leads to no new leaf; with `strict`, if one of its targets does not.

    Args:
        sources: all old values.
        left: what matching left of them.
        strict: as in `graft`.
        names: the names of the new leaves.
    """
    renamed, unused = [(x, x.rule) for x in sources if x.rule], set(left.sources)
    used = {rule for x, rule in renamed if x not in unused}
    used_patterns = {rule.pattern for rule in used}
    for x, rule in renamed:
        is_used = rule in used if strict else rule.pattern in used_patterns
        if not is_used:
            lacks = "has in a state of another class" if x.name in names else "does not have"
            raise ValueError(
                f"rename: {rule.pattern!r} leads to {x.name or 'the root'}, which the new tree {lacks}. The nearest "
                f"paths: {nearest(x.name, names)}"
            )
