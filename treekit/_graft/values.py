"""The values that a graft carries over, with the shapes, dtypes and places of the new leaves."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import cast_like, check_fits, dtype_of, has_dtype, issubdtype
from treekit._base.first_match import FirstMatch
from treekit._base.jax import jnp, untyped
from treekit._base.patterns import check_pattern, matches, nearest, pattern_text
from treekit._base.predicates import is_traced
from treekit._base.tree import is_mapping
from treekit._graft.codes import with_codes
from treekit._graft.leaf import Convert, Leaf

Resize = Callable[[Any, Any], Any]
_NUMPY: Any = (np.ndarray, np.generic)


def check_arguments(rename: Any, convert: Any, resize: Any) -> None:
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


def _is_rule(pattern: object, target: Any) -> bool:
    targets: list[Any] = list(target) if type(target) in (list, tuple) and target else [target]
    return isinstance(pattern, str) and (target is None or all(isinstance(x, str) for x in targets))


def carry(leaf: Leaf, source: Leaf, convert: Convert | None, resize: Resize | None, cast: bool) -> Any:
    """Return the old value with the shape and dtype of the new leaf, or None if it is refused."""
    new = leaf.value
    old = source.read(lambda x: x if convert is None else _converted(leaf, x, convert))
    if old is None:
        return None  # arrays that cannot be stacked or unstacked
    if np.shape(old) != np.shape(new):
        if resize is None or (old := _resized(leaf, old, resize)) is None:
            return None
        if np.shape(old) != np.shape(new):
            raise ValueError(
                f"at {leaf.name}: resize must return an array of shape {np.shape(new)}, found {np.shape(old)}"
            )
    is_same = dtype_of(old) == dtype_of(new)
    if not (is_same or cast) or (old := with_codes(leaf, source, old)) is None:
        return None
    try:
        check_fits(old, dtype_of(new))
        with np.errstate(over="ignore"):  # such values are refused below
            value = cast_like(old, new)
    except (TypeError, OverflowError):  # the cast is not allowed, or a Python int does not fit
        return None
    # A NumPy array may have 64 bits, and must not be rounded to the 32 bits of JAX.
    value = old if is_same and isinstance(new, _NUMPY) else value
    return _placed(value, new) if _is_finite_where(old, value) else None


def _is_finite_where(old: Any, value: Any) -> bool:
    """Whether a cast has made no finite number infinite or NaN; unknown while tracing, so True."""
    have, want = getattr(old, "dtype", None), dtype_of(value)
    if have == want or is_traced(old) or not issubdtype(want, jnp.inexact):
        return True
    if issubdtype(have, jnp.inexact) and float(jnp.finfo(want).max) >= float(jnp.finfo(have).max):
        return True
    xp = jnp if isinstance(old, jax.Array) else np
    return bool(xp.all(xp.isfinite(value) | ~xp.isfinite(old)))


def _converted(leaf: Leaf, old: Any, convert: Convert) -> Any:
    try:
        value = convert(old)
    except Exception as error:
        error.add_note(f"This happened in the `convert` of graft, at {leaf.name}, on {describe(old)}")
        raise
    if dtype_of(value) is None:
        raise TypeError(f"at {leaf.name}: convert must return an array, found {describe_value(value)}")
    return value


def _resized(leaf: Leaf, old: Any, resize: Resize) -> Any:
    try:
        return resize(leaf.value, old)
    except Exception as error:
        error.add_note(f"This happened in the `resize` of graft, at {leaf.name}")
        raise


def _placed(value: Any, new: Any) -> Any:
    """Convert a value to the type of the new leaf: a Python number, a NumPy array, or a JAX array with its sharding."""
    if is_traced(value):
        return value
    if not has_dtype(new):
        return type(new)(np.asarray(value).item())
    if isinstance(new, _NUMPY):
        return np.asarray(value, new.dtype)
    like: Any = new
    has_place = isinstance(new, jax.ShapeDtypeStruct) or (not is_traced(new) and like.committed)
    return untyped.device_put(value, like.sharding) if has_place and like.sharding else jnp.asarray(value)


def functions_of(argument: str, given: Any, names: list[str]) -> dict[str, Any]:
    """Return for each leaf the function of `convert` or `resize`, or None; the first pattern that matches decides."""
    if callable(given) or given is None:
        return dict.fromkeys(names, given)
    patterns = list(map(check_pattern, given))
    first_match = FirstMatch(patterns)
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
