"""Preserve the dtypes, the structure, the shapes and the sharding of state and updates."""

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jaxtyping import Array, Bool

from treekit._base.dtype import (
    dtype_of,
    have_same_dtypes,
    is_weak,
    issubdtype,
    promoted_dtype,
    strengthen,
    strengthen_all,
    unshared,
)
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import is_array, is_parameter, is_traced
from treekit._base.tree import cast_each, is_none
from treekit._base.types import HasDtype, OptState, Params, PyTreeDef, TransformationLike, Updates
from treekit._map import can_be_broadcast
from treekit._tree_diff import tree_diff
from treekit.optax._state_map import map_state
from treekit.optax._transformation import core_of


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
        leaves, treedef = jtu.tree_flatten(state, is_leaf=lambda x: isinstance(x, optax.LookaheadState))
        if any(isinstance(x, optax.LookaheadState) for x in leaves):
            raise TypeError(
                "optax.lookahead, whose params are a pair, cannot be wrapped: use it outermost, from plain Optax"
            )
        state = treedef.unflatten(unshared(leaves, jtu.tree_leaves(params)))
        return shard_alike(state, params)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        new_updates, new_state = inner_update(updates, state, params, **extra)
        return _keep_updates(updates, params, new_updates), keep_state(state, params, new_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _keep_updates(updates: Updates, params: Params, new_updates: Updates) -> Any:
    """Return new updates, each in the wider dtype of its gradient and its param."""
    leaves, treedef = jtu.tree_flatten(updates)
    news = _parts_of_updates(updates, treedef, new_updates)
    shapes = zip(_shapes(news), _shapes(leaves), strict=True)
    for i, (have, want) in enumerate(shapes):  # one that is smaller is broadcast to its param
        if news[i] is not None and have != want and not can_be_broadcast(have, want):
            raise ValueError(
                f"update returned an array of shape {have} at {leaf_path_text(updates, i)}, where the gradient has "
                f"shape {want}"
            )
    if _mixes_complex(updates if params is None else params):
        news = list(map(_real_where_real, leaves, news))
    return treedef.unflatten(cast_each(news, jtu.tree_leaves(like_updates(updates, params)), updates))


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
            f"reject.\nreceived | returned:\n{tree_diff(state, new_state, values=False)}"
        )
    if _mixes_complex(params):
        news = list(map(_real_where_real, olds, news))
    if have_same_dtypes(news, olds):
        return treedef.unflatten(news)
    likes = list(map(_like_of_state, olds, news))
    try:
        return treedef.unflatten(cast_each(news, likes, state))
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

    def like(*leaves: HasDtype) -> Any:
        dtypes = {x.dtype for x in leaves}
        dtype = promoted_dtype(*leaves) if len(dtypes) > 1 else dtypes.pop()
        return _of_dtype(dtype) if issubdtype(dtype, jnp.inexact) else _ANY_DTYPE

    has_params = params is not None and jtu.tree_structure(params) == jtu.tree_structure(updates)
    return jtu.tree_map(like, updates, *[params] * has_params)


@functools.cache
def _of_dtype(dtype: object) -> Any:
    return untyped.ShapeDtypeStruct((), dtype)


_ANY_DTYPE = object()


def _shapes(leaves: Iterable[object]) -> list[tuple[int, ...]]:
    """Return the shapes of leaves; those of a state that have none are numbers. Faster than `shape_of` for each."""
    return [getattr(x, "shape", ()) for x in leaves]


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


def shard_alike(state: OptState, params: Params) -> Any:
    """Give the arrays that a state has for each param the sharding of that param.

    Most states start from zeros, which do not depend on the params. In a jitted init, the compiler would therefore put
    all of them on one device, or replicate them. Outside of jit, other arrays, such as counts, are replicated on the
    mesh of the params: a jitted step returns them so, and would be compiled again for its own result.

    Args:
        state: any state. A subtree with the structure of the params, or of some of them, has one array for each.
        params: the params.

    Returns:
        The state, with the same values.
    """
    leaves = jtu.tree_leaves(params, is_leaf=is_none)
    if not any(map(_may_be_sharded, leaves)):
        return state
    arrays, treedef = jtu.tree_flatten(state)
    pairs = zip(arrays, map_state(state, params), strict=True)
    make_false = functools.cache(_hidden_false)  # one for all leaves, if any needs it
    state = treedef.unflatten(
        [x if i.param is None else _shard_leaf_alike(x, leaves[i.param], make_false) for x, i in pairs]
    )
    meshes = {x.sharding.mesh for x in leaves if not is_traced(x) and _may_be_sharded(x)}
    if len(meshes) == 1:
        replicated = NamedSharding(meshes.pop(), untyped.P())
        state = jtu.tree_map(functools.partial(_on_mesh, replicated), state)
    return state


def _may_be_sharded(param: object) -> bool:
    """Whether an array may be on several devices.

    With one device, a traced array is on that one unless its type names a mesh, as when a host with one CPU compiles
    for a TPU. So nothing is added there, which would take as long as making the state.
    """
    if is_traced(param):
        return untyped.device_count() > 1 or not untyped.typeof(param).sharding.mesh.empty
    return isinstance(param, jax.Array) and isinstance(param.sharding, NamedSharding)


def _shard_leaf_alike(x: Any, param: Any, make_false: Callable[[], Any]) -> Any:
    if not _has_shape_of(x, param):
        return x
    if is_traced(x) or is_traced(param):
        return _constrain(x, param, make_false)
    is_sharded = isinstance(x, jax.Array) and not x.sharding.is_fully_replicated
    sharding = _sharding_like(x, param)
    return x if is_sharded or sharding is None else untyped.device_put(x, sharding)


def _has_shape_of(x: object, param: object) -> bool:
    """Whether `x` is an array of the shape of a param; L-BFGS stores several arrays for each, along a first axis."""
    if not (is_array(x) and is_parameter(x) and is_parameter(param) and isinstance(param, jax.Array) and param.ndim):
        return False
    return x.shape[x.ndim - param.ndim :] == param.shape


def _on_mesh(replicated: NamedSharding, x: object) -> Any:
    """Replicate an array that is not committed to a device, as `replicated` says; return any other leaf unchanged.

    Each process copies its own array. `device_put` would compare those of all processes, which waits for the others.
    """
    if not isinstance(x, jax.Array) or is_traced(x) or x.committed:
        return x
    like: Any = replicated  # JAX's own types are incomplete here
    copies = [untyped.device_put(x, device) for device in like.addressable_devices_indices_map(x.shape)]
    return untyped.make_array_from_single_device_arrays(x.shape, replicated, copies)


def _constrain(x: Array, param: Array, make_false: Callable[[], Any]) -> Any:
    explicit = untyped.typeof(param).sharding  # for explicit axes of a mesh; for all others, specs consist of None
    spec, own_spec = _spec(x, param, explicit), untyped.typeof(x).sharding.spec
    if own_spec != spec:
        if any(own_spec):  # the transformation has chosen a sharding
            return x
        x = untyped.sharding.reshard(x, NamedSharding(explicit.mesh, spec))
    if is_traced(param):
        return _share_sharding(make_false(), x, param)
    sharding = _sharding_like(x, param)
    is_done = sharding is None or AxisType.Explicit in sharding.mesh.axis_types
    return x if is_done else lax.with_sharding_constraint(x, sharding)


def _sharding_like(x: Array, param: Array) -> NamedSharding | None:
    """Return the sharding that `x` needs; None if that of its param is unknown or replicated."""
    sharding = param.sharding
    if sharding.is_fully_replicated or not isinstance(sharding, NamedSharding):
        return None
    return NamedSharding(sharding.mesh, _spec(x, param, sharding))


def _spec(x: Array, param: Array, sharding: Any) -> Any:
    """Return the spec of the param's sharding, after the axes that only the state has."""
    own_axes, axes = x.ndim - param.ndim, param.ndim - len(sharding.spec)
    return untyped.P(*[None] * own_axes, *sharding.spec, *[None] * axes)


def _share_sharding(false: Bool[Array, ""], x: Array, param: Array) -> Any:
    """Return `x` from a select that never returns the param, so that the compiler shards both in the same way.

    No operation is added that does nothing: this is done for each leaf, which takes as long as making the zeros.
    """
    like = jnp.real(param) if jnp.iscomplexobj(param) and not jnp.iscomplexobj(x) else param
    space = untyped.typeof(x).memory_space
    if untyped.typeof(like).memory_space != space:  # params may be offloaded to the host
        like = untyped.device_put(like, space)
    if like.dtype != x.dtype:
        like = lax.convert_element_type(like, x.dtype)
    return lax.select(false, like if like.shape == x.shape else jnp.broadcast_to(like, x.shape), x)


def _hidden_false() -> Any:
    """Return False as the predicate of a select, which the compiler must not know before it has sharded the select.

    For TPUs and GPUs a barrier hides it. For CPUs a bitcast does, which XLA computes after sharding: it then removes
    the selects, so that compiling takes half as long. This holds with JAX 0.10.2:
    tests/optax/test_preserve_sharding.py and tests/accelerators/test_init.py check the shardings, and `make figures
    TIMES=1` measures the time.
    """
    return lax.platform_dependent(cpu=_false_from_bits, default=_false_behind_barrier)


def _false_from_bits() -> Any:
    return lax.bitcast_convert_type(jnp.zeros((), np.int8), np.uint8) > 0


def _false_behind_barrier() -> Any:
    return lax.optimization_barrier(jnp.zeros((), bool))
