"""Preserve the dtypes and the structure of state and updates."""

import contextlib
import functools
from typing import Any

import jax
import numpy as np
import optax

from treekit._base.dtype import (
    cast_each,
    dtype_of,
    have_same_dtypes,
    is_weak,
    issubdtype,
    promoted_dtype,
    strengthen,
    strengthen_all,
    unshared,
)
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import is_array
from treekit._base.types import HasDtype, OptState, Params, PyTreeDef, TransformationLike, Updates
from treekit._tree_diff import tree_diff
from treekit.optax._kernel.sharding import shard_alike
from treekit.optax._kernel.transformation import core_of


def preserve_dtypes(tx: TransformationLike) -> optax.GradientTransformationExtraArgs:
    """Preserve the dtypes of the state, and give each update the wider of its gradient's and its param's dtype.

    Args:
        tx: any transformation.

    Raises:
        TypeError: `tx` is not a transformation; or `tx.update` returns a state or updates of another structure than
            it received.
    """
    inner_init, inner_update = core_of(tx)

    def init(params: Params) -> Any:
        state = strengthen_all(inner_init(params))
        if any(map(_is_lookahead, jtu.tree_leaves(state, is_leaf=_is_lookahead))):
            raise TypeError(
                "optax.lookahead, whose params are a pair, cannot be wrapped: use it outermost, from plain Optax"
            )
        return shard_alike(_own_arrays(state, params), params)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        new_updates, new_state = inner_update(updates, state, params, **extra)
        leaves, treedef = jtu.tree_flatten(updates)
        kept = keep_updates(leaves, treedef, params, new_updates)
        return treedef.unflatten(kept), keep_state(state, params, new_state)

    return optax.GradientTransformationExtraArgs(init, update)


def keep_updates(leaves: list[Any], treedef: PyTreeDef, params: Params, new_updates: Updates) -> list[Any]:
    """Return new updates, leaf by leaf, each in the wider dtype of its gradient and its param.

    Args:
        leaves: the gradients.
        treedef: their structure.
        params: the params, or None.
        new_updates: what a transformation made of the gradients.
    """
    updates = treedef.unflatten(leaves)
    news = _parts_of_updates(updates, treedef, new_updates)
    if list(map(_shape, news)) != list(map(_shape, leaves)):
        _check_update_shapes(news, leaves, updates)
    if _mixes_complex(updates if params is None else params):
        news = list(map(_real_where_real, leaves, news))
    return cast_each(news, _dtypes_of_updates(leaves, treedef, params), updates)


def keep_state(state: OptState, params: Params, new_state: OptState) -> Any:
    """Return a new state in the structure, shapes and dtypes of the one before it.

    Raises:
        TypeError: it has another structure or other shapes, or a cast to its dtype would lose values.
    """
    olds, news = jtu.tree_leaves(state), jtu.tree_leaves(new_state)
    if jtu.tree_structure(state) != jtu.tree_structure(new_state) or list(map(_shape, olds)) != list(map(_shape, news)):
        raise TypeError(
            "update returned a state of another structure or with other shapes than it received, which scan and cond "
            f"reject.\nreceived | returned:\n{tree_diff(state, new_state, values=False)}"
        )
    if _mixes_complex(params):
        new_state = jtu.tree_map(_real_where_real, state, new_state)
    return _keep_state_dtypes(new_state, state)


def _is_lookahead(state: object) -> bool:
    return isinstance(state, optax.LookaheadState)


def _own_arrays(state: OptState, params: Params) -> Any:
    """Copy arrays of the state that occur twice or are arrays of the params."""
    leaves, treedef = jtu.tree_flatten(state)
    return treedef.unflatten(unshared(leaves, jtu.tree_leaves(params)))


def _keep_state_dtypes(new: OptState, old: OptState) -> Any:
    leaves, treedef = jtu.tree_flatten(old)
    news = jtu.tree_leaves(new)
    if have_same_dtypes(news, leaves):
        return treedef.unflatten(news)
    likes = list(map(_like_of_state, leaves, news))
    try:
        return treedef.unflatten(cast_each(news, likes, old))
    except TypeError as error:
        found = str(error).partition(";")[0]
        raise TypeError(
            f"update changed a dtype of the state, which scan and cond reject, and a cast would lose values: {found}. "
            "Let the init of the transformation make this leaf in the dtype that its update computes"
        ) from None


def _like_of_state(old: object, new: object) -> Any:
    """Return a leaf with the dtype that an array of a new state gets: that of the old one, if it can have that.

    As in Optax, an int may become a float: then it is a float from the first update on, and `scan` and `cond` say where
    it was an int. A Python number that a user puts into the state, as in hyperparams["learning_rate"] = 0.1, does not
    state a dtype; traced, it is a weakly typed array.
    """
    if isinstance(old, jax.Array) and not is_weak(old) and old.dtype == getattr(new, "dtype", None):
        return old  # the code below returns the same, but takes longer
    becomes_float = issubdtype(dtype_of(old), jnp.integer) and issubdtype(dtype_of(new), jnp.floating)
    return old if is_array(old) and not is_weak(old) and not becomes_float else strengthen(new)


def _mixes_complex(params: Params) -> bool:
    dtypes = {x.dtype for x in jtu.tree_leaves(params)}
    return len({issubdtype(dtype, jnp.complexfloating) for dtype in dtypes}) > 1


def _is_complex(x: object) -> bool:
    return issubdtype(dtype_of(x), jnp.complexfloating)


def _real_where_real(old: object, new: object) -> Any:
    """Return the real part of leaves that are complex now and were real.

    With complex params, prodigy, momo and D-Adaptation estimate a real rate as a complex number.
    """
    return jnp.real(new) if _is_complex(new) and is_array(old) and not _is_complex(old) else new


def like_updates(updates: Updates, params: Params) -> Any:
    """Return a tree with the dtypes of updates: the wider of a gradient's and its param's dtype.

    An integer without a param has no such dtype: its update keeps the dtype that the transformation returns.
    """
    leaves, treedef = jtu.tree_flatten(updates)
    return treedef.unflatten(_dtypes_of_updates(leaves, treedef, params))


def _dtypes_of_updates(updates: list[Any], treedef: PyTreeDef, params: Params) -> list[Any]:
    if params is None or jtu.tree_structure(params) != treedef:
        dtypes = [promoted_dtype(x) for x in updates]
        return [_of_dtype(dtype) if issubdtype(dtype, jnp.inexact) else _ANY_DTYPE for dtype in dtypes]
    return list(map(_like, updates, jtu.tree_leaves(params)))


def _like(update: HasDtype, param: HasDtype) -> Any:
    return _of_dtype(param.dtype if update.dtype == param.dtype else promoted_dtype(update, param))


@functools.cache
def _of_dtype(dtype: object) -> Any:
    return untyped.ShapeDtypeStruct((), dtype)


_ANY_DTYPE = object()


def _shape(x: object) -> tuple[int, ...]:
    """Return the shape of a leaf; the leaves of a state that have none are numbers."""
    shape: tuple[int, ...] = getattr(x, "shape", ())  # faster than `shape_of`, and called for each leaf of a state
    return shape


def _check_update_shapes(news: list[Any], olds: list[Any], updates: Updates) -> None:
    """Raise a ValueError for an update that is larger than its gradient; a smaller one is broadcast to its param."""
    for i, (new, old) in enumerate(zip(news, olds, strict=True)):
        if new is not None and np.broadcast_shapes(_shape(new), _shape(old)) != _shape(old):
            raise ValueError(
                f"update returned an array of shape {_shape(new)} at {leaf_path_text(updates, i)}, where the gradient "
                f"has shape {_shape(old)}"
            )


def _parts_of_updates(old: Updates, treedef: PyTreeDef, new: Updates) -> list[Any]:
    """Flatten new updates up to the structure of `old`; they may be None for a leaf, as `filtered` returns them."""
    with contextlib.suppress(ValueError):  # of flatten_up_to
        parts: list[Any] = treedef.flatten_up_to(new)
        if jtu.all_leaves([part for part in parts if part is not None]):
            return parts
    raise TypeError(
        "update returned updates of another structure than it received. A transformation that does so by design, such "
        "as optax.lookahead, cannot be wrapped: use it outermost, from plain Optax.\n"
        f"received | returned:\n{tree_diff(old, new, values=False)}"
    )
