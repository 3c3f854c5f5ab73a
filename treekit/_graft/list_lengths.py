"""Which lists have more entries in one of the trees? Entries are matched by index, which an insertion makes wrong."""

import itertools
import re
from collections.abc import Iterable

from treekit._graft.leaves import Leaf
from treekit._graft.left import Left
from treekit._text.lists import listed

_INDEX = re.compile(r"(?<![^.])\d{1,18}(?![^.])")  # Python refuses to convert thousands of digits
_DEPTH = 32  # of the lists in lists that are looked at; a name from a hostile file may have thousands of indices


def other_lengths(left: Left, matched: Iterable[Leaf]) -> str:
    """Say which lists have more entries in one of the trees; "" if none has.

    For example, if `layers.0.w` to `layers.4.w` match, and the new tree has a `layers.5.w` too, this returns "lengths
    of lists differ: layers (new 6, old 5)", and what to do.

    Args:
        left: what is left of both trees.
        matched: the new leaves that have old values.
    """
    lengths = [f"{name} (new {longer}, old {shorter})" for name, longer, shorter in _longer(left.lacking, matched)]
    lengths += [f"{name} (new {shorter}, old {longer})" for name, longer, shorter in _longer(left.unused, left.used)]
    if not lengths:
        return ""
    return (
        f"lengths of lists differ: {listed(lengths)}. Their entries are matched by index. If an entry was inserted or "
        "removed before the end, those after it get wrong values, unless rename says where they have moved: "
        "{'**.layers.1.**': '**.layers.2.**', …}; see \"An inserted layer\" in the guide \"Load PyTorch weights\""
    )


def _longer(left: Iterable[Leaf], matched: Iterable[Leaf]) -> list[tuple[str, int, int]]:
    """Return the lists in which leaves are left after the last entry that matches: their names, and both lengths."""
    longer, shorter = _lengths(left), _lengths(matched)
    return [(name or "the root", n, shorter[name]) for name, n in longer.items() if n > shorter.get(name, n)]


def _lengths(leaves: Iterable[Leaf]) -> dict[str, int]:
    """Return the lengths of the lists around leaves, by their names, as far as these leaves show them.

    A leaf `blocks.1.layers.2.w` shows that `blocks` has two entries, and `blocks.1.layers` three. What is above an
    optimizer state is not matched by index.
    """
    lengths: dict[str, int] = {}
    for leaf in leaves:
        for index in itertools.islice(_INDEX.finditer(leaf.name, len(leaf.state.start)), _DEPTH):
            name = leaf.name[: index.start()].removesuffix(".")
            lengths[name] = max(int(index[0]) + 1, lengths.get(name, 0))
    return lengths
