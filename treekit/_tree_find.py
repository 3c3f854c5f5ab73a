"""`tree_find`: return leaves and subtrees, selected by name and by class, or by a function."""

import dataclasses
import functools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeGuard, TypeVar, Unpack, overload

import jax

from treekit._base.describe import check_bool, describe_value, with_article
from treekit._base.jax import jtu
from treekit._base.key_path import (
    Pattern,
    PatternSet,
    check_pattern_or_class,
    flatten_with_path,
    is_variable,
    keyed_children,
    name_below,
    nearest,
    path_name,
    path_text,
    pattern_text,
    walk,
)
from treekit._base.layouts import layout_of
from treekit._base.predicates import is_truly_callable
from treekit._base.types import IsLeaf, LeafPredicate, PyTree, PyTreeDef
from treekit._filter import TreeSpec

T = TypeVar("T")

# What `tree_at` and `tree_find` take: a function that returns nodes of the tree, a pattern or a class, or several.
Selector: TypeAlias = Pattern | type[Any] | list[Any] | tuple[Any, ...]
Where: TypeAlias = Callable[[Any], Any] | Selector


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
    if is_selector(where):
        return by_name((x.name, x.node) for x in select(where, tree, is_leaf, strict=strict))
    function: Any = where
    located = locate(function, tree, is_leaf, strict=strict)
    return by_name((name, located.nodes[key]) for key, name in located.names().items())


# ------------------------------------------------------------------------------------------------- by name and by class


class Found(NamedTuple):
    """A node that was found in a tree.

    Attributes:
        name: its key path, joined by dots.
        place: the index of each child that leads to it, from the root.
        node: the node.
        selectors: the index of each pattern or class that it matches.
    """

    name: str
    place: tuple[int, ...]
    node: Any
    selectors: tuple[int, ...]


def is_selector(where: object) -> TypeGuard[Selector]:
    """Whether `where` says by name or by class which nodes are meant; a function finds them itself.

    Raises:
        TypeError: `where` is neither a function nor one of these.
    """
    if isinstance(where, (str, re.Pattern, type)) or is_several(where):
        return True
    if isinstance(where, TreeSpec) or not is_truly_callable(where):
        is_tree = not (isinstance(where, TreeSpec) or jtu.all_leaves([where]))
        found = (
            f"{with_article(type(where).__name__)}. Are the arguments in the right order?"
            if is_tree
            else describe_value(where)
        )
        raise TypeError(
            "where must be a function of the tree, a pattern such as '**.weight', a class, or a list of patterns and "
            f"classes; found {found}"
        )
    return False


def is_several(where: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether `where` is a list of patterns and classes."""
    return type(where) in (list, tuple)


def select(where: object, tree: PyTree, is_leaf: IsLeaf = None, *, strict: bool = True) -> list[Found]:
    """Return the nodes and leaves that match a pattern or a class, or one of several, in the order of the tree.

    Of a class, each outermost instance is found.

    Raises:
        ValueError: one of them matches nothing, and `strict` is True; two nodes that match a pattern
            have one name; or `where` is empty, and `strict` is True.
        TypeError: one of them is neither a pattern nor a class.
    """
    given: Any = where if is_several(where) else [where]
    selectors = list(map(check_pattern_or_class, given))
    if strict and not selectors:
        raise ValueError("where is empty: pass a pattern, a class, several of them, or a function of the tree")
    patterns = [(i, x) for i, x in enumerate(selectors) if not isinstance(x, type)]
    pattern_set = PatternSet([x for _, x in patterns])
    classes = [(i, x) for i, x in enumerate(selectors) if isinstance(x, type)]
    found: list[Found] = []
    # The nodes to visit: name, place and node as in `Found`, the place of the name in the globs, and the classes that
    # are looked for here and below.
    todo: list[Any] = [("", (), tree, pattern_set.start, classes)]
    while todo:
        name, place, x, globs, wanted = todo.pop()
        # The value of a variable has the same name: a pattern selects the value, not the variable.
        matched = () if is_variable(x) else pattern_set.matching(globs, name)
        instances = [i for i, cls in wanted if isinstance(x, cls)]
        if matched or instances:
            found.append(Found(name, place, x, tuple(sorted([*(patterns[i][0] for i in matched), *instances]))))
            wanted = [each for each in wanted if each[0] not in instances]
        if globs.goes_on or pattern_set.regexes or wanted or is_variable(x):
            below: list[Any] = []
            for i, (text, child) in enumerate(keyed_children(x, is_leaf)):
                after = globs if text is None else globs.after(text) if name else pattern_set.place(text)
                below.append((name_below(name, text), (*place, i), child, after, wanted))
            todo += reversed(below)
    used = {i for x in found for i in x.selectors}
    for i, selector in enumerate(selectors):
        if strict and i not in used:
            raise ValueError(f"where: {_nothing(selector, tree, is_leaf)}")
    by_name((x.name, x.node) for x in found if any(not isinstance(selectors[i], type) for i in x.selectors))
    return found


def by_name(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return nodes by name.

    Raises:
        ValueError: two nodes have one name.
    """
    nodes: dict[str, Any] = {}
    for name, node in found:
        if name in nodes:
            raise ValueError(
                f"two nodes are called {name!r}: a key contains a dot or is empty, or a string and a number are "
                "written alike. Select them with a function, where=lambda tree: ..."
            )
        nodes[name] = node
    return nodes


def _nothing(given: Pattern | type[Any], tree: PyTree, is_leaf: IsLeaf) -> str:
    nodes = list(walk(tree, "", is_leaf))
    if isinstance(given, type):
        return no_instance(given, (node for _, node in nodes))
    text = pattern_text(given)
    *above, last = text.split(".")
    for name, node in nodes:
        if name == ".".join(above) and dataclasses.is_dataclass(node) and hasattr(node, last):
            return (
                f"{text!r} is not a node of the tree, but a static field or another attribute of "
                f"{type(node).__qualname__}. {_other_static(type(node), last)}"
            )
    names = nearest(text, list(dict.fromkeys(name for name, _ in nodes)))
    return (
        f"the pattern {text!r} matches nothing in the tree. The nearest names: {names}. A pattern must match a whole "
        "name: '**.name' matches at any depth"
    )


def no_instance(cls: type[Any], nodes: Iterable[object]) -> str:
    """Say for an error that a tree, which has these nodes and leaves, has no instance of a class."""
    kinds = {"jax.Array" if isinstance(x, jax.Array) else type(x).__qualname__ for x in nodes if x is not None}
    found = f"It has instances of {', '.join(sorted(kinds))}" if kinds else "It is empty"
    return f"the tree has no instance of {cls.__qualname__}. {found}"


# -------------------------------------------------------------------------------------------------------- by a function


class Located(NamedTuple):
    """The nodes that a function returned.

    Attributes:
        is_one: whether it returned one node, not a sequence of nodes.
        nodes: the nodes in its order, each by the id of the node at the same place in `marked`.
        marked: the tree, rebuilt with a mark, an object of its own, for each leaf. In it, nodes are found by identity:
            in the tree itself, small ints are one object, and a list may be at two places.
        parts: the marked tree, flattened with these nodes as leaves.
        treedef: its structure then.
        leaves: the leaves of the tree.
    """

    is_one: bool
    nodes: dict[int, Any]
    marked: Any
    parts: list[Any]
    treedef: PyTreeDef
    leaves: list[Any]

    def names(self) -> dict[int, str]:
        """Return the names of the nodes, in the order of the tree."""
        paths = flatten_with_path(self.marked, lambda x: id(x) in self.nodes)[0]
        return {id(x): path_name(path) for path, x in paths if id(x) in self.nodes}

    def replace(self, values: Iterable[Any]) -> Any:
        """Return a copy of the tree with other values for the nodes, in their order."""
        by_id = dict(zip(self.nodes, values, strict=True))
        out: list[Any] = []
        start = 0  # of the leaves that are not in `out`
        for i in [i for i, part in enumerate(self.parts) if id(part) in by_id]:
            stop = start + i - len(out)
            out += [*self.leaves[start:stop], by_id[id(self.parts[i])]]
            start = stop + jtu.tree_structure(self.parts[i]).num_leaves
        return self.treedef.unflatten([*out, *self.leaves[start:]])


def locate(where: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf, *, strict: bool) -> Located:
    """Find the nodes that a function returns.

    Raises:
        ValueError: it returns anything but a node of the tree or a sequence of them, each at one place, and not inside
            another; it depends on the leaves; or it returns an empty sequence, and `strict` is True.
    """

    def is_mark(x: object) -> bool:
        return _is_empty_tuple(x) or (is_leaf is not None and is_leaf(x))

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=_is_empty_tuple if is_leaf is None else is_mark)
    marks: list[Any] = [_EmptyTuple() if _is_empty_tuple(x) else object() for x in leaves]
    marked, leaf_of = treedef.unflatten(marks), dict(zip(map(id, marks), leaves, strict=True))
    found = _call(where, marked, leaf_of)
    found_marks, structure = jtu.tree_flatten(found)
    if strange := [x for x in found_marks if id(x) not in leaf_of]:
        predicate = (
            "If where is a predicate on leaves, pass a class, such as jax.Array, or a pattern instead; treekit.filter "
            "takes predicates. "
        )
        raise ValueError(
            f"where did not return a node of the tree: {describe_value(strange[0])} is not a leaf of it. "
            f"{predicate if isinstance(found, bool) else ''}{_hint(marked, found, strange[0]).rstrip('.')}"
        )
    original = where(tree)
    if not _has_leaves(original, structure, [leaf_of[id(x)] for x in found_marks]):
        raise ValueError(
            "where must use the structure of the tree only, but it depends on the leaves, or on the order of the keys "
            "of a dict, which JAX sorts"
        )

    is_found: LeafPredicate = functools.partial(operator.is_, found)
    parts, treedef = jtu.tree_flatten(marked, is_leaf=is_found)
    is_one = any(map(is_found, parts))
    try:
        nodes, originals = ([found], [original]) if is_one else (list(found), list(original))
    except TypeError:
        raise ValueError(
            f"where did not return a node of the tree, but {describe_value(found)}. {_hint(marked, found)}"
        ) from None
    by_id = dict(zip(map(id, nodes), originals, strict=True))
    if not is_one:
        parts, treedef = jtu.tree_flatten(marked, is_leaf=lambda x: id(x) in by_id)
    counts = Counter(key for key in map(id, parts) if key in by_id)
    for node in nodes:
        if counts[id(node)] > 1:
            advice = "; pass is_leaf=lambda x: x is None to distinguish them" if node is None else ""
            raise ValueError(
                f"where returned {describe_value(node)}, and the tree has that object at {counts[id(node)]} places"
                f"{advice}"
            )
        if not counts[id(node)]:
            if any(_lies_inside(node, other) for other in nodes):
                raise ValueError(
                    "where returned a node inside another one, so the replacement of one would be lost. Return one "
                    "of them, or call tree_at twice"
                )
            raise ValueError(
                f"where returned {describe_value(node)}, which is not a node of the tree. {_hint(marked, node)}"
            )
    if len(by_id) < len(nodes):
        raise ValueError("where returned the same node twice")
    if strict and not nodes:
        raise ValueError("where selects nothing: it returned an empty sequence. If that is meant, pass strict=False")
    return Located(is_one, by_id, marked, parts, treedef, leaves)


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


def _has_leaves(tree: PyTree, treedef: PyTreeDef, leaves: list[Any]) -> bool:
    """Whether a tree has this structure and the same leaves, which may be nodes."""
    try:
        return all(map(operator.is_, treedef.flatten_up_to(tree), leaves))
    except ValueError:  # another structure
        return False


def _lies_inside(node: object, other: PyTree) -> bool:
    is_node = functools.partial(operator.is_, node)
    return other is not node and any(map(is_node, jtu.tree_leaves(other, is_leaf=is_node)))


def _hint(marked: PyTree, *strange: object) -> str:
    """Say what `where` must return, and which static fields contain what it did return."""
    must = "where must return nodes of the tree that it receives, unchanged"
    fields = [
        (type(node), f.name)
        for _, node in walk(marked)
        if dataclasses.is_dataclass(node)
        for f in dataclasses.fields(node)
        if any(x is getattr(node, f.name, None) for x in strange if x is not None)
    ]
    if not fields:
        return (
            f"{must}. A static field is not a node (see treekit.replace), and neither is a value computed from leaves. "
            "A class that replaces its leaves when JAX rebuilds it also causes this: use treekit.register_node for it."
        )
    cls = fields[0][0]
    holders = " or ".join(dict.fromkeys(f"{each.__qualname__}.{name}" for each, name in fields))
    names = " or ".join(dict.fromkeys(f"{name}=..." for _, name in fields))
    return (
        f"It is the value of the static field {holders}. A static field is part of the structure, not a node; {must}. "
        f"{_other_static(cls, names)}."
    )


def _other_static(cls: type[Any], name: str) -> str:
    """Say how to make an instance of a class with another value of a static field."""
    if layout_of(cls) is not None:
        return f"treekit.replace(node, {name.removesuffix('=...')}=...) makes a node with another static value"
    return f"Create the {cls.__qualname__} again, with another value"
