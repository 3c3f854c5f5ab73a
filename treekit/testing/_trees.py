"""What several laws ask of trees: their arrays, by name, and what is in these."""

from collections.abc import Callable
from typing import Any

import jax

from treekit._base.dtype import dtype_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_array, is_inexact_array
from treekit._base.types import PyTree
from treekit._compare.differences import TreeDiff
from treekit._names.key_path import flatten_with_distinct_names
from treekit._show.shared import tree_shared


def split(tree: PyTree) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the arrays of a tree that jit traces, and a function that rebuilds the tree with other arrays."""
    leaves, treedef = jtu.tree_flatten(tree)

    def tree_with(arrays: list[Any]) -> Any:
        left = iter(arrays)
        return treedef.unflatten([next(left) if is_jit_argument(x) else x for x in leaves])

    return [x for x in leaves if is_jit_argument(x)], tree_with


def is_jit_argument(x: object) -> bool:
    """Whether jit accepts this leaf as an array argument."""
    return is_array(x) and dtype_of(x) is not None and dtype_of(x) != jax.dtypes.float0


def by_path(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by key path."""
    return {name: x for name, x in flatten_with_distinct_names(tree)}


def shared_buffers(tree: PyTree) -> dict[str, list[str]]:
    """Return which arrays of JAX share a buffer, by key path, as `tree_shared` does."""

    def of_jax(x: object) -> Any:
        return x if isinstance(x, jax.Array) else None

    return tree_shared(jtu.tree_map(of_jax, tree))


def all_finite(tree: PyTree) -> Any:
    """Whether all numbers in the inexact arrays of a tree are finite."""
    return jnp.stack([jnp.isfinite(x).all() for x in jtu.tree_leaves(tree) if is_inexact_array(x)] or [True]).all()


def nan_paths(tree: PyTree) -> set[str]:
    """Return the key paths of the arrays that contain a NaN."""
    return {path for path, x in by_path(tree).items() if is_inexact_array(x) and bool(jnp.isnan(x).any())}


def without(diff: TreeDiff, *kinds: str) -> TreeDiff:
    """Return the differences, except those of these kinds."""
    return TreeDiff(difference for difference in diff if difference.kind not in kinds)
