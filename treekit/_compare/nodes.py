"""The same tree in the nodes of another one: a dict for a `FrozenDict`, or for an `nnx.State`."""

import operator
from collections.abc import Callable
from typing import Any

from treekit._base.jax import jtu
from treekit._base.tree import children_of, is_mapping, one_level
from treekit._base.types import PyTree
from treekit._names.key_path import key_name


def mappings_as_in(like: PyTree, tree: PyTree) -> Any:
    """Return a tree with its mappings replaced by those that another tree has there, if they have the same keys.

    Args:
        like: the other tree.
        tree: a tree of that structure, or a prefix of it. What does not match is returned as it is.
    """
    return _as_in(like, tree, lambda a, b: is_mapping(a) and is_mapping(b))


def nodes_as_in(like: PyTree, tree: PyTree) -> Any:
    """Do the same, and replace nodes by mappings and mappings by nodes too: key i of a mapping is index i of a list."""
    return _as_in(like, tree, lambda a, b: is_mapping(a) or is_mapping(b))


def _as_in(like: PyTree, tree: PyTree, may_replace: Callable[[PyTree, PyTree], bool]) -> Any:
    if tree is like or jtu.all_leaves([tree]) or jtu.all_leaves([like]):
        return tree
    are_alike = type(tree) is type(like)
    if not (are_alike or may_replace(like, tree)):
        return tree
    wanted, children = children_of(like), children_of(tree)
    names = [*map(key_name, wanted)]
    by_name = {key_name(key): child for key, child in children.items()}
    are_names_distinct = len(by_name) == len(children)  # the keys 1 and "1" have one name
    if not are_names_distinct or sorted(names) != sorted(by_name):
        return tree
    parts = [_as_in(child, by_name[name], may_replace) for name, child in zip(names, wanted.values(), strict=True)]
    if are_alike and [*children] == [*wanted] and all(map(operator.is_, parts, children.values())):
        return tree
    return one_level(like)[1].unflatten(parts)
