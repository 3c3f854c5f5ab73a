"""Codes of 8 bits: each decodes and encodes to itself, rounding has no bias, and the edges are not silently wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treekit._codes import decode, encode
from treekit._round import bits_of_key

BITS = bits_of_key(jax.random.key(0))
ALL = {"int8": np.arange(-128, 128, dtype=np.int8), "uint8": np.arange(256, dtype=np.uint8)}
NAN = {"int8": -128, "uint8": 255}
LEAST = {"int8": 1.25 * 2.0**-28, "uint8": 1.25 * 2.0**-56}
LARGEST = {"int8": 14.0, "uint8": 192.0}
SAMPLES = 2**20
FTZ = 2.0**-126  # XLA may take f32 below this for zero


def numbers(dtype: str) -> np.ndarray:
    """Every number above zero that has a code."""
    values = np.asarray(decode(jnp.asarray(ALL[dtype])))
    return values[values > 0]


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


@pytest.mark.parametrize("dtype", ALL)
def test_the_numbers_are_those_of_the_upper_bits(dtype: str) -> None:
    values = numbers(dtype)
    assert (values[0], values[-1]) == (LEAST[dtype], LARGEST[dtype])
    assert set(np.frexp(values)[0]) == {0.5, 0.625, 0.75, 0.875}
    assert len(values) == {"int8": 127, "uint8": 254}[dtype]


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("dtype", ALL)
def test_codes_have_the_order_of_their_numbers(dtype: str) -> None:
    values = np.asarray(decode(jnp.asarray(ALL[dtype][ALL[dtype] != NAN[dtype]])))
    assert (np.diff(values) > 0).all()
    assert decode(jnp.zeros((), dtype)) == 0
    if dtype == "int8":
        np.testing.assert_array_equal(values, -values[::-1])
    assert np.isnan(decode(jnp.asarray(NAN[dtype], dtype)))


@pytest.mark.parametrize("dtype", ALL)
def test_between_two_numbers_the_mean_is_right(dtype: str) -> None:
    values = numbers(dtype)
    for i in (0, 3, 60, 61, 62, 63, len(values) - 2):
        low, high = values[i : i + 2]
        for share in (0.1, 0.5, 0.9):
            x = float(np.float32(low + share * (high - low)))
            rounded = np.asarray(decode(at_random(x, dtype)), np.float64)
            assert set(rounded) == {low, high}
            assert rounded.mean() == pytest.approx(x, rel=1e-3)


@pytest.mark.parametrize("share", [0.5, 0.03])
def test_below_the_smallest_number_the_mean_is_right_in_int8(share: float) -> None:
    x = share * LEAST["int8"]
    for sign in (1, -1):
        rounded = np.asarray(decode(at_random(sign * x, "int8")), np.float64)
        assert set(rounded) == {0, sign * LEAST["int8"]}
        assert rounded.mean() == pytest.approx(sign * x, rel=5 / np.sqrt(share * SAMPLES))


@pytest.mark.parametrize("x", [2.0**-57, 2.0**-100, FTZ])
def test_above_zero_is_never_zero_in_uint8(x: float) -> None:
    assert set(np.asarray(at_random(x, "uint8")).tolist()) == {1}


@pytest.mark.parametrize("dtype", ALL)
def test_subnormal_numbers_are_zero_or_the_smallest(dtype: str) -> None:
    for x in (2.0**-127, 2.0**-149):
        assert set(np.asarray(at_random(x, dtype)).tolist()) <= {0, 1}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("wide", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("dtype", "x", "expected"),
    [
        *[(dtype, 0.0, 0.0) for dtype in ALL],
        *[(dtype, -0.0, 0.0) for dtype in ALL],
        *[(dtype, x, LARGEST[dtype]) for dtype in ALL for x in (LARGEST[dtype], 255.0, 1e30, 3e38)],
        *[("int8", -x, -14.0) for x in (14.0, 15.9, 1e30)],
        *[(dtype, x, np.nan) for dtype in ALL for x in (np.nan, -np.nan, np.inf, -np.inf)],
        *[("uint8", -x, np.nan) for x in (1.0, 2.0**-100, 1e30)],
    ],
)
def test_the_edges(dtype: str, x: float, expected: float, wide: str, rounding: str) -> None:
    """Too large is the largest; what is not a number, or negative in uint8, is NaN and not some number."""
    with jax.enable_x64(wide == "float64"):
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
