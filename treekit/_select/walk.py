"""Walk through a tree: which of its nodes have a name that a pattern matches, or are of a class?"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from treekit._base.flax import is_bookkeeping, is_variable
from treekit._base.jax import jtu
from treekit._base.types import IsLeaf, PyTree
from treekit._names.key_path import keyed_children, start_below
from treekit._names.pattern_set import PatternSet
from treekit._names.patterns import Pattern

Indices = tuple[int, ...]  # the index of each child that leads to a node, from the root


class Found(NamedTuple):
    """A node or a leaf, and what selects it.

    Attributes:
        name: its name, as in `path_mask`.
        place: where it is.
        node: the node or the leaf.
        is_leaf: whether it is a leaf.
        patterns: the indices of the patterns that match its name.
        classes: the indices of the classes of which it is an outermost instance.
        within: the indices of the classes of which it, or a node above it, is an instance.
    """

    name: str
    place: Indices
    node: Any
    is_leaf: bool
    patterns: tuple[int, ...]
    classes: tuple[int, ...]
    within: tuple[int, ...]

    @property
    def selected_by(self) -> list[int]:
        """The indices of the patterns and classes that select it as a leaf, in order."""
        return sorted((*self.patterns, *self.within))


def walk_matched(
    selectors: Sequence[Pattern | type[Any]], tree: PyTree, is_leaf: IsLeaf, *, whole: bool = False
) -> Iterator[Found]:
    """Yield the nodes and leaves of a tree that patterns and classes select, in its order.

    Args:
        selectors: patterns and classes.
        tree: any pytree.
        is_leaf: as in `jax.tree.flatten`.
        whole: yield all nodes and leaves, also those that none of the selectors selects.
    """
    pattern_set = PatternSet(selectors)
    classes = [(i, x) for i, x in enumerate(selectors) if isinstance(x, type)]
    todo = [_Visit(tree, "", (), classes, ())]
    while todo:
        x, start, place, wanted, above = todo.pop()
        name = start[:-1]
        # A variable and its value have one name. A pattern selects the value, so the walk goes on to it.
        goes_on = whole or pattern_set.may_match_below(name) or wanted or is_variable(x)
        children = keyed_children(x, is_leaf) if goes_on else []
        matching = () if is_variable(x) and children else pattern_set.matching(name)
        instances = tuple([i for i, cls in wanted if isinstance(x, cls)]) if wanted else ()
        if instances:
            wanted, above = [each for each in wanted if each[0] not in instances], above + instances
        if (whole or matching or instances) and not is_bookkeeping(x):
            # A node whose children were not asked for has none here, and is not a leaf.
            is_end = not children and (jtu.all_leaves([x]) or (is_leaf is not None and is_leaf(x)))
            yield Found(name, place, x, is_end, matching, instances, above)
        todo += reversed(
            [
                _Visit(child, start_below(start, text), (*place, i), wanted, above)
                for i, (text, child) in enumerate(children)
            ]
        )


class _Visit(NamedTuple):
    """A node that the walk has yet to visit.

    Attributes:
        node: the node.
        start: its name with a dot, as in `start_below`.
        place: where it is.
        wanted: the classes that no node above it is an instance of, with their indices.
        above: the indices of the others.
    """

    node: Any
    start: str
    place: Indices
    wanted: Sequence[tuple[int, type[Any]]]
    above: tuple[int, ...]
