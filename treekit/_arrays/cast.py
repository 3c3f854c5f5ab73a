"""Cast values to the dtypes of leaves, with errors that name key paths."""

from typing import Any, TypeVar

import numpy as np

from treekit._base.dtype import cast_like, is_concrete, is_weak, weakened
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.memory import copied
from treekit._base.types import IsLeaf, PyTree
from treekit._compare.prefix import flatten_up_to
from treekit._names.key_path import leaf_path_text

T = TypeVar("T")


def cast_each(
    results: list[Any], likes: list[Any], tree: PyTree, is_leaf: IsLeaf = None, casting: str = "same_kind"
) -> list[Any]:
    """Cast one result for each leaf of `tree` to the dtypes of `likes`, as `cast_like` does; errors name key paths."""
    out: list[Any] = []
    try:
        pairs = zip(results, likes, strict=True)
        out.extend(cast_like(result, like, casting) for result, like in pairs)
    except (TypeError, OverflowError) as error:
        raise type(error)(f"at {leaf_path_text(tree, len(out), is_leaf)}: {error}") from None
    return out


def cast_tree_like(like: T, tree: PyTree, is_leaf: IsLeaf = None) -> T:
    """Cast the leaves of `tree` to the dtypes of `like`."""
    leaves, treedef = jtu.tree_flatten(like, is_leaf=is_leaf)
    out: T = treedef.unflatten(cast_each(flatten_up_to(treedef, tree), leaves, like, is_leaf))
    return out


def array_like(old: Any, value: Any) -> Any:
    """Return a value as a new array with the dtype, weak type, shape and sharding of another array."""
    new = jnp.broadcast_to(cast_like(copied(value), old), np.shape(old))
    if is_weak(old):
        new = weakened(new, old)
    return untyped.device_put(new, old.sharding) if is_concrete(old) and old.committed else new
