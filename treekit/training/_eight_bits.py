"""Codes of 8 bits for the moments of an optimizer: the upper bits of an f32, without a scale.

| dtype | bits | values | zero | NaN |
|---|---|---|---|---|
| int8 | sign, 5 of exponent, 2 of mantissa | 4.7e-9 (1.25 * 2**-28) to 14, and their negatives | 0 | -128 |
| uint8 | 6 of exponent, 2 of mantissa | 1.7e-17 (1.25 * 2**-56) to 192 | 0 | 255 |

Neighbouring values are 14 to 25 % apart. Codes have the order of their values, and `-code` is the code of `-value`.
"""

import functools
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array, Float32, Integer, Shaped

from treekit._arrays.codes import Codes, is_codes
from treekit._arrays.map import check_shapes
from treekit._arrays.round import RandomBits, is_inexact_dtype, spread_bits
from treekit._base.dtype import cast_like
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.memory import copied
from treekit._base.types import OptState
from treekit._compare.diff import tree_diff

T = TypeVar("T")

_CUT = 21  # how many bits of an f32 are cut off: 2 of its 23 bits of mantissa remain


class _Format(NamedTuple):
    """How codes of one dtype are numbered.

    Attributes:
        base: the upper bits of the f32 that code 0 would stand for, if it did not stand for zero.
        top: the largest code of a number.
        nan: the code of NaN.
        is_signed: whether there are negative numbers.
    """

    base: int
    top: int
    nan: int
    is_signed: bool

    @property
    def least(self) -> float:
        """The smallest number above zero."""
        return float(np.uint32((self.base + 1) << _CUT).view(np.float32))


def _upper_bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32)) >> _CUT


_FORMATS = {
    np.dtype(np.int8): _Format(_upper_bits(14.0) - 127, 127, -128, True),
    np.dtype(np.uint8): _Format(_upper_bits(192.0) - 254, 254, 255, False),
}


def is_code_dtype(dtype: object) -> bool:
    """Whether codes have this dtype, or the dtype that an argument stands for."""
    return is_inexact_dtype(dtype, jnp.integer) and jnp.dtype(dtype) in _FORMATS


def decode(codes: Shaped[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Return the numbers that codes stand for, in f32.

    Args:
        codes: an array of int8 or uint8.

    Raises:
        TypeError: it has another dtype.
    """
    if not is_code_dtype(codes.dtype):
        raise TypeError(
            f"codes are arrays of int8 or uint8, found {codes.dtype}: to cast a state, as by jax.tree.map, loses "
            "what its codes stand for. Convert them with training.decode_state first"
        )
    form = _FORMATS[np.dtype(codes.dtype)]
    number = codes.astype(jnp.int32)
    size = jnp.abs(number) if form.is_signed else number
    value = lax.bitcast_convert_type((size + form.base) << _CUT, jnp.float32)
    value = jnp.where(size == 0, 0.0, jnp.where(size > form.top, jnp.nan, value))
    out: Array = jnp.where(number < 0, -value, value) if form.is_signed else value
    return out


def encode(x: Any, dtype: Any, random_bits: RandomBits | None = None) -> Array:
    """Return the codes of numbers, rounded at random such that the mean is right, or to nearest.

    - A number above the largest is stored as the largest.
    - Below the smallest, int8 is rounded to zero or to the smallest, with the right mean. In uint8, a number above zero
      is never zero, since a first moment would be divided by it.
    - Inf, NaN, and negative numbers in uint8 are stored as NaN.

    Args:
        x: a floating-point array.
        dtype: int8 or uint8.
        random_bits: as in `treekit._arrays.round`; None rounds to nearest.
    """
    if random_bits is None:
        noise = jnp.full(x.shape, 2 ** (_CUT - 1), jnp.int32)
    else:
        noise = (spread_bits(random_bits, x.shape) >> np.uint32(32 - _CUT)).astype(jnp.int32)
    out: Array = _encode(x, noise, np.dtype(dtype))
    return out


@functools.partial(untyped.jit, static_argnums=2)  # jitted, so that leaves of one shape are traced and lowered once
def _encode(x: Any, noise: Integer[Array, "*shape"], dtype: Any) -> Array:
    """Add noise below the cut, and cut: a carry out of the mantissa goes into the exponent, which is the next value.

    The codes are integers in f32 until the last cast: XLA (libtpu 0.0.52) splits an AdamW step into two passes over
    memory where int32 is cast to int8. tests/accelerators/test_eight_bits.py shows it.
    """
    form = _FORMATS[dtype]
    is_number = jnp.isfinite(x) if form.is_signed else jnp.isfinite(x) & (x >= 0)
    size = jnp.abs(x).astype(jnp.float32)
    word = lax.bitcast_convert_type(size, jnp.int32)
    code = (((word + noise) >> _CUT) - form.base).astype(jnp.float32)
    if form.is_signed:
        is_one = noise.astype(jnp.float32) < size * np.float32(2**_CUT / form.least)
    else:
        is_one = word > 0
    code = jnp.where(size < form.least, is_one.astype(jnp.float32), jnp.minimum(code, form.top))
    if form.is_signed:
        code = jnp.where(x < 0, -code, code)
    out: Array = jnp.where(is_number, code, float(form.nan)).astype(dtype)
    return out


def decode_state(state: OptState) -> Any:
    """Return a state with the numbers that its 8-bit codes stand for, in f32.

    `store_state(tx, {"mu": jnp.int8, "nu": jnp.uint8}, rounding="stochastic")` stores moments in
    codes. In its state they are `Codes`; every other array is copied, so that a step can donate either state.

    Args:
        state: the state of an optimizer, or any tree that contains one.

    Returns:
        A tree of the same containers, with an array instead of each `Codes`. An optimizer without codes can use it.

    >>> import jax.numpy as jnp
    >>> from treekit import optax, training
    >>> names = {"mu": jnp.int8, "nu": jnp.uint8}
    >>> optimizer = training.store_state(optax.adam(0.1), names, rounding="stochastic")
    >>> params = jnp.ones((64, 64))
    >>> _, state = optimizer.update(params, optimizer.init(params), params)
    >>> state.inner_state[0].mu.dtype, training.decode_state(state).inner_state[0].mu.dtype
    (dtype('int8'), dtype('float32'))
    """

    return decoded(state, copies=True)


def decoded(state: OptState, *, copies: bool = False) -> Any:
    """Return a state with the numbers that its codes stand for, and its other arrays, or copies of them."""

    def number(x: Any) -> Any:
        if is_codes(x):
            return decode(x.codes)
        return copied(x) if copies else x

    return jtu.tree_map(number, state, is_leaf=is_codes)


def encode_state(state: OptState, like: T) -> T:
    """Encode moments of a state in 8 bits: those for which the state `like` has codes. The inverse of `decode_state`.

    Use it to continue in 8 bits after a run in 16 or 32, or after you have changed the numbers that `decode_state`
    returned. The numbers are rounded to nearest.

    Args:
        state: a state of the structure of `like`, with floating-point arrays or codes instead of its codes.
        like: the state that the optimizer with 8-bit codes makes: `optimizer.init(params)`.

    Returns:
        The state with the structure and the dtypes of `like`.

    Raises:
        ValueError: the structures or the shapes differ; the message lists the differences.

    >>> import jax.numpy as jnp
    >>> from treekit import optax, training
    >>> params = jnp.ones((64, 64))
    >>> wide = training.store_state(optax.adam(0.1), rounding="stochastic")
    >>> names = {"mu": jnp.int8, "nu": jnp.uint8}
    >>> narrow = training.store_state(optax.adam(0.1), names, rounding="stochastic")
    >>> _, state = wide.update(params, wide.init(params), params)
    >>> training.encode_state(state, narrow.init(params)).inner_state[0].mu.dtype
    dtype('int8')
    """
    numbers, like_numbers = decode_state(state), decoded(like)
    structure = jtu.tree_structure(numbers)
    if structure != jtu.tree_structure(like_numbers):
        advice = ""
        if structure == jtu.tree_structure(getattr(like_numbers, "inner_state", None)):
            advice = ". State was made without stochastic rounding: encode like._replace(inner_state=state) instead"
        raise ValueError(
            f"state and like differ in their structure{advice}.\n"
            f"state | like:\n{tree_diff(numbers, like_numbers, values=False)}"
        )
    check_shapes(like_numbers, numbers)

    def stored(like: Any, x: Any) -> Any:
        return Codes(encode(x, like.dtype)) if is_codes(like) else cast_like(x, like)

    out: T = jtu.tree_map(stored, like, numbers, is_leaf=is_codes)
    return out
