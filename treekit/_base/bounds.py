"""Can an array of a dtype hold a value?"""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.dtype import dtype_of, has_dtype, is_number, issubdtype
from treekit._base.jax import jnp


def holds(x: object, dtype: Any) -> bool:
    """Whether an array of a dtype can hold a value.

    | a value | integers hold it | floating-point and complex numbers hold it |
    |---|---|---|
    | an int, or an array of ints | in bounds | exactly |
    | a float of shape () | whole, and in bounds | unless it becomes infinite |
    | what is traced, has several floats, or is of another kind | yes | yes |
    """
    if not in_bounds(x, dtype):
        return False
    numbers = _numbers(x).tolist()
    if not issubdtype(dtype, np.inexact):
        return all(n % 1 == 0 for n in numbers)
    is_exact = (int(np.real(np.asarray(float(n)).astype(dtype))) == n for n in numbers)
    return issubdtype(dtype_of(x), np.inexact) or all(is_exact)


def in_bounds(x: object, dtype: Any) -> bool:
    """Whether the ints of a value, or its only float, are within the bounds of a dtype; unknown while tracing, so True.

    Infinity and NaN are within those of floating-point numbers.
    """
    is_same = has_dtype(x) and x.dtype == dtype
    if is_same or not is_number(dtype) or not (numbers := _numbers(x)).size:
        return True
    if issubdtype(dtype, np.inexact):
        largest = float(jnp.finfo(dtype).max)
        is_beyond = ((numbers < -largest) | (largest < numbers)) & (abs(numbers) < np.inf)
        return not is_beyond.any()
    low, high = (0, 1) if dtype == np.bool_ else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    return bool(low <= numbers.min() and numbers.max() <= high)


def _numbers(x: Any) -> Any:
    """Return the ints of a value, or its only float, as an array of NumPy; an empty one for anything else."""
    if isinstance(x, (Tracer, jax.ShapeDtypeStruct)):
        return np.empty(0)
    if issubdtype(dtype_of(x), jnp.integer):
        return np.asarray(x).ravel()
    is_float = issubdtype(dtype_of(x), jnp.floating) and np.shape(x) == ()
    return np.array([float(x)] if is_float else [])
