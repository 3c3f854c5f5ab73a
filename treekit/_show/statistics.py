"""Statistics of arrays: mean, standard deviation, and how many numbers are NaN or infinite."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from treekit._base.dtype import is_number, issubdtype, resolve_array
from treekit._base.jax import is_ref, jnp, untyped
from treekit._base.memory import is_deleted
from treekit._base.predicates import is_array, is_traced


def measure(leaves: Sequence[object]) -> list[dict[str, Any]]:
    """Return `mean`, `std`, `nans` and `infs` of each array of numbers whose values are known; {} for other leaves.

    Arrays of JAX are measured on their devices, and all results are copied to the host at once. Arrays of NumPy are
    measured on the host, since JAX would narrow those of 64 bits.
    """
    arrays: dict[int, Any] = {i: resolve_array(x) if is_ref(x) else x for i, x in enumerate(leaves)}
    arrays = {i: x for i, x in arrays.items() if is_array(x) and not is_traced(x) and not is_deleted(x)}
    with jax.ensure_compile_time_eval():  # in a traced function, these arrays are constants
        # One program for all arrays would take minutes to compile for a thousand of them. This is one for each shape.
        moments: dict[int, Any] = {
            i: _moments_on_devices(x, jnp, jax.dtypes.canonicalize_dtype(float))
            if isinstance(x, jax.Array)
            else _moments(np.asarray(x), np, np.float64)
            for i, x in arrays.items()
            if is_number(x.dtype)
        }
        moments = untyped.device_get(moments)
    measured: list[dict[str, Any]] = [{} for _ in leaves]
    for i, (counts, (std, *means)) in moments.items():
        nans, infs = map(int, counts)
        measured[i] = {"nans": nans, "infs": infs}
        if arrays[i].size > nans + infs:
            mean = complex(*map(float, means)) if len(means) > 1 else float(means[0])
            measured[i] |= {"mean": mean, "std": float(std)}
    return measured


def together(leaves: Sequence[Any]) -> dict[str, Any]:
    """Return the statistics of all numbers of several leaves, from their rows of `tree_summary`: `mean`, `nans`, …"""
    measured = [leaf for leaf in leaves if leaf.nans is not None]
    if not measured:
        return {}
    counts = {"nans": sum(leaf.nans for leaf in measured), "infs": sum(leaf.infs for leaf in measured)}
    finite = [(leaf, leaf.numbers - leaf.nans - leaf.infs) for leaf in measured]
    number = sum(count for _, count in finite)
    if not number:
        return counts
    parts = [(leaf, count / number) for leaf, count in finite if count]
    mean = sum(leaf.mean * share for leaf, share in parts)
    # hypot does not overflow where a square would.
    spread = [size * math.sqrt(share) for leaf, share in parts for size in (leaf.std, abs(leaf.mean - mean))]
    return counts | {"mean": mean, "std": math.hypot(*spread)}


def _moments(x: Any, xp: Any, real: Any) -> tuple[Any, Any]:
    """Return the number of NaNs and infinities; and of the other numbers the standard deviation and the mean.

    Args:
        x: an array.
        xp: `numpy` or `jax.numpy`.
        real: the dtype to compute in.

    Returns:
        Two arrays. A complex mean is two numbers, its real and its imaginary part.
    """
    is_complex = issubdtype(x.dtype, np.complexfloating)
    parts = (xp.stack([xp.real(x), xp.imag(x)]) if is_complex else x[None]).astype(real)
    axes = tuple(range(1, parts.ndim))
    is_nan = xp.isnan(parts).any(0)
    is_inf = xp.isinf(parts).any(0) & ~is_nan
    is_finite = ~(is_nan | is_inf)
    number = xp.maximum(xp.sum(is_finite), 1).astype(real)
    parts = xp.where(is_finite[None], parts, 0)
    # Sums and squares neither overflow nor vanish in units of a power of two near the largest number.
    largest = xp.max(xp.abs(parts), initial=0)
    bound = 3 * np.finfo(real).maxexp // 4
    unit = xp.exp2(xp.clip(xp.floor(xp.log2(xp.where(largest > 0, largest, 1))), -bound, bound))
    parts = parts / unit
    means = xp.sum(parts, axes, keepdims=True) / number
    squares = xp.where(is_finite[None], (parts - means) ** 2, 0)
    std = xp.sqrt(xp.sum(squares) / number)
    return xp.stack([xp.sum(is_nan), xp.sum(is_inf)]), xp.stack([std, *means.ravel()]) * unit


_moments_on_devices: Any = untyped.jit(_moments, static_argnums=(1, 2))
