"""The entries of the first axis of an array, on the devices that it is on."""

from typing import Any

import jax
from jax.sharding import NamedSharding

from treekit._base.jax import P, lax, untyped
from treekit._base.predicates import is_traced


def members_of(x: Any) -> Any:
    """Return the entries of the first axis, in a sequence; JAX would copy an array on several devices to the host."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return [untyped.ShapeDtypeStruct(x.shape[1:], x.dtype, weak_type=x.weak_type)] * x.shape[0]
    sharding = None if is_traced(x) else getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1:
        return x
    first, rest = sharding.spec[:1], sharding.spec[1:]
    if first != (None,):  # on explicit axes, JAX takes no entry out of a sharded axis
        # Not by device_put, which goes over the host as of JAX 0.12.
        x = untyped.jit(_same, out_shardings=_with_spec(sharding, None, *rest))(x)
    member = untyped.jit(_member, out_shardings=_with_spec(sharding, *rest))
    return [member(x, i) for i in range(x.shape[0])]


def _with_spec(sharding: NamedSharding, *spec: Any) -> NamedSharding:
    return NamedSharding(sharding.mesh, P(*spec), memory_kind=sharding.memory_kind)


def _same(x: jax.Array) -> Any:
    return x


def _member(x: jax.Array, i: jax.Array | int) -> Any:
    return lax.dynamic_index_in_dim(x, i, keepdims=False)
