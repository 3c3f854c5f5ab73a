"""Compare leaves: type, shape, dtype, weak type, sharding and value; sharded arrays where they are."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.describe import describe, describe_types, describe_values, is_deleted
from treekit._base.dtype import OF_NUMPY, dtype_of, is_concrete, is_number, is_weak, issubdtype
from treekit._base.exact import exact_key
from treekit._base.jax import enable_x64, jnp, jtu, lax, untyped
from treekit._base.types import PyTree

if TYPE_CHECKING:
    NumPyArray = np.ndarray[Any, Any]
    Wide = type[np.number[Any]] | None
else:  # beartype does not take these apart
    NumPyArray, Wide = np.ndarray, type | None
_unravel_index: Any = np.unravel_index
_NUMBER: Any = np.generic
_ARRAYS: Any = (jax.Array, np.ndarray)
_ABSTRACT: Any = (Tracer, jax.ShapeDtypeStruct)
_PLAIN = (float, int, bool, str, complex)

LeafKind = Literal["type", "shape", "dtype", "weak type", "sharding", "value"]
Leaves = tuple[PyTree, PyTree]


class LeafDifference(NamedTuple):
    """What differs, descriptions of the two leaves, and how far their values differ."""

    kind: LeafKind
    left: str
    right: str
    largest_absolute: float | None = None
    largest_relative: float | None = None


def compare_leaves(pairs: Sequence[Leaves], values: bool, rtol: float, atol: float) -> list[list[LeafDifference]]:
    """Return every difference between the leaves of each pair; of their values, only the first place that differs.

    If arrays span several processes, every process has to call this with the same pairs, and gets the same answer.

    Args:
        pairs: the leaves.
        values: compare their values too.
        rtol: as in `tree_diff`.
        atol: as in `tree_diff`.
    """
    differences = [list(_type_differences(*pair)) for pair in pairs]
    alike = [
        i
        for i, pair in enumerate(pairs)
        if values
        and not {each.kind for each in differences[i]} & {"type", "shape", "dtype"}
        and not any(isinstance(x, _ABSTRACT) for x in pair)
    ]
    on_devices = {i: pairs[i] for i in alike if any(map(_is_sharded, pairs[i])) and not any(map(is_deleted, pairs[i]))}
    on_host = {i: pairs[i] for i in alike if i not in on_devices}
    if jax.default_backend() != "cpu":  # on the CPU, NumPy reads the values in place
        readable = [pair for pair in on_host.values() if not any(map(is_deleted, pair))]
        # All at once, faster than one by one. JAX caches the values.
        untyped.device_get([x for pair in readable for x in pair if isinstance(x, jax.Array)])
    for i, pair in on_host.items():
        differences[i] += _compare_on_host(*pair, rtol, atol)
    for i, different in _compare_on_devices(on_devices, rtol, atol).items():
        differences[i] += different
    return differences


def plainly_equal(a: PyTree, b: PyTree) -> bool:
    """Return True if a quick test shows that two leaves are equal; False if they differ or a longer test is needed."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, OF_NUMPY):
        return a.dtype == b.dtype and a.dtype.kind in "biufc" and a.shape == b.shape and bool((a == b).all())
    return type(a) in _PLAIN and bool(a == b)


def same(a: object, b: object) -> bool:
    """Whether two objects without a dtype, which may contain arrays, have equal types and values."""
    if a is b:
        return True
    if isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS):
        return type(a) is type(b) and not any(compare_leaves([(a, b)], True, 0.0, 0.0))
    # The truth value of an array raises, and a user's __eq__ may raise anything.
    with contextlib.suppress(Exception):
        return bool(exact_key(a) == exact_key(b))
    with contextlib.suppress(Exception):
        (a_leaves, a_treedef), (b_leaves, b_treedef) = jtu.tree_flatten(a), jtu.tree_flatten(b)
        are_alike = type(a) is type(b) and not jtu.all_leaves([a]) and a_treedef == b_treedef
        return bool(are_alike) and all(map(same, a_leaves, b_leaves))
    return False


def _type_differences(a: PyTree, b: PyTree) -> Iterator[LeafDifference]:
    """Yield differences in type, shape, dtype, weak type and sharding."""
    are_concrete = is_concrete(a) and is_concrete(b)
    if are_concrete and a.aval == b.aval and a.sharding == b.sharding:
        return  # the code below yields nothing, but takes longer
    a_dtype, b_dtype = _dtypes(a, b)
    if (a_dtype is None) != (b_dtype is None) or (a_dtype is None and type(a) is not type(b)):
        yield LeafDifference("type", *describe_types(a, b))
    if a_dtype is None or b_dtype is None:
        return
    if np.shape(a) != np.shape(b):
        yield LeafDifference("shape", describe(a), describe(b))
    if a_dtype != b_dtype:
        yield LeafDifference("dtype", describe(a), describe(b))
    elif is_weak(a) != is_weak(b):
        left, right = (f"{'weak' if is_weak(x) else 'strong'} {describe(x)}" for x in (a, b))
        yield LeafDifference("weak type", left, right)
    if are_concrete and a.shape == b.shape and a.sharding != b.sharding:
        if not a.sharding.is_equivalent_to(b.sharding, a.ndim):
            yield LeafDifference("sharding", *describe_values(a.sharding, b.sharding))


def _dtypes(a: PyTree, b: PyTree) -> tuple[Any, Any]:
    """Return the dtypes of two leaves: NumPy's if both are NumPy arrays, else those that JAX gives them."""
    if isinstance(a, OF_NUMPY) and isinstance(b, OF_NUMPY):
        return a.dtype, b.dtype
    return dtype_of(a), dtype_of(b)


def _is_sharded(x: Any) -> bool:
    """Whether no device, and perhaps no process, has all values of an array."""
    return is_concrete(x) and not x.is_fully_replicated


# ----------------------------------------------------------------------------------------------- values, on the host


def _compare_on_host(a: PyTree, b: PyTree, rtol: float, atol: float) -> list[LeafDifference]:
    """Compare the values of two leaves of equal type, shape and dtype."""
    if _dtypes(a, b)[0] is None:
        return [] if same(a, b) else [LeafDifference("value", *describe_values(a, b))]
    if is_deleted(a) or is_deleted(b):
        return [LeafDifference("value", describe(a), describe(b))]
    x, y, dtype = np.asarray(_data_of(a)), np.asarray(_data_of(b)), dtype_of(a)
    if isinstance(a, jax.Array) != isinstance(b, jax.Array) and issubdtype(dtype, np.inexact):
        with np.errstate(all="ignore"):  # JAX makes an infinity of a large number too
            x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    if dtype is None:
        differ = np.asarray(_differ(x, y), bool)
    elif x.dtype.kind == "V" and issubdtype(dtype, np.inexact):  # NumPy compares bf16 and similar dtypes slowly
        differ = np.asarray(x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}"))
    else:
        differ = np.asarray(x != y)
    if issubdtype(dtype, np.inexact) and differ.any():
        # Only elements that differ are widened: widening a whole large array would take several times its memory.
        wide = _wide_dtype(dtype)
        differ[differ] = ~_is_close(x[differ].astype(wide), y[differ].astype(wide), rtol, atol, np)
    if not differ.any():
        return []
    x, y = x[differ], y[differ]
    texts = _describe_first(x[0], y[0], differ.argmax(), differ.shape, x.size - 1)
    return [LeafDifference("value", *texts, *_largest_distances(x, y, dtype))]


def _differ_each(a: object, b: object) -> bool:
    return not same(a, b)


# Element by element, for dtypes that JAX does not have: objects, strings, times.
_differ: Any = np.frompyfunc(_differ_each, 2, 1)


def _largest_distances(x: NumPyArray, y: NumPyArray, dtype: object) -> tuple[float, float] | tuple[None, None]:
    """Return the largest absolute and relative difference of NumPy arrays whose elements all differ."""
    wide = _wide_dtype(dtype)
    if wide is None:
        return None, None
    if x.size == 1 and not issubdtype(wide, np.inexact):  # integers of Python may have any number of bits
        left, right = int(x.item()), int(y.item())
        try:
            return float(abs(left - right)), abs(left - right) / abs(right) if right else np.inf
        except OverflowError:
            return np.inf, np.inf
    with np.errstate(all="ignore"):
        absolute, relative = _distances(x.astype(wide), y.astype(wide), np)
    return float(absolute.max()), float(relative.max())


# ----------------------------------------------------------------------------------------------- values, on devices


def _compare_on_devices(pairs: dict[int, Leaves], rtol: float, atol: float) -> dict[int, list[LeafDifference]]:
    """Compare the values of arrays, of which one is sharded, of equal shape and dtype.

    The programs, one for each shape, dtype and sharding, communicate a few numbers. All results are copied at once.
    """
    if not pairs:
        return {}
    # In a traced function, these arrays are constants. Results of 64 bits are those of NumPy on the host.
    with jax.ensure_compile_time_eval(), enable_x64(True), jax.debug_nans(False):
        results: dict[int, Any] = untyped.device_get(
            {
                i: _compare(*_side_by_side(*pair), _wide_dtype(dtype_of(pair[0])), rtol, atol)
                for i, pair in pairs.items()
            }
        )
    differences: dict[int, list[LeafDifference]] = {}
    for i, (number, index, values, largest) in results.items():
        if number:
            x, y = (value[()] for value in values)
            texts = _describe_first(x, y, index, np.shape(_data_of(pairs[i][0])), int(number) - 1)
            differences[i] = [LeafDifference("value", *texts, *map(float, largest))]
    return differences


def _side_by_side(a: PyTree, b: PyTree) -> Leaves:
    """Give two arrays the sharding of the one that has smaller parts; a whole array is cut where it is."""
    arrays = [_data_of(a), _data_of(b)]
    # To smaller parts, XLA moves an array without gathering it.
    like = min(filter(_is_sharded, arrays), key=lambda x: math.prod(x.sharding.shard_shape(x.shape)))
    sharding = like.sharding.with_memory_kind(None)

    def put(x: Any) -> Any:
        if _is_sharded(x):
            return untyped.device_put(x, sharding)
        values = np.asarray(x)
        if issubdtype(like.dtype, np.inexact):
            values = values.astype(like.dtype)  # as JAX would convert it
        return untyped.make_array_from_callback(values.shape, sharding, values.__getitem__)

    return put(arrays[0]), put(arrays[1])


@functools.partial(untyped.jit, static_argnums=(2, 3, 4))
def _compare(x: jax.Array, y: jax.Array, wide: Wide, rtol: float, atol: float) -> tuple[Any, Any, list[Any], list[Any]]:
    """Return how many elements differ, the flat index and the values of the first, and the largest distances.

    The arrays have one sharding. The results are single numbers, so the devices exchange nothing else.
    """
    dtypes = x.dtype, y.dtype
    x, y = x.astype(wide or np.int64), y.astype(wide or np.int64)
    differ = ~_is_close(x, y, rtol, atol, jax.numpy) if issubdtype(x.dtype, np.inexact) else x != y
    index = jnp.zeros(x.shape, np.int64)
    for axis, length in enumerate(x.shape):
        index = index * length + lax.broadcasted_iota(np.int64, x.shape, axis)
    first = jnp.min(index, where=differ, initial=x.size)
    values = [
        jnp.sum(jnp.where(differ & (index == first), z, 0)).astype(dtype)
        for z, dtype in zip((x, y), dtypes, strict=True)
    ]
    largest = [jnp.max(z, where=differ, initial=0) for z in _distances(x, y, jax.numpy)] if wide else []
    return jnp.sum(differ), first, values, largest


# ------------------------------------------------------------------------------------------------------ on both


def _data_of(x: PyTree) -> Any:
    """Return the data of an array of keys; any other leaf unchanged."""
    is_key = isinstance(x, jax.Array) and issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


@functools.cache
def _wide_dtype(dtype: object) -> Any:
    """Return a wide dtype, in which NumPy computes (it lacks bf16), for a dtype of numbers; None for bools and keys."""
    if dtype is None or not is_number(dtype) or dtype == np.bool_:
        return None
    kinds = ((np.complexfloating, np.complex128), (np.floating, np.float64), (np.unsignedinteger, np.uint64))
    return next((wide for kind, wide in kinds if issubdtype(dtype, kind)), np.int64)


def _is_close(x: Any, y: Any, rtol: float, atol: float, xp: ModuleType) -> Any:
    """Return which numbers are equal within the tolerances; NaN is equal to NaN. `xp` is `numpy` or `jax.numpy`."""
    if rtol == atol == 0:  # much faster, and exact
        return (x == y) | ((x != x) & (y != y))
    return xp.isclose(x, y, rtol, atol, equal_nan=True)


def _distances(x: Any, y: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return the absolute and the relative differences of numbers of a wide dtype that differ, in float64."""
    if issubdtype(x.dtype, np.inexact):
        known = xp.isfinite(x) & xp.isfinite(y)
        absolute, size = xp.where(known, xp.abs(x - y), np.inf), xp.abs(y)
    else:  # the difference may need a bit more than the numbers, which an unsigned integer has
        absolute = xp.where(x > y, x - y, y - x).astype(np.uint64).astype(np.float64)
        known, size = True, xp.abs(y.astype(np.float64))
    return absolute, xp.where(known, absolute / size, np.inf)


def _describe_first(x: PyTree, y: PyTree, index: object, shape: tuple[int, ...], others: int) -> tuple[str, str]:
    """Describe the first two values that differ, with their place and the number of other values that differ."""
    is_number = isinstance(x, _NUMBER) and x.dtype.kind not in "STU"
    left, right = (str(x), str(y)) if is_number else describe_values(x, y)
    if not shape:
        return left, right
    where = f" at {list(map(int, _unravel_index(index, shape)))}" + (f" and {others} more" if others else "")
    return left + where, right + where
