"""Find the nodes that the `where` of `tree_at` returns in the tree."""

import dataclasses
import operator
from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._base.key_path import path_text
from treekit._base.types import IsLeaf, LeafPredicate, PyTree


class _EmptyTuple(tuple[()]):
    """A mark for one `()` in a tree: Python has a single `()` object, so identity cannot distinguish two places."""


class Run(NamedTuple):
    """The range of leaves under one of the nodes to replace, and the index of that node."""

    start: int
    stop: int
    which: int


_FEW = 4  # up to this many marks, searching one by one is faster than a table


class Marked(NamedTuple):
    """A tree rebuilt with a mark, an object of its own, for each leaf.

    Nodes are found by identity. In the original tree, small ints and () are shared, and one list may occur at two
    places; in the rebuilt tree, every leaf is a different object and every container is new.
    """

    tree: Any
    marks: list[Any]
    leaves: list[Any]  # of the original tree, in the order of the marks
    treedef: Any
    is_leaf: IsLeaf

    def find(self, marks: list[Any]) -> list[int | None]:
        """Return the index of each of these marks, or None if an object is not a mark."""
        if len(marks) <= _FEW and all(type(mark) is object for mark in marks):
            try:
                return [self.marks.index(mark) for mark in marks]
            except ValueError:  # an object() that is not a mark
                pass
        place = dict(zip(map(id, self.marks), range(len(self.marks)), strict=True))
        return [place.get(id(mark)) for mark in marks]


def mark(tree: PyTree, is_leaf: IsLeaf) -> Marked:
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    # Python code that runs for each leaf is slow, so () is looked for only if it can be a leaf.
    if is_leaf is None:
        marks: list[Any] = [object() for _ in leaves]
    else:
        marks = [_EmptyTuple() if is_empty_tuple(x) else object() for x in leaves]
    return Marked(treedef.unflatten(marks), marks, leaves, treedef, is_leaf)


def find(where: Callable[[Any], Any], marked: Marked) -> Any:
    """Call `where` on the marked tree, with an error that explains itself if `where` uses a leaf as a node."""
    try:
        return where(marked.tree)
    except AttributeError as error:
        (index,) = marked.find([error.obj])
        if index is None:
            error.add_note(_RAISED)
            raise
        paths = [path_text(path) for path, mark in jtu.tree_flatten_with_path(marked.tree)[0] if mark is error.obj]
        kind = type(marked.leaves[index]).__qualname__
        raise ValueError(
            f"where reads .{error.name} of {', '.join(paths)}, a leaf of type {kind}. It must use the structure of "
            f"the tree only. If a {kind} is a node, register it, and each subclass: treekit.node, treekit.register_node"
        ) from error
    except Exception as error:
        advice = ", so it must return nodes, and not compute with leaves" if isinstance(error, TypeError) else ""
        error.add_note(f"{_RAISED}{advice}")
        raise


_RAISED = "the function `where` of tree_at raised this. It is called with the tree, with placeholders for its leaves"


def is_empty_tuple(x: object) -> bool:
    return type(x) is tuple and not x


def check_same(plain: object, found: object, marked: Marked) -> list[int]:
    """Return the indices of the leaves that `where` found, and check that it finds the same in the original tree."""
    marks, marks_def = jtu.tree_flatten(found)
    indices = [i for i in marked.find(marks) if i is not None]
    if len(indices) < len(marks):
        strange = next(mark for mark, i in zip(marks, marked.find(marks), strict=True) if i is None)
        predicate = (
            ". If where is a predicate on leaves, pass a class, such as jax.Array, or a pattern; treekit.filter takes "
            "predicates"
        )
        raise ValueError(
            f"where did not return a node of the tree: {describe_value(strange)} is not a leaf of it. "
            f"{hint(marked, found, strange).rstrip('.')}{predicate if isinstance(found, bool) else ''}"
        )
    try:
        plain_leaves: list[Any] = marks_def.flatten_up_to(plain)
        is_same = all(x is marked.leaves[i] for x, i in zip(plain_leaves, indices, strict=True))
    except ValueError:  # another structure
        is_same = False
    if not is_same:
        raise ValueError("where must use the structure of the tree only, but it depends on the leaves")
    return indices


class Places(NamedTuple):
    """The nodes that `where` returned, and their places in the tree.

    Attributes:
        single: whether `where` returned one node, not a sequence of nodes.
        nodes: the nodes, which are nodes of the marked tree.
        runs: one run for each of them, in the order of the tree.
        treedef: the structure of the tree, with one leaf for each of them.
    """

    single: bool
    nodes: list[Any]
    runs: list[Run]
    treedef: Any

    def originals(self, marked: Marked) -> list[Any]:
        """Return the nodes of the original tree at these places, in the order of `nodes`."""
        runs = sorted(self.runs, key=lambda run: run.which)
        return [
            jtu.tree_structure(node).unflatten(marked.leaves[run.start : run.stop])
            for node, run in zip(self.nodes, runs, strict=True)
        ]


def locate(found: PyTree, indices: list[int], marked: Marked) -> Places:
    """Find the places of the nodes that `where` returned: one node of the tree, or else a sequence of nodes.

    Args:
        found: the result of `where` for the marked tree.
        indices: the indices of the marks below `found`.
        marked: the marked tree.
    """
    # The leaves of a node are adjacent. If these are not, this saves a walk through the tree.
    if not indices or indices == list(range(indices[0], indices[0] + len(indices))):
        runs, treedef = _runs([found], indices, marked)
        if runs:
            _check_counts([found], runs, marked)
            return Places(True, [found], runs, treedef)
    try:
        nodes = list(found)
    except TypeError:
        raise ValueError(
            f"where did not return a node of the tree, but {describe_value(found)}. {hint(marked, found)}"
        ) from None
    if len({id(x) for x in nodes if x is not None}) != sum(x is not None for x in nodes):
        raise ValueError("where returned the same node twice")
    runs, treedef = _runs(nodes, indices, marked)
    _check_counts(nodes, runs, marked)
    return Places(False, nodes, runs, treedef)


def _runs(nodes: list[Any], indices: list[int], marked: Marked) -> tuple[list[Run], Any]:
    """Return a run for every place of one of these nodes in the tree, and a structure with one leaf for each."""
    if len(nodes) == len(indices) and all(x is marked.marks[i] for x, i in zip(nodes, indices, strict=True)):
        return sorted(Run(i, i + 1, which) for which, i in enumerate(indices)), marked.treedef  # leaves only
    which = {id(node): i for i, node in enumerate(nodes)}

    def is_one_of_several(x: object) -> bool:
        return id(x) in which

    # Searching for a single node does not run Python code for each node of the tree.
    is_wanted: LeafPredicate = partial(operator.is_, nodes[0]) if len(nodes) == 1 else is_one_of_several
    items, treedef = jtu.tree_flatten(marked.tree, is_leaf=is_wanted)
    runs: list[Run] = []
    under = 0  # leaves under the wanted nodes so far, minus the one leaf that replaces each
    for place in compress(range(len(items)), map(is_wanted, items)):
        node = items[place]
        count = jtu.tree_structure(node).num_leaves
        runs.append(Run(place + under, place + under + count, which[id(node)]))
        under += count - 1
    return runs, treedef


def _check_counts(wanted: list[Any], runs: list[Run], marked: Marked) -> None:
    nones = sum(node is None for node in wanted)
    counts = [0] * len(wanted)
    for run in runs:
        counts[run.which] += 1
    for node, count in zip(wanted, counts, strict=True):
        if node is None and max(count, nones) > 1:
            raise ValueError(
                f"where returned None, and the tree has {max(count, nones)} of them, which are one object; pass "
                "is_leaf=lambda x: x is None to distinguish them"
            )
        if count > 1:
            raise ValueError(f"where returned {describe_value(node)}, and the tree has that object at {count} places")
        if count == 0 and any(_lies_inside(node, other) for other in wanted):
            raise ValueError(
                "where returned a node inside another one, so the replacement of one would be lost. Return one "
                "of them, or call tree_at twice"
            )
        if count == 0:
            raise ValueError(
                f"where returned {describe_value(node)}, which is not a node of the tree. {hint(marked, node)}"
            )


def _lies_inside(node: object, other: PyTree) -> bool:
    is_node = partial(operator.is_, node)
    return other is not node and any(map(is_node, jtu.tree_leaves(other, is_leaf=is_node)))


def hint(marked: Marked, *strange: object) -> str:
    """Say what `where` must return, and which static fields contain what it did return."""
    must = "where must return nodes of the tree that it receives, unchanged"
    fields = [field for x in strange for field in _static_fields_with(x, marked.tree)]
    if not fields:
        return (
            f"{must}. A static field is not a node (see treekit.replace), and neither is a value computed from leaves. "
            "A class that replaces its leaves when JAX rebuilds it also causes this: use treekit.register_node for it."
        )
    holders = " or ".join(dict.fromkeys(f"{cls}.{name}" for cls, name in fields))
    names = " or ".join(dict.fromkeys(f"{name}=..." for _, name in fields))
    return (
        f"It is the value of the static field {holders}. A static field is part of the structure, not a node; {must}. "
        f"treekit.replace(node, {names}) makes a node with another value."
    )


def _static_fields_with(x: object, tree: PyTree) -> list[tuple[str, str]]:
    """Return class and name of each field whose value is `x`, in all nodes of a tree of marks."""
    nodes: list[Any] = []

    def see(node: object) -> bool:
        nodes.append(node)
        return False

    jtu.tree_flatten(tree, is_leaf=see)
    fields = [
        (node, field.name) for node in nodes if dataclasses.is_dataclass(node) for field in dataclasses.fields(node)
    ]
    return [
        (type(node).__qualname__, name) for node, name in fields if x is not None and getattr(node, name, None) is x
    ]
