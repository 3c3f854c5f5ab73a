"""The warning of `graft` that a list has another length than in the old tree."""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from treekit._base.patterns import listed, match_glob
from treekit._graft.leaf import Leaf, Slice, Stack

_INDEX = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
List = tuple[str, str]  # the path of a state, and that of a list below it


def warn_of_lengths(found: Mapping[Leaf, Leaf], old: Iterable[Leaf], patterns: Mapping[Leaf, str]) -> None:
    """Warn of lists whose lengths differ, unless `rename` says where their entries go.

    Args:
        found: the old leaf of each new one.
        old: all old leaves.
        patterns: the patterns that renamed old leaves.
    """
    pairs: dict[tuple[List, int], dict[List, int]] = defaultdict(dict)
    for leaf, source in found.items():
        origin = source.origins[0]
        if isinstance(source, (Stack, Slice)):
            continue  # where `rename` says which axis is the list
        ours, theirs = list(_lists(leaf)), list(_lists(origin))
        # From the end, since `rename` may have removed lists above.
        for (one, _), (other, _) in zip(reversed(ours), reversed(theirs), strict=False):
            pairs[one, leaf.state.lengths[one[1]]][other] = origin.state.lengths[other[1]]
    named: dict[List, dict[int, bool]] = defaultdict(lambda: defaultdict(bool))
    for leaf in old if patterns else ():
        for position, (which, i) in enumerate(_lists(leaf)):
            named[which][i] |= leaf in patterns and _is_named(leaf, patterns[leaf], position)
    differ = {
        f"{below or 'the root'} (new {n}, old {before})": (below, n, before)
        for ((_, below), n), others in pairs.items()
        if all(before != n and not _decided(named[other]) for other, before in others.items())
        for before in list(others.values())[:1]
    }
    if differ:
        _warn(list(differ), *next(iter(differ.values())))


def _warn(differ: list[str], below: str, n: int, before: int) -> None:
    name = f"**.{below.rpartition('.')[2]}." if below else ""
    moved = f"i {'+' if n > before else '-'} {abs(n - before)}"
    warnings.warn(
        f"graft: lengths of lists differ: {listed(differ)}. Their entries are matched by index. If an entry was "
        "inserted or removed before the end, those after it get wrong values: use "
        f"rename={{f'{name}{{i}}.**': f'{name}{{{moved}}}.**' for i in range(k, {before})}}, where k is the old index "
        f"of the first entry that moved. If the indices are right, say so with rename={{'{name}**': '{name}**'}}",
        stacklevel=5,  # the caller of `graft`
    )


def _lists(leaf: Leaf) -> Iterator[tuple[List, int]]:
    """Return the lists above a leaf within its state, with its index in each."""
    for match in _INDEX.finditer(leaf.below):
        below = leaf.below[: match.start()].removesuffix(".")
        if below in leaf.state.lengths:
            yield (leaf.state.name, below), int(match[0])


def _decided(entries: Mapping[int, bool]) -> bool:
    """Whether patterns say where an entry goes, if only to its own index, and where all after it go."""
    first = min((i for i, is_named in entries.items() if is_named), default=None)
    return first is not None and all(is_named for i, is_named in entries.items() if i >= first)


def _is_named(leaf: Leaf, pattern: str, position: int) -> bool:
    """Whether a pattern reaches the index of a leaf in a list: `layers.1.**` or `layers.**` do, `**` does not."""
    match = match_glob(pattern, leaf.name)
    index = list(_INDEX.finditer(leaf.below))[position].start() + len(leaf.name) - len(leaf.below)
    return match is not None and not any(start < index < end for start, end in match.regs[1:])
