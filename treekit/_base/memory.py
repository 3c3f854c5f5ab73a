"""Who owns the memory of an array? JAX deletes what is donated, and NumPy's arrays may change."""

from collections.abc import Iterable
from typing import Any

import jax
from jax.core import Tracer

from treekit._base.dtype import OF_NUMPY, is_concrete
from treekit._base.jax import jnp


def unshared(arrays: Iterable[Any], others: Iterable[Any] = ()) -> list[Any]:
    """Return arrays, with a copy of each that occurs twice or among `others`: JAX can donate an array only once."""
    seen = set(map(id, others))
    out: list[Any] = []
    for x in arrays:
        out.append(copied(x) if id(x) in seen else x)
        seen.add(id(x))
    return out


def copied(x: Any) -> Any:
    """Return a copy of an array, also of one of NumPy; anything else, such as a tracer, unchanged."""
    if isinstance(x, OF_NUMPY):
        return x.copy()
    return jnp.copy(x) if is_concrete(x) else x


def owned(x: Any) -> Any:
    """Return an array of NumPy as one of JAX in memory of its own, which its user may change; anything else unchanged.

    On CPUs, `jnp.asarray` shares the memory.
    """
    return jnp.array(x) if isinstance(x, OF_NUMPY) else x


def is_deleted(x: object) -> bool:
    """Whether an array has been deleted, for example by donation."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted()
