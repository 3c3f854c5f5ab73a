"""Compare numbers, with NumPy or on the devices: which differ, the first of them, and how far they differ."""

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from treekit._base.describe import describe_values
from treekit._base.dtype import is_number, issubdtype
from treekit._base.types import PyTree

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
    if x.size == 1 and not issubdtype(wide, np.inexact):
        return _integer_distances(int(x.item()), int(y.item()))  # integers of Python may have any number of bits
    with np.errstate(all="ignore"):
        absolute, relative = distances(x.astype(wide), y.astype(wide), np)
    return float(absolute.max()), float(relative.max())


def _integer_distances(x: int, y: int) -> tuple[float, float]:
    try:
        return float(abs(x - y)), abs(x - y) / abs(y) if y else np.inf
    except OverflowError:
        return np.inf, np.inf


def describe_first(x: PyTree, y: PyTree, place: tuple[int, ...], others: int) -> tuple[str, str]:
    """Describe the first two values that differ, with their place and the number of other values that differ."""
    is_number = isinstance(x, _NUMBER) and x.dtype.kind not in "STU"
    left, right = (str(x), str(y)) if is_number else describe_values(x, y)
    where = f" at {list(place)}" + (f" and {others} more" if others else "") if place else ""
    return left + where, right + where


def place_of(index: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the place of an element in an array, from its place in the flat array."""
    return tuple(map(int, _unravel_index(index, shape))) if shape else ()
