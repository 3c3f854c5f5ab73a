"""Stochastic rounding: casts to fewer bits whose mean is the original value."""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, BFloat16, Float, Float32, Shaped, UInt32

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_array, is_narrow
from treekit._base.types import PyTree
from treekit._text.describe import describe_value

if TYPE_CHECKING:
    InexactLike = ArrayLike
    InexactDtype = DTypeLike
    Key = jax.Array | np.ndarray[Any, Any]
else:
    InexactLike = InexactDtype = Key = Any  # so that our own errors come before those of a run-time checker

# What a key of `jax.random` is reduced to.
RandomBits = tuple[UInt32[Array, ""], UInt32[Array, ""]]


def stochastic_round(x: InexactLike, dtype: InexactDtype, key: Key) -> jax.Array:
    """Cast to a dtype of fewer bits, rounding up or down at random, so that the mean of the result is `x`.

    The nearer of the two neighbours of `x` in `dtype` is more likely. Values that `dtype` represents exactly, inf and
    NaN do not change. Beyond the largest finite value of `dtype` it rounds to nearest, so overflow is as in
    `x.astype(dtype)`. The mean is also `x` in the subnormal range of `dtype`, with two exceptions: from f64 to f32 or
    bf16, XLA flushes results below the smallest normal number, 2**-126 (about 1.2e-38), to zero; and to float8_e8m0fnu,
    which has only powers of two and no zero, numbers below 2**-126 are rounded to nearest.

    The random bits are a hash of the key and the index of the element, since `jax.random` would cost more than an
    optimizer's step. They are the same on any number of devices; use them for rounding only. The derivative is that of
    a plain cast.

    Source: Croci, Fasi, Higham, Mary and Mikaitis, "Stochastic rounding: implementation, error analysis and
    applications", Royal Society Open Science 9 (2022); for training, Gupta et al., "Deep learning with limited
    numerical precision", ICML 2015.

    Args:
        x: a floating-point or complex array; both parts of a complex array are rounded.
        dtype: a floating-point or complex dtype. If it can represent all values of the dtype of `x`, this is a cast.
        key: a key of `jax.random`, of shape (). The same key rounds in the same way.

    Returns:
        An array of the shape of `x`, in `dtype`.

    Raises:
        TypeError: `x` is not a floating-point or complex array; `dtype` is not such a dtype; `x` is complex and `dtype`
            is not; or `key` is not a single key.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> x = jnp.full(10_000, 1 + 2**-9)  # a quarter of the way from 1 to the next in bf16
    >>> rounded = stochastic_round(x, jnp.bfloat16, jax.random.key(0))
    >>> sorted(set(rounded.tolist()))
    [1.0, 1.0078125]
    >>> abs(rounded.astype(jnp.float32).mean() - x[0]) < 1e-4
    Array(True, dtype=bool)
    """
    if not is_inexact_dtype(dtype):
        raise TypeError(
            "stochastic_round(x, dtype, key): dtype must be a floating or complex one, since only those are rounded; "
            f"found {describe_value(dtype)}"
        )
    have, want = dtype_of(x), jax.dtypes.canonicalize_dtype(dtype)
    if have is None or not issubdtype(have, np.inexact):
        raise TypeError(
            f"stochastic_round(x, dtype, key): x must be a floating or complex array, found {describe_value(x)}"
        )
    random_bits = bits_of_key(key)
    if issubdtype(have, np.complexfloating) and not issubdtype(want, np.complexfloating):
        raise TypeError(f"x is complex ({have}), so dtype must be too; found {want}. Round x.real, or jnp.abs(x)")
    return round_by(random_bits, jnp.asarray(x, have), want)


def is_inexact_dtype(dtype: object, kind: Any = np.inexact) -> bool:
    """Whether an argument is a dtype of floating-point or complex numbers."""
    try:
        # NumPy takes None for float64, and JAX an array for its own dtype.
        return not (dtype is None or is_array(dtype)) and issubdtype(jnp.dtype(dtype), kind)
    except TypeError:
        return False


def round_by(random_bits: RandomBits, x: Any, dtype: object) -> jax.Array:
    """Do what `stochastic_round` does, with two words of random bits instead of a key."""
    part = jnp.finfo(dtype).dtype  # for a complex dtype, the dtype of its parts
    if issubdtype(x.dtype, np.complexfloating):
        x = lax.complex(*_round(jnp.stack([x.real, x.imag]), part, random_bits))
    else:
        x = _round(x, part, random_bits)
    out: jax.Array = x.astype(dtype)
    return out


def widen(tree: PyTree) -> Any:
    """Cast the narrow leaves of a tree to f32, which represents them exactly."""

    def wide(x: object) -> Any:
        return lax.convert_element_type(x, jnp.float32) if is_narrow(x) else x

    return jtu.tree_map(wide, tree)


def bits_of_key(key: Any) -> RandomBits:
    """Return two words of 32 random bits that a key of `jax.random` determines, or raise a TypeError."""
    typed = is_array(key) and issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = is_array(key) and key.dtype == np.uint32 and key.shape in ((2,), (4,))  # jax.random.PRNGKey
    if not raw and not (typed and key.shape == ()):
        raise TypeError(f"key must be one key, such as jax.random.key(0); found {describe_value(key)}")
    data: Any = key
    left, right = hash_bits(*jnp.unstack(jax.random.key_data(data) if typed else jnp.asarray(data)))
    return left, right


def bits_like(tree: PyTree, random_bits: RandomBits, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return two words of random bits for each leaf of a tree: a hash of two words and the leaf's index."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    firsts, seconds = hash_bits(*random_bits, jnp.arange(len(leaves), dtype=jnp.uint32))
    return treedef.unflatten(zip(firsts, seconds, strict=True))  # jnp.unstack would compile a program for all leaves


def hash_bits(*data: object) -> Any:
    """Return two words of 32 bits, each of which depends on every input bit."""
    rows = jnp.stack(jnp.broadcast_arrays(*map(jnp.uint32, (*data, 1, 2))))  # so that the last word is mixed too
    start = jnp.full_like(rows[0], 0x9E3779B9), jnp.full_like(rows[0], 0x243F6A88)
    # A loop, since XLA would fuse other code into its users and repeat it for each element.
    return lax.scan(_turn, start, rows)[0]


def _turn(words: tuple[Array, Array], word: Array) -> Any:
    """Compute one round of a Feistel network: the same function in each call, so that JAX compiles the loop once."""
    left, right = words
    return (right, left ^ murmur_mix(right ^ word)), None


@functools.partial(untyped.custom_jvp, nondiff_argnums=(1,))
def _round(x: Array, dtype: DTypeLike, random_bits: RandomBits) -> Any:
    return _compiled_round(x, dtype, random_bits)


def _derivative(dtype: DTypeLike, primals: PyTree, tangents: PyTree) -> Any:
    return _round(primals[0], dtype, primals[1]), tangents[0].astype(dtype)


_round.defjvp(_derivative)


@functools.partial(untyped.jit, static_argnums=1)  # jitted, so that leaves of one shape are traced and lowered once
def _compiled_round(x: Shaped[Array, "*shape"], dtype: DTypeLike, random_bits: RandomBits) -> Shaped[Array, "*shape"]:
    have, to = jnp.finfo(x.dtype), jnp.finfo(dtype)
    # The smallest values decide, not the smallest normal ones: 2**-127 is normal in float8_e8m0fnu and not in f32.
    is_as_fine = have.nmant <= to.nmant and have.minexp - have.nmant >= to.minexp - to.nmant
    if is_as_fine and float(have.max) <= float(to.max):
        return x.astype(dtype)
    wide = x.astype(jnp.float64 if have.bits == 64 else jnp.float32)
    random = spread_bits(random_bits, x.shape)
    if (wide.dtype, dtype) == (jnp.float32, jnp.bfloat16):
        return _to_bf16(wide, random)
    size, own = jnp.abs(wide), jnp.finfo(wide.dtype)
    rounds = size < float(to.max)
    if to.minexp < own.minexp:  # to float8_e8m0fnu: XLA computes with zeros for numbers that are subnormal in f32
        rounds = rounds & (size >= own.smallest_normal)
    # What is rounded is now a value of `dtype`; the cast handles inf, NaN, overflow and what is too small.
    out: Array = jnp.where(rounds, _to_grid(wide, to, random), wide).astype(dtype)
    return out


def _to_bf16(x: Float32[Array, "*shape"], random: UInt32[Array, "*shape"]) -> BFloat16[Array, "*shape"]:
    """Round f32 to bf16, its upper half: add a random number to the lower half, and cut the lower half off.

    A carry out of the mantissa goes into the exponent, which gives the next value. Subnormals need no special case.
    """
    word = lax.bitcast_convert_type(x, np.uint32)
    size = word & np.uint32(0x7FFFFFFF)
    # From the largest bf16 upwards, half a unit is added, which rounds to nearest and preserves inf.
    noise = jnp.where(size < np.uint32(0x7F7F0000), random >> np.uint32(16), np.uint32(0x8000))
    word = jnp.where(size > np.uint32(0x7F800000), np.uint32(0x7FC00000), word)  # NaN's bits may all be cut off
    # The cast is exact.
    out: Array = lax.bitcast_convert_type((word + noise) & np.uint32(0xFFFF0000), jnp.float32).astype(jnp.bfloat16)
    return out


def _to_grid(x: Float[Array, "*shape"], to: Any, random: UInt32[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Round to the values of any dtype: down to whole units, and up with the remainder as the probability.

    The unit, the spacing of `to` around x, is a power of two. So all of this is exact, except the probability, which
    has an error of 2**-32.
    """
    own = jnp.finfo(x.dtype)
    integer = np.dtype(f"uint{own.bits}").type
    # The power of two at or below |x|.
    power = lax.bitcast_convert_type(x, integer) & integer((2**own.nexp - 1) << own.nmant)
    lowest = np.array(2.0**to.minexp, x.dtype)
    unit = jnp.maximum(lax.bitcast_convert_type(power, x.dtype), lowest) * x.dtype.type(2.0**-to.nmant)
    count = jnp.abs(x) * (1 / unit)
    whole = jnp.floor(count)
    chance = ((count - whole) * x.dtype.type(2.0**32)).astype(jnp.uint32)
    out: Array = jnp.copysign((whole + (random < chance).astype(x.dtype)) * unit, x)
    return out


def spread_bits(random_bits: RandomBits, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Return 32 random bits for each element: a hash of two words, its row and its position in the row.

    The index is computed axis by axis, without a reshape, so that each device computes only those of its own part.
    """
    *rows, length = shape or (1,)
    index = jnp.zeros(rows, jnp.uint32)
    for axis in range(len(rows)):
        stride = np.uint32(math.prod(rows[axis + 1 :]) % 2**32)
        index = index + lax.broadcasted_iota(jnp.uint32, rows, axis) * stride
    row = murmur_mix(murmur_mix(index ^ random_bits[0]) + random_bits[1])
    column = lax.broadcasted_iota(jnp.uint32, (*rows, length), len(rows))
    return murmur_mix(jnp.expand_dims(row, -1) ^ column).reshape(shape)


def murmur_mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Apply the finalizer of MurmurHash3 (Appleby, 2011), after which each bit depends on all bits of x."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
