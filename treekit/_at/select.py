"""Find nodes by name or by class, for `tree_at` and `tree_find`."""

import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from treekit._base.callable import is_truly_callable
from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._base.key_path import children_or_none, is_variable, keyed_children, name_below, named_children
from treekit._base.pattern_set import PatternSet, Place
from treekit._base.patterns import check_pattern, nearest, pattern_text
from treekit._base.types import IsLeaf, PyTree, PyTreeDef
from treekit._filter import TreeSpec

Pattern: TypeAlias = str | re.Pattern[str]
# What `tree_at` and `tree_find` take: a function that returns nodes of the tree, a pattern or a class, or several.
Selector: TypeAlias = Pattern | type[Any] | list[Any] | tuple[Any, ...]
Where: TypeAlias = Callable[[Any], Any] | Selector


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
        found = f"a {type(where).__name__}. Are the arguments in the right order?" if is_tree else describe_value(where)
        raise TypeError(
            "where must be a function of the tree, a pattern such as '**.weight', a class, or a list of patterns and "
            f"classes; found {found}"
        )
    return False


def is_several(where: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether `where` is a list of patterns and classes."""
    return type(where) in (list, tuple)


def select(where: object, tree: PyTree, is_leaf: IsLeaf = None) -> list[Found]:
    """Return the nodes and leaves that match a pattern or a class, or one of several, in the order of the tree.

    Of a class, each outermost instance is found.

    Raises:
        ValueError: one of them matches nothing, two nodes that match a pattern have one name, or `where` is empty.
        TypeError: one of them is neither a pattern nor a class.
    """
    selectors = _checked(where)
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
        if i not in used:
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


def _checked(where: Any) -> list[Pattern | type[Any]]:
    selectors: list[Any] = list(where) if is_several(where) else [where]
    if not selectors:
        raise ValueError("where is empty: pass a pattern, a class, several of them, or a function of the tree")
    return [x if isinstance(x, type) else check_pattern(x) for x in selectors]


def _nothing(given: Pattern | type[Any], tree: PyTree, is_leaf: IsLeaf) -> str:
    nodes = list(walk(tree, "", is_leaf))
    if isinstance(given, type):
        classes = sorted({type(node).__qualname__ for _, node in nodes})
        return f"the tree has no instance of {given.__qualname__}. It has instances of {', '.join(classes)}"
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


def walk(x: Any, name: str = "", is_leaf: IsLeaf = None) -> Iterator[tuple[str, Any]]:
    """Yield each node of a tree with its name, before the nodes in it."""
    yield name, x
    for below, child in named_children(x, name, is_leaf):
        yield from walk(child, below, is_leaf)


def check_apart(found: list[Found]) -> None:
    """Raise a ValueError if one of the nodes is inside another, so that its replacement would be lost."""
    for outer, inner in itertools.pairwise(found):
        if inner.place[: len(outer.place)] == outer.place:
            raise ValueError(
                f"where matches {inner.name!r}, which is inside {outer.name or 'the root'!r}, and where matches that "
                "too, so one of the replacements would be lost. Match one of them, or call tree_at twice"
            )


def replace_at(tree: PyTree, found: list[Found], values: Iterable[Any]) -> Any:
    """Return a copy of a tree with other values for nodes that were found in it, none of which is inside another."""
    if all(children_or_none(x.node) is None for x in found):  # leaves only, which is faster
        leaves, treedef = jtu.tree_flatten(tree)
        for x, value in zip(found, values, strict=True):
            leaves[x.start] = value
        return treedef.unflatten(leaves)
    above = {x.place[:i] for x in found for i in range(len(x.place))}
    return _rebuilt(tree, (), {x.place: value for x, value in zip(found, values, strict=True)}, above)


def _rebuilt(x: Any, place: tuple[int, ...], replacements: dict[tuple[int, ...], Any], above: set[Any]) -> Any:
    if place not in above:
        return replacements[place] if place in replacements else jtu.tree_map(_same, x)  # a copy, not the same list
    children, treedef = jtu.tree_flatten(x, is_leaf=functools.partial(operator.is_not, x))
    return treedef.unflatten(_rebuilt(child, (*place, i), replacements, above) for i, child in enumerate(children))


def _same(leaf: object) -> object:
    return leaf
