"""Walk through a tree: which of its nodes have a name that a pattern matches, or are of a class?"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from treekit._base.flax import is_variable
from treekit._base.jax import jtu
from treekit._base.key_path import keyed_children, start_below
from treekit._base.pattern_set import PatternSet
from treekit._base.patterns import Pattern
from treekit._base.types import IsLeaf, PyTree

Indices = tuple[int, ...]  # the index of each child that leads to a node, from the root


class Matched(NamedTuple):
    """A node or a leaf, and what selects it.

    Attributes:
        name: its name, as in `path_mask`.
        place: where it is.
        node: the node or the leaf.
        is_leaf: whether it is a leaf.
        patterns: the indices of the patterns that match its name.
        classes: the indices of the classes of which it is an outermost instance.
        within: these, and the indices of the classes of which a node above it is an instance.
    """

    name: str
    place: Indices
    node: Any
    is_leaf: bool
    patterns: tuple[int, ...]
    classes: tuple[int, ...]
    within: tuple[int, ...]


def walk_matched(
    selectors: Sequence[Pattern | type[Any]], tree: PyTree, is_leaf: IsLeaf, *, whole: bool = False
) -> Iterator[Matched]:
    """Yield the nodes and leaves of a tree that patterns and classes select, in its order.

    Args:
        selectors: patterns and classes.
        tree: any pytree.
        is_leaf: as in `jax.tree.flatten`.
        whole: yield all nodes and leaves, also those that none of the selectors selects.
    """
    pattern_set = PatternSet(selectors)
    classes = [(i, x) for i, x in enumerate(selectors) if isinstance(x, type)]
    # The nodes to visit: name with a dot, place and node, the classes that are looked for, and those found above.
    todo: list[Any] = [("", (), tree, classes, ())]
    while todo:
        start, place, x, wanted, above = todo.pop()
        name = start[:-1]
        goes_on = whole or pattern_set.may_match_below(name) or wanted or is_variable(x)
        children = keyed_children(x, is_leaf) if goes_on else []
        # A variable and its value have one name. A pattern selects the value, not the variable.
        matching = () if is_variable(x) and children else pattern_set.matching(name)
        instances = tuple([i for i, cls in wanted if isinstance(x, cls)]) if wanted else ()
        if instances:
            wanted, above = [each for each in wanted if each[0] not in instances], above + instances
        if whole or matching or instances:
            ends = not children and (jtu.all_leaves([x]) or (is_leaf is not None and is_leaf(x)))
            yield Matched(name, place, x, ends, matching, instances, above)
        below = [
            (start_below(start, text), (*place, i), child, wanted, above) for i, (text, child) in enumerate(children)
        ]
        todo += reversed(below)
