"""The values that a graft carries over, with the shapes, dtypes and places of the new leaves."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from treekit._base.describe import describe_value
from treekit._base.dtype import cast_like, check_fits, dtype_of, has_dtype
from treekit._base.jax import jnp, untyped
from treekit._base.patterns import check_pattern, matches, nearest, pattern_text
from treekit._base.predicates import is_traced
from treekit._base.tree import is_mapping
from treekit._graft.states import Leaf

Resize = Callable[[Any, Any], Any]
_NUMPY: Any = (np.ndarray, np.generic)


def check_arguments(rename: Any, resize: Any) -> None:
    """Raise a TypeError unless `rename` and `resize` have the types that `graft` takes."""
    names = [*rename, *rename.values()] if is_mapping(rename) else []
    if rename is not None and not (is_mapping(rename) and all(isinstance(x, str) for x in names)):
        raise TypeError(
            "rename must be a dict that maps old paths to new ones, {'body.**': 'encoder.**'}; found "
            f"{describe_value(rename)}"
        )
    functions = resize.values() if is_mapping(resize) else [resize]
    if resize is not None and not all(map(callable, functions)):
        raise TypeError(
            "resize must be a function of the new leaf and the old one, or a dict from patterns to such functions; "
            f"found {describe_value(resize)}"
        )


def carry(leaf: Leaf, old: Any, resize: Resize | None, cast: bool) -> Any:
    """Return the old value with the shape and dtype of the new leaf, or None if it is refused."""
    new = leaf.value
    if isinstance(old, jax.ShapeDtypeStruct):
        raise TypeError(f"at {leaf.name}: the old tree has a shape and dtype, but no value")
    if np.shape(old) != np.shape(new):
        if resize is None or (old := _resized(leaf, old, resize)) is None:
            return None
        if np.shape(old) != np.shape(new):
            raise ValueError(
                f"at {leaf.name}: resize must return an array of shape {np.shape(new)}, found {np.shape(old)}"
            )
    is_same = dtype_of(old) == dtype_of(new)
    if not (is_same or cast):
        return None
    try:
        check_fits(old, dtype_of(new))
        value = cast_like(old, new)
    except (TypeError, OverflowError):  # the cast is not allowed, or a Python int does not fit
        return None
    # A NumPy array may have 64 bits, and must not be rounded to the 32 bits of JAX.
    return _placed(old if is_same and isinstance(new, _NUMPY) else value, new)


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


def resizers(resize: Resize | Mapping[Any, Resize] | None, names: list[str]) -> dict[str, Resize | None]:
    """Return the function that resizes each of these leaves, or None; the first pattern that matches decides."""
    if callable(resize) or resize is None:
        return dict.fromkeys(names, resize)
    for pattern in map(check_pattern, resize):
        if not any(matches(pattern, name) for name in names):
            text = pattern_text(pattern)
            raise ValueError(
                f"resize: {text!r} matches no leaf of the new tree. The nearest paths: {nearest(text, names)}"
            )
    return {name: next((f for pattern, f in resize.items() if matches(pattern, name)), None) for name in names}
