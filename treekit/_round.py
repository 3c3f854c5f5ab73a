"""Stochastic rounding: a cast to fewer bits that is right on average."""

import functools
import math
from typing import Any

import jax
import numpy as np

from treekit._dtype import dtype_of
from treekit._filter import is_array
from treekit._jax import jnp, jtu, lax, untyped
from treekit._map import dtype_preserving_tree_map


def stochastic_round(x: Any, dtype: Any, key: Any) -> jax.Array:
    """Cast to a dtype of fewer bits, up or down at random, so that the result is `x` on average.

    Of the two neighbours of `x` in `dtype` the nearer is the likelier. What `dtype` holds exactly stays as it is, and
    so do inf and NaN. Beyond the largest finite value of `dtype` there is no second neighbour: there it rounds to
    nearest, so what overflows is what overflows in `x.astype(dtype)`. In the subnormal range of `dtype` the spacing is
    that of its subnormals, and the mean is `x` as well.

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
    have, want = dtype_of(x), jax.dtypes.canonicalize_dtype(dtype)
    if not jnp.issubdtype(want, np.inexact):
        raise TypeError(f"dtype must be a floating or complex one, found {want}; only those are rounded")
    if have is None or not jnp.issubdtype(have, np.inexact):
        raise TypeError(f"x must be a floating or complex array, found {have or type(x).__name__}")
    check_key(key)
    x = jnp.asarray(x, have)
    if jnp.issubdtype(have, np.complexfloating):
        if not jnp.issubdtype(want, np.complexfloating):
            raise TypeError(f"x is complex ({have}), so dtype must be too; found {want}. Round x.real, or jnp.abs(x)")
        real, imag = stochastic_round(jnp.stack([x.real, x.imag]), jnp.finfo(want).dtype, key)
        return jax.Array.astype(lax.complex(real, imag), want)
    out: jax.Array = _round(x, jnp.finfo(want).dtype, _words(key)).astype(want)
    return out


def is_narrow(x: Any) -> bool:
    """Whether `x` is an array of floating numbers of less than 32 bits."""
    return is_array(x) and jnp.issubdtype(x.dtype, np.floating) and jnp.finfo(x.dtype).bits < 32


def widen(tree: Any) -> Any:
    """A tree with its narrow leaves in f32, which holds them exactly."""

    def wide(x: Any) -> Any:
        return lax.convert_element_type(x, jnp.float32) if is_narrow(x) else x

    return jtu.tree_map(wide, tree)


def check_key(key: Any) -> None:
    """Raise a TypeError unless `key` is one key."""
    typed = is_array(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = is_array(key) and key.dtype == np.uint32  # jax.random.PRNGKey
    if not (typed and key.shape == ()) and not (raw and key.ndim == 1):
        found = f"an array of dtype {key.dtype} and shape {key.shape}" if is_array(key) else f"{key!r}"
        raise TypeError(f"key must be one key, such as jax.random.key(0); found {found}")


def keys_of_leaves(key: Any, count: int) -> Any:
    """A key for each leaf of a tree: leaf i has `jax.random.fold_in(key, i)`. They come out of one operation."""
    check_key(key)
    return untyped.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count, dtype=jnp.uint32))


def round_like(tree: Any, like: Any, key: Any) -> Any:
    """A tree in the dtypes of another: where those are narrow, by `stochastic_round` with a key for each leaf."""

    def to_round(old: Any, new: Any, key: Any) -> Any:
        is_float = is_narrow(old) and jnp.issubdtype(dtype_of(new), np.floating)
        return stochastic_round(new, old.dtype, key) if is_float else new

    leaves, treedef = jtu.tree_flatten(like)
    return dtype_preserving_tree_map(to_round, like, tree, treedef.unflatten(keys_of_leaves(key, len(leaves))))


@functools.partial(untyped.custom_jvp, nondiff_argnums=(1,))
def _round(x: Any, dtype: Any, words: Any) -> Any:
    have, to = jnp.finfo(x.dtype), jnp.finfo(dtype)
    if have.nmant <= to.nmant and have.minexp >= to.minexp and float(have.max) <= float(to.max):
        return x.astype(dtype)
    wide = x.astype(jnp.float64 if have.bits == 64 else jnp.float32)
    by = _by_bits if jnp.finfo(wide.dtype).minexp == to.minexp else _by_units
    rounded = by(wide, to, _random_bits(words, x.shape))
    # The cast finds a value of `dtype` there; it does what there is to do for inf, NaN and overflow.
    return jnp.where(jnp.abs(wide) < float(to.max), rounded, wide).astype(dtype)


def _derivative(dtype: Any, primals: Any, tangents: Any) -> Any:
    return _round(primals[0], dtype, primals[1]), tangents[0].astype(dtype)


_round.defjvp(_derivative)


def _by_bits(x: Any, to: Any, random: Any) -> Any:
    """Where `to` has the exponents of x (f32 to bf16): a random number added below its last bit, the rest cut off.

    A carry out of the mantissa goes into the exponent, which is the next value then. Subnormals are no other case.
    """
    dropped = jnp.finfo(x.dtype).nmant - to.nmant
    word = lax.bitcast_convert_type(x, np.uint32)
    noisy = word + (random >> np.uint32(32 - dropped))
    return lax.bitcast_convert_type(noisy & np.uint32(2**32 - 2**dropped), x.dtype)


def _by_units(x: Any, to: Any, random: Any) -> Any:
    """Where it has other exponents: x is a number of whole units and a rest, the chance of one more.

    The unit, the spacing of `to` around x, is a power of two, so all of this is exact but the chance, to 2**-32.
    """
    own = jnp.finfo(x.dtype)
    integer = np.dtype(f"uint{own.bits}").type
    power = lax.bitcast_convert_type(x, integer) & integer((2**own.nexp - 1) << own.nmant)  # of two, at or below |x|
    lowest = np.array(2.0**to.minexp, x.dtype)
    unit = jnp.maximum(lax.bitcast_convert_type(power, x.dtype), lowest) * x.dtype.type(2.0**-to.nmant)
    count = jnp.abs(x) / unit
    whole = jnp.floor(count)
    chance = ((count - whole) * x.dtype.type(2.0**32)).astype(jnp.uint32)
    return jnp.copysign((whole + (random < chance).astype(x.dtype)) * unit, x)


def _random_bits(words: Any, shape: tuple[int, ...]) -> Any:
    """32 random bits an element: its index, hashed with two words."""
    first, second = words
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):  # by axes, not by a reshape, so that each device makes those of its own part
        stride = np.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        index = index + lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    return _mix(_mix(index ^ first) + second)


def _words(key: Any) -> Any:
    """Two words of 32 bits, each of them of all bits of the key."""
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jnp.asarray(key)
    left, right = jnp.uint32(0x9E3779B9), jnp.uint32(0x243F6A88)
    for word in [*data, jnp.uint32(1), jnp.uint32(2)]:  # a Feistel network: nothing of the key is lost
        left, right = right, left ^ _mix(right ^ word)
    return jnp.stack([left, right])


def _mix(x: Any) -> Any:
    """The finalizer of MurmurHash3 (Appleby, 2011): each bit of the result hangs on all of x."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
