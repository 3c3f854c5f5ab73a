"""Select the nodes that a function of the tree returns."""

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from treekit._base.jax import jtu
from treekit._base.tree import is_none, or_leaf
from treekit._base.types import IsLeaf, LeafPredicate, PyTree, PyTreeDef
from treekit._compare.prefix import flatten_up_to
from treekit._names.key_path import flatten_with_path, path_name, walk
from treekit._select.advice import a_static_field, field_names
from treekit._select.selection import Selection
from treekit._text.arguments import RUNS_ITS_CODE
from treekit._text.describe import describe_value
from treekit._text.lists import listed

_MUST = (
    "where must return nodes of the tree that it receives, unchanged: neither values computed from leaves nor, as a "
    "predicate does, a bool (for all arrays, write tree_at(jax.Array, tree, replace_fn=f)). An object of a class that "
    "is not registered is a leaf, and a class that computes when JAX rebuilds it changes its leaves: treekit.node and "
    "treekit.register_node register classes"
)


class ByFunction(Selection):
    """The nodes that a function returns.

    1. Each leaf of the tree is replaced by a mark, an object of its own: in the tree itself small ints are one object,
       and a list may be at two places.
    2. The function is called twice: with the marked tree, and with the tree, of which it must return the same nodes.
       These are what is selected.
    3. The nodes that it returned from the marked tree are found there by identity.
    4. None has no identity. If it returned None, it is called once more, with a mark in place of each None of the tree,
       and must return a mark: otherwise it returned another None, such as a static field.
    """

    def __init__(self, where: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf, *, strict: bool) -> None:
        self._marked = _mark(tree, is_leaf)
        returned, original = _call_with_both(where, self._marked, tree)
        self._located = _locate(returned, self._marked.tree)
        if any(map(is_none, self._located.nodes)):
            _check_none(where, self._located, self._marked.tree)
        self.is_one = self._located.is_one
        self.nodes = [original] if self.is_one else list(original)
        self.nodes_of_item = [[i] for i in range(len(self.nodes))]
        if strict and not self.nodes:
            raise ValueError(
                "where selects nothing: it returned an empty sequence. If that is meant, pass strict=False"
            )

    def names(self) -> list[tuple[int, str]]:
        nodes = self._located.nodes
        index = {id(node): i for i, node in enumerate(nodes)}
        paths = flatten_with_path(self._marked.tree, _is_one_of(nodes))[0]
        return [(index[id(x)], path_name(path)) for path, x in paths if id(x) in index]

    def replaced(self, values: Iterable[Any]) -> Any:
        value_of = dict(zip(map(id, self._located.nodes), values, strict=True))
        # Not by their marks: JAX rebuilt the marked tree, and a class may have changed those that are not selected.
        parts = [*self._marked.leaf_of.values()]
        for i, node in self._located.places:  # the leaves of each node become one part, so the next index is right
            parts[i : i + jtu.tree_structure(node).num_leaves] = [value_of[id(node)]]
        return self._located.treedef.unflatten(parts)


class _Marked(NamedTuple):
    """A tree with a mark in place of each leaf.

    Attributes:
        tree: it.
        leaf_of: the leaf of each mark, by the id of the mark, in the order of the tree.
    """

    tree: Any
    leaf_of: dict[int, Any]


class _EmptyTuple(tuple[()]):
    """A mark for (), of which Python has a single object, so that identity cannot find it. `where` can read both."""


_is_empty_tuple = functools.partial(operator.is_, ())


def _mark(tree: PyTree, is_leaf: IsLeaf) -> _Marked:
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=or_leaf(is_leaf, _is_empty_tuple))
    marks: list[Any] = [_EmptyTuple() if _is_empty_tuple(x) else object() for x in leaves]
    try:
        marked = treedef.unflatten(marks)
    except Exception as error:
        error.add_note(f"A class in the tree cannot be rebuilt around placeholders for its leaves. {RUNS_ITS_CODE}")
        raise
    return _Marked(marked, dict(zip(map(id, marks), leaves, strict=True)))


def _call_with_both(where: Callable[[Any], Any], marked: _Marked, tree: PyTree) -> tuple[Any, Any]:
    """Return what a function returns for the marked tree, and what it returns for the tree.

    Raises:
        ValueError: they do not have the same leaves.
    """
    returned, original = _call(where, marked.tree), where(tree)
    marks, structure = jtu.tree_flatten(returned)
    for x in marks:
        if id(x) not in marked.leaf_of:
            raise _not_a_node(x, marked.tree)
    leaves = None
    with contextlib.suppress(ValueError):  # of another structure
        leaves = flatten_up_to(structure, original)
    if leaves is None or not all(map(operator.is_, leaves, [marked.leaf_of[id(x)] for x in marks])):
        raise ValueError(
            "where must use the structure of the tree only, but it depends on the leaves, or on the order of the "
            "keys of a dict, which JAX sorts"
        )
    return returned, original


def _call(where: Callable[[Any], Any], marked_tree: PyTree) -> Any:
    try:
        return where(marked_tree)
    except Exception as error:
        error.add_note(
            "the function `where` of tree_at raised this. It is called with the tree, with placeholders for its "
            f"leaves. {_MUST}"
        )
        raise


def _is_one_of(nodes: Sequence[object]) -> LeafPredicate:
    """Return a function that says whether an object is one of these, by identity."""
    if len(nodes) == 1:
        return functools.partial(operator.is_, nodes[0])
    ids = frozenset(map(id, nodes))
    return lambda x: id(x) in ids


class _Located(NamedTuple):
    """Where the nodes that a function returned are in the marked tree, taken apart into them and all other leaves.

    Attributes:
        is_one: whether it returned one node, and not a sequence of nodes.
        nodes: the nodes of the marked tree, which are kept, since an id may be used again otherwise.
        places: the index of each node among the parts, with the node, in the order of the tree.
        treedef: the structure of the parts.
    """

    is_one: bool
    nodes: list[Any]
    places: list[tuple[int, Any]]
    treedef: PyTreeDef


def _locate(returned: Any, marked_tree: PyTree) -> _Located:
    """Find what a function returned in the marked tree: a node, or else the nodes of a sequence.

    Raises:
        ValueError: a node is not at one place, or is inside another one.
    """
    nodes, is_one = [returned], True
    parts, treedef = jtu.tree_flatten(marked_tree, is_leaf=_is_one_of(nodes))
    if not any(map(_is_one_of(nodes), parts)):
        several: Any = returned  # else pyright knows a part of its type
        if not isinstance(returned, Iterable):
            raise _not_a_node(returned, marked_tree)
        nodes, is_one = list(several), False
        parts, treedef = jtu.tree_flatten(marked_tree, is_leaf=_is_one_of(nodes))
    ids = set(map(id, nodes))
    places = [(i, x) for i, x in enumerate(parts) if id(x) in ids]
    _check_places(nodes, [x for _, x in places], marked_tree)
    return _Located(is_one, nodes, places, treedef)


def _check_places(nodes: list[Any], found: list[Any], marked_tree: PyTree) -> None:
    """Raise a ValueError unless each node that was returned was found once, and they are not one node twice."""
    times_returned, times_found = Counter(map(id, nodes)), Counter(map(id, found))
    for node in nodes:
        times = times_found[id(node)]
        if times == times_returned[id(node)] == 1:
            continue
        paths = flatten_with_path(marked_tree, _is_one_of([node]))[0]
        names = listed([path_name(path) for path, x in paths if x is node])
        if not names:
            raise _not_a_node(node, marked_tree)
        if times == 0:
            why = f"the node at {names}, which is inside another one that it returned: return one of them"
        elif times > 1:
            why = f"{describe_value(node)}, which is at {names}; is_leaf=lambda x: x is None distinguishes several None"
        else:
            why = f"the node at {names} twice"
        raise ValueError(f"where returned {why}")


def _check_none(where: Callable[[Any], Any], located: _Located, marked_tree: PyTree) -> None:
    """Raise a ValueError unless each None that a function returned is a node of the tree."""
    leaves, treedef = jtu.tree_flatten(marked_tree, is_leaf=is_none)
    mark = object()
    again = _call(where, treedef.unflatten([mark if x is None else x for x in leaves]))
    nodes = [again] if located.is_one else list(again)
    if len(nodes) != len(located.nodes) or not all(
        x is not None or y is mark for x, y in zip(located.nodes, nodes, strict=True)
    ):
        raise _not_a_node(None, marked_tree)


def _not_a_node(x: object, marked_tree: PyTree) -> ValueError:
    fields = [
        (node, name)
        for _, node in walk(marked_tree)
        for name in field_names(node)
        if x is not None and x is getattr(node, name, None)
    ]
    what = a_static_field(fields) if fields else "not a node of the tree"
    return ValueError(f"where returned {describe_value(x)}, which is {what}. {_MUST}")
