"""The warning of `graft` that a list has another length than in the old tree."""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping

from treekit._base.patterns import match_glob
from treekit._graft.leaf import Leaf
from treekit._graft.states import State

_INDEX = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")


def warn_of_lengths(found: Mapping[Leaf, Leaf]) -> None:
    """Warn of lists whose lengths differ in matched states, unless `rename` says where their entries go."""
    origins: dict[State, dict[State, None]] = defaultdict(dict)
    for leaf, source in found.items():
        origins[leaf.state][source.state] = None
    differ: dict[str, tuple[str, int, int]] = {}
    for state, sources in origins.items():
        lists = {source: _lists(source.leaves.items()) for source in sources}
        for below, entries in _lists(state.leaves.items()).items():
            old = {source: found[below] for source, found in lists.items() if below in found}
            if old and all(max(x) != max(entries) and not _decides(below, x) for x in old.values()):
                n, before = max(entries) + 1, max(next(iter(old.values()))) + 1
                differ[f"{below or 'the root'} (new {n}, old {before})"] = (below, n, before)
    if not differ:
        return
    below, n, before = next(iter(differ.values()))
    name = f"**.{below.rpartition('.')[2]}." if below else ""
    moved = f"i {'+' if n > before else '-'} {abs(n - before)}"
    warnings.warn(
        f"graft: lengths of lists differ: {', '.join(differ)}. Their entries are matched by index. If an entry was "
        "inserted or removed before the end, those after it get wrong values: use "
        f"rename={{f'{name}{{i}}.**': f'{name}{{{moved}}}.**' for i in range(k, {before})}}, where k is the old index "
        f"of the first entry that moved. If the indices are right, say so with rename={{'{name}**': '{name}**'}}",
        stacklevel=4,  # the caller of `graft`
    )


def _lists(leaves: Iterable[tuple[str, Leaf]]) -> dict[str, dict[int, list[Leaf]]]:
    """Return the leaves of each entry of each list, by the path of the list: all names below it are integers."""
    found: dict[str, dict[str, list[Leaf]]] = defaultdict(lambda: defaultdict(list))
    for path, leaf in leaves:
        parts = path.split(".")
        for i, part in enumerate(parts):
            found[".".join(parts[:i])][part].append(leaf)
    return {
        below: {int(part): leaves for part, leaves in entries.items()}
        for below, entries in found.items()
        if all(map(str.isdecimal, entries))
    }


def _decides(below: str, entries: Mapping[int, list[Leaf]]) -> bool:
    """Whether a pattern says where an entry goes, if only to its own index, and patterns say so of all after it."""
    named = [i for i, leaves in entries.items() if any(_is_named(leaf, below) for leaf in leaves)]
    return bool(named) and all(i in named for i in entries if i >= min(named))


def _is_named(leaf: Leaf, below: str) -> bool:
    """Whether the pattern that renamed a leaf reaches its index in a list: `layers.1.**` or `layers.**`, not `**`."""
    origin = leaf.origins[0]
    match = match_glob(leaf.pattern, origin.name) if leaf.pattern else None
    if match is None:
        return False
    indices = [x.start() for x in _INDEX.finditer(origin.name)]
    position = len(_INDEX.findall(origin.name.removesuffix(origin.below))) + len(_INDEX.findall(below))
    if position >= len(indices):
        return True  # the old tree has no list there
    return not any(start < indices[position] < end for start, end in match.regs[1:])
