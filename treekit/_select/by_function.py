"""Select the nodes that a function of the tree returns."""

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from treekit._base.jax import jtu
from treekit._base.tree import has_node, is_none
from treekit._base.types import IsLeaf, PyTree
from treekit._compare.prefix import flatten_up_to
from treekit._names.key_path import flatten_with_path, path_name, walk
from treekit._select.advice import a_static_field, field_names
from treekit._select.selection import Selection
from treekit._text.describe import RUNS_ITS_CODE, describe_value

_MUST = (
    "where must return nodes of the tree that it receives, unchanged: neither values computed from leaves nor, as a "
    "predicate does, a bool (for all arrays, write tree_at(jax.Array, tree, replace_fn=f)). An object of a class that "
    "is not registered is a leaf, and a class that computes when JAX rebuilds it changes its leaves: treekit.node and "
    "treekit.register_node register classes"
)


# Python has a single () object, so identity cannot distinguish two of them in a tree. A mark for one is a tuple too,
# which `where` can read.
class _EmptyTuple(tuple[()]):
    pass


_is_empty_tuple = functools.partial(operator.is_, ())


class ByFunction(Selection):
    """The nodes that a function returns.

    It is called twice. First with the marked tree, in which each leaf is replaced by a mark, an object of its own:
    there, the nodes that it returns are found by identity, since in the tree itself small ints are one object, and a
    list may be at two places. Then with the tree, of which it must return the same nodes: these are what is selected.
    """

    def __init__(self, where: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf, *, strict: bool) -> None:
        self._mark(tree, is_leaf)
        returned, original = _call(where, self._marked), where(tree)
        self._check_same(returned, original)
        # The marked tree taken apart, into the selected nodes and the marks of all other leaves.
        is_returned = functools.partial(operator.is_, returned)
        self._parts, self._treedef = jtu.tree_flatten(self._marked, is_leaf=is_returned)
        self.is_one = any(map(is_returned, self._parts))
        several: Any = returned
        if not (self.is_one or isinstance(returned, Iterable)):
            raise self._not_a_node(returned)
        # The marked nodes are kept, since an id may be used again otherwise.
        self._marked_nodes: list[Any] = [returned] if self.is_one else list(several)
        self.nodes = [original] if self.is_one else list(original)
        self.nodes_of_item = [[i] for i in range(len(self.nodes))]
        self._position = {id(node): i for i, node in enumerate(self._marked_nodes)}
        if not self.is_one:
            self._parts, self._treedef = jtu.tree_flatten(self._marked, is_leaf=self._is_selected)
        position = self._position
        self._places = [i for i, x in enumerate(self._parts) if id(x) in position]
        self._check_places()
        if any(map(is_none, self._marked_nodes)):
            self._check_none(where)
        if strict and not self.nodes:
            raise ValueError(
                "where selects nothing: it returned an empty sequence. If that is meant, pass strict=False"
            )

    def _mark(self, tree: PyTree, is_leaf: IsLeaf) -> None:
        """Replace the leaves by marks, in `_marked`."""

        def gets_mark(x: object) -> bool:
            return _is_empty_tuple(x) or (is_leaf is not None and is_leaf(x))

        # A partial of a function of C, where that is enough, since it is called for every node.
        self._leaves, treedef = jtu.tree_flatten(tree, is_leaf=_is_empty_tuple if is_leaf is None else gets_mark)
        marks: list[Any] = [_EmptyTuple() if _is_empty_tuple(x) else object() for x in self._leaves]
        self._leaf_of = dict(zip(map(id, marks), self._leaves, strict=True))
        try:
            self._marked = treedef.unflatten(marks)
        except Exception as error:
            error.add_note(f"A class in the tree cannot be rebuilt around placeholders for its leaves. {RUNS_ITS_CODE}")
            raise

    def _check_same(self, returned: PyTree, original: PyTree) -> None:
        """Raise a ValueError unless the leaves of what a function returned are marks, and those of the same leaves."""
        marks, structure = jtu.tree_flatten(returned)
        for x in marks:
            if id(x) not in self._leaf_of:
                raise self._not_a_node(x)
        leaves = None
        with contextlib.suppress(ValueError):  # of another structure
            leaves = flatten_up_to(structure, original)
        if leaves is None or not all(map(operator.is_, leaves, [self._leaf_of[id(x)] for x in marks])):
            raise ValueError(
                "where must use the structure of the tree only, but it depends on the leaves, or on the order of the "
                "keys of a dict, which JAX sorts"
            )

    def _check_places(self) -> None:
        """Raise a ValueError unless each node that was returned is at one place, and outside of the others."""
        at_places = [self._parts[i] for i in self._places]
        returned, found = (Counter(map(id, nodes)) for nodes in (self._marked_nodes, at_places))
        for node in self._marked_nodes:
            if returned[id(node)] == found[id(node)] == 1:
                continue
            if not has_node(self._marked, functools.partial(operator.is_, node)):
                raise self._not_a_node(node)
            why = f"which is at {found[id(node)]} places; is_leaf=lambda x: x is None distinguishes several None"
            if not found[id(node)]:
                why = "which is inside another node that it returned: return one of them, or call tree_at twice"
            elif found[id(node)] == 1:
                why = "twice"
            raise ValueError(f"where returned {describe_value(node)} {why}")

    def _check_none(self, where: Callable[[Any], Any]) -> None:
        """Raise a ValueError unless None is a node: it has no identity, and a static field may be None too."""
        leaves, treedef = jtu.tree_flatten(self._marked, is_leaf=is_none)
        mark = object()
        returned = _call(where, treedef.unflatten([mark if x is None else x for x in leaves]))
        nodes = [returned] if self.is_one else list(returned)
        if len(nodes) != len(self._marked_nodes) or not all(
            x is not None or y is mark for x, y in zip(self._marked_nodes, nodes, strict=True)
        ):
            raise self._not_a_node(None)

    def _not_a_node(self, x: object) -> ValueError:
        fields = [
            (node, name)
            for _, node in walk(self._marked)
            for name in field_names(node)
            if x is not None and x is getattr(node, name, None)
        ]
        what = a_static_field(fields) if fields else "not a node of the tree"
        return ValueError(f"where returned {describe_value(x)}, which is {what}. {_MUST}")

    def _is_selected(self, x: object) -> bool:
        return id(x) in self._position

    def names(self) -> list[tuple[int, str]]:
        paths = flatten_with_path(self._marked, self._is_selected)[0]
        return [(self._position[id(x)], path_name(path)) for path, x in paths if self._is_selected(x)]

    def replaced(self, values: Iterable[Any]) -> Any:
        values, new_parts = list(values), list[Any]()
        leaf = last = 0
        for i in self._places:  # each after the leaves that are not selected
            part, between = self._parts[i], i - last
            new_parts += [*self._leaves[leaf : leaf + between], values[self._position[id(part)]]]
            leaf += between + jtu.tree_structure(part).num_leaves  # the marks in it
            last = i + 1
        new_parts += self._leaves[leaf:]
        return self._treedef.unflatten(new_parts)


def _call(where: Callable[[Any], Any], marked: PyTree) -> Any:
    try:
        return where(marked)
    except Exception as error:
        error.add_note(
            "the function `where` of tree_at raised this. It is called with the tree, with placeholders for its "
            f"leaves. {_MUST}"
        )
        raise
