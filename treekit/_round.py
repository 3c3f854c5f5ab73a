"""Stochastic rounding: a cast to fewer bits that is right on average."""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from treekit._dtype import dtype_of
from treekit._jax import jnp, jtu, lax, untyped
from treekit._map import dtype_preserving_tree_map
from treekit._predicates import is_array

if TYPE_CHECKING:
    Inexact = ArrayLike
    InexactDtype = DTypeLike
    Key = jax.Array | np.ndarray[Any, Any]
else:
    Inexact = InexactDtype = Key = Any  # so that our own errors come before those of a run-time checker


def stochastic_round(x: Inexact, dtype: InexactDtype, key: Key) -> jax.Array:
    """Cast to a dtype of fewer bits, up or down at random, so that the result is `x` on average.

    Of the two neighbours of `x` in `dtype` the nearer is the likelier. What `dtype` holds exactly stays as it is, and
    so do inf and NaN. Beyond the largest finite value of `dtype` there is no second neighbour: there it rounds to
    nearest, so what overflows is what overflows in `x.astype(dtype)`. In the subnormal range of `dtype` the spacing is
    that of its subnormals, and the mean is `x` as well, with one exception: from f64 to f32 or bf16, XLA makes zero of
    results below their smallest normal number, 2**-126 (about 1.2e-38). From there upwards the mean is `x`.

    The random bits are no draw of `jax.random`, which would cost more than an optimizer's step. They are a hash of the
    key and the element's index, good enough for rounding and for little else; so they are the same on any number of
    devices. The derivative is that of the mean: of a plain cast.

    Source: Croci, Fasi, Higham, Mary and Mikaitis, "Stochastic rounding: implementation, error analysis and
    applications", Royal Society Open Science 9 (2022); for training, Gupta et al., "Deep learning with limited
    numerical precision", ICML 2015.

    Args:
        x: a floating or complex array; of a complex one both parts are rounded.
        dtype: a floating dtype, or a complex one. For one that holds all values of the dtype of `x` this is a cast.
        key: a key of `jax.random`, of shape (). The same key rounds the same way.

    Returns:
        An array of the shape of `x`, in `dtype`.

    Raises:
        TypeError: `x` is no floating or complex array, `dtype` no floating or complex dtype, `x` is complex and `dtype`
            is not; or `key` is no key, or several.

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
        raise TypeError(f"dtype must be a floating or complex one, found {dtype!r}; only those are rounded")
    have, want = dtype_of(x), jax.dtypes.canonicalize_dtype(dtype)
    if have is None or not jnp.issubdtype(have, np.inexact):
        raise TypeError(f"x must be a floating or complex array, found {have or type(x).__name__}")
    random_bits = bits_of_key(key)
    if jnp.issubdtype(have, np.complexfloating) and not jnp.issubdtype(want, np.complexfloating):
        raise TypeError(f"x is complex ({have}), so dtype must be too; found {want}. Round x.real, or jnp.abs(x)")
    return round_by(random_bits, jnp.asarray(x, have), want)


def is_inexact_dtype(dtype: Any, kind: Any = np.inexact) -> bool:
    """Whether anything that was given for a dtype is one, and of floating or complex numbers."""
    try:
        return dtype is not None and bool(jnp.issubdtype(jnp.dtype(dtype), kind))  # NumPy takes None for float64
    except TypeError:
        return False


def round_by(random_bits: Any, x: Any, dtype: Any) -> jax.Array:
    """`stochastic_round`, with two words of random bits for a key."""
    part = jnp.finfo(dtype).dtype  # of a complex dtype, that of its parts
    if jnp.issubdtype(x.dtype, np.complexfloating):
        x = lax.complex(*_round(jnp.stack([x.real, x.imag]), part, random_bits))
    else:
        x = _round(x, part, random_bits)
    out: jax.Array = x.astype(dtype)
    return out


def is_narrow(x: Any) -> bool:
    """Whether `x` is an array, or the like of one, of floating numbers of less than 32 bits."""
    is_like = is_array(x) or isinstance(x, jax.ShapeDtypeStruct)
    return is_like and jnp.issubdtype(x.dtype, np.floating) and jnp.finfo(x.dtype).bits < 32


def widen(tree: Any) -> Any:
    """A tree with its narrow leaves in f32, which holds them exactly."""

    def wide(x: Any) -> Any:
        return lax.convert_element_type(x, jnp.float32) if is_narrow(x) else x

    return jtu.tree_map(wide, tree)


def bits_of_key(key: Any) -> Any:
    """Two words of 32 random bits that a key of `jax.random` determines; a TypeError if it is none."""
    typed = is_array(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = is_array(key) and key.dtype == np.uint32 and key.shape in ((2,), (4,))  # jax.random.PRNGKey
    if not raw and not (typed and key.shape == ()):
        found = f"an array of dtype {key.dtype} and shape {key.shape}" if is_array(key) else f"{key!r}"
        raise TypeError(f"key must be one key, such as jax.random.key(0); found {found}")
    data: Any = key
    return hash_bits(*jnp.unstack(jax.random.key_data(data) if typed else jnp.asarray(data)))


def bits_like(tree: Any, random_bits: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Two words of random bits for each leaf of a tree, made from two words and its place, all at once."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    firsts, seconds = hash_bits(*random_bits, jnp.arange(len(leaves), dtype=jnp.uint32))
    return treedef.unflatten(zip(jnp.unstack(firsts), jnp.unstack(seconds), strict=True))


def hash_bits(*data: Any) -> Any:
    """Two words of 32 bits, each of which depends on every input bit."""

    def turn(random_bits: Any, word: Any) -> Any:  # of a Feistel network
        left, right = random_bits
        return (right, left ^ murmur_mix(right ^ word)), None

    rows = jnp.stack(jnp.broadcast_arrays(*map(jnp.uint32, (*data, 1, 2))))  # two rows more, for the last bits
    start = jnp.full_like(rows[0], 0x9E3779B9), jnp.full_like(rows[0], 0x243F6A88)
    # A loop, since what is no loop XLA would do again for each element that it is used for.
    return lax.scan(turn, start, rows)[0]


def round_like(tree: Any, like: Any, random_bits: Any) -> Any:
    """A tree in the dtypes of another: where those are narrow, rounded with random bits of its own for each leaf."""

    def to_round(old: Any, new: Any, random_bits: Any) -> Any:
        is_float = is_narrow(old) and is_inexact_dtype(dtype_of(new), np.floating)
        return round_by(random_bits, new, old.dtype) if is_float else new

    return dtype_preserving_tree_map(to_round, like, tree, bits_like(like, random_bits))


@functools.partial(untyped.custom_jvp, nondiff_argnums=(1,))
def _round(x: Any, dtype: Any, random_bits: Any) -> Any:
    return _compiled_round(x, dtype, random_bits)


def _derivative(dtype: Any, primals: Any, tangents: Any) -> Any:
    return _round(primals[0], dtype, primals[1]), tangents[0].astype(dtype)


_round.defjvp(_derivative)


@functools.partial(untyped.jit, static_argnums=1)  # so that leaves of one shape are traced and lowered once
def _compiled_round(x: Any, dtype: Any, random_bits: Any) -> Any:
    have, to = jnp.finfo(x.dtype), jnp.finfo(dtype)
    if have.nmant <= to.nmant and have.minexp >= to.minexp and float(have.max) <= float(to.max):
        return x.astype(dtype)
    wide = x.astype(jnp.float64 if have.bits == 64 else jnp.float32)
    random = _spread_bits(random_bits, x.shape)
    if (wide.dtype, dtype) == (jnp.float32, jnp.bfloat16):
        return _to_bf16(wide, random)
    # The cast finds a value of `dtype` there; it does what there is to do for inf, NaN and overflow.
    return jnp.where(jnp.abs(wide) < float(to.max), _to_grid(wide, to, random), wide).astype(dtype)


def _to_bf16(x: Any, random: Any) -> Any:
    """From f32, of which bf16 is the upper half: a random number is added to the lower half, which is then cut off.

    A carry out of the mantissa goes into the exponent, and makes the next value. Subnormals are no other case.
    """
    word = lax.bitcast_convert_type(x, np.uint32)
    size = word & np.uint32(0x7FFFFFFF)
    # From the largest bf16 upwards half a unit is added, which rounds to nearest, and leaves inf as it is.
    noise = jnp.where(size < np.uint32(0x7F7F0000), random >> np.uint32(16), np.uint32(0x8000))
    word = jnp.where(size > np.uint32(0x7F800000), np.uint32(0x7FC00000), word)  # NaN, whose bits may be all below
    return lax.bitcast_convert_type(((word + noise) >> np.uint32(16)).astype(jnp.uint16), jnp.bfloat16)


def _to_grid(x: Any, to: Any, random: Any) -> Any:
    """To the values of any dtype: x is a number of whole units and a rest, which is the chance of one unit more.

    The unit, the spacing of `to` around x, is a power of two, so all of this is exact but the chance, to 2**-32.
    """
    own = jnp.finfo(x.dtype)
    integer = np.dtype(f"uint{own.bits}").type
    power = lax.bitcast_convert_type(x, integer) & integer((2**own.nexp - 1) << own.nmant)  # of two, at or below |x|
    lowest = np.array(2.0**to.minexp, x.dtype)
    unit = jnp.maximum(lax.bitcast_convert_type(power, x.dtype), lowest) * x.dtype.type(2.0**-to.nmant)
    count = jnp.abs(x) * (1 / unit)
    whole = jnp.floor(count)
    chance = ((count - whole) * x.dtype.type(2.0**32)).astype(jnp.uint32)
    return jnp.copysign((whole + (random < chance).astype(x.dtype)) * unit, x)


def _spread_bits(random_bits: Any, shape: tuple[int, ...]) -> Any:
    """32 random bits an element: its row hashed with two words, and with that its place in the row.

    The index is made axis by axis, not by a reshape, so that each device makes those of its own part.
    """
    *rows, length = shape or (1,)
    index = jnp.zeros(rows, jnp.uint32)
    for axis in range(len(rows)):
        stride = np.uint32(math.prod(rows[axis + 1 :]) % 2**32)
        index = index + lax.broadcasted_iota(jnp.uint32, rows, axis) * stride
    row = murmur_mix(murmur_mix(index ^ random_bits[0]) + random_bits[1])
    column = lax.broadcasted_iota(jnp.uint32, (*rows, length), len(rows))
    return murmur_mix(jnp.expand_dims(row, -1) ^ column).reshape(shape)


def murmur_mix(x: Any) -> Any:
    """The finalizer of MurmurHash3 (Appleby, 2011): each bit of the result hangs on all of x."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
