"""Which elements of two NumPy arrays differ, how far are they apart, and where is the first of them?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treekit._base.dtype import is_number, issubdtype

_unravel_index: Any = np.unravel_index


def which_differ(x: NDArray[Any], y: NDArray[Any], rtol: float, atol: float) -> Any:
    """Return which numbers of two NumPy arrays of one dtype differ. NaN is equal to NaN, and 0.0 to -0.0."""
    if not issubdtype(x.dtype, np.inexact):
        return np.asarray(x != y)
    # First a fast test, which takes all NaNs for different; then an exact one of what differs.
    if x.dtype.kind == "V":  # bf16 and similar, which NumPy compares slowly, and their bits fast
        bits = f"u{x.itemsize}"
        differ = np.asarray(x.view(bits) != y.view(bits))
    else:
        differ = np.asarray(x != y)
    if differ.any():
        # Only elements that differ are widened: widening a whole large array would take several times its memory.
        left, right = _wide(x[differ]), _wide(y[differ])
        differ[differ] = ~(_are_equal(left, right) if rtol == atol == 0 else _are_close(left, right, rtol, atol))
    return differ


def _are_equal(x: NDArray[Any], y: NDArray[Any]) -> Any:
    if np.iscomplexobj(x):
        return _are_equal(np.real(x), np.real(y)) & _are_equal(np.imag(x), np.imag(y))
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _are_close(x: NDArray[Any], y: NDArray[Any], rtol: float, atol: float) -> Any:
    if not np.iscomplexobj(x):
        return np.isclose(x, y, rtol, atol, equal_nan=True)
    # np.isclose takes any two complex NaNs as equal.
    parts = (np.real(x), np.real(y)), (np.imag(x), np.imag(y))
    are_parts_close = np.logical_and(*(np.isclose(*part, rtol, atol, equal_nan=True) for part in parts))
    return np.where(np.isnan(x) | np.isnan(y), are_parts_close, np.isclose(x, y, rtol, atol))


def _wide(x: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in a wide dtype, in which NumPy computes; it lacks bf16."""
    if issubdtype(x.dtype, np.inexact):
        return x.astype(np.promote_types(x.dtype, np.float64))  # a long double is wider
    return x.astype(np.uint64 if issubdtype(x.dtype, np.unsignedinteger) else np.int64)


def largest_distances(x: NDArray[Any], y: NDArray[Any], dtype: object) -> tuple[float, float] | tuple[None, None]:
    """Return the largest absolute and relative difference of numbers that differ; None for what is not a number."""
    if dtype is None or dtype == np.bool_ or not is_number(dtype):
        return None, None
    if issubdtype(dtype, np.inexact):
        return _distances_of_floats(_wide(x), _wide(y))
    if x.size == 1:
        return _distances_of_one_integer(int(x.item()), int(y.item()))
    return _distances_of_integers(_wide(x), _wide(y))


def _distances_of_floats(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float]:
    known = np.isfinite(x) & np.isfinite(y)
    with np.errstate(all="ignore"):
        absolute = np.where(known, abs(x - y), np.inf)
        relative = np.where(known, absolute / abs(y), np.inf)
    return float(absolute.max()), float(relative.max())


def _distances_of_one_integer(x: int, y: int) -> tuple[float, float]:
    """One of Python may have any number of bits."""
    try:
        return float(abs(x - y)), abs(x - y) / abs(y) if y else np.inf
    except OverflowError:
        return np.inf, np.inf


def _distances_of_integers(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float]:
    with np.errstate(all="ignore"):
        # The difference may need one bit more than signed numbers have; an unsigned integer has it.
        absolute = np.where(x > y, x - y, y - x).astype(np.uint64).astype(np.float64)
        relative = absolute / abs(y.astype(np.float64))
    return float(absolute.max()), float(relative.max())


def place_of_first(differ: NDArray[Any]) -> str:
    """Say where the first of the values is that differ, and how many others there are; "" for a number."""
    if not differ.shape:
        return ""
    others = int(differ.sum()) - 1
    return f" at {list(map(int, _unravel_index(differ.argmax(), differ.shape)))}" + f" and {others} more" * (others > 0)
