"""One level of a tree: which children does a node have?"""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

import jax

from treekit._base.jax import jtu, registry
from treekit._base.types import IsLeaf, LeafPredicate, PyTree, PyTreeDef

# Faster than a Python function, and called for every node.
is_none = functools.partial(operator.is_, None)


def is_mapping(x: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether `x` is a mapping; to type checkers, its keys and values may then have any types."""
    return isinstance(x, Mapping)


def one_level(x: PyTree) -> tuple[list[Any], PyTreeDef]:
    """Return the children of a node, and its structure; a leaf is its own only child."""
    return jtu.tree_flatten(x, is_leaf=functools.partial(operator.is_not, x))


def children_or_none(x: object) -> Any:
    """Return the children of a node, an iterable; None for a leaf."""
    level = registry.flatten_one_level(x)
    return None if level is None else level[0]


def children_of(x: object) -> dict[Any, Any]:
    """Return the children of a node by key, or by position if its class gives a key twice."""
    children = jtu.tree_flatten_with_path(x, is_leaf=functools.partial(operator.is_not, x))[0]
    by_key = {path[0]: child for path, child in children}
    if len(by_key) < len(children):
        return {jax.tree_util.FlattenedIndexKey(i): child for i, (_, child) in enumerate(children)}
    return by_key


def or_leaf(is_leaf: IsLeaf, predicate: LeafPredicate) -> LeafPredicate:
    """Return a predicate that is also True for what a user's `is_leaf` counts as a leaf."""
    return predicate if is_leaf is None else lambda x: predicate(x) or is_leaf(x)


def has_node(tree: PyTree, predicate: LeafPredicate) -> bool:
    """Whether a tree has a node or a leaf for which the predicate holds."""
    return any(map(predicate, jtu.tree_leaves(tree, is_leaf=predicate)))


def rebuilt(tree: PyTree) -> Any:
    """Return a copy of a tree that has its leaves, and shares no container with it."""
    leaves, treedef = jtu.tree_flatten(tree)
    return treedef.unflatten(leaves)


def fill_none(tree: PyTree, others: PyTree) -> Any:
    """Return a tree with what another has instead of each None."""
    return jtu.tree_map(_first, tree, others, is_leaf=is_none)


def _first(x: object, other: object) -> object:
    return other if x is None else x


def numbered(treedef: PyTreeDef) -> tuple[Any, dict[int, int]]:
    """Return a tree of this structure with marks as leaves, and the number of each mark by its id.

    A mark is an `object()`, as JAX itself passes to `unflatten`, so the classes of users accept it. Keep the tree as
    long as you ask for numbers, so that the ids stay its own.
    """
    marks = [object() for _ in range(treedef.num_leaves)]
    return treedef.unflatten(marks), {id(mark): i for i, mark in enumerate(marks)}


def reachable(x: object, parts_of: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """Return an object and everything reachable through `parts_of`, each once, even if there are cycles."""
    parts: dict[int, Any] = {}  # by id
    pending = [x]
    while pending:
        part = pending.pop()
        if id(part) not in parts:
            parts[id(part)] = part
            pending += parts_of(part)
    return list(parts.values())
