"""Trees of two runs, compared."""

from typing import Any

import jax
import numpy as np
import optax

import treekit as tk
from treekit._base.jax import jtu

from .prelude import is_inexact, value_of

jnp: Any = jax.numpy


def same_structure(a: Any, b: Any) -> str:
    """How two trees differ in structure, or nothing; None and float0 both mean that there is no update."""
    a, b = (jax.tree.map(lambda x: None if is_absent(x) else x, tree) for tree in (a, b))
    if jtu.tree_structure(a) == jtu.tree_structure(b):
        return ""
    return f"structure: {tk.tree_diff(a, b, values=False)}"


def same_dtypes(a: Any, b: Any) -> str:
    """Where two trees of one structure differ in dtypes, or nothing."""
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        dtypes = [getattr(value_of(z), "dtype", None) for z in (x, y)]
        if dtypes[0] != dtypes[1]:
            return f"at {jax.tree_util.keystr(path) or 'the root'}: dtypes {dtypes[0]} and {dtypes[1]}"
    return ""


def coarsest(*trees: Any) -> float:
    """The unit in the last place of 1 in the narrowest dtype of these trees."""
    arrays = [x for x in map(value_of, jax.tree.leaves(trees)) if x is not None and is_inexact(x)]
    return max((float(jnp.finfo(x.dtype).eps) for x in arrays), default=0.0)


def same_numbers(a: Any, b: Any, eps: float = 0.0) -> str:
    """Where the numbers of two trees of one structure differ by more than rounding, or nothing.

    `eps` is that of the narrowest dtype they come of: what is compiled as a whole may round less often.
    """
    pairs = jax.tree_util.tree_leaves_with_path(a, is_leaf=is_absent)
    for (path, x), y in zip(pairs, jax.tree.leaves(b, is_leaf=is_absent), strict=True):
        if message := _differ(value_of(x), value_of(y), eps):
            return f"at {jax.tree_util.keystr(path) or 'the root'}: {message}"
    return ""


def same_trees(a: Any, b: Any, eps: float) -> str:
    """Where two trees differ in structure or in numbers, or nothing."""
    return same_structure(a, b) or same_numbers(a, b, eps)


def _differ(x: Any, y: Any, eps: float) -> str:
    if x is None or y is None or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return ""  # no numbers
    if x.shape != y.shape:
        return f"shapes {x.shape} and {y.shape}"
    eps = max(eps, coarsest(x, y))
    wide_x, wide_y = (np.asarray(z).astype(np.complex128) for z in (x, y))
    scale = float(np.max(np.abs(wide_y), initial=0.0, where=np.isfinite(wide_y)))
    units = 100 if eps < 1e-4 else 4  # a few units in the last place of a narrow dtype are much already
    if np.allclose(wide_x, wide_y, rtol=units * eps, atol=units * eps * max(scale, 1e-3), equal_nan=True):
        return ""
    return f"{x!r} and {y!r}"


def is_absent(x: Any) -> bool:
    """Whether there is no update."""
    return x is None or getattr(x, "dtype", None) == jax.dtypes.float0


def without_holes(tree: Any) -> Any:
    """A tree with None for each `MaskedNode`."""
    return jax.tree.map(lambda x: None if is_hole(x) else x, tree, is_leaf=is_hole)


def is_hole(x: object) -> bool:
    """Whether this is what Optax has for a leaf that is masked out."""
    return isinstance(x, optax.MaskedNode)
