"""Codes of 8 bits: each decodes and encodes to itself, rounding has no bias, and the edges are not silently wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.releases import enable_x64
from treekit._round import bits_of_key
from treekit.optax._beyond.eight_bits import decode, encode

BITS = bits_of_key(jax.random.key(0))
ALL = {"int8": np.arange(-128, 128, dtype=np.int8), "uint8": np.arange(256, dtype=np.uint8)}
NAN = {"int8": -128, "uint8": 255}
# Of the numbers above zero: the smallest, the largest, and how many there are.
RANGES = {"int8": (1.25 * 2.0**-28, 14.0, 127), "uint8": (1.25 * 2.0**-56, 192.0, 254)}
SAMPLES = 2**20
FTZ = 2.0**-126  # XLA may take f32 below this for zero


def numbers(dtype: str) -> np.ndarray:
    """The numbers above zero that have a code; of int8, zero too."""
    values = np.asarray(decode(jnp.asarray(ALL[dtype])))
    return values[values >= 0 if dtype == "int8" else values > 0]


def at_random(x: float, dtype: str) -> Any:
    return encode(jnp.full(SAMPLES, x, jnp.float32), dtype, BITS)


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("dtype", ALL)
def test_every_code_decodes_and_encodes_to_itself(dtype: str, rounding: str) -> None:
    codes = jnp.tile(jnp.asarray(ALL[dtype]), 1_000)  # with noise of all sizes
    encoded = encode(decode(codes), dtype, BITS if rounding == "stochastic" else None)
    assert encoded.dtype == dtype
    np.testing.assert_array_equal(encoded, codes)


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("dtype", ALL)
def test_codes_have_the_order_of_their_numbers_which_are_those_of_the_upper_bits(dtype: str) -> None:
    values = np.asarray(decode(jnp.asarray(ALL[dtype][ALL[dtype] != NAN[dtype]])))
    assert (np.diff(values) > 0).all()
    above = values[values > 0]
    assert (above[0], above[-1], len(above)) == RANGES[dtype]
    assert set(np.frexp(above)[0]) == {0.5, 0.625, 0.75, 0.875}
    if dtype == "int8":
        np.testing.assert_array_equal(values, -values[::-1])
    assert decode(jnp.zeros((), dtype)) == 0 and np.isnan(decode(jnp.asarray(NAN[dtype], dtype)))


@pytest.mark.parametrize("dtype", ALL)
def test_between_two_numbers_the_mean_is_right(dtype: str) -> None:
    values = numbers(dtype)
    for i in (0, 1, 60, 61, 62, 63, len(values) - 2):
        low, high = values[i : i + 2].astype(float)
        for share in (0.03, 0.5, -0.9 if dtype == "int8" else 0.9):
            x = np.copysign(float(np.float32(low + abs(share) * (high - low))), share)
            rounded = np.asarray(decode(at_random(x, dtype)), np.float64)
            assert set(abs(rounded)) == {low, high}
            error = 5 * (high - low) * np.sqrt(abs(share) * (1 - abs(share)) / SAMPLES)  # 5 standard deviations
            assert rounded.mean() == pytest.approx(x, rel=0, abs=error)


@pytest.mark.parametrize(("dtype", "x"), [("uint8", 2.0**-57), ("uint8", FTZ), ("uint8", FTZ / 2), ("int8", FTZ / 2)])
def test_above_zero_is_never_zero_in_uint8_unless_it_is_subnormal(dtype: str, x: float) -> None:
    assert set(np.asarray(at_random(x, dtype)).tolist()) <= ({0, 1} if x < FTZ else {1})


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("wide", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("dtype", "x", "expected"),
    [
        *[(dtype, x, 0.0) for dtype in ALL for x in (0.0, -0.0)],
        *[(dtype, x, RANGES[dtype][1]) for dtype in ALL for x in (255.0, 3e38)],
        ("int8", -15.9, -14.0),
        *[(dtype, x, np.nan) for dtype in ALL for x in (np.nan, np.inf, -np.inf)],
        *[("uint8", -x, np.nan) for x in (1.0, 2.0**-100)],
    ],
)
def test_the_edges(dtype: str, x: float, expected: float, wide: str, rounding: str) -> None:
    """Too large is the largest; what is not a number, or negative in uint8, is NaN and not some number."""
    with enable_x64(wide == "float64"):
        codes = encode(jnp.full(1_000, x, wide), dtype, BITS if rounding == "stochastic" else None)
        np.testing.assert_array_equal(decode(codes), np.float32(expected))


@pytest.mark.parametrize("dtype", ALL)
def test_to_nearest(dtype: str) -> None:
    values = numbers(dtype)
    for share, expected in ((0.4, values[:-1]), (0.6, values[1:])):
        x = values[:-1] + np.float32(share) * np.diff(values)
        np.testing.assert_array_equal(decode(encode(jnp.asarray(x), dtype)), expected)


def test_codes_that_were_cast_are_refused() -> None:
    with pytest.raises(TypeError, match=r"codes are arrays of int8 or uint8, found float32: to cast .*decode_state"):
        decode(jnp.ones(2))
