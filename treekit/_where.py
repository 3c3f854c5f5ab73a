"""Find the nodes that the `where` of `tree_at` and `tree_find` selects: by name and by class, or by a function."""

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from treekit._base.describe import describe_value, with_article
from treekit._base.jax import jtu
from treekit._base.key_path import (
    Pattern,
    PatternSet,
    Place,
    check_pattern_or_class,
    flatten_with_path,
    is_variable,
    keyed_children,
    name_below,
    named_children,
    nearest,
    path_text,
    pattern_text,
)
from treekit._base.predicates import is_truly_callable
from treekit._base.types import IsLeaf, LeafPredicate, PyTree, PyTreeDef
from treekit._filter import TreeSpec

# What `tree_at` and `tree_find` take: a function that returns nodes of the tree, a pattern or a class, or several.
Selector: TypeAlias = Pattern | type[Any] | list[Any] | tuple[Any, ...]
Where: TypeAlias = Callable[[Any], Any] | Selector

# ------------------------------------------------------------------------------------------------- by name and by class


class Found(NamedTuple):
    """A node that was found in a tree.

    Attributes:
        name: its key path, joined by dots.
        place: the index of each child that leads to it, from the root.
        start: the number of leaves of the tree before it.
        node: the node.
        selectors: the index of each pattern or class that it matches.
    """

    name: str
    place: tuple[int, ...]
    start: int
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
    classes = [(i, x) for i, x in enumerate(selectors) if isinstance(x, type)]
    pattern_set = PatternSet([x for _, x in patterns])
    used = set[int]()
    found: list[Found] = []

    def visit(name: str, place: tuple[int, ...], start: int, x: object, globs: Place, wanted: _Classes) -> _Classes:
        """Note whether a node is selected, and return the classes that are looked for below it."""
        matched = pattern_set.matching(globs, name) if globs.ends or pattern_set.regexes else ()
        if matched and is_variable(x):  # its value has the same name, and is what a name means
            matched = ()
        instances = [i for i, cls in wanted if isinstance(x, cls)] if wanted else ()
        if not (matched or instances):
            return wanted
        which = tuple(sorted([*(patterns[i][0] for i in matched), *instances])) if classes else matched
        used.update(which)
        found.append(Found(name, place, start, x, which))
        return [each for each in wanted if each[0] not in instances] if instances else wanted

    wanted = visit("", (), 0, tree, pattern_set.start, classes)
    to_visit: list[_Node] = [("", (), 0, tree, jtu.tree_structure(tree), pattern_set.start, wanted)]
    while to_visit:
        name, place, start, x, treedef, globs, wanted = to_visit.pop()
        if not (globs.goes_on or pattern_set.regexes or wanted or is_variable(x)):
            continue
        children = keyed_children(x, is_leaf)
        treedefs = treedef.children() if children else ()
        parts = None if pattern_set.regexes or wanted else globs.parts
        for i, ((text, child), below) in enumerate(zip(children, treedefs, strict=True)):
            first_leaf, start = start, start + below.num_leaves
            if parts is not None and text and text not in parts and "." not in text:
                continue  # as most children are, of one name
            after = globs if text is None else globs.after(text) if name else pattern_set.place(text)
            is_node = below.num_nodes > 1 or not below.num_leaves
            still, may_match = wanted, after.ends or pattern_set.regexes or wanted
            if not (is_node or may_match):
                continue  # as most leaves are
            child_name, child_place = name_below(name, text), (*place, i)
            if may_match:
                still = visit(child_name, child_place, first_leaf, child, after, wanted)
            if is_node:
                to_visit.append((child_name, child_place, first_leaf, child, below, after, still))
    found.sort(key=operator.attrgetter("start", "place"))
    for i, selector in enumerate(selectors):
        if strict and i not in used:
            raise ValueError(f"where: {_nothing(selector, tree, is_leaf)}")
    by_name((x.name, x.node) for x in found if any(not isinstance(selectors[i], type) for i in x.selectors))
    return found


_Classes: TypeAlias = list[tuple[int, type[Any]]]
# A node whose children are to be visited: as in `Found`, and its structure, the place of its name in the globs, and the
# classes that are looked for below it. A plain tuple, since there are many.
_Node: TypeAlias = tuple[str, tuple[int, ...], int, Any, PyTreeDef, Place, _Classes]


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
                f"{type(node).__qualname__}. treekit.replace(node, {last}=...) makes a node with another static value"
            )
    names = nearest(text, list(dict.fromkeys(name for name, _ in nodes)))
    return (
        f"the pattern {text!r} matches nothing in the tree. The nearest names: {names}. A pattern must match a whole "
        "name: '**.name' matches at any depth"
    )


def no_instance(cls: type[Any], nodes: Iterable[object]) -> str:
    """Say for an error that a tree, which has these nodes and leaves, has no instance of a class."""
    classes = sorted({type(node).__qualname__ for node in nodes})
    return f"the tree has no instance of {cls.__qualname__}. It has instances of {', '.join(classes)}"


def walk(x: Any, name: str = "", is_leaf: IsLeaf = None) -> Iterator[tuple[str, Any]]:
    """Yield each node of a tree with its name, before the nodes in it."""
    yield name, x
    for below, child in named_children(x, name, is_leaf):
        yield from walk(child, below, is_leaf)


# -------------------------------------------------------------------------------------------------------- by a function


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
        paths = [path_text(path) for path, mark in flatten_with_path(marked.tree)[0] if mark is error.obj]
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


def find_places(where: Callable[[Any], Any], tree: PyTree, is_leaf: LeafPredicate | None) -> tuple[Marked, Places]:
    """Return the tree with marks for leaves, and the places of the nodes that a function returns."""
    marked = mark(tree, is_leaf)
    found, plain = find(where, marked), where(tree)
    if is_empty_tuple(found) or (issubclass(type(found), (tuple, list)) and any(map(is_empty_tuple, found))):
        marked = mark(tree, lambda x: is_empty_tuple(x) or (is_leaf is not None and is_leaf(x)))
        found = find(where, marked)
        if is_empty_tuple(found) and is_empty_tuple(plain):  # not a () of the tree, which is a mark
            found, plain = list[Any](), list[Any]()
        elif any(map(is_empty_tuple, found)):
            raise ValueError(f"where returned (), which is not a node of the tree. {hint(marked, ())}")
    return marked, locate(found, check_same(plain, found, marked), marked)
