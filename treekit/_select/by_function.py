"""Select the nodes that a function of the tree returns."""

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from treekit._base.jax import jtu
from treekit._base.tree import is_none
from treekit._base.types import IsLeaf, LeafPredicate, PyTree
from treekit._compare.prefix import flatten_up_to
from treekit._names.key_path import flatten_with_path, path_name, path_text, walk
from treekit._select.advice import a_static_field, field_names
from treekit._select.selection import Selection
from treekit._text.describe import RUNS_ITS_CODE, describe_value

_FOR_PREDICATES = (
    "If where is a predicate on leaves, write jax.tree.map(lambda x: f(x) if predicate(x) else x, tree); or, for all "
    "arrays, tree_at(jax.Array, tree, replace_fn=f)"
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
        def gets_mark(x: object) -> bool:
            return _is_empty_tuple(x) or (is_leaf is not None and is_leaf(x))

        # A partial of a function of C, where that is enough, since it is called for every node.
        self._leaves, treedef = jtu.tree_flatten(tree, is_leaf=_is_empty_tuple if is_leaf is None else gets_mark)
        marks: list[Any] = [_EmptyTuple() if _is_empty_tuple(x) else object() for x in self._leaves]
        leaf_of = dict(zip(map(id, marks), self._leaves, strict=True))
        try:
            self._marked = treedef.unflatten(marks)
        except Exception as error:
            error.add_note(f"A class in the tree cannot be rebuilt around placeholders for its leaves. {RUNS_ITS_CODE}")
            raise
        returned = _call(where, self._marked, leaf_of)
        original = where(tree)
        _check_returned(returned, original, self._marked, leaf_of)

        is_returned: LeafPredicate = functools.partial(operator.is_, returned)
        # The marked tree taken apart, into the selected nodes and the marks of all other leaves.
        self._parts, self._treedef = jtu.tree_flatten(self._marked, is_leaf=is_returned)
        self.is_one = any(map(is_returned, self._parts))
        if self.is_one:
            returned, original = [returned], [original]
        try:
            self._marked_nodes, self.nodes = list(returned), list(original)  # kept: an id may be used again otherwise
        except TypeError:
            raise ValueError(
                f"where did not return a node of the tree, but {describe_value(returned)}. "
                f"{_hint(self._marked, returned)}"
            ) from None
        self.nodes_of_item = [[i] for i in range(len(self.nodes))]
        self._position = {id(node): i for i, node in enumerate(self._marked_nodes)}
        if not self.is_one:
            self._parts, self._treedef = jtu.tree_flatten(self._marked, is_leaf=self._is_selected)
        position = self._position
        self._places = [i for i, x in enumerate(self._parts) if id(x) in position]
        found = [id(self._parts[i]) for i in self._places]
        each_is_at_one_place = sorted(position[x] for x in found) == list(range(len(self._marked_nodes)))
        if not each_is_at_one_place:
            raise ValueError(_not_one_place_each(self._marked_nodes, found, self._marked))
        if any(map(is_none, self._marked_nodes)):
            self._check_none(where, leaf_of)
        if strict and not self.nodes:
            raise ValueError(
                "where selects nothing: it returned an empty sequence. If that is meant, pass strict=False"
            )

    def _check_none(self, where: Callable[[Any], Any], leaf_of: dict[int, Any]) -> None:
        """Raise a ValueError unless None is a node: it has no identity, and a static field may be None too."""
        leaves, treedef = jtu.tree_flatten(self._marked, is_leaf=is_none)
        mark = object()
        returned = _call(where, treedef.unflatten([mark if x is None else x for x in leaves]), leaf_of)
        nodes = [returned] if self.is_one else list(returned)
        if len(nodes) != len(self._marked_nodes) or not all(
            x is not None or y is mark for x, y in zip(self._marked_nodes, nodes, strict=True)
        ):
            raise ValueError(f"where returned None, which is not a node of the tree. {_hint(self._marked)}")

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


def _check_returned(returned: PyTree, original: PyTree, marked: PyTree, leaf_of: Mapping[int, Any]) -> None:
    """Raise a ValueError unless a function returned nodes of the tree, and the same for the tree with its leaves."""
    marks, structure = jtu.tree_flatten(returned)
    if strange := [x for x in marks if id(x) not in leaf_of]:
        is_bool = isinstance(returned, (bool, np.bool_))
        advice = f"{_FOR_PREDICATES}. " if is_bool else ""
        raise ValueError(
            f"where did not return a node of the tree: {describe_value(strange[0])} is not a leaf of it. "
            f"{advice}{_hint(marked, returned, strange[0])}"
        )
    leaves = None
    with contextlib.suppress(ValueError):  # of another structure
        leaves = flatten_up_to(structure, original)
    if leaves is None or not all(map(operator.is_, leaves, [leaf_of[id(x)] for x in marks])):
        raise ValueError(
            "where must use the structure of the tree only, but it depends on the leaves, or on the order of the keys "
            "of a dict, which JAX sorts"
        )


def _call(where: Callable[[Any], Any], marked: PyTree, leaf_of: Mapping[int, Any]) -> Any:
    """Call `where` on the marked tree, with an error that explains itself if `where` uses a leaf as a node."""
    try:
        return where(marked)
    except Exception as error:
        if isinstance(error, AttributeError) and id(error.obj) in leaf_of:
            paths = [path_text(path) for path, mark in flatten_with_path(marked)[0] if mark is error.obj]
            kind = type(leaf_of[id(error.obj)]).__qualname__
            raise ValueError(
                f"where reads .{error.name} of {', '.join(paths)}, a leaf of type {kind}. It must use the structure of "
                f"the tree only. If a {kind} is a node, register it, and each subclass: treekit.node, "
                "treekit.register_node"
            ) from error
        advice = ", so it must return nodes, and not compute with leaves" if isinstance(error, TypeError) else ""
        if isinstance(error, AttributeError) and error.obj is marked and hasattr(jax.Array, str(error.name)):
            advice = f". {_FOR_PREDICATES}"
        error.add_note(
            "the function `where` of tree_at raised this. It is called with the tree, with placeholders for its leaves"
            f"{advice}"
        )
        raise


def _not_one_place_each(nodes: list[Any], ids: list[int], marked: PyTree) -> str:
    """Say which node is not at one place, apart from the others; `ids` are those of the nodes that were found."""
    counts = Counter(ids)
    for node in nodes:
        if counts[id(node)] > 1:
            advice = "; pass is_leaf=lambda x: x is None to distinguish them" if node is None else ""
            return (
                f"where returned {describe_value(node)}, and the tree has that object at {counts[id(node)]} places"
                f"{advice}"
            )
        is_node = functools.partial(operator.is_, node)
        others = [other for other in nodes if other is not node]
        if not counts[id(node)] and any(any(map(is_node, jtu.tree_leaves(x, is_leaf=is_node))) for x in others):
            return (
                "where returned a node inside another one, so the replacement of one would be lost. Return one of "
                "them, or call tree_at twice"
            )
        if not counts[id(node)]:
            return f"where returned {describe_value(node)}, which is not a node of the tree. {_hint(marked, node)}"
    return "where returned the same node twice"


def _hint(marked: PyTree, *strange: object) -> str:
    """Say what `where` must return, and which static fields contain what it did return."""
    must = "where must return nodes of the tree that it receives, unchanged"
    fields = [
        (node, name)
        for _, node in walk(marked)
        for name in field_names(node)
        if any(x is getattr(node, name, None) for x in strange if x is not None)
    ]
    if fields:
        return f"It is the value of {a_static_field(fields)}. {must}"
    return (
        f"{must}. A static field is not a node (see treekit.replace), and neither is a value computed from leaves. A "
        "class that replaces its leaves when JAX rebuilds it also causes this: use treekit.register_node for it"
    )
