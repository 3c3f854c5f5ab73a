"""Carry old values over to new leaves: converted, resized, cast, and placed where the new value is."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from treekit._base.bounds import in_bounds
from treekit._base.dtype import OF_NUMPY, cast_like, dtype_of, has_dtype, issubdtype
from treekit._base.jax import jnp, untyped
from treekit._base.predicates import is_narrow, is_traced
from treekit._graft.arguments import Choices
from treekit._graft.leaves import Leaf
from treekit._graft.matches import Matches
from treekit._graft.sources import Source
from treekit._text.describe import describe, describe_value

# An array, a number or a `jax.ShapeDtypeStruct`; type checkers do not know what these have in common.
Value: TypeAlias = Any
_JAX: Any = (jax.Array, jax.ShapeDtypeStruct)


@dataclasses.dataclass(frozen=True)
class Refused:
    """An old value that a new leaf does not get.

    Attributes:
        value: the value, converted; None for arrays that cannot be stacked or unstacked.
        is_changed: whether a cast was asked for, and would change it.
    """

    value: Value
    is_changed: bool = False


def values_of(matches: Matches, choices: Choices, cast: bool) -> dict[Leaf, Any]:
    """Return the old values that new leaves get, with their shapes and dtypes, or `Refused` ones."""
    carried = [leaf for leaf in matches if leaf.name not in choices.fresh]
    return {leaf: _carried(leaf, matches[leaf][0], choices, cast) for leaf in carried}


def _carried(leaf: Leaf, source: Source, choices: Choices, cast: bool) -> Any:
    """Return the old value, converted, resized and cast; or refuse it."""
    new, convert, resize = leaf.value, choices.convert.get(leaf.name), choices.resize.get(leaf.name)
    old = source.read(lambda x: _called("convert", leaf, convert, x) if convert else x)
    if old is None:
        return Refused(None)
    old = _as_key(old, new)
    if np.shape(old) != np.shape(new):
        resized = None if resize is None else _called("resize", leaf, resize, new, old)
        if resized is None:
            return Refused(old)
        old = resized
        if np.shape(old) != np.shape(new):
            raise ValueError(
                f"at {leaf.name}: resize must return an array of shape {np.shape(new)}, found {np.shape(old)}"
            )
    if dtype_of(old) != dtype_of(new) and not cast:  # as JAX has them: f64 of NumPy is f32, and cast in any case
        return Refused(old)
    value = _cast(old, new)
    return Refused(old, is_changed=True) if value is None else value


def _as_key(old: Value, new: Value) -> Any:
    """Return the data of a PRNG key, which files have, as a key of the new leaf's kind; any other value unchanged."""
    if not issubdtype(dtype_of(new), jax.dtypes.prng_key) or dtype_of(old) != jnp.uint32:
        return old
    kind = jnp.zeros((), new.dtype)
    is_data = np.shape(old) == (*np.shape(new), *jax.random.key_data(kind).shape)
    return untyped.random.wrap_key_data(jnp.asarray(old), impl=jax.random.key_impl(kind)) if is_data else old


def _called(argument: str, leaf: Leaf, f: Callable[..., Any], *arrays: Value) -> Any:
    """Call a function of `convert` or `resize`."""
    try:
        value = f(*arrays)
    except Exception as error:
        error.add_note(f"This happened in the `{argument}` of graft, at {leaf.name}, on {describe(arrays[-1])}")
        raise
    if dtype_of(value) is None and not (argument == "resize" and value is None):
        raise TypeError(f"at {leaf.name}: {argument} must return an array, found {describe_value(value)}")
    return value


def _cast(old: Value, new: Value) -> Any:
    """Return a value with the dtype, the class and the place of the new leaf, or None if that would change it."""
    want = _dtype_of_leaf(new)
    if issubdtype(want, jnp.bool_) and not issubdtype(dtype_of(old), jnp.bool_):
        return None  # only `convert` can decide which numbers mean True
    if has_dtype(old) and not in_bounds(old, want):
        return None
    is_for_numpy = has_dtype(old) and not (is_traced(old) or isinstance(new, _JAX))
    try:
        with np.errstate(over="ignore"):  # such values are refused below
            in_jax = cast_like(old, new)  # raises if the cast is not allowed
            value = np.asarray(old).astype(want) if is_for_numpy else in_jax  # NumPy preserves 64 bits
    except (TypeError, OverflowError):  # the cast is not allowed, or a Python int does not fit
        return None
    return _placed(value, new) if _preserves_infinities_and_nans(old, value) else None


def _dtype_of_leaf(new: Value) -> Any:
    """Return the dtype of a new leaf: of a Python number or a NumPy array its own, which may have 64 bits."""
    raw: Any = getattr(new, "dtype", new.__class__)
    return dtype_of(new) if isinstance(new, _JAX) else np.dtype(raw)


def _preserves_infinities_and_nans(old: Value, value: Value) -> bool:
    """Whether the same numbers are infinite and NaN before and after a cast; unknown while tracing, so True.

    Some dtypes of 8 bits and less have no NaN, or no infinity: then large numbers become the largest, which is refused.
    """
    have, want = getattr(old, "dtype", None), getattr(value, "dtype", None)
    if have == want:
        return True  # nothing was cast
    if is_traced(old):
        return True  # unknown
    if not issubdtype(want, jnp.inexact):
        return True  # integers, whose bounds were checked, or bools
    largest = float(jnp.finfo(want).max)
    if issubdtype(have, jnp.inexact) and largest >= float(jnp.finfo(have).max):
        return True  # no number is too large
    has_infinity = not np.isfinite(np.asarray(np.inf, np.float32).astype(want))
    if not has_infinity and bool((abs(np.asarray(old, float)) > largest).any()):
        return False  # too large, and now the largest
    xp = jnp if isinstance(old, jax.Array) else np
    wide = value.astype(np.float32) if is_narrow(value) else value
    return bool(xp.all((xp.isfinite(wide) == xp.isfinite(old)) & (xp.isnan(wide) == xp.isnan(old))))


def _placed(value: Value, new: Value) -> Any:
    """Return a copy in the type of the new leaf.

    A copy, since a step may donate the result, and a file that NumPy has mapped may change. The first row that holds:

    | what | the result |
    |---|---|
    | the value is traced | the value, not copied |
    | the new leaf is traced | a JAX array |
    | it is of JAX, and nobody has chosen its devices | an array where JAX places it |
    | it is of JAX, with a sharding that somebody has chosen | an array with this sharding |
    | it is an array or a number of NumPy | the same, with its dtype |
    | it is a Python number | a number of its class |
    """
    if is_traced(value):
        return value
    if is_traced(new):
        return jnp.asarray(value)
    if isinstance(new, _JAX):
        is_placed = new.sharding and (isinstance(new, jax.ShapeDtypeStruct) or new.committed)
        if not is_placed:
            return jnp.copy(value)
        # Not by device_put alone, which may share the memory of what it is given, whatever may_alias says.
        own = np.array(value) if isinstance(value, OF_NUMPY) else jnp.copy(value)
        return untyped.device_put(own, new.sharding)
    if has_dtype(new):
        array = np.array(value, new.dtype)
        return array if isinstance(new, np.ndarray) else array[()]
    return type(new)(np.asarray(value).item())
