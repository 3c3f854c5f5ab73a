"""`tree_at`: copy a tree with some of its leaves or subtrees replaced."""

import dataclasses
import operator
from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, TypeVar, overload

from treekit._describe import describe_value
from treekit._jax import IsLeaf, jtu
from treekit._types import LeafPredicate

T = TypeVar("T")


class _Missing:
    """The default of an argument that may be None."""

    def __repr__(self) -> str:
        return "<required>"


class _EmptyTuple(tuple[()]):
    """A mark for one `()` in a tree: Python has a single `()` object, so identity cannot distinguish two places."""


_MISSING = _Missing()


@overload
def tree_at(where: Callable[[T], Any], tree: T, replace: Any, *, is_leaf: LeafPredicate | None = None) -> T: ...
@overload
def tree_at(
    where: Callable[[T], Any], tree: T, *, replace_fn: Callable[[Any], Any], is_leaf: LeafPredicate | None = None
) -> T: ...
def tree_at(
    where: Callable[[T], Any],
    tree: T,
    replace: Any = _MISSING,
    replace_fn: Callable[[Any], Any] | _Missing = _MISSING,
    is_leaf: LeafPredicate | None = None,
) -> T:
    """Return a copy of a tree with some of its leaves or subtrees replaced.

    The nodes are rebuilt as in `jax.tree.map`, and no other code of their classes runs. So a replacement can be
    anything: an array of another shape, None, a whole subtree.

    Args:
        where: takes a tree like `tree`, and returns the leaf or subtree to replace, or a sequence of them. It must not
            depend on the values or types of leaves.
        tree: any pytree.
        replace: the replacement, or a sequence of them if `where` returns a sequence. Pass this or `replace_fn`.
        replace_fn: takes each node that `where` returns, and returns its replacement.
        is_leaf: as in `jax.tree.flatten`; with `lambda x: x is None` you can replace each None.

    Returns:
        A tree with the classes and containers of `tree`. `tree` itself is not changed.

    Raises:
        ValueError: `where` returns something that is not a node of the tree, such as a static field; it returns the
            same node twice, a node and one inside it, or one of several None; it depends on the leaves; `replace` has
            another length; or you passed both or neither of `replace` and `replace_fn`.
        TypeError: `where` returns a sequence, and `replace` is not one.

    Source: the contract of `equinox.tree_at`.

    >>> tree_at(lambda t: t["b"][0], {"a": 1, "b": (2, 3)}, 20)
    {'a': 1, 'b': (20, 3)}
    >>> tree_at(lambda t: (t["a"], t["b"]), {"a": 1, "b": (2, 3)}, replace_fn=str)
    {'a': '1', 'b': '(2, 3)'}
    """
    if (replace is _MISSING) == (replace_fn is _MISSING):
        raise ValueError("tree_at takes exactly one of replace and replace_fn")

    marked = _mark(tree, is_leaf)
    found, plain = _find(where, marked), where(tree)
    if _is_empty_tuple(found) or (issubclass(type(found), (tuple, list)) and any(map(_is_empty_tuple, found))):
        marked = _mark(tree, lambda x: _is_empty_tuple(x) or (is_leaf is not None and is_leaf(x)))
        found = _find(where, marked)
        if _is_empty_tuple(found) and _is_empty_tuple(plain):  # not a () of the tree, which is a mark
            found, plain = [], []
        elif any(map(_is_empty_tuple, found)):
            raise ValueError(f"where returned (), which is not a node of the tree. {_hint(marked, ())}")
    indices = _check_same(plain, found, marked)
    single, wanted, runs, treedef = _locate(found, indices, marked)

    if not isinstance(replace_fn, _Missing):
        of_node = sorted(runs, key=lambda run: run.which)
        originals = [marked.original(node, run) for node, run in zip(wanted, of_node, strict=True)]
        replacements = [replace_fn(original) for original in originals]
    else:
        replacements = [replace] if single else _as_list(replace, len(wanted))
    out: T = treedef.unflatten(_exchange(marked.leaves, runs, replacements))
    return out


class _Run(NamedTuple):
    """The range of leaves under one of the nodes to replace, and the index of that node."""

    start: int
    stop: int
    which: int


class _Marked(NamedTuple):
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

    def original(self, node: Any, run: _Run) -> Any:
        """Return the node of the original tree that corresponds to a node of the marked one."""
        return jtu.tree_structure(node).unflatten(self.leaves[run.start : run.stop])


_FEW = 4  # up to this many marks, searching one by one is faster than a table


def _mark(tree: Any, is_leaf: IsLeaf) -> _Marked:
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    # Python code that runs for each leaf is slow, so () is looked for only if it can be a leaf.
    if is_leaf is None:
        marks: list[Any] = [object() for _ in leaves]
    else:
        marks = [_EmptyTuple() if _is_empty_tuple(x) else object() for x in leaves]
    return _Marked(treedef.unflatten(marks), marks, leaves, treedef, is_leaf)


def _find(where: Callable[[Any], Any], marked: _Marked) -> Any:
    """Call `where` on the marked tree, with an error that explains itself if `where` uses a leaf as a node."""
    try:
        return where(marked.tree)
    except TypeError as error:
        error.add_note(
            "where is called with placeholders for leaves: it must return nodes, and not compute with leaves"
        )
        raise
    except AttributeError as error:
        (index,) = marked.find([error.obj])
        if index is None:
            raise
        paths = [jtu.keystr(path) for path, mark in jtu.tree_flatten_with_path(marked.tree)[0] if mark is error.obj]
        kind = type(marked.leaves[index]).__qualname__
        raise ValueError(
            f"where reads .{error.name} of {''.join(paths) or 'the root'}, a leaf of type {kind}. It must use the "
            f"structure of the tree only. If {kind} was meant to be a node, register it; a subclass of a registered "
            "class must be registered too (treekit.node, treekit.register_node)"
        ) from error


def _is_empty_tuple(x: Any) -> bool:
    return type(x) is tuple and not x


def _check_same(plain: Any, found: Any, marked: _Marked) -> list[int]:
    """Return the indices of the leaves that `where` found, and check that it finds the same in the original tree."""
    plain_leaves, plain_def = jtu.tree_flatten(plain, is_leaf=marked.is_leaf)
    marks, marks_def = jtu.tree_flatten(found)
    indices = [i for i in marked.find(marks) if i is not None]
    if len(indices) < len(marks):
        strange = next(mark for mark, i in zip(marks, marked.find(marks), strict=True) if i is None)
        raise ValueError(
            f"where did not return a node of the tree: {describe_value(strange)} is not a leaf of it. "
            f"{_hint(marked, found, strange)}"
        )
    if plain_def != marks_def or any(a is not marked.leaves[i] for a, i in zip(plain_leaves, indices, strict=True)):
        raise ValueError("where must use the structure of the tree only, but it depends on the leaves")
    return indices


def _locate(found: Any, indices: list[int], marked: _Marked) -> tuple[bool, list[Any], list[_Run], Any]:
    """Find the nodes that `where` returned in the tree.

    Returns:
        Whether `where` returned one node rather than a sequence; the list of nodes; a run for each of them, in the
        order of the tree; and the structure of the tree, with one leaf for each of them.
    """
    if len(indices) == 1 and found is marked.marks[indices[0]]:
        return True, [found], [_Run(indices[0], indices[0] + 1, 0)], marked.treedef
    # The leaves of a node are adjacent. Whether `found` is a node takes a walk through the tree, so that comes last.
    if not indices or indices == list(range(indices[0], indices[0] + len(indices))):
        runs, treedef = _runs(partial(operator.is_, found), [found], marked)
        if runs:
            _check_counts([found], runs, marked)
            return True, [found], runs, treedef
    try:
        wanted = list(found)
    except TypeError:
        raise ValueError(
            f"where did not return a node of the tree, but {describe_value(found)}. {_hint(marked, found)}"
        ) from None

    if len({id(x) for x in wanted if x is not None}) != sum(x is not None for x in wanted):
        raise ValueError("where returned the same node twice")
    if len(wanted) == len(indices) and all(x is marked.marks[i] for x, i in zip(wanted, indices, strict=True)):
        return False, wanted, sorted(_Run(i, i + 1, which) for which, i in enumerate(indices)), marked.treedef
    ids = {id(node) for node in wanted}
    runs, treedef = _runs(lambda x: id(x) in ids, wanted, marked)
    _check_counts(wanted, runs, marked)
    return False, wanted, runs, treedef


def _runs(is_wanted: Callable[[Any], bool], wanted: list[Any], marked: _Marked) -> tuple[list[_Run], Any]:
    """Return a run for every place of a wanted node, and the structure of the tree with one leaf for each."""
    items, treedef = jtu.tree_flatten(marked.tree, is_leaf=is_wanted)
    which = {id(node): i for i, node in enumerate(wanted)}
    runs: list[_Run] = []
    under = 0  # leaves under the wanted nodes so far, minus the one leaf that replaces each
    for place in compress(range(len(items)), map(is_wanted, items)):
        node = items[place]
        count = jtu.tree_structure(node).num_leaves
        runs.append(_Run(place + under, place + under + count, which[id(node)]))
        under += count - 1
    return runs, treedef


def _exchange(leaves: list[Any], runs: list[_Run], replacements: list[Any]) -> list[Any]:
    """Return the leaves, with one replacement for each run."""
    out: list[Any] = []
    end = 0
    for run in runs:
        out += leaves[end : run.start]
        out.append(replacements[run.which])
        end = run.stop
    return out + leaves[end:]


def _check_counts(wanted: list[Any], runs: list[_Run], marked: _Marked) -> None:
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
                "where returned a node and another one inside it, so the replacement of one would be lost. Return one "
                "of them, or call tree_at twice"
            )
        if count == 0:
            raise ValueError(
                f"where returned {describe_value(node)}, which is not a node of the tree. {_hint(marked, node)}"
            )


def _lies_inside(node: Any, other: Any) -> bool:
    is_node = partial(operator.is_, node)
    return other is not node and any(map(is_node, jtu.tree_leaves(other, is_leaf=is_node)))


def _hint(marked: _Marked, *strange: Any) -> str:
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


def _static_fields_with(x: Any, tree: Any) -> list[tuple[str, str]]:
    """Return class and name of each field whose value is `x`, in all nodes of a tree of marks."""
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


def _as_list(replace: Any, length: int) -> list[Any]:
    try:
        values = list(replace)
    except TypeError:
        raise TypeError(
            f"where returned {length} nodes, so replace must be a sequence of {length}, found {describe_value(replace)}"
        ) from None
    if len(values) != length:
        raise ValueError(f"where returned {length} nodes, and replace has {len(values)} values")
    return values
