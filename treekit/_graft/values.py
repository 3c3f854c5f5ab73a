"""The values that a graft carries over, with the shapes, dtypes and places of the new leaves."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import cast_like, check_fits, dtype_of, has_dtype, issubdtype
from treekit._base.jax import jnp, untyped
from treekit._base.pattern_set import PatternSet
from treekit._base.patterns import check_pattern, matches, nearest, pattern_text
from treekit._base.predicates import is_narrow, is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.codes import codes_of
from treekit._graft.leaf import Convert, Leaf, Value

Resize = Callable[[Any, Any], Any]
_JAX: Any = (jax.Array, jax.ShapeDtypeStruct)


def check_arguments(rename: object, convert: object, resize: object) -> None:
    """Raise a TypeError unless the arguments have the types that `graft` takes."""
    if rename is not None and not (is_mapping(rename) and all(map(_is_rule, rename, rename.values()))):
        raise TypeError(
            "rename must be a dict that maps old paths to new ones, {'body.**': 'encoder.**'}, to a list of new ones, "
            f"or to None; found {describe_value(rename)}"
        )
    if convert is not None and not (is_mapping(convert) and all(map(callable, convert.values()))):
        raise TypeError(
            "convert must be a dict from patterns of new paths to functions of the old array, "
            f"{{'**.weight': lambda x: x.T}}; found {describe_value(convert)}"
        )
    functions = resize.values() if is_mapping(resize) else [resize]
    if resize is not None and not all(map(callable, functions)):
        raise TypeError(
            "resize must be a function of the new leaf and the old one, or a dict from patterns to such functions; "
            f"found {describe_value(resize)}"
        )


def _is_rule(pattern: object, target: PyTree) -> bool:
    targets: list[Any] = list(target) if type(target) in (list, tuple) and target else [target]
    return isinstance(pattern, str) and (target is None or all(isinstance(x, str) for x in targets))


def carry(leaf: Leaf, source: Leaf, convert: Convert | None, resize: Resize | None, cast: bool, used: set[int]) -> Any:
    """Return the old value with the shape and dtype of the new leaf, or None if it is refused.

    Args:
        leaf: the new leaf.
        source: the old one.
        convert: as in `graft`, for this leaf.
        resize: the same.
        cast: as in `graft`.
        used: the ids of the old arrays that other leaves have, to which this one's is added. An array is copied for
            each leaf after the first, so that a step may donate them all.
    """
    new = leaf.value
    codes = codes_of(leaf, source)
    if codes is None or (codes.old != codes.new and not cast):
        return None
    if codes.are_same and convert is None and resize is None:
        codes = codes._replace(old=False, new=False)  # so as not to decode and encode them
    old = source.read(lambda x: _converted(leaf, codes.numbers(x), convert))
    if old is None:
        return None  # arrays that cannot be stacked or unstacked
    if np.shape(old) != np.shape(new):
        if resize is None or (old := _resized(leaf, codes.new_numbers(new), old, resize)) is None:
            return None
        if np.shape(old) != np.shape(new):
            raise ValueError(
                f"at {leaf.name}: resize must return an array of shape {np.shape(new)}, found {np.shape(old)}"
            )
    if not (cast or codes.are_same or dtype_of(old) == dtype_of(new)):
        return None
    old = codes.encoded(old, dtype_of(new))
    if id(old) in used and isinstance(old, jax.Array) and not is_traced(old):
        old = jnp.copy(old)
    used.add(id(old))
    return None if old is None else _cast(old, new)


def _cast(old: Value, new: Value) -> Any:
    """Return a value with the dtype, the class and the place of the new leaf, or None if that would change it."""
    want = _dtype_on_host(new)
    if issubdtype(want, jnp.bool_) and not issubdtype(dtype_of(old), jnp.bool_):
        return None  # which number means True is for `convert` to say
    try:
        check_fits(old, want)
        with np.errstate(over="ignore"):  # such values are refused below
            value = cast_like(old, new)
            # Values on the host may have 64 bits, and must not be rounded to the 32 bits of JAX.
            if not (is_traced(old) or isinstance(new, _JAX) or not has_dtype(old)):
                value = np.asarray(old).astype(want)
    except (TypeError, OverflowError):  # the cast is not allowed, or a Python int does not fit
        return None
    return _placed(value, new) if _is_finite_where(old, value) else None


def _dtype_on_host(x: object) -> Any:
    """Return the dtype of a leaf, which may have 64 bits if it is a Python number or one of NumPy's arrays."""
    dtype: Any = getattr(x, "dtype", type(x))
    return dtype_of(x) if isinstance(x, _JAX) else np.dtype(dtype)


def _is_finite_where(old: Value, value: Value) -> bool:
    """Whether a cast has preserved what is infinite, NaN and neither; unknown while tracing, so True.

    Some dtypes of 8 bits and less have no NaN, or no infinity: then large numbers become the largest.
    """
    have, want = getattr(old, "dtype", None), getattr(value, "dtype", None)
    if have == want or is_traced(old) or not issubdtype(want, jnp.inexact):
        return True
    if issubdtype(have, jnp.inexact) and float(jnp.finfo(want).max) >= float(jnp.finfo(have).max):
        return True
    xp = jnp if isinstance(old, jax.Array) else np
    wide = value.astype(np.float32) if is_narrow(value) else value
    has_infinity = not np.isfinite(np.asarray(np.inf, np.float32).astype(want))
    if not has_infinity and bool((abs(np.asarray(old, float)) > float(jnp.finfo(want).max)).any()):
        return False
    return bool(xp.all((xp.isfinite(wide) == xp.isfinite(old)) & (xp.isnan(wide) == xp.isnan(old))))


def _converted(leaf: Leaf, old: Value, convert: Convert | None) -> Any:
    if convert is None:
        return old
    try:
        value = convert(old)
    except Exception as error:
        error.add_note(f"This happened in the `convert` of graft, at {leaf.name}, on {describe(old)}")
        raise
    if dtype_of(value) is None:
        raise TypeError(f"at {leaf.name}: convert must return an array, found {describe_value(value)}")
    return value


def _resized(leaf: Leaf, new: Value, old: Value, resize: Resize) -> Any:
    try:
        value = resize(new, old)
    except Exception as error:
        error.add_note(f"This happened in the `resize` of graft, at {leaf.name}")
        raise
    if value is not None and dtype_of(value) is None:
        raise TypeError(f"at {leaf.name}: resize must return an array, found {describe_value(value)}")
    return value


def _placed(value: Value, new: Value) -> Any:
    """Convert a value to the type of the new leaf: a Python number, a NumPy array, or a JAX array with its sharding."""
    if is_traced(value):
        return value
    if not has_dtype(new):
        return type(new)(np.asarray(value).item())
    like: Any = new
    if not isinstance(new, _JAX):
        array = np.asarray(value, like.dtype)
        return array if isinstance(new, np.ndarray) else array[()]
    has_place = isinstance(new, jax.ShapeDtypeStruct) or (not is_traced(new) and like.committed)
    return untyped.device_put(value, like.sharding) if has_place and like.sharding else jnp.asarray(value)


def functions_of(argument: str, given: Resize | Mapping[Any, Any] | None, names: list[str]) -> dict[str, Any]:
    """Return for each leaf the function of `convert` or `resize`, or None; the first pattern that matches decides."""
    if callable(given) or given is None:
        return dict.fromkeys(names, given)
    patterns = list(map(check_pattern, given))
    first_match = PatternSet(patterns).first
    chosen = {name: first_match(name) for name in names}
    deciding = set(chosen.values())
    for i, pattern in enumerate(patterns):
        if i in deciding:
            continue
        text = pattern_text(pattern)
        if any(matches(pattern, name) for name in names):
            raise ValueError(
                f"{argument}: {text!r} decides about no leaf, since earlier patterns match all leaves that it matches. "
                "Put it before them"
            )
        raise ValueError(
            f"{argument}: {text!r} matches no leaf of the new tree. The nearest paths: {nearest(text, names)}"
        )
    return {name: None if i is None else given[patterns[i]] for name, i in chosen.items()}
