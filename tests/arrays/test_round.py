"""stochastic_round: to one of the two neighbours, right on average, and exact where there is nothing to round."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.releases import enable_x64
from treekit import training

KEY = jax.random.key(0)
finfo: Any = jnp.finfo
N = 4096  # samples of one value
# JAX has more, but XLA casts to and from the others on some backends only.
DTYPES = ["bfloat16", "float16", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e5m2"]


def grid(dtype: Any) -> np.ndarray:
    """All values of a dtype, as f32, in the order of their bits."""
    bits = finfo(dtype).bits
    words = np.arange(2**bits, dtype=np.dtype(f"uint{bits}"))
    return np.asarray(words.view(jnp.dtype(dtype)).astype(np.float32))


def places(dtype: Any) -> np.ndarray:
    """Indices of some positive values: the subnormals' first, the largest, those around each power of two."""
    values = positive(dtype)
    powers = np.flatnonzero(np.frexp(values)[0] == 0.5)
    chosen = np.concatenate([np.arange(4), powers[-20:] - 1, powers[-20:], powers[:20], [len(values) - 2]])
    return np.unique(chosen[(chosen >= 0) & (chosen < len(values) - 1)])


def positive(dtype: Any) -> np.ndarray:
    values = grid(dtype)
    return np.unique(np.abs(values[np.isfinite(values)]))


def deviation(share: Any, chance: Any, n: int = N) -> float:
    """How far shares of n samples are from their chances, at most: in standard deviations, of which 5 are too many."""
    return float(np.abs((share - chance) / np.sqrt(chance * (1 - chance) / n)).max())


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_dtype_holds_stays_as_it_is(dtype: str) -> None:
    values = grid(dtype)
    rounded = training.stochastic_round(jnp.asarray(values), dtype, KEY)
    assert rounded.dtype == dtype
    back = np.asarray(rounded.astype(jnp.float32))
    np.testing.assert_array_equal(back, values)  # inf, and NaN with NaN
    np.testing.assert_array_equal(np.signbit(back[back == 0]), np.signbit(values[values == 0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_it_does_not_hold_becomes_a_neighbour_and_itself_on_average(dtype: str) -> None:
    values = positive(dtype).astype(np.float64)
    low, high = (values[places(dtype) + i] for i in (0, 1))
    for fraction in (0.03, 0.5, 0.8):
        x = (low + fraction * (high - low)).astype(np.float32)
        chance = (x - low) / (high - low)
        for sign in (1, -1):
            samples = jnp.broadcast_to(jnp.asarray(sign * x), (N, len(x)))
            rounded = sign * np.asarray(training.stochastic_round(samples, dtype, KEY)).astype(np.float64)
            assert bool(((rounded == low) | (rounded == high)).all())
            assert deviation((rounded == high).mean(0), chance) < 5


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_too_large_is_rounded_to_nearest(dtype: str) -> None:
    """So nothing becomes inf, or NaN where there is no inf, that would not in a plain cast."""
    largest = float(finfo(dtype).max)
    with np.errstate(over="ignore"):
        x = jnp.asarray((np.array([1, 1.0001, 1.001, 1.01, 1.2, 2]) * largest).astype(np.float32))
    x = jnp.concatenate([x, -x, jnp.array([jnp.inf, -jnp.inf, jnp.nan], jnp.float32)])
    rounded, nearest = training.stochastic_round(x, dtype, KEY), x.astype(dtype)
    np.testing.assert_array_equal(rounded.astype(jnp.float32), nearest.astype(jnp.float32))


@pytest.mark.usefixtures("nans")
def test_a_nan_in_the_lower_half_of_its_bits_stays_one() -> None:
    words = jnp.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], jnp.uint32)
    x = jax.lax.bitcast_convert_type(words, jnp.float32)
    assert bool(jnp.isnan(training.stochastic_round(x, jnp.bfloat16, KEY)).all())


def rounded_up(key: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Whether each element of one shape, halfway between two values of bf16, is rounded up."""
    return np.asarray(training.stochastic_round(jnp.full(shape, 1 + 2**-8), jnp.bfloat16, key)).ravel() > 1


def independent(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether as many places agree as of two that are fair and independent."""
    return deviation((a == b).mean(), 0.5, a.size) < 5


@pytest.mark.parametrize("shape", [(2**16,), (4, 2**6, 2**8), (2**16, 1)])
def test_elements_and_keys_of_every_kind_are_rounded_independently(shape: tuple[int, ...]) -> None:
    keys = [jax.random.key(i) for i in range(3)] + [jax.random.fold_in(KEY, i) for i in range(3)]
    keys += [jax.random.key(i, impl="rbg") for i in range(2)]
    flips = [rounded_up(key, shape) for key in keys]
    for i, flip in enumerate(flips):
        assert deviation(flip.mean(), 0.5, flip.size) < 5
        assert all(independent(flip, other) for other in flips[:i])
        assert all(independent(flip[lag:], flip[:-lag]) for lag in (1, 2, 16, 255, 256, 257, 2**12))


@pytest.mark.parametrize("shape", [(), (1,), (64,), (8, 8)])
def test_one_element_over_many_keys_is_right_on_average(shape: tuple[int, ...]) -> None:
    keys = jax.random.split(KEY, N)
    x = jnp.full(shape, 1 + 0.25 * 2**-7)
    rounded = jax.vmap(lambda key: training.stochastic_round(x, jnp.bfloat16, key))(keys)
    assert deviation(np.asarray(rounded > 1).mean(0), 0.25) < 5


def test_the_same_key_rounds_the_same_way() -> None:
    x = jnp.linspace(0.1, 3, 999).reshape(27, 37)
    eager = training.stochastic_round(x, jnp.bfloat16, KEY)
    jitted = jax.jit(training.stochastic_round, static_argnums=1)(x, jnp.bfloat16, KEY)
    raw = training.stochastic_round(x, jnp.bfloat16, jax.random.key_data(KEY))
    for same in (jitted, raw, training.stochastic_round(np.asarray(x), jnp.bfloat16, KEY)):
        assert bool((eager == same).all())
    assert bool((eager != training.stochastic_round(x, jnp.bfloat16, jax.random.key(1))).any())
    assert not training.stochastic_round(1.003, jnp.bfloat16, KEY).weak_type


@pytest.mark.parametrize("have", ["bfloat16", "float16", "float8_e5m2", "float32"])
def test_a_dtype_that_holds_all_values_is_a_cast(have: str) -> None:
    x = jnp.asarray(positive(jnp.float16)[::97]).astype(have)
    assert bool((training.stochastic_round(x, jnp.float32, KEY) == x.astype(jnp.float32)).all())


@pytest.mark.usefixtures("nans")
def test_powers_of_two_in_8_bits_are_kept_both_ways() -> None:
    """The smallest, 2**-127, is subnormal in f32, with which XLA computes as with zero."""
    powers = jnp.asarray(np.arange(256, dtype=np.uint8).view(jnp.float8_e8m0fnu))
    want = np.append(2.0 ** np.arange(-127, 128), np.nan)
    wider = training.stochastic_round(powers, jnp.float32, KEY)
    assert wider.dtype == jnp.float32
    np.testing.assert_array_equal(wider, want)
    back = training.stochastic_round(wider, jnp.float8_e8m0fnu, KEY)
    np.testing.assert_array_equal(np.asarray(back).astype(np.float64), want)
    rounded = training.stochastic_round(jnp.full(N, 1.25 * 2.0**-100), jnp.float8_e8m0fnu, KEY)
    assert deviation((np.asarray(rounded).astype(np.float64) > 2.0**-100).mean(), 0.25) < 5


def test_from_one_16_bit_dtype_to_the_other() -> None:
    x = jnp.full(N, 1 + 2**-9, jnp.float16)
    assert set(training.stochastic_round(x, jnp.bfloat16, KEY).tolist()) == {1.0, 1 + 2**-7}
    tiny = jnp.full(N, 2.0**-25, jnp.bfloat16)
    assert set(training.stochastic_round(tiny, jnp.float16, KEY).tolist()) == {0.0, 2.0**-24}


@pytest.mark.parametrize("to", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_from_f64(to: str) -> None:
    with enable_x64(True):
        step = 2.0 ** -finfo(to).nmant
        x = jnp.full(N, 1 + step / 4, jnp.float64)
        rounded = np.asarray(training.stochastic_round(x, to, KEY)).astype(np.float64)
        assert set(rounded.tolist()) == {1.0, 1 + step}
        assert deviation((rounded > 1).mean(), 0.25) < 5


def test_both_parts_of_a_complex_number_are_rounded() -> None:
    with enable_x64(True):
        x = jnp.full(N, (1 + 2**-24) * (1 + 2j), jnp.complex128)
        rounded = training.stochastic_round(x, jnp.complex64, KEY)
        assert rounded.dtype == jnp.complex64
        assert independent(np.asarray(rounded.real) > 1, np.asarray(rounded.imag) > 2)
        assert set(rounded.real.tolist()) == {1.0, 1 + 2.0**-23}
        assert training.stochastic_round(x.real, jnp.complex64, KEY).dtype == jnp.complex64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_derivative_is_that_of_a_cast(dtype: str) -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.sum(3 * training.stochastic_round(x, dtype, KEY).astype(jnp.float32))

    x = jnp.linspace(-2, 2, 7)
    np.testing.assert_array_equal(jax.grad(f)(x), np.full(7, 3.0))


X = jnp.ones(2)
NO_KEYS: list[Any] = [None, 1.5, X, jnp.ones((2, 2), jnp.uint32)]
WRONG: dict[str, list[tuple[Any, Any, Any]]] = {  # by the argument that the message names
    "key": [(X, jnp.bfloat16, key) for key in NO_KEYS],
    "dtype": [(X, dtype, KEY) for dtype in ("bf16", None, X)],
    "x": [(x, jnp.bfloat16, KEY) for x in (3, "x", KEY, {"a": 1})],
}


@pytest.mark.parametrize("argument", WRONG)
def test_what_is_wrong_is_named(argument: str) -> None:
    for arguments in WRONG[argument]:
        with pytest.raises(TypeError, match=rf"\b{argument} must be"):
            training.stochastic_round(*arguments)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_from_f64_the_mean_holds_down_to_the_smallest_normal_number(dtype: str) -> None:
    with enable_x64(True):
        info = finfo(dtype)
        border, unit = float(info.smallest_normal), float(info.smallest_subnormal)
        for x, mean in ((border, border), (border + unit / 4, border + unit / 4), (border - unit, 0.0), (unit, 0.0)):
            rounded = np.asarray(training.stochastic_round(jnp.full(N, x, jnp.float64), dtype, KEY)).astype(np.float64)
            assert abs(rounded.mean() - mean) < unit / 20, "what the docstring says no longer holds"
