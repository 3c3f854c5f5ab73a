"""Compare two leaves: type, shape, dtype, weak type, sharding and value; sharded arrays where they are."""

import functools
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.describe import describe, describe_types, describe_values, is_deleted
from treekit._base.dtype import dtype_of, is_number, is_weak, issubdtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.types import PyTree
from treekit._node.static import exact_key

if TYPE_CHECKING:
    NumPyArray = np.ndarray[Any, Any]
    Wide = type[np.number[Any]] | None
else:  # beartype does not take these apart
    NumPyArray, Wide = np.ndarray, type | None
_unravel_index: Any = np.unravel_index
_NUMBER: Any = np.generic


@functools.cache
def wide_dtype(dtype: object) -> Any:
    """Return a wide dtype, in which NumPy computes (it lacks bf16), for a dtype of numbers; None for bools and keys."""
    if dtype is None or not is_number(dtype) or dtype == np.bool_:
        return None
    kinds = ((np.complexfloating, np.complex128), (np.floating, np.float64), (np.unsignedinteger, np.uint64))
    return next((wide for kind, wide in kinds if issubdtype(dtype, kind)), np.int64)


def is_close(x: Any, y: Any, rtol: float, atol: float, xp: ModuleType) -> Any:
    """Return which numbers are equal within the tolerances; NaN is equal to NaN. `xp` is `numpy` or `jax.numpy`."""
    if rtol == atol == 0:  # much faster, and exact
        return (x == y) | ((x != x) & (y != y))
    return xp.isclose(x, y, rtol, atol, equal_nan=True)


def distances(x: Any, y: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return the absolute and the relative differences of numbers of a wide dtype that differ, in float64."""
    if issubdtype(x.dtype, np.inexact):
        known = xp.isfinite(x) & xp.isfinite(y)
        absolute, size = xp.where(known, xp.abs(x - y), np.inf), xp.abs(y)
    else:  # the difference may need a bit more than the numbers, which an unsigned integer has
        absolute = xp.where(x > y, x - y, y - x).astype(np.uint64).astype(np.float64)
        known, size = True, xp.abs(y.astype(np.float64))
    return absolute, xp.where(known, absolute / size, np.inf)


def largest_distances(x: NumPyArray, y: NumPyArray, dtype: object) -> tuple[float, float] | tuple[None, None]:
    """Return the largest absolute and relative difference of NumPy arrays whose elements all differ."""
    wide = wide_dtype(dtype)
    if wide is None:
        return None, None
    if x.size == 1 and not issubdtype(wide, np.inexact):  # integers of Python may have any number of bits
        left, right = int(x.item()), int(y.item())
        try:
            return float(abs(left - right)), abs(left - right) / abs(right) if right else np.inf
        except OverflowError:
            return np.inf, np.inf
    with np.errstate(all="ignore"):
        absolute, relative = distances(x.astype(wide), y.astype(wide), np)
    return float(absolute.max()), float(relative.max())


def describe_first(x: PyTree, y: PyTree, place: tuple[int, ...], others: int) -> tuple[str, str]:
    """Describe the first two values that differ, with their place and the number of other values that differ."""
    is_number = isinstance(x, _NUMBER) and x.dtype.kind not in "STU"
    left, right = (str(x), str(y)) if is_number else describe_values(x, y)
    where = f" at {list(place)}" + (f" and {others} more" if others else "") if place else ""
    return left + where, right + where


def place_of(index: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the place of an element in an array, from its place in the flat array."""
    return tuple(map(int, _unravel_index(index, shape))) if shape else ()


Kind = Literal[
    "type", "structure", "static value", "array against None", "shape", "dtype", "weak type", "sharding", "value",
]  # fmt: skip
STRUCTURE: tuple[Kind, ...] = ("type", "structure", "static value", "array against None", "shape")


class Found(NamedTuple):
    """What differs, descriptions of the two leaves, and how far their values differ."""

    kind: Kind
    left: str
    right: str
    largest_absolute: float | None = None
    largest_relative: float | None = None


Pair = tuple[PyTree, PyTree]
Compared = tuple[Found, ...]  # how the values of two leaves differ; empty if they are equal


class _Result(NamedTuple):
    """How many elements differ, the flat index and the two values of the first, and how far they differ at most."""

    count: Any
    flat_index: Any
    values: list[Any]
    largest: list[Any]


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

    The programs, one for each shape, dtype and sharding, communicate a few numbers. All results are copied at once.
    """

    def may_be_equal(a: PyTree, b: PyTree) -> bool:
        are_known = not any(isinstance(x, (Tracer, jax.ShapeDtypeStruct)) or is_deleted(x) for x in (a, b))
        return are_known and np.shape(a) == np.shape(b) and dtype_of(a) == dtype_of(b)

    asked = {i: pair for i, pair in enumerate(pairs) if any(map(_is_sharded, pair)) and may_be_equal(*pair)}
    if not asked:
        return [None] * len(pairs)
    # In a traced function, these arrays are constants. Results of 64 bits are those of NumPy on the host.
    with jax.ensure_compile_time_eval(), jax.enable_x64(True), jax.debug_nans(False):
        results: dict[int, _Result] = untyped.device_get(
            {i: _compare(*_side_by_side(*pair), wide_dtype(dtype_of(pair[0])), rtol, atol) for i, pair in asked.items()}
        )
    return [_describe(a, results[i]) if i in results else None for i, (a, _) in enumerate(pairs)]


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


@functools.partial(untyped.jit, static_argnums=(2, 3, 4))
def _compare(x: jax.Array, y: jax.Array, wide: Wide, rtol: float, atol: float) -> _Result:
    """Compare two arrays of one sharding. The results are single numbers, so the devices exchange nothing else."""
    dtypes = x.dtype, y.dtype
    x, y = x.astype(wide or np.int64), y.astype(wide or np.int64)
    differ = ~is_close(x, y, rtol, atol, jax.numpy) if issubdtype(x.dtype, np.inexact) else x != y
    index = jnp.zeros(x.shape, np.int64)
    for axis, length in enumerate(x.shape):
        index = index * length + lax.broadcasted_iota(np.int64, x.shape, axis)
    first = jnp.min(index, where=differ, initial=x.size)
    values = [
        jnp.sum(jnp.where(differ & (index == first), z, 0)).astype(dtype)
        for z, dtype in zip((x, y), dtypes, strict=True)
    ]
    largest = [jnp.max(z, where=differ, initial=0) for z in distances(x, y, jax.numpy)] if wide else []
    return _Result(jnp.sum(differ), first, values, largest)


def _describe(a: PyTree, result: _Result) -> Compared:
    if not result.count:
        return ()
    x, y = (value[()] for value in result.values)
    texts = describe_first(x, y, place_of(result.flat_index, np.shape(data_of(a))), int(result.count) - 1)
    return (Found("value", *texts, *map(float, result.largest)),)


_NUMPY: Any = (np.ndarray, np.generic)
_ARRAYS: Any = (jax.Array, np.ndarray)
_ABSTRACT: Any = (Tracer, jax.ShapeDtypeStruct)
_PLAIN = (float, int, bool, str, complex)


def plainly_equal(a: PyTree, b: PyTree) -> bool:
    """Return True if a quick test shows that two leaves are equal; False if they differ or a longer test is needed."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _NUMPY):
        return a.dtype == b.dtype and a.dtype.kind in "biufc" and a.shape == b.shape and bool((a == b).all())
    return type(a) in _PLAIN and bool(a == b)


def leaf_differences(
    a: PyTree, b: PyTree, values: bool, rtol: float, atol: float, compared: Compared | None
) -> Iterator[Found]:
    """Yield every difference between two leaves; for their values, only the first place that differs.

    Args:
        a: a leaf.
        b: another.
        values: compare their values too.
        rtol: as in `tree_diff`.
        atol: as in `tree_diff`.
        compared: how their values compare, if this is known from the devices.
    """
    are_arrays = isinstance(a, jax.Array) and isinstance(b, jax.Array)
    found = [] if are_arrays and a.aval == b.aval else list(_type_differences(a, b))
    yield from found
    kinds = {each.kind for each in found}
    if "type" in kinds or "shape" in kinds:
        return
    if are_arrays and not (isinstance(a, Tracer) or isinstance(b, Tracer) or a.sharding == b.sharding):
        if not a.sharding.is_equivalent_to(b.sharding, a.ndim):
            yield Found("sharding", *describe_values(a.sharding, b.sharding))
    if values and "dtype" not in kinds:
        yield from _value_differences(a, b, rtol, atol) if compared is None else compared


def _type_differences(a: PyTree, b: PyTree) -> Iterator[Found]:
    """Yield differences in type, shape, dtype and weak type."""
    a_dtype, b_dtype = _dtypes(a, b)
    if (a_dtype is None) != (b_dtype is None) or (a_dtype is None and type(a) is not type(b)):
        yield Found("type", *describe_types(a, b))
    elif a_dtype is not None:
        if np.shape(a) != np.shape(b):
            yield Found("shape", describe(a), describe(b))
        if a_dtype != b_dtype:
            yield Found("dtype", describe(a), describe(b))
        elif is_weak(a) != is_weak(b):
            yield Found("weak type", f"{_strength(a)} {describe(a)}", f"{_strength(b)} {describe(b)}")


def _dtypes(a: PyTree, b: PyTree) -> tuple[Any, Any]:
    """Return the dtypes of two leaves: NumPy's if both are NumPy arrays, else those that JAX gives them."""
    if isinstance(a, _NUMPY) and isinstance(b, _NUMPY):
        return a.dtype, b.dtype
    return dtype_of(a), dtype_of(b)


def _strength(x: object) -> str:
    return "weak" if is_weak(x) else "strong"


def _value_differences(a: PyTree, b: PyTree, rtol: float, atol: float) -> Compared:
    """Compare two leaves of equal type, shape and dtype on the host, if their values are known."""
    if isinstance(a, _ABSTRACT) or isinstance(b, _ABSTRACT):
        return ()
    if _dtypes(a, b)[0] is None:
        return () if same(a, b) else (Found("value", *describe_values(a, b)),)
    if is_deleted(a) or is_deleted(b):
        return (Found("value", describe(a), describe(b)),)
    x, y, dtype = np.asarray(data_of(a)), np.asarray(data_of(b)), dtype_of(a)
    if isinstance(a, jax.Array) != isinstance(b, jax.Array) and issubdtype(dtype, np.inexact):
        with np.errstate(all="ignore"):  # JAX makes an infinity of a large number too
            x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    differ = _differing(x, y, dtype, rtol, atol)
    if not differ.any():
        return ()
    place = place_of(differ.argmax(), differ.shape)
    texts = describe_first(x[place], y[place], place, int(differ.sum()) - 1)
    return (Found("value", *texts, *largest_distances(x[differ], y[differ], dtype)),)


def _differing(x: NumPyArray, y: NumPyArray, dtype: object, rtol: float, atol: float) -> NumPyArray:
    """Return a bool array that is True where two NumPy arrays differ. `dtype` is JAX's, or None if it has none."""
    if dtype is None:
        return np.asarray(_differ(x, y), bool)
    if not issubdtype(dtype, np.inexact):
        return np.asarray(x != y)
    # NumPy compares bf16 and similar dtypes slowly, so bits are compared first. NaN counts as equal to NaN.
    differ = np.asarray(x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}") if x.dtype.kind == "V" else x != y)
    if differ.any():
        # Only elements that differ are widened: widening a whole large array would take several times its memory.
        wide = wide_dtype(dtype)
        differ[differ] = ~is_close(x[differ].astype(wide), y[differ].astype(wide), rtol, atol, np)
    return differ


def same(a: object, b: object) -> bool:
    """Whether two objects without a dtype, which may contain arrays, have equal types and values."""
    if a is b:
        return True
    if isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS):
        (compared,) = compare_on_devices([(a, b)], 0.0, 0.0)
        return type(a) is type(b) and not any(leaf_differences(a, b, True, 0.0, 0.0, compared))
    for equal in (_equal_keys, _equal_trees):
        try:
            return equal(a, b)
        except Exception:  # the truth value of an array raises, and a user's __eq__ may raise anything
            continue
    return False


def _equal_keys(a: object, b: object) -> bool:
    return bool(exact_key(a) == exact_key(b))


def _equal_trees(a: object, b: object) -> bool:
    if type(a) is not type(b) or jtu.all_leaves([a]):
        return False
    a_leaves, a_treedef = jtu.tree_flatten(a)
    b_leaves, b_treedef = jtu.tree_flatten(b)
    return bool(a_treedef == b_treedef) and all(same(x, y) for x, y in zip(a_leaves, b_leaves, strict=True))


def _not_same(a: object, b: object) -> bool:
    return not same(a, b)


_differ: Any = np.frompyfunc(
    _not_same, 2, 1
)  # element by element, for dtypes that JAX does not have: objects, strings, times
