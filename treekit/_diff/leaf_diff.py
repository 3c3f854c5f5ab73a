"""Compare two leaves: type, shape, dtype, weak type, sharding and value."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.describe import describe, describe_types, describe_values, is_deleted
from treekit._base.dtype import dtype_of, is_weak, issubdtype
from treekit._base.jax import jtu, untyped
from treekit._base.types import PyTree
from treekit._node.static_values import exact_key

Kind = Literal[
    "type", "structure", "static value", "array against None", "shape", "dtype", "weak type", "sharding", "value",
]  # fmt: skip
STRUCTURE: tuple[Kind, ...] = ("type", "structure", "static value", "array against None", "shape")
Found = tuple[Kind, str, str]  # what differs, and descriptions of the two leaves

_NUMPY: Any = (np.ndarray, np.generic)
_ARRAYS: Any = (jax.Array, np.ndarray)
_ABSTRACT: Any = (Tracer, jax.ShapeDtypeStruct)
_unravel_index: Any = np.unravel_index
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


def fetch(leaves: Iterable[Any]) -> None:
    """Copy the values of arrays from their devices all at once, faster than one by one; JAX caches them."""
    on_cpu = jax.default_backend() == "cpu"  # NumPy reads them in place
    untyped.device_get([x for x in leaves if not on_cpu and isinstance(x, jax.Array) and _is_readable(x)])


def _is_readable(x: jax.Array) -> bool:
    return not isinstance(x, Tracer) and not is_deleted(x) and x.is_fully_addressable


def leaf_differences(a: PyTree, b: PyTree, values: bool, rtol: float, atol: float) -> Iterator[Found]:
    """Yield every difference between two leaves; for their values, only the first place that differs."""
    are_arrays = isinstance(a, jax.Array) and isinstance(b, jax.Array)
    found = [] if are_arrays and a.aval == b.aval else list(_type_differences(a, b))
    yield from found
    kinds = {kind for kind, _, _ in found}
    if "type" in kinds or "shape" in kinds:
        return
    if are_arrays:
        yield from _sharding_differences(a, b)
    if values and "dtype" not in kinds:
        yield from _value_differences(a, b, rtol, atol)


def _type_differences(a: PyTree, b: PyTree) -> Iterator[Found]:
    """Yield differences in type, shape, dtype and weak type."""
    a_dtype, b_dtype = _dtypes(a, b)
    if (a_dtype is None) != (b_dtype is None) or (a_dtype is None and type(a) is not type(b)):
        yield "type", *describe_types(a, b)
    elif a_dtype is not None:
        if np.shape(a) != np.shape(b):
            yield "shape", describe(a), describe(b)
        if a_dtype != b_dtype:
            yield "dtype", describe(a), describe(b)
        elif is_weak(a) != is_weak(b):
            yield "weak type", f"{_strength(a)} {describe(a)}", f"{_strength(b)} {describe(b)}"


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
        yield "sharding", *describe_values(a.sharding, b.sharding)


def _value_differences(a: object, b: object, rtol: float, atol: float) -> Iterator[Found]:
    """Yield the first place where two leaves of equal type, shape and dtype differ, if their values are known."""
    if isinstance(a, _ABSTRACT) or isinstance(b, _ABSTRACT):
        return
    if _dtypes(a, b)[0] is None:
        if not same(a, b):
            yield "value", *describe_values(a, b)
    elif is_deleted(a) or is_deleted(b):
        yield "value", describe(a), describe(b)
    else:
        x, y = _on_host(a), _on_host(b)
        if isinstance(a, jax.Array) != isinstance(b, jax.Array) and _wide_dtype(dtype_of(a)):
            with np.errstate(all="ignore"):  # JAX makes an infinity of a large number too
                x, y = x.astype(dtype_of(a), copy=False), y.astype(dtype_of(b), copy=False)
        differ = _differing(x, y, dtype_of(a), rtol, atol)
        if differ.any():
            yield "value", *_describe_first(x, y, differ)


def _on_host(x: Any) -> Any:
    """Return the values of an array, a key or a number as a NumPy array."""
    is_key = isinstance(x, jax.Array) and issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def _differing(x: Any, y: Any, dtype: object, rtol: float, atol: float) -> Any:
    """Return a bool array that is True where two NumPy arrays differ. `dtype` is JAX's, or None if it has none."""
    if dtype is None:
        return np.asarray(_differ(x, y), bool)
    wide = _wide_dtype(dtype)
    if wide is None:
        return np.asarray(x != y)
    # NumPy compares bf16 and similar dtypes slowly, so bits are compared first. NaN counts as equal to NaN.
    differ = np.asarray(x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}") if x.dtype.kind == "V" else x != y)
    if differ.any():
        # Only elements that differ are widened: widening a whole large array would take several times its memory.
        differ[differ] = ~_close(x[differ].astype(wide), y[differ].astype(wide), rtol, atol)
    return differ


@functools.cache
def _wide_dtype(dtype: object) -> Any:
    """Return a wide dtype in which NumPy computes with floating or complex numbers (it lacks bf16); else None."""
    if issubdtype(dtype, np.complexfloating):
        return np.complex128
    return np.float64 if issubdtype(dtype, np.floating) else None


def _close(x: Any, y: Any, rtol: float, atol: float) -> Any:
    if rtol == atol == 0:  # much faster, and exact
        return (x == y) | ((x != x) & (y != y))
    return np.isclose(x, y, rtol, atol, equal_nan=True)


def _describe_first(x: Any, y: Any, differ: Any) -> tuple[str, str]:
    """Describe the first values of two arrays that differ, with their place and the number of other differences."""
    place = _unravel_index(differ.argmax(), differ.shape) if differ.ndim else ()
    others = differ.sum() - 1 if place else 0
    where = f" at {[int(i) for i in place]}" + (f" and {others} more" if others else "") if place else ""
    is_text = x.dtype.kind in "OSTU"
    left, right = describe_values(x.item(place), y.item(place)) if is_text else (str(x[place]), str(y[place]))
    return left + where, right + where


def same(a: object, b: object) -> bool:
    """Whether two objects without a dtype, which may contain arrays, have equal types and values."""
    if a is b:
        return True
    if isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS):
        return type(a) is type(b) and not any(leaf_differences(a, b, True, 0.0, 0.0))
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
