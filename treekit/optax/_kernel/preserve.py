"""Preserve the dtypes, the structure and the shapes of state and updates.

Who casts results, and when? The boundary casts what the outermost core returns. Inside, results are cast only where
somebody relies on it: `preserving` is around a step that may not run, as in `MultiSteps` and `apply_if_finite`, since
both ways must have equal types.

The state keeps its dtypes. Updates keep those that the optimizer computes, as in Optax: a user's master weights in f32
give updates in f32, which `apply_updates` rounds once.

What goes into a core is cast by those who compute in another dtype: `MultiSteps` casts its sums to the dtypes of the
gradients, `lbfgs` computes in those of the params, `store_state` in those that it was told.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

from treekit._arrays.cast import cast_each
from treekit._arrays.shapes import can_be_broadcast
from treekit._base.dtype import dtype_of, have_same_dtypes, is_number, is_weak, issubdtype, shape_of, strengthen
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_array
from treekit._base.types import HasDtype, OptState, Params, PyTreeDef, Updates
from treekit._compare.prefix import flatten_up_to
from treekit._compare.structure import structure_diff
from treekit._names.key_path import leaf_path_text
from treekit.optax._kernel.transformation import Core


def preserving(core: Core) -> Core:
    """Return a core whose updates and state have the dtypes that the boundary would return."""
    inner_init, inner_update = core

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        new_updates, new_state = inner_update(updates, state, params, **extra)
        return keep_updates(updates, params, new_updates), keep_state(state, params, new_state)

    return Core(inner_init, update)


def keep_updates(updates: Updates, params: Params, new_updates: Updates) -> Any:
    """Return new updates, each in the dtype that the transformation computed, as in Optax.

    A number, which states no dtype, gets that of its gradient. In a tree with real and complex arrays, the update of a
    real one is real.

    Args:
        updates: the updates that the core received.
        params: the params, of the same structure; or None.
        new_updates: what it returned.

    Raises:
        TypeError: they have another structure than the updates; or one is not an array, or complex for a real param.
    """
    grads, treedef = jtu.tree_flatten(updates)
    news = _parts_of_updates(updates, treedef, new_updates)
    likes = grads if params is None else jtu.tree_leaves(params)
    if _mixes_complex(likes):
        news = list(map(_real_where_real, likes, news))
    wanted = map(_like_of_update, grads, likes, news)
    return treedef.unflatten(cast_each(news, list(wanted), updates))


def check_shapes_of_updates(updates: Updates, params: Params, new_updates: Updates) -> None:
    """Raise a ValueError if the shape of an update does not fit its param; inside, it may have that of its gradient."""
    grads = jtu.tree_leaves(updates)
    likes = grads if params is None else jtu.tree_leaves(params)
    news = flatten_up_to(jtu.tree_structure(updates), new_updates)
    for i, (have, want) in enumerate(zip(_shapes(news), _shapes(likes), strict=True)):
        if news[i] is not None and have != want and not can_be_broadcast(have, want):
            doubt = " Is the state of other params?" if have != shape_of(grads[i]) else ""
            raise ValueError(
                f"update returned an array of shape {have} at {leaf_path_text(updates, i)}, where the "
                f"{'gradient' if params is None else 'param'} has shape {want}.{doubt}"
            )


def _like_of_update(grad: Any, like: Any, new: Any) -> Any:
    """Return the array whose dtype an update gets: the first row that holds.

    | the update | it gets the dtype of |
    |---|---|
    | None | nothing: it is not cast |
    | complex, and its param is real | the param: the cast raises |
    | an array that states its dtype, or the gradient is not floating-point or complex | itself |
    | a number, or a weakly typed array | its gradient |
    """
    if new is None or (is_complex(new) and not is_complex(like)):
        return like
    states_dtype = is_number(dtype_of(new)) and not is_weak(new)
    return strengthen(new) if states_dtype or not issubdtype(grad.dtype, jnp.inexact) else grad


def is_complex(x: object) -> bool:
    return issubdtype(dtype_of(x), jnp.complexfloating)


def keep_state(state: OptState, params: Params, new_state: OptState) -> Any:
    """Return a new state in the structure, shapes and dtypes of the one before it.

    Raises:
        TypeError: it has another structure or other shapes, or a cast to its dtype would lose values.
    """
    olds, treedef = jtu.tree_flatten(state)
    news, new_treedef = jtu.tree_flatten(new_state)
    if treedef != new_treedef or _shapes(olds) != _shapes(news):
        raise TypeError(
            "update returned a state of another structure or with other shapes than it received, which scan and cond "
            "reject. Was it made by another optimizer, or for other params?\n"
            f"received | returned:\n{structure_diff(state, new_state)}"
        )
    if _mixes_complex(jtu.tree_leaves(params)):
        news = list(map(_real_where_real, olds, news))
    if have_same_dtypes(news, olds):
        return treedef.unflatten(news)
    likes = list(map(_like_of_state, olds, news))
    return treedef.unflatten(cast_each(news, likes, state))


def _like_of_state(old: object, new: object) -> Any:
    """Return the leaf whose dtype an array of a new state gets: the first row that holds.

    | the old one | the new one | it gets the dtype of |
    |---|---|---|
    | a Python number that a user put into the state; traced, a weakly typed array | any | itself |
    | integers | floats, as in Optax; where it was an int, `scan` and `cond` raise | itself |
    | integers of less than 32 bits | wider integers: in the old dtype, they would wrap around | itself |
    | any other | any | the old one |
    """
    before, after = dtype_of(old), dtype_of(new)
    if not is_array(old) or is_weak(old):
        return strengthen(new)
    if issubdtype(before, jnp.integer):
        is_wider = issubdtype(after, jnp.integer) and jnp.iinfo(before).bits < min(32, jnp.iinfo(after).bits)
        return strengthen(new) if is_wider or issubdtype(after, jnp.floating) else old
    return old


def _mixes_complex(leaves: Iterable[HasDtype]) -> bool:
    dtypes = {x.dtype for x in leaves}
    return len({issubdtype(dtype, jnp.complexfloating) for dtype in dtypes}) > 1


def _real_where_real(old: object, new: object) -> Any:
    """Return the real part of leaves that are complex now and were real.

    With complex params, prodigy, momo and D-Adaptation estimate a real rate as a complex number.
    """
    return jnp.real(new) if is_complex(new) and is_array(old) and not is_complex(old) else new


def _shapes(leaves: Iterable[object]) -> list[tuple[int, ...]]:
    """Return the shapes of leaves; those of a state that have none are numbers. Faster than `shape_of` for each."""
    return [getattr(x, "shape", ()) for x in leaves]


def _parts_of_updates(old: Updates, treedef: PyTreeDef, new: Updates) -> list[Any]:
    """Flatten new updates up to the structure of `old`; they may be None for a leaf."""
    with contextlib.suppress(ValueError):  # of flatten_up_to
        parts = flatten_up_to(treedef, new)
        if jtu.all_leaves([part for part in parts if part is not None]):
            return parts
    raise TypeError(
        "update returned updates of another structure than it received.\n"
        f"received | returned:\n{structure_diff(old, new)}"
    )
