"""Compare arrays that are sharded, over processes too, where they are."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsInt

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.describe import is_deleted
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, lax, untyped
from treekit._base.types import PyTree
from treekit._diff.values import Wide, describe_first, distances, is_close, place_of, wide_dtype

Pair = tuple[PyTree, PyTree]


class Unequal(NamedTuple):
    """How the values of two leaves differ: the first values that do, and how far they differ at most."""

    left: str
    right: str
    largest_absolute: float | None = None
    largest_relative: float | None = None


Compared = tuple[Unequal, ...]  # empty if the values are equal


class _First(NamedTuple):
    """The flat index and the two values of the first elements that differ, and how far elements differ at most."""

    flat_index: jax.Array
    values: list[jax.Array]
    largest: list[jax.Array]


def fetch(pairs: Sequence[Pair]) -> None:
    """Copy the values of arrays from their devices all at once, faster than one by one; JAX caches them."""
    on_cpu = jax.default_backend() == "cpu"  # NumPy reads them in place
    leaves = [] if on_cpu else [x for pair in pairs if not any(map(_is_sharded, pair)) for x in pair]
    untyped.device_get([x for x in leaves if _is_known(x)])


def _is_known(x: object) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not is_deleted(x)


def _is_sharded(x: object) -> bool:
    """Whether no device, and perhaps no process, has all values of an array."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not x.is_fully_replicated and not is_deleted(x)


def compare_on_devices(pairs: Sequence[Pair], rtol: float, atol: float) -> list[Compared | None]:
    """Compare the values of each pair in which an array is sharded; None for others, and if they cannot be equal.

    Every process has to call this with the same pairs, and gets the same answer.

    The programs, one or two for each shape, dtype and sharding, communicate a few numbers. Most pairs are equal, which
    a first program finds out. All results are copied at once.
    """
    asked = {i: pair for i, pair in enumerate(pairs) if any(map(_is_sharded, pair)) and _may_be_equal(*pair)}
    if not asked:
        return [None] * len(pairs)

    def run(program: Callable[..., Any], asked: dict[int, Pair]) -> dict[int, Any]:
        # In a traced function, these arrays are constants. Results of 64 bits are those of NumPy on the host.
        with jax.ensure_compile_time_eval(), jax.enable_x64(True), jax.debug_nans(False):
            found: dict[int, Any] = untyped.device_get(
                {
                    i: program(*_side_by_side(*pair), wide_dtype(dtype_of(pair[0])), rtol, atol)
                    for i, pair in asked.items()
                }
            )
        return found

    counts = run(_count, asked)
    firsts = run(_first, {i: pair for i, pair in asked.items() if counts[i]})
    return [_describe(pairs[i][0], counts[i], firsts.get(i)) if i in asked else None for i in range(len(pairs))]


def _may_be_equal(a: PyTree, b: PyTree) -> bool:
    are_known = not any(isinstance(x, (Tracer, jax.ShapeDtypeStruct)) or is_deleted(x) for x in (a, b))
    return are_known and np.shape(a) == np.shape(b) and dtype_of(a) == dtype_of(b)


def _side_by_side(a: PyTree, b: PyTree) -> Pair:
    """Give two arrays the sharding of the one that has smaller parts; a whole array is cut where it is."""
    a, b = data_of(a), data_of(b)
    # To smaller parts, XLA moves an array without gathering it.
    of = min(filter(_is_sharded, (a, b)), key=lambda x: math.prod(x.sharding.shard_shape(x.shape)))
    sharding = of.sharding.with_memory_kind(None)
    return _put(a, of.dtype, sharding), _put(b, of.dtype, sharding)


def data_of(x: PyTree) -> Any:
    """Return the data of an array of keys; any other leaf unchanged."""
    is_key = isinstance(x, jax.Array) and issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _put(x: PyTree, dtype: np.dtype[Any], sharding: jax.sharding.Sharding) -> Any:
    if _is_sharded(x):
        return untyped.device_put(x, sharding)
    values = np.asarray(x)
    if issubdtype(dtype, np.inexact):
        values = values.astype(dtype)  # as JAX would convert it
    return untyped.make_array_from_callback(values.shape, sharding, values.__getitem__)


_jit = functools.partial(untyped.jit, static_argnums=(2, 3, 4))


def _differing(x: jax.Array, y: jax.Array, wide: Wide, rtol: float, atol: float) -> tuple[jax.Array, ...]:
    """Return two arrays of a wide dtype, and where they differ."""
    dtype: Any = wide or np.int64
    x, y = x.astype(dtype), y.astype(dtype)
    return x, y, ~is_close(x, y, rtol, atol, jax.numpy) if issubdtype(dtype, np.inexact) else x != y


@_jit
def _count(x: jax.Array, y: jax.Array, wide: Wide, rtol: float, atol: float) -> jax.Array:
    """Return how many elements differ."""
    count: jax.Array = jnp.sum(_differing(x, y, wide, rtol, atol)[2])
    return count


@_jit
def _first(x: jax.Array, y: jax.Array, wide: Wide, rtol: float, atol: float) -> _First:
    """Return the place and the values of the first elements that differ, and how far elements differ at most.

    All of these are single numbers, so the devices exchange nothing else.
    """
    dtypes = x.dtype, y.dtype
    x, y, differ = _differing(x, y, wide, rtol, atol)
    index = jnp.zeros(x.shape, np.int64)
    for axis, length in enumerate(x.shape):
        index = index * length + lax.broadcasted_iota(np.int64, x.shape, axis)
    first = jnp.min(jnp.where(differ, index, x.size))
    values = [
        jnp.sum(jnp.where(differ & (index == first), z, 0)).astype(dtype)
        for z, dtype in zip((x, y), dtypes, strict=True)
    ]
    largest = [jnp.max(jnp.where(differ, z, 0)) for z in distances(x, y, jax.numpy)] if wide else []
    return _First(first, values, largest)


def _describe(a: PyTree, count: SupportsInt, found: _First | None) -> Compared:
    if found is None:
        return ()
    x, y = (value[()] for value in found.values)
    texts = describe_first(x, y, place_of(found.flat_index, np.shape(data_of(a))), int(count) - 1)
    return (Unequal(*texts, *map(float, found.largest)),)
