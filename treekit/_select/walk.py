"""Walk through a tree: which of its nodes have a name that a pattern matches, or are of a class?"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from treekit._base.jax import jtu
from treekit._base.key_path import has_keys, is_variable, keyed_children, start_below
from treekit._base.layouts import layout_of
from treekit._base.patterns import Pattern, PatternSet
from treekit._base.types import IsLeaf, PyTree

Indices = tuple[int, ...]  # the index of each child that leads to a node, from the root


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
    # The nodes to visit: name with a dot, place and node, the classes that are looked for, and those found above.
    todo: list[Any] = [("", (), tree, classes, ())]
    while todo:
        start, place, x, wanted, above = todo.pop()
        name = start[:-1]
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
            (start_below(start, text), (*place, i), child, wanted, above) for i, (text, child) in enumerate(children)
        ]
        todo += reversed(below)


def unnamed_field(field: str, nodes: Iterable[object]) -> str:
    """Say for an error that one of these nodes, which has a field of this name, is registered without key paths."""
    for x in nodes:
        if (field in field_names(x) or field in getattr(x, "__dict__", ())) and not has_keys(x):
            names = ", ".join(text for text, _ in keyed_children(x) if text)
            return (
                f". {type(x).__qualname__} has a field {field!r}, but is registered without key paths, so its children "
                f"are called {names}"
            )
    return ""


def no_instance(cls: type[Any], nodes: Iterable[object]) -> str:
    """Say for an error that a tree, which has these nodes and leaves, has no instance of a class."""
    classes: dict[type[Any], str] = {
        type(x): "jax.Array" if isinstance(x, jax.Array) else type(x).__qualname__ for x in nodes if x is not None
    }
    instances = f"It has instances of {', '.join(sorted(set(classes.values())))}" if classes else "It is empty"
    if any((x.__module__, x.__qualname__) == (cls.__module__, cls.__qualname__) for x in classes):
        instances = (
            "It has instances of a class of that name, which was defined anew since, as when a cell of a notebook is "
            "run again: create the tree again"
        )
    return f"the tree has no instance of {cls.__qualname__}. {instances}"


def field_names(x: object) -> list[str]:
    return [f.name for f in dataclasses.fields(x)] if dataclasses.is_dataclass(x) else []


def a_static_field(fields: Sequence[tuple[object, str]]) -> str:
    """Say for an error that something is one of these static fields of nodes, and how to change that."""
    node, name = fields[0]
    where = " or ".join(dict.fromkeys(f"{type(x).__qualname__}.{field}" for x, field in fields))
    how = f"Create the {type(node).__qualname__} again, with another value"
    if layout_of(type(node)) is not None:
        how = f"treekit.replace(node, {name}=...) makes a node with another value"
    return f"the static field {where}. A static field is part of the structure, not a node. {how}"
