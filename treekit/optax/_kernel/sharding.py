"""The sharding of the arrays in a state: that of their parameter, also if `init` is jitted."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jaxtyping import Array, Bool

from treekit._base.jax import P, jnp, jtu, lax, memory_space, reshard, untyped
from treekit._base.predicates import is_array, is_parameter, is_traced
from treekit._base.types import OptState, Params
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.state_map import map_state


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
    leaves = jtu.tree_leaves(params, is_leaf=is_hole)
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
        replicated = NamedSharding(meshes.pop(), P())
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
    """Return an array with the sharding of its param, where one of them is traced.

    | axes of the mesh | the param | the array gets its sharding |
    |---|---|---|
    | explicit | any | by its type, unless the transformation has chosen another |
    | other | traced, so that its sharding is not known yet | from the compiler, by a select of both |
    | other | an array | by a constraint |
    """
    explicit = untyped.typeof(param).sharding  # where axes are not explicit, specs consist of None, so they are equal
    spec, own_spec = _spec(x, param, explicit), untyped.typeof(x).sharding.spec
    if own_spec != spec and any(own_spec):
        return x
    if own_spec != spec:
        x = reshard(x, NamedSharding(explicit.mesh, spec))
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
    return P(*[None] * own_axes, *sharding.spec, *[None] * axes)


def _share_sharding(false: Bool[Array, ""], x: Array, param: Array) -> Any:
    """Return `x` from a select that never returns the param, so that the compiler shards both in the same way.

    Skip casts that change nothing: tracing them doubles the time of init.
    """
    like = jnp.real(param) if jnp.iscomplexobj(param) and not jnp.iscomplexobj(x) else param
    space = memory_space(x)
    if memory_space(like) != space:  # params may be offloaded to the host
        like = untyped.device_put(like, space)
    if like.dtype != x.dtype:
        like = lax.convert_element_type(like, x.dtype)
    return lax.select(false, like if like.shape == x.shape else jnp.broadcast_to(like, x.shape), x)


def _hidden_false() -> Any:
    """Return a False that XLA cannot fold before it shards the select of which it is the predicate.

    For TPUs and GPUs a barrier hides it. For CPUs a bitcast does, which XLA computes after sharding: it then removes
    the selects, so that compiling takes half as long. This holds with JAX 0.10.2:
    tests/optax/kernel/test_sharding.py and tests/accelerators/test_init.py check the shardings, and `make figures
    TIMES=1` measures the time.
    """
    return lax.platform_dependent(cpu=_false_from_bits, default=_false_behind_barrier)


def _false_from_bits() -> Any:
    return lax.bitcast_convert_type(jnp.zeros((), np.int8), np.uint8) > 0


def _false_behind_barrier() -> Any:
    return lax.optimization_barrier(jnp.zeros((), bool))
