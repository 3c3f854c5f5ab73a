"""Dtypes of leaves: queries, leaves as arrays, promotion and casts. From a leaf to an array:

| function | a Python number | a weakly typed array | an array of NumPy | a `jax.Ref`, or what has `__jax_array__` |
|---|---|---|---|---|
| `resolve_array` | unchanged | unchanged | unchanged | its array |
| `as_array` | strongly typed, in the dtype that JAX gives it | unchanged | unchanged | its array |
| `strengthen` | the same | strongly typed | in the dtype that JAX gives it, such as f32 for f64 | its array |
| `cast_like` | in the dtype of another leaf, or an error | the same | the same | an error |

The first three return everything else unchanged; for `cast_like`, it is an error.
"""

import functools
from collections.abc import Iterable
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.jax import is_ref, jnp, jtu, lax, untyped
from treekit._base.types import HasDtype, PyTree

OF_NUMPY: Any = (np.ndarray, np.generic)
ARRAYS: Any = (jax.Array, *OF_NUMPY)
_WITH_DTYPE: Any = (*ARRAYS, jax.ShapeDtypeStruct)

# NumPy's same_kind casts only go up this order. NumPy's own order lacks ml_dtypes (bf16, fp8), hence this one.
_KINDS: tuple[Any, ...] = (np.bool_, np.unsignedinteger, np.signedinteger, np.floating, np.complexfloating)


@functools.cache  # called several times for each leaf
def issubdtype(dtype: object, kind: object) -> bool:
    """Return the result of `jax.numpy.issubdtype`, cached, since that takes a microsecond."""
    return dtype is not None and bool(jnp.issubdtype(dtype, kind))  # NumPy takes None for float64


@functools.cache
def is_number(dtype: object) -> bool:  # the dtype of a key is not a DTypeLike
    """Whether a dtype is one of numbers or bools; those of keys, objects and strings are not, nor is float0."""
    return any(jnp.issubdtype(dtype, kind) for kind in _KINDS)


@functools.cache
def _is_the_same_in_jax(dtype: object) -> bool:
    """Whether JAX has arrays of a dtype in every setting: it has those of 64 bits only if jax_enable_x64 is set."""
    return (
        is_number(dtype)
        and _native(dtype) is dtype
        and not any(dtype == each for each in (np.int64, np.uint64, np.float64, np.complex128))
    )


def _native(dtype: Any) -> Any:
    """Return a dtype in the byte order of this machine, the only one that JAX knows; arrays from files have others."""
    return dtype if getattr(dtype, "isnative", True) else dtype.newbyteorder("=")


@functools.cache
def _is_known(dtype: object) -> bool:
    return is_number(dtype) or dtype == jax.dtypes.float0 or bool(jnp.issubdtype(dtype, jax.dtypes.extended))


def _kind(dtype: object) -> int:
    return next(i for i, kind in enumerate(_KINDS) if issubdtype(dtype, kind))


def has_dtype(x: object) -> TypeGuard[HasDtype]:
    """Whether a leaf has a dtype: an array, a NumPy number, or a `jax.ShapeDtypeStruct`."""
    return isinstance(x, _WITH_DTYPE)


def dtype_of(x: object) -> Any:
    """Return the dtype that JAX gives a leaf, or None if it has none (functions, strings, None, object arrays)."""
    if has_dtype(x):
        dtype = x.dtype
        if _is_the_same_in_jax(dtype):
            return dtype
        known = _native(dtype) if _is_known(dtype) else None
        return None if known is None else jax.dtypes.canonicalize_dtype(known, allow_extended_dtype=True)
    for kind in (bool, int, float, complex):  # the class of a number may inherit from one, as those of `jax.vjp` do
        if isinstance(x, kind):
            return jax.dtypes.canonicalize_dtype(kind)
    return None


def _raw_dtype(x: object) -> Any:
    """Return the dtype of `x` itself, before JAX canonicalizes it."""
    return x.dtype if has_dtype(x) else dtype_of(x)


def shape_of(x: object) -> tuple[int, ...]:
    """Return the shape of a leaf, also of one that stands for an array; else ()."""
    return np.shape(x) if has_dtype(x) else np.shape(as_array(x))


def is_weak(x: object) -> bool:
    """Whether the dtype of `x` is weak in JAX's type promotion: Python numbers and weakly typed arrays."""
    if isinstance(x, _WITH_DTYPE):
        return bool(getattr(x, "weak_type", False))
    return isinstance(x, (int, float, complex)) and not isinstance(x, bool)  # a Python bool is strongly typed


def is_concrete(x: object) -> TypeGuard[jax.Array]:
    """Whether `x` is an array of JAX with a value, not a tracer."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer)


def stands_for_array(x: object) -> bool:
    """Whether a leaf is a reference to an array, or has `__jax_array__`, which a node may have too."""
    return is_ref(x) or (hasattr(type(x), "__jax_array__") and jtu.all_leaves([x]))


def is_prng_key(x: object) -> bool:
    """Whether `x` is a PRNG key of the new style or the old, a plain array of uint32; a part of one is not."""
    dtype = dtype_of(x)
    is_old = dtype == jnp.uint32 and shape_of(x) in ((2,), (4,))
    return is_old or issubdtype(dtype, jax.dtypes.prng_key)


def has_no_update(update: object) -> bool:
    """Whether `update` means no update: None, as in Equinox, or float0, JAX's gradient of an integer."""
    return update is None or bool(getattr(update, "dtype", None) == jax.dtypes.float0)


def have_same_dtypes(xs: Iterable[object], ys: Iterable[object]) -> bool:
    """Whether all are strongly typed arrays of JAX, and each of `xs` has the dtype of its counterpart in `ys`.

    Then nothing has to be cast. To test all of them at once is faster than to test each.
    """
    return all(
        isinstance(x, jax.Array)
        and isinstance(y, jax.Array)
        and x.dtype == y.dtype
        and not (getattr(x, "weak_type", False) or getattr(y, "weak_type", False))
        for x, y in zip(xs, ys, strict=True)
    )


def resolve_array(x: object) -> Any:
    """Return the array that a leaf stands for; anything else unchanged."""
    if is_ref(x):
        return x[...]
    return jnp.asarray(x) if stands_for_array(x) else x


def as_array(x: object) -> Any:
    """Return a Python number as a strongly typed array, and the array that a leaf stands for; others unchanged."""
    if has_dtype(x):
        return x
    if isinstance(x, (bool, int, float, complex)):
        return jnp.asarray(x, dtype_of(x))
    return resolve_array(x)


def strengthen(x: object) -> Any:
    """Return a number or an array as a strongly typed array of the dtype that JAX gives it; anything else unchanged."""
    if isinstance(x, jax.Array) and not is_weak(x):
        return x  # the code below returns the same, but takes longer
    if is_weak(x) and has_dtype(x):
        return lax.convert_element_type(x, dtype_of(x))
    return as_array(x) if dtype_of(x) is None or dtype_of(x) == _raw_dtype(x) else jnp.asarray(x, dtype_of(x))


def strengthen_all(tree: PyTree) -> Any:
    """Return a tree whose leaves are strengthened, which most are already."""
    leaves = jtu.tree_leaves(tree)
    return tree if have_same_dtypes(leaves, leaves) else jtu.tree_map(strengthen, tree)


def weakened(x: Any, like: Any = 1.0) -> Any:
    """Return an array in the dtype of a weakly typed one, by default of a Python float, and weakly typed too."""
    return _full_like(like, x)


# `lax.full_like` keeps the weak type of its first argument, and fills with one number: vectorized, with each of `x`.
_full_like: Any = jnp.vectorize(lax.full_like)


def in_native_order(x: Any) -> Any:
    """Return a NumPy array in the byte order of this machine; anything else unchanged."""
    is_foreign = isinstance(x, OF_NUMPY) and not x.dtype.isnative
    return x.astype(_native(x.dtype)) if is_foreign else x


def promoted_dtype(*leaves: object) -> Any:
    """Return the dtype to which JAX promotes arrays of these dtypes: those of numbers, arrays, and objects for arrays.

    JAX does not promote the smallest dtypes, so these do instead:

    | among several dtypes | what counts |
    |---|---|
    | integers of less than 8 bits | int8 |
    | one float of 8 bits or less, and integers | it itself |
    | several floats of 8 bits or less | bf16 |
    | such floats and wider ones | the wider ones; f32, if the only wider one is f16, and another has a larger range |
    """
    dtypes: set[Any] = set(map(dtype_of, leaves))
    if None in dtypes:
        dtypes = {dtype_of(as_array(x)) for x in leaves}
    if len(dtypes) == 1:
        return dtypes.pop()
    small_ints = {dtype for dtype in dtypes if issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8}
    if small_ints:
        dtypes = dtypes - small_ints | {jnp.dtype(jnp.int8)}
    float8 = {dtype for dtype in dtypes if issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits <= 8}
    if float8:
        wider = {dtype for dtype in dtypes - float8 if issubdtype(dtype, np.inexact)}
        if wider == {jnp.dtype(jnp.float16)} and any(jnp.finfo(x).max > jnp.finfo(jnp.float16).max for x in float8):
            wider = {jnp.dtype(jnp.float32)}
        dtypes = wider or (float8 if len(float8) == 1 else {jnp.dtype(jnp.bfloat16)})
    # The caller asks for promotion, so it is allowed even if JAX's promotion mode is strict.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*dtypes)


def cast_like(result: object, leaf: object, casting: str = "same_kind") -> Any:
    """Cast `result` to the dtype of `leaf`, unless it has it; raise a TypeError if the cast is not allowed.

    Args:
        result: an array or a number.
        leaf: one too.
        casting: as in `dtype_preserving_tree_map`.
    """
    if isinstance(result, jax.Array) and result.dtype == getattr(leaf, "dtype", ()):  # NumPy takes None for float64
        if not getattr(result, "weak_type", False):
            return result  # the code below returns the same, but takes longer
    want, have = dtype_of(leaf), dtype_of(result)
    if want is None or result is None:
        return result
    if have is None:  # checked first, since NumPy takes None for float64
        raise TypeError(f"a result of type {type(result).__name__} for a leaf of dtype {want}")
    keeps_strength = not is_weak(result) or is_weak(leaf)
    keeps_array = has_dtype(result) or not has_dtype(leaf)
    if have == want and _raw_dtype(result) == want and keeps_strength and keeps_array:
        return result
    if have != want and not _may_cast(have, want, casting, weak=is_weak(result)):
        hint = '; casting="unsafe" would allow it' if _may_cast(have, want, "unsafe") else ""
        raise TypeError(f"a result of dtype {have} for a leaf of dtype {want}{hint}")
    if isinstance(result, jax.ShapeDtypeStruct):
        return untyped.ShapeDtypeStruct(result.shape, want, sharding=result.sharding)
    # asarray raises on a Python int that does not fit; casting an array would wrap around.
    return lax.convert_element_type(in_native_order(result), want) if has_dtype(result) else jnp.asarray(result, want)


def _may_cast(have: Any, want: Any, casting: str, weak: bool = False) -> bool:
    if not (is_number(have) and is_number(want)):
        return False  # keys, float0
    if issubdtype(have, np.complexfloating) and not issubdtype(want, np.complexfloating):
        return False
    if casting == "unsafe" or want == np.bool_:
        return True
    if weak and issubdtype(have, np.signedinteger):
        have = np.unsignedinteger  # a Python int may be cast to one, which fails if it does not fit
    return _kind(have) <= _kind(want)
