"""Mean, standard deviation, NaNs and infinities of arrays, computed where they are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.describe import is_deleted
from treekit._base.dtype import is_number, issubdtype, resolve_array
from treekit._base.jax import jnp, untyped
from treekit._base.predicates import is_array, is_traced


class Measured(NamedTuple):
    """What is known of the numbers of an array.

    Attributes:
        mean: of the finite ones; None without one.
        std: of the finite ones; None without one.
        nans: how many are NaN.
        infs: how many are infinite.
    """

    mean: float | complex | None
    std: float | None
    nans: int
    infs: int


def measure(leaves: Sequence[object]) -> list[Measured | None]:
    """Measure each leaf that is an array of numbers whose values are known; None for any other leaf.

    Arrays of JAX are measured on their devices, and all results are copied to the host at once. Arrays of NumPy are
    measured on the host, since JAX would narrow those of 64 bits.
    """
    arrays: list[Any] = [resolve_array(x) if isinstance(x, jax.Ref) else x for x in leaves]
    with jax.ensure_compile_time_eval():  # in a traced function, these arrays are constants
        found: list[Any] = untyped.device_get([_measure_leaf(x) for x in arrays])
    return [_as_measured(x, each) for x, each in zip(arrays, found, strict=True)]


def _measure_leaf(x: Any) -> tuple[Any, Any] | None:
    if not is_array(x) or is_traced(x) or is_deleted(x) or not is_number(x.dtype):
        return None
    if isinstance(x, jax.Array):
        # One program for all arrays would take minutes to compile for a thousand of them. This is one for each shape.
        found: tuple[Any, Any] = _moments_on_devices(x, jnp, jax.dtypes.canonicalize_dtype(float))
        return found
    return _moments(np.asarray(x), np, np.float64)


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


def _as_measured(x: Any, found: tuple[Any, Any] | None) -> Measured | None:
    if found is None:
        return None
    nans, infs = map(int, found[0])
    std, *means = map(float, found[1])
    if x.size == nans + infs:
        return Measured(None, None, nans, infs)
    return Measured(complex(*means) if len(means) > 1 else means[0], std, nans, infs)
