"""`tree_find`: return leaves and subtrees, selected by name and by class, or by a function."""

import contextlib
import dataclasses
import functools
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar, Unpack, overload

import jax

from treekit._base.describe import RUNS_ITS_CODE, check_bool, describe_value, type_name
from treekit._base.jax import jtu
from treekit._base.key_path import (
    flatten_with_path,
    has_keys,
    is_variable,
    keyed_children,
    name_below,
    path_name,
    path_text,
    walk,
)
from treekit._base.layouts import layout_of
from treekit._base.patterns import Pattern, PatternSet, check_pattern_or_class, nearest, pattern_text
from treekit._base.predicates import is_truly_callable
from treekit._base.types import IsLeaf, LeafPredicate, PyTree
from treekit._select.filter import TreeSpec

T = TypeVar("T")

# What `tree_at` and `tree_find` take: a function that returns nodes of the tree, a pattern or a class, or several.
Selector: TypeAlias = Pattern | type[Any] | list[Any] | tuple[Any, ...]
Where: TypeAlias = Callable[[Any], Any] | Selector
Indices = tuple[int, ...]  # the index of each child that leads to a node, from the root


class Options(TypedDict, total=False):
    is_leaf: LeafPredicate | None
    strict: bool


@overload
def tree_find(tree: PyTree, where: Selector, **options: Unpack[Options]) -> dict[str, Any]: ...
@overload
def tree_find(tree: T, where: Callable[[T], Any], **options: Unpack[Options]) -> dict[str, Any]: ...
def tree_find(
    tree: PyTree, where: Where, *, is_leaf: LeafPredicate | None = None, strict: bool = True
) -> dict[str, Any]:
    """Return the leaves and subtrees that `where` selects, by name.

    Args:
        tree: any pytree.
        where: as in `tree_at`: a function, a pattern, a class, or a list of patterns and classes.
        is_leaf: as in `jax.tree.flatten`.
        strict: False returns nothing for a pattern or a class that matches nothing.

    Returns:
        The nodes in the order of the tree, by their key paths joined by dots, as in `path_mask`. The root is called "".

    Raises:
        ValueError: a pattern or a class matches nothing, or a function returns an empty sequence, and `strict` is True;
            two nodes have one name; or, as in `tree_at`, a function returns something that
            is not a node.

    >>> tree_find({"layers": [{"w": 1, "bias": 2}, {"w": 3, "bias": 4}]}, "**.bias")
    {'layers.0.bias': 2, 'layers.1.bias': 4}
    >>> tree_find({"layers": [{"w": 1}, {"w": 3}]}, "layers.*")
    {'layers.0': {'w': 1}, 'layers.1': {'w': 3}}
    """
    check_bool("strict", strict)
    selected = find(where, tree, is_leaf, strict=strict)
    return _by_name((name, selected.nodes[i]) for i, name in selected.names())


class Selected(NamedTuple):
    """The nodes that `where` selects.

    Attributes:
        is_one: whether it is one pattern or class, or a function that returned one node.
        nodes: the nodes, in the order in which the function returned them, or else in that of the tree.
        items: the indices of the nodes that each pattern or class of `where` selects, or of each that it returned.
        names: returns the index and the name of each node, in the order of the tree.
        replace: takes a value for each node, and returns a copy of the tree that has these values instead.
        nested: the names of a node and of another one inside it; None if no node is inside another.
    """

    is_one: bool
    nodes: list[Any]
    items: list[list[int]]
    names: Callable[[], Iterable[tuple[int, str]]]
    replace: Callable[[Iterable[Any]], Any]
    nested: tuple[str, str] | None = None


def find(where: object, tree: PyTree, is_leaf: IsLeaf, *, strict: bool, may_be_empty: bool = False) -> Selected:
    """Find the nodes that `where` selects.

    Args:
        where: as in `tree_find`.
        tree: any pytree.
        is_leaf: as in `jax.tree.flatten`.
        strict: raise an error for a pattern or a class that matches nothing, and for an empty sequence.
        may_be_empty: accept a function that returns an empty sequence, whatever `strict` is.
    """
    if isinstance(where, (str, re.Pattern, type)) or type(where) in (list, tuple):
        return _find_by_name(where, tree, is_leaf, strict)
    if isinstance(where, TreeSpec) or not is_truly_callable(where):
        raise TypeError(
            "where must be a function of the tree, a pattern such as '**.weight', a class, or a list of patterns and "
            f"classes; found {type_name(where)}. Are the arguments in the right order?"
        )
    return _find_by_function(where, tree, is_leaf, strict and not may_be_empty)


# ------------------------------------------------------------------------------------------------- by name and by class


def _find_by_name(where: Any, tree: PyTree, is_leaf: IsLeaf, strict: bool) -> Selected:
    """Find the nodes and leaves that match a pattern or a class; of a class, each outermost instance."""
    is_one = type(where) not in (list, tuple)
    selectors = list(map(check_pattern_or_class, [where] if is_one else where))
    if strict and not selectors:
        raise ValueError("where is empty: pass a pattern, a class, several of them, or a function of the tree")
    matches = list(walk_matched(selectors, tree, is_leaf))
    items: list[list[int]] = [[] for _ in selectors]
    for position, x in enumerate(matches):
        for i in (*x.patterns, *x.classes):
            items[i].append(position)
    for selector, positions in zip(selectors, items, strict=True):
        if strict and not positions:
            raise ValueError(f"where: {_nothing(selector, tree, is_leaf)}")
    _by_name((x.name, x.node) for x in matches if x.patterns)
    above = (pair for pair in itertools.pairwise(matches) if pair[1].place[: len(pair[0].place)] == pair[0].place)
    nested = next(((outer.name, inner.name) for outer, inner in above), None)
    replace = functools.partial(_replace_at, tree, [x.place for x in matches])
    return Selected(
        is_one, [x.node for x in matches], items, lambda: enumerate(x.name for x in matches), replace, nested
    )


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
    # The nodes to visit: name, place and node, the classes that are looked for here and below, and those found above.
    todo: list[Any] = [("", (), tree, classes, ())]
    while todo:
        name, place, x, wanted, above = todo.pop()
        goes_on = whole or pattern_set.goes_on(name) or wanted or is_variable(x)
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
            (name_below(name, text), (*place, i), child, wanted, above) for i, (text, child) in enumerate(children)
        ]
        todo += reversed(below)


def _by_name(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return nodes by name; raise a ValueError if two of them have one name."""
    nodes: dict[str, Any] = {}
    for name, node in named:
        if name in nodes:
            raise ValueError(
                f"two nodes are called {name!r}: a key contains a dot or is empty, or a string and a number are "
                "written alike. Select them with a function, where=lambda tree: ..."
            )
        nodes[name] = node
    return nodes


def _replace_at(tree: PyTree, places: Sequence[Indices], values: Iterable[Any]) -> Any:
    """Return a copy of a tree with other values at some places, none of which is inside another."""
    new = dict(zip(places, values, strict=True))
    above = sorted({place[:i] for place in places for i in range(len(place))}, key=len)
    old: dict[Indices, Any] = {(): tree}
    treedefs: dict[Indices, Any] = {}
    for place in above:
        children, treedefs[place] = jtu.tree_flatten(old[place], is_leaf=functools.partial(operator.is_not, old[place]))
        old |= {(*place, i): child for i, child in enumerate(children)}
    for place in reversed(above):  # not by recursion, since trees may be deeper than Python's limit for that
        below = [(*place, i) for i in range(treedefs[place].num_leaves)]
        children = [new[x] if x in new else _copy(old[x]) for x in below]
        new[place] = treedefs[place].unflatten(children)
        back = jtu.tree_leaves(new[place], is_leaf=functools.partial(operator.is_not, new[place]))
        if list(map(id, back)) != list(map(id, children)) and not _have_same_leaves(back, children):
            raise ValueError(
                f"JAX cannot rebuild {type(old[place]).__qualname__} around other values: it changes them. "
                f"{RUNS_ITS_CODE}"
            )
    return new[()] if places else _copy(tree)


def _copy(tree: PyTree) -> Any:
    """Return a copy of a tree that has its leaves, and shares no container with it."""
    return jtu.tree_map(_same, tree)


def _same(leaf: object) -> object:
    return leaf


def _have_same_leaves(a: list[Any], b: list[Any]) -> bool:
    return list(map(id, jtu.tree_leaves(a))) == list(map(id, jtu.tree_leaves(b)))


def _nothing(selector: Pattern | type[Any], tree: PyTree, is_leaf: IsLeaf) -> str:
    """Say for an error that a pattern or a class matches nothing in a tree."""
    nodes = list(walk(tree, "", is_leaf))
    if isinstance(selector, type):
        return no_instance(selector, (node for _, node in nodes))
    text = pattern_text(selector)
    above, _, last = text.rpartition(".")
    fields = [(x, last) for name, x in nodes if name == above and last in _field_names(x) and has_keys(x)]
    if fields:
        return f"{text!r} is {_a_static_field(fields)}"
    names = nearest(text, list(dict.fromkeys(name for name, _ in nodes)))
    return (
        f"the pattern {text!r} matches nothing in the tree. The nearest names: {names}. A pattern must match a whole "
        f"name: '**.name' matches at any depth{unnamed_field(last, (x for _, x in nodes))}"
    )


def unnamed_field(field: str, nodes: Iterable[object]) -> str:
    """Say for an error that one of these nodes, which has a field of this name, is registered without key paths."""
    for x in nodes:
        if (field in _field_names(x) or field in getattr(x, "__dict__", ())) and not has_keys(x):
            names = ", ".join(text for text, _ in keyed_children(x) if text)
            return (
                f". {type(x).__qualname__} has a field {field!r}, but is registered without key paths, so its children "
                f"are called {names}"
            )
    return ""


def no_instance(cls: type[Any], nodes: Iterable[object]) -> str:
    """Say for an error that a tree, which has these nodes and leaves, has no instance of a class."""
    kinds = {"jax.Array" if isinstance(x, jax.Array) else type(x).__qualname__ for x in nodes if x is not None}
    instances = f"It has instances of {', '.join(sorted(kinds))}" if kinds else "It is empty"
    return f"the tree has no instance of {cls.__qualname__}. {instances}"


def _field_names(x: object) -> list[str]:
    return [f.name for f in dataclasses.fields(x)] if dataclasses.is_dataclass(x) else []


def _a_static_field(fields: Sequence[tuple[object, str]]) -> str:
    """Say for an error that something is one of these static fields of nodes, and how to change that."""
    node, name = fields[0]
    where = " or ".join(dict.fromkeys(f"{type(x).__qualname__}.{field}" for x, field in fields))
    how = f"Create the {type(node).__qualname__} again, with another value"
    if layout_of(type(node)) is not None:
        how = f"treekit.replace(node, {name}=...) makes a node with another value"
    return f"the static field {where}. A static field is part of the structure, not a node. {how}"


# -------------------------------------------------------------------------------------------------------- by a function


def _find_by_function(where: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf, strict: bool) -> Selected:
    """Find the nodes that a function returns.

    It is called with the tree, in which each leaf is replaced by a mark, an object of its own. There, nodes are found
    by identity: in the tree itself, small ints are one object, and a list may be at two places.
    """

    def is_mark(x: object) -> bool:
        return _is_empty_tuple(x) or (is_leaf is not None and is_leaf(x))

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=_is_empty_tuple if is_leaf is None else is_mark)
    marks: list[Any] = [_EmptyTuple() if _is_empty_tuple(x) else object() for x in leaves]
    leaf_of = dict(zip(map(id, marks), leaves, strict=True))
    try:
        marked = treedef.unflatten(marks)
    except Exception as error:
        error.add_note(f"A class in the tree cannot be rebuilt around placeholders for its leaves. {RUNS_ITS_CODE}")
        raise
    returned = _call(where, marked, leaf_of)
    returned_marks, structure = jtu.tree_flatten(returned)
    if strange := [x for x in returned_marks if id(x) not in leaf_of]:
        predicate = "If where is a predicate on leaves, pass a class, such as jax.Array, or a pattern instead. "
        raise ValueError(
            f"where did not return a node of the tree: {describe_value(strange[0])} is not a leaf of it. "
            f"{predicate if isinstance(returned, bool) else ''}{_hint(marked, returned, strange[0])}"
        )
    original = where(tree)
    depends_on_leaves = True
    with contextlib.suppress(ValueError):  # another structure
        same_leaves = map(operator.is_, structure.flatten_up_to(original), [leaf_of[id(x)] for x in returned_marks])
        depends_on_leaves = not all(same_leaves)
    if depends_on_leaves:
        raise ValueError(
            "where must use the structure of the tree only, but it depends on the leaves, or on the order of the keys "
            "of a dict, which JAX sorts"
        )

    is_returned: LeafPredicate = functools.partial(operator.is_, returned)
    parts, treedef = jtu.tree_flatten(marked, is_leaf=is_returned)
    is_one = any(map(is_returned, parts))
    try:
        nodes, originals = ([returned], [original]) if is_one else (list(returned), list(original))
    except TypeError:
        raise ValueError(
            f"where did not return a node of the tree, but {describe_value(returned)}. {_hint(marked, returned)}"
        ) from None
    index = {id(node): i for i, node in enumerate(nodes)}
    if not is_one:
        parts, treedef = jtu.tree_flatten(marked, is_leaf=lambda x: id(x) in index)
    positions = [(position, index[key]) for position, key in enumerate(map(id, parts)) if key in index]
    if sorted(i for _, i in positions) != list(range(len(nodes))):
        raise ValueError(_not_one_place_each(nodes, [id(parts[position]) for position, _ in positions], marked))
    if strict and not nodes:
        raise ValueError("where selects nothing: it returned an empty sequence. If that is meant, pass strict=False")

    def names() -> list[tuple[int, str]]:
        paths = flatten_with_path(marked, lambda x: id(x) in index)[0]
        return [(index[id(x)], path_name(path)) for path, x in paths if id(x) in index]

    def replace(values: Iterable[Any]) -> Any:
        values, out = list(values), list[Any]()
        start = 0  # of the leaves that are not in `out`
        for position, i in positions:
            stop = start + position - len(out)
            out += [*leaves[start:stop], values[i]]
            start = stop + jtu.tree_structure(parts[position]).num_leaves
        return treedef.unflatten([*out, *leaves[start:]])

    return Selected(is_one, originals, [[i] for i in range(len(nodes))], names, replace)


# Python has a single () object, so identity cannot distinguish two of them in a tree. A mark for one is a tuple too,
# which `where` can read.
class _EmptyTuple(tuple[()]):
    pass


_is_empty_tuple = functools.partial(operator.is_, ())


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
        for name in _field_names(node)
        if any(x is getattr(node, name, None) for x in strange if x is not None)
    ]
    if fields:
        return f"It is the value of {_a_static_field(fields)}. {must}"
    return (
        f"{must}. A static field is not a node (see treekit.replace), and neither is a value computed from leaves. A "
        "class that replaces its leaves when JAX rebuilds it also causes this: use treekit.register_node for it"
    )
