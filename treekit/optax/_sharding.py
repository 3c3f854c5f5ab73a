"""State is sharded as the params it belongs to, on every backend."""

from typing import Any

import jax
import optax
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding

from treekit._jax import jnp, jtu, lax, untyped
from treekit._predicates import is_array, is_parameter


def shard_alike(state: Any, params: Any) -> Any:
    """Give what a state holds for each param the sharding of that param.

    The zeros that most states start from need nothing of the params. In a jitted init the compiler would therefore put
    all of them on one device, or whole on every device.

    Args:
        state: any state. A subtree with the structure of the params, or of some of them, has one value for each.
        params: the params.

    Returns:
        The state, with the same values.
    """

    def is_like_params(x: Any) -> bool:
        return _params_like(x, params) is not None

    def alike(x: Any) -> Any:
        like = _params_like(x, params)
        return x if like is None else jtu.tree_map(_shard_leaf_alike, x, like)

    return jtu.tree_map(alike, state, is_leaf=is_like_params)


def _params_like(x: Any, params: Any) -> Any:
    """The params that `x` has a leaf for, in its structure, where a MaskedNode stands for the others; or None."""
    leaves, treedef = jtu.tree_flatten(x, is_leaf=_is_masked)
    try:
        parts = treedef.flatten_up_to(params)
    except ValueError:
        return None
    pairs = zip(leaves, parts, strict=True)
    if not all(_is_masked(leaf) or jtu.all_leaves([part]) for leaf, part in pairs):
        return None
    return treedef.unflatten(leaf if _is_masked(leaf) else part for leaf, part in zip(leaves, parts, strict=True))


def _is_masked(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)


def _shard_leaf_alike(x: Any, param: Any) -> Any:
    if not (is_array(x) and is_parameter(x) and is_parameter(param) and isinstance(param, jax.Array) and param.ndim):
        return x
    if x.shape[x.ndim - param.ndim :] != param.shape:  # L-BFGS keeps several of each, along a first axis
        return x
    is_traced = isinstance(x, Tracer) or isinstance(param, Tracer)
    return _constrain(x, param) if is_traced else _put(x, param)


def _put(x: Any, param: Any) -> Any:
    is_sharded = isinstance(x, jax.Array) and not x.sharding.is_fully_replicated
    sharding = _sharding_like(x, param)
    return x if is_sharded or sharding is None else untyped.device_put(x, sharding)


def _constrain(x: Any, param: Any) -> Any:
    explicit = untyped.typeof(
        param
    ).sharding  # over the explicit axes of a mesh; over all others the specs are of Nones
    spec, own_spec = _spec(x, param, explicit), untyped.typeof(x).sharding.spec
    if own_spec != spec:
        if any(own_spec):  # the transformation has chosen it
            return x
        x = untyped.sharding.reshard(x, NamedSharding(explicit.mesh, spec))
    if isinstance(param, Tracer):
        return _tie(x, param)
    sharding = _sharding_like(x, param)
    is_done = sharding is None or AxisType.Explicit in sharding.mesh.axis_types
    return x if is_done else lax.with_sharding_constraint(x, sharding)


def _sharding_like(x: Any, param: Any) -> NamedSharding | None:
    """The sharding that `x` needs, where that of its param is known and not the same on all devices."""
    sharding = param.sharding
    if sharding.is_fully_replicated or not isinstance(sharding, NamedSharding):
        return None
    return NamedSharding(sharding.mesh, _spec(x, param, sharding))


def _spec(x: Any, param: Any, sharding: Any) -> Any:
    """The spec of the param's sharding, behind the axes that only the state has."""
    own_axes, axes = x.ndim - param.ndim, param.ndim - len(sharding.spec)
    return untyped.P(*[None] * own_axes, *sharding.spec, *[None] * axes)


def _tie(x: Any, param: Any) -> Any:
    """`x`, out of a select that never takes the param: the compiler shards the two alike.

    The barrier hides the flag, since compilers for TPU and GPU simplify a select with a known one too early.
    """
    never = lax.optimization_barrier(jnp.zeros((), bool))
    like = param if jnp.iscomplexobj(x) else jnp.real(param)
    like = untyped.device_put(like, untyped.typeof(x).memory_space)  # params may be offloaded to the host
    return lax.select(never, jnp.broadcast_to(lax.stop_gradient(like).astype(x.dtype), x.shape), x)
