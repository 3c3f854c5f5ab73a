"""The same tree in the nodes of another one: a dict for a `FrozenDict`, or for an `nnx.State`."""

import operator
from collections.abc import Mapping
from typing import Any

from treekit._base.jax import jtu
from treekit._base.tree import children_of, is_mapping, one_level
from treekit._base.types import PyTree
from treekit._names.key_path import key_name


def in_nodes_of(like: PyTree, tree: PyTree, *, kind: type[Any] = Mapping) -> Any:
    """Return a tree with its nodes replaced by those of another tree, wherever both have the same keys.

    Args:
        like: the other tree.
        tree: a tree of that structure, or a prefix of it. Nodes with other keys are returned as they are.
        kind: with `Mapping`, a mapping is replaced by a mapping of another class. With `object`, any two nodes match of
            which one is a mapping: its key i is the index i of a list.
    """
    if tree is like or jtu.all_leaves([tree]) or jtu.all_leaves([like]):
        return tree
    is_like = type(tree) is type(like)
    are_of_kind = isinstance(like, kind) and isinstance(tree, kind)
    if not is_like and not (are_of_kind and (is_mapping(like) or is_mapping(tree))):
        return tree
    wanted, children = children_of(like), children_of(tree)
    by_name = {key_name(key): child for key, child in children.items()}
    if len(wanted) != len(children) or not {*map(key_name, wanted)} <= by_name.keys():
        return tree
    parts = [in_nodes_of(child, by_name[key_name(key)], kind=kind) for key, child in wanted.items()]
    if is_like and [*children] == [*wanted] and all(map(operator.is_, parts, children.values())):
        return tree
    return one_level(like)[1].unflatten(parts)
