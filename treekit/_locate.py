"""Finding the nodes that the function given to `tree_at` names."""

import dataclasses
import operator
from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from treekit._describe import describe_value
from treekit._jax import IsLeaf, jtu
from treekit._types import LeafPredicate


class _EmptyTuple(tuple[()]):
    """Stands for one particular `()` of a tree; Python has only one `()` for all of them."""


class Run(NamedTuple):
    """The leaves under one of the nodes to replace lie side by side: from where to where, and which of the nodes."""

    start: int
    stop: int
    which: int


_FEW = 4  # so many marks are found sooner one by one than by a table


class Marked(NamedTuple):
    """A tree rebuilt with marks for leaves: objects of which each stands at one place.

    A node is told by identity. Small ints and () are shared all over a program, and one list may stand at two places of
    a tree; in the rebuilt tree, every leaf is an object made for its place and every container is new.
    """

    tree: Any
    marks: list[Any]
    leaves: list[Any]  # of the tree given, in the order of the marks
    treedef: Any
    is_leaf: IsLeaf

    def find(self, marks: list[Any]) -> list[int | None]:
        """The index of each of these marks; None for what is no mark."""
        if len(marks) <= _FEW and all(type(mark) is object for mark in marks):
            try:
                return [self.marks.index(mark) for mark in marks]
            except ValueError:  # an object() that is none of them
                pass
        place = dict(zip(map(id, self.marks), range(len(self.marks)), strict=True))
        return [place.get(id(mark)) for mark in marks]


def mark(tree: Any, is_leaf: IsLeaf) -> Marked:
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    # Python code for each leaf is what costs here, so () is looked for only where it can be a leaf.
    if is_leaf is None:
        marks: list[Any] = [object() for _ in leaves]
    else:
        marks = [_EmptyTuple() if is_empty_tuple(x) else object() for x in leaves]
    return Marked(treedef.unflatten(marks), marks, leaves, treedef, is_leaf)


def find(where: Callable[[Any], Any], marked: Marked) -> Any:
    """What `where` finds in the marked tree; an error that explains itself where it takes a leaf for a node."""
    try:
        return where(marked.tree)
    except TypeError as error:
        error.add_note(
            "where is called with placeholders for leaves: it must name nodes, and compute nothing of leaves"
        )
        raise
    except AttributeError as error:
        (index,) = marked.find([error.obj])
        if index is None:
            raise
        paths = [jtu.keystr(path) for path, mark in jtu.tree_flatten_with_path(marked.tree)[0] if mark is error.obj]
        kind = type(marked.leaves[index]).__qualname__
        raise ValueError(
            f"where asks for .{error.name} of {''.join(paths) or 'the root'}, a leaf of type {kind}. It must go by the "
            f"structure of the tree alone. If {kind} was meant to be a node, register it: of a class that is one, a "
            "subclass has to be registered too (treekit.node, treekit.register_node)"
        ) from error


def is_empty_tuple(x: Any) -> bool:
    return type(x) is tuple and not x


def check_same(plain: Any, found: Any, marked: Marked) -> list[int]:
    """The indices of the leaves that `where` found; on the tree itself, it must find the same ones."""
    plain_leaves, plain_def = jtu.tree_flatten(plain, is_leaf=marked.is_leaf)
    marks, marks_def = jtu.tree_flatten(found)
    indices = [i for i in marked.find(marks) if i is not None]
    if len(indices) < len(marks):
        strange = next(mark for mark, i in zip(marks, marked.find(marks), strict=True) if i is None)
        raise ValueError(
            f"where names no node of the tree: {describe_value(strange)} is no leaf of it. "
            f"{hint(marked, found, strange)}"
        )
    if plain_def != marks_def or any(a is not marked.leaves[i] for a, i in zip(plain_leaves, indices, strict=True)):
        raise ValueError("where must go by the structure of the tree alone, and it depends on the leaves")
    return indices


class Places(NamedTuple):
    """Where the nodes that `where` named stand in the tree.

    Attributes:
        single: whether `where` returned one node, and not a sequence of them.
        nodes: those nodes, of the marked tree.
        runs: one for each of them, in the order of the tree.
        treedef: the structure of the tree, with a leaf for each of them.
    """

    single: bool
    nodes: list[Any]
    runs: list[Run]
    treedef: Any

    def originals(self, marked: Marked) -> list[Any]:
        """What the tree given has at these places, in the order of `nodes`."""
        runs = sorted(self.runs, key=lambda run: run.which)
        return [
            jtu.tree_structure(node).unflatten(marked.leaves[run.start : run.stop])
            for node, run in zip(self.nodes, runs, strict=True)
        ]


def locate(found: Any, indices: list[int], marked: Marked) -> Places:
    """Find what `where` returned: one node of the tree, or else a sequence of nodes.

    Args:
        found: what it returned for the marked tree.
        indices: those of the marks below `found`.
        marked: the marked tree.
    """
    # The leaves of a node lie side by side. Where these do not, a walk through the tree is saved.
    if not indices or indices == list(range(indices[0], indices[0] + len(indices))):
        runs, treedef = _runs([found], indices, marked)
        if runs:
            _check_counts([found], runs, marked)
            return Places(True, [found], runs, treedef)
    try:
        nodes = list(found)
    except TypeError:
        raise ValueError(
            f"where names no node of the tree: it returned {describe_value(found)}. {hint(marked, found)}"
        ) from None
    if len({id(x) for x in nodes if x is not None}) != sum(x is not None for x in nodes):
        raise ValueError("where names the same node twice")
    runs, treedef = _runs(nodes, indices, marked)
    _check_counts(nodes, runs, marked)
    return Places(False, nodes, runs, treedef)


def _runs(nodes: list[Any], indices: list[int], marked: Marked) -> tuple[list[Run], Any]:
    """A run for every place of the tree where one of these nodes stands, and a structure with a leaf for each."""
    if len(nodes) == len(indices) and all(x is marked.marks[i] for x, i in zip(nodes, indices, strict=True)):
        return sorted(Run(i, i + 1, which) for which, i in enumerate(indices)), marked.treedef  # leaves: no walk
    which = {id(node): i for i, node in enumerate(nodes)}

    def is_one_of_several(x: object) -> bool:
        return id(x) in which

    # To look for one node runs no Python code at each node of the tree.
    is_wanted: LeafPredicate = partial(operator.is_, nodes[0]) if len(nodes) == 1 else is_one_of_several
    items, treedef = jtu.tree_flatten(marked.tree, is_leaf=is_wanted)
    runs: list[Run] = []
    under = 0  # leaves under the nodes so far, less the one that each is now
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
                f"where names a None, and the tree has {max(count, nones)} of them, which are one object; pass "
                "is_leaf=lambda x: x is None to tell them apart"
            )
        if count > 1:
            raise ValueError(f"where names {describe_value(node)}, and the tree has that one object at {count} places")
        if count == 0 and any(_lies_inside(node, other) for other in wanted):
            raise ValueError(
                "where names a node inside another one it names: parent and child in one call, so that the replacement "
                "of one would be lost. Name one of them, or call tree_at twice"
            )
        if count == 0:
            raise ValueError(f"where names {describe_value(node)}, which is no node of the tree. {hint(marked, node)}")


def _lies_inside(node: Any, other: Any) -> bool:
    is_node = partial(operator.is_, node)
    return other is not node and any(map(is_node, jtu.tree_leaves(other, is_leaf=is_node)))


def hint(marked: Marked, *strange: Any) -> str:
    """What `where` must return; and what it did return, if static fields hold that."""
    must = "where must return nodes of the tree it is given, as they are"
    fields = [field for x in strange for field in _static_fields_with(x, marked.tree)]
    if not fields:
        return (
            f"{must}; a static field is none (see treekit.replace), and neither is what is computed from leaves. A "
            "class whose reconstruction replaces its leaves shows like this too: use treekit.register_node for it."
        )
    holders = " or ".join(dict.fromkeys(f"{cls}.{name}" for cls, name in fields))
    names = " or ".join(dict.fromkeys(f"{name}=..." for _, name in fields))
    return (
        f"That is what the static field {holders} holds. A static field is part of the structure and no node; {must}. "
        f"treekit.replace(node, {names}) makes a node with another one."
    )


def _static_fields_with(x: Any, tree: Any) -> list[tuple[str, str]]:
    """The class and name of each field that holds `x`, in all nodes of a tree; children hold marks or nodes."""
    nodes: list[Any] = []

    def see(node: Any) -> bool:
        nodes.append(node)
        return False

    jtu.tree_flatten(tree, is_leaf=see)
    fields = [
        (node, field.name) for node in nodes if dataclasses.is_dataclass(node) for field in dataclasses.fields(node)
    ]
    return [
        (type(node).__qualname__, name) for node, name in fields if x is not None and getattr(node, name, None) is x
    ]
