"""Walk through a tree: which of its nodes have a name that a pattern matches, or are of a class?"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from treekit._base.flax import is_bookkeeping, is_variable
from treekit._base.jax import jtu
from treekit._base.tree import or_leaf
from treekit._base.types import IsLeaf, PyTree
from treekit._names.key_path import keyed_children, start_below
from treekit._names.pattern_set import PatternSet
from treekit._names.patterns import Pattern

Indices = tuple[int, ...]  # the index of each child that leads to a node, from the root


class Found(NamedTuple):
    """A node or a leaf, and what selects it.

    If a `Linear` is inside another one, and the first selector is that class, the outer one has `classes=(0,)`, and
    the inner one `classes=()`; both, and the leaves of both, have `within=(0,)`.

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
    patterns = PatternSet(selectors)
    classes = [(i, x) for i, x in enumerate(selectors) if isinstance(x, type)]
    is_end = or_leaf(is_leaf, lambda x: jtu.all_leaves([x]))

    def visit(x: Any, start: str, place: Indices, above: tuple[int, ...]) -> Iterator[Found]:
        """Yield those at and below a node, given its `start_below` and the classes of the nodes above it."""
        name = start[:-1]
        # A variable and its value have one name. A pattern selects the value, so the walk goes on to it.
        # With a class that no node above is of, an instance may be below.
        may_be_below = len(above) < len(classes) or patterns.may_match_below(name) or is_variable(x)
        children = keyed_children(x, is_leaf) if whole or may_be_below else []
        matching = () if is_variable(x) and children else patterns.matching(name)
        outermost = tuple([i for i, cls in classes if i not in above and isinstance(x, cls)])
        within = above + outermost
        if (whole or matching or outermost) and not is_bookkeeping(x):
            # A node whose children were not asked for has none here, and is not a leaf.
            yield Found(name, place, x, not children and is_end(x), matching, outermost, within)
        for i, (text, child) in enumerate(children):
            yield from visit(child, start_below(start, text), (*place, i), within)

    return visit(tree, "", (), ())
