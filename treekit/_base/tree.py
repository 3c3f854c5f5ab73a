"""Flatten one level of a tree, or several trees with one structure, with errors that say where they differ."""

import functools
import operator
from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

import jax

from treekit._base.describe import KEYS, count, describe
from treekit._base.dtype import cast_like
from treekit._base.jax import jtu
from treekit._base.key_path import key_name, leaf_path_text
from treekit._base.predicates import can_be_trained, is_inexact_array
from treekit._base.types import IsLeaf, PyTree

# Faster than a Python function, and called for every node.
is_none = functools.partial(operator.is_, None)


def is_mapping(x: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether `x` is a mapping; to type checkers, its keys and values may then have any types."""
    return isinstance(x, Mapping)


def children_of(x: object) -> dict[Any, Any]:
    """Return the children of a node by key, or by position if its class gives a key twice."""
    children = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
    by_key = {path[0]: child for path, child in children}
    if len(by_key) < len(children):
        return {jax.tree_util.FlattenedIndexKey(i): child for i, (_, child) in enumerate(children)}
    return by_key


def in_nodes_of(like: PyTree, tree: PyTree, *, kind: type[Any] = Mapping) -> Any:
    """Return a tree in the nodes of another one, of whatever class, where their keys are the same.

    Args:
        like: the other tree.
        tree: a tree of that structure, or a prefix of it. Where it differs otherwise, it stays as it is.
        kind: the class of a node that may be replaced, and of what replaces it; `object` for any two nodes of which one
            is a mapping. There, the key i of a mapping is the index i of a list.
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
    return jtu.tree_structure(like, is_leaf=lambda x: x is not like).unflatten(parts)


def as_none(_: object) -> None:
    """Return None for a leaf."""


def check_no_foreign_floats(tree: PyTree, name: str) -> None:
    """Raise a TypeError for a NumPy array of bf16 or float8, which `is_inexact_array` does not select."""
    for i, x in enumerate(jtu.tree_leaves(tree)):
        if can_be_trained(x) and not is_inexact_array(x):
            raise TypeError(
                f"{name} would leave out the array at {leaf_path_text(tree, i)}, {describe(x)}: to NumPy, its dtype is "
                "not a floating-point one, so treekit.is_inexact_array and Equinox's do not select it. Make it an "
                "array of JAX: jax.numpy.asarray(x)"
            )


def cast_each(
    results: list[Any],
    likes: list[Any],
    tree: PyTree,
    is_leaf: IsLeaf = None,
    casting: str = "same_kind",
    *,
    advises: bool = True,
) -> list[Any]:
    """Cast one result for each leaf of `tree` to the dtypes of `likes`, as `cast_like` does; errors name key paths."""
    out: list[Any] = []
    try:
        pairs = zip(results, likes, strict=True)
        out.extend(cast_like(result, like, casting, advises=advises) for result, like in pairs)
    except (TypeError, OverflowError) as error:
        raise type(error)(f"at {leaf_path_text(tree, len(out), is_leaf)}: {error}") from None
    return out


def describe_keys(a: Collection[Any], b: Collection[Any]) -> tuple[str, str]:
    """List the keys of the children of two nodes; if there are many, those that the other node does not have."""

    def described(keys: Collection[Any], others: Collection[Any]) -> str:
        if not keys:
            return "no children"
        children = count(len(keys), "child", "children")
        if len(keys) <= KEYS:
            return f"{children}: {', '.join(map(key_name, keys))}"
        own = [key_name(key) for key in keys if key not in others]
        rest = f" and {len(own) - KEYS} more" if len(own) > KEYS else ""
        return children + (f", among them {', '.join(own[:KEYS])}{rest}" if own else "")

    return described(a, b), described(b, a)
