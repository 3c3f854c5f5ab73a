"""Compare two leaves: type, shape, dtype, weak type, sharding and value."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.describe import describe, describe_types, describe_values, is_deleted
from treekit._base.dtype import dtype_of, is_weak, issubdtype
from treekit._base.jax import jtu
from treekit._base.types import PyTree
from treekit._diff.on_devices import Compared, Unequal, compare_on_devices, data_of
from treekit._diff.values import NumPyArray, describe_first, is_close, largest_distances, place_of, wide_dtype
from treekit._node.static_values import exact_key

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
    if are_arrays:
        yield from _sharding_differences(a, b)
    if values and "dtype" not in kinds:
        for unequal in _value_differences(a, b, rtol, atol) if compared is None else compared:
            yield Found("value", *unequal)


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


def _sharding_differences(a: PyTree, b: PyTree) -> Iterator[Found]:
    """Yield a difference in the sharding of two arrays, unless they are tracers."""
    if isinstance(a, Tracer) or isinstance(b, Tracer) or a.sharding == b.sharding:
        return
    if not a.sharding.is_equivalent_to(b.sharding, a.ndim):
        yield Found("sharding", *describe_values(a.sharding, b.sharding))


def _value_differences(a: PyTree, b: PyTree, rtol: float, atol: float) -> Compared:
    """Compare two leaves of equal type, shape and dtype on the host, if their values are known."""
    if isinstance(a, _ABSTRACT) or isinstance(b, _ABSTRACT):
        return ()
    if _dtypes(a, b)[0] is None:
        return () if same(a, b) else (Unequal(*describe_values(a, b)),)
    if is_deleted(a) or is_deleted(b):
        return (Unequal(describe(a), describe(b)),)
    x, y, dtype = np.asarray(data_of(a)), np.asarray(data_of(b)), dtype_of(a)
    if isinstance(a, jax.Array) != isinstance(b, jax.Array) and issubdtype(dtype, np.inexact):
        with np.errstate(all="ignore"):  # JAX makes an infinity of a large number too
            x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    differ = _differing(x, y, dtype, rtol, atol)
    if not differ.any():
        return ()
    place = place_of(differ.argmax(), differ.shape)
    texts = describe_first(x[place], y[place], place, int(differ.sum()) - 1)
    return (Unequal(*texts, *largest_distances(x[differ], y[differ], dtype)),)


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
