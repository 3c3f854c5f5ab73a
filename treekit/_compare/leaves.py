"""Compare leaves: type, shape, dtype, weak type, sharding and value.

| test | of | equal |
|---|---|---|
| `plainly_equal` | leaves or nodes | True is certain; False may mean that a longer test is needed |
| `equal_objects` | objects without a dtype | if types and values are equal; arrays in them are compared as here |
| `which_differ`, in `elements` | NumPy arrays | NaN and NaN, 0.0 and -0.0, and what is within tolerances |
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from numpy.typing import NDArray

from treekit._base.dtype import OF_NUMPY, dtype_of, has_dtype, is_concrete, is_weak, issubdtype
from treekit._base.jax import untyped
from treekit._base.memory import is_deleted
from treekit._base.types import PyTree
from treekit._compare.differences import LeafKind
from treekit._compare.elements import largest_distances, place_of_first, which_differ
from treekit._compare.exact import PLAIN, exact_key, is_equal_by_parts, parts_of
from treekit._text.describe import describe, describe_types, describe_values

_ARRAYS: Any = (jax.Array, np.ndarray)
_ABSTRACT: Any = (Tracer, jax.ShapeDtypeStruct)
_PLAIN = (float, int, bool, str, complex)

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

    Args:
        pairs: the leaves.
        values: compare their values too.
        rtol: as in `tree_diff`.
        atol: as in `tree_diff`.
    """
    differences = [list(_type_differences(*pair)) for pair in pairs]
    if not values:
        return differences
    alike = [
        i
        for i, pair in enumerate(pairs)
        if not {each.kind for each in differences[i]} & {"type", "shape", "dtype"}
        and not any(isinstance(x, _ABSTRACT) for x in pair)
    ]
    if jax.default_backend() != "cpu":  # on the CPU, NumPy reads the values in place
        # All at once, faster than one by one. JAX caches the values.
        readable = [pairs[i] for i in alike if all(map(_is_readable, pairs[i]))]
        untyped.device_get([x for pair in readable for x in pair if isinstance(x, jax.Array)])
    for i in alike:
        differences[i] += _value_differences(*pairs[i], rtol, atol)
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


def equal_objects(a: object, b: object) -> bool:
    """Whether two objects without a dtype have equal types and values. The first row that holds:

    | two objects of one type | are equal if |
    |---|---|
    | arrays | `compare_leaves` finds no difference |
    | with an array among their parts, or in these | their parts are, and their class's own `==` does not deny it |
    | any others | their keys are equal, as `exact_key` makes them |

    In containers, Python's `==` fails for arrays of several elements, and of one it compares neither the dtype nor NaN.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _ARRAYS):
        return not any(compare_leaves([(a, b)], True, 0.0, 0.0))
    with contextlib.suppress(Exception):  # a user's __eq__ may raise anything
        if not (_has_array(a) or _has_array(b)):
            return bool(exact_key(a) == exact_key(b))
        a_parts, b_parts = parts_of(a), parts_of(b)
        if a_parts is not None and b_parts is not None and len(a_parts.items) == len(b_parts.items):
            return all(map(equal_objects, a_parts.items, b_parts.items)) and not _denies(a, b)
    return False


def _has_array(x: object) -> bool:
    """Whether a value is an array, or has one among its parts."""
    parts = None if type(x) in PLAIN else parts_of(x)
    return isinstance(x, _ARRAYS) if parts is None else any(map(_has_array, parts.items))


def _denies(a: object, b: object) -> bool:
    """Whether the `==` of a class, one that it does not generate or inherit from a container, says that they differ."""
    if is_equal_by_parts(type(a)):
        return False
    with contextlib.suppress(Exception):  # it may take the truth value of an array
        said: Any = a == b
        return np.ndim(said) == 0 and not said
    return False


# Element by element, for dtypes that JAX does not have: objects, strings, times.
_equal_each: Any = np.frompyfunc(equal_objects, 2, 1)


def _type_differences(a: PyTree, b: PyTree) -> Iterator[LeafDifference]:
    """Yield differences in type, shape, dtype, weak type and sharding."""
    are_concrete = is_concrete(a) and is_concrete(b)
    if are_concrete and a.aval == b.aval and a.sharding == b.sharding:
        return  # the code below yields nothing, but takes longer
    a_dtype, b_dtype = _dtypes(a, b)
    if a_dtype is None or b_dtype is None:
        if a_dtype is not b_dtype or type(a) is not type(b):
            yield LeafDifference("type", *describe_types(a, b))
        return
    if has_dtype(a) != has_dtype(b):  # one is a number of Python, which a class does not train or save
        yield LeafDifference("type", describe(a), describe(b))
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


def _value_differences(a: PyTree, b: PyTree, rtol: float, atol: float) -> Iterator[LeafDifference]:
    """Yield the first place where the values of two leaves of equal type, shape and dtype differ."""
    if _dtypes(a, b)[0] is None:
        if not equal_objects(a, b):
            yield LeafDifference("value", *describe_values(a, b))
        return
    if not (_is_readable(a) and _is_readable(b)):
        yield LeafDifference("value", _describe_or_why_not(a), _describe_or_why_not(b))
        return
    x, y = _values(a, b)
    differ = ~np.asarray(_equal_each(x, y), bool) if dtype_of(x) is None else which_differ(x, y, rtol, atol)
    if differ.any():
        ours, theirs = x[differ], y[differ]
        left, right = (text + place_of_first(differ) for text in _describe_first(ours[0], theirs[0]))
        yield LeafDifference("value", left, right, *largest_distances(ours, theirs, dtype_of(a)))


def _is_readable(x: PyTree) -> bool:
    """Whether the values of a leaf exist, and this process has all of them; True for what is not an array of JAX."""
    if not is_concrete(x):
        return True
    return not x.is_deleted() and (x.is_fully_replicated or x.is_fully_addressable)


def _describe_or_why_not(x: PyTree) -> str:
    """Describe a leaf; of one that is not readable, say why: it is deleted, or spans processes."""
    is_in_parts = not _is_readable(x) and not is_deleted(x)
    return describe(x) + "(not compared: it spans processes)" * is_in_parts


def _values(a: PyTree, b: PyTree) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the values of two leaves of one dtype; where NumPy has another dtype, as JAX would convert it."""
    x, y = np.asarray(_data_of(a)), np.asarray(_data_of(b))
    # Floats of 64 bits are rounded. Integers are not: one that does not fit differs.
    if x.dtype != y.dtype and issubdtype(dtype_of(a), np.inexact):
        with np.errstate(all="ignore"):  # JAX makes an infinity of a large number too
            x, y = x.astype(dtype_of(a), copy=False), y.astype(dtype_of(a), copy=False)
    return x, y


def _data_of(x: PyTree) -> Any:
    """Return the data of an array of keys; any other leaf unchanged."""
    if not (isinstance(x, jax.Array) and issubdtype(x.dtype, jax.dtypes.prng_key)):
        return x
    with jax.ensure_compile_time_eval():  # in a traced function, these keys are constants
        return jax.random.key_data(x)


def _describe_first(x: PyTree, y: PyTree) -> tuple[str, str]:
    """Describe the first two values that differ."""
    scalar: Any = np.generic
    is_numpy_number = isinstance(x, scalar) and x.dtype.kind not in "STU"
    return (str(x), str(y)) if is_numpy_number else describe_values(x, y)
