"""Flatten one level of a tree, and tell what its leaves and nodes are."""

import functools
import operator
from collections.abc import Mapping
from typing import Any, TypeGuard

import jax

from treekit._base.describe import describe
from treekit._base.jax import jtu
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import has_gradient, is_inexact_array
from treekit._base.types import PyTree

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


def as_none(_: object) -> None:
    """Return None for a leaf."""


def check_no_foreign_floats(tree: PyTree, name: str) -> None:
    """Raise a TypeError for a NumPy array of bf16 or float8, which `is_inexact_array` does not select."""
    for i, x in enumerate(jtu.tree_leaves(tree)):
        if has_gradient(x) and not is_inexact_array(x):
            raise TypeError(
                f"{name} would leave out the array at {leaf_path_text(tree, i)}, {describe(x)}: to NumPy, its dtype is "
                "not a floating-point one, so treekit.is_inexact_array and Equinox's do not select it. Make it an "
                "array of JAX: jax.numpy.asarray(x)"
            )
