"""Codes of 8 bits, and the state of optimizers in them: store_state(tx, {"mu": jnp.int8, ...})."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.optax import cases
from tests.optax.cases import run, same_bits
from tests.releases import enable_x64, has
from tests.saved import through_orbax
from treekit import optax as tko
from treekit import training
from treekit._arrays.codes import Codes, is_codes
from treekit._arrays.round import bits_of_key
from treekit.training._eight_bits import decode, encode
from treekit.training._store import StochasticRoundingState

# --------------------------------------------------------------------------------------------------- codes of numbers


def numbers(least: int, largest: int) -> np.ndarray:
    """All numbers with two bits of mantissa, of these exponents and those between."""
    return np.array([(1 + m / 4) * 2.0**e for e in range(least, largest + 1) for m in range(4)], np.float32)


BITS = bits_of_key(jax.random.key(0))
ALL = {"int8": np.arange(-128, 128, dtype=np.int8), "uint8": np.arange(256, dtype=np.uint8)}
# The numbers above zero that have a code: of int8 the codes 1 to 127, of uint8 1 to 254.
POSITIVE = {"int8": numbers(-28, 3)[1:], "uint8": numbers(-56, 7)[1:-1]}
SAMPLES = 2**20
FTZ = 2.0**-126  # XLA may take f32 below this for zero


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("dtype", ALL)
def test_codes_stand_for_numbers_in_order_for_zero_and_for_nan(dtype: str) -> None:
    positive = POSITIVE[dtype]
    expected = [np.nan, *-positive[::-1], 0, *positive] if dtype == "int8" else [0, *positive, np.nan]
    np.testing.assert_array_equal(decode(jnp.asarray(ALL[dtype])), np.array(expected, np.float32))


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("dtype", ALL)
def test_every_code_decodes_and_encodes_to_itself(dtype: str, rounding: str) -> None:
    codes = jnp.tile(jnp.asarray(ALL[dtype]), 1_000)  # with noise of all sizes
    encoded = encode(decode(codes), dtype, BITS if rounding == "stochastic" else None)
    assert encoded.dtype == dtype
    np.testing.assert_array_equal(encoded, codes)


@pytest.mark.parametrize("dtype", ALL)
def test_between_two_numbers_the_mean_is_right(dtype: str) -> None:
    values = POSITIVE[dtype] if dtype == "uint8" else np.array([0, *POSITIVE[dtype]])
    for i in (0, 1, 60, 61, 62, 63, len(values) - 2):
        low, high = values[i : i + 2].astype(float)
        for share in (0.03, 0.5, -0.9 if dtype == "int8" else 0.9):
            x = np.copysign(float(np.float32(low + abs(share) * (high - low))), share)
            rounded = np.asarray(decode(encode(jnp.full(SAMPLES, x, jnp.float32), dtype, BITS)), np.float64)
            assert set(abs(rounded)) == {low, high}
            error = 5 * (high - low) * np.sqrt(abs(share) * (1 - abs(share)) / SAMPLES)  # 5 standard deviations
            assert rounded.mean() == pytest.approx(x, rel=0, abs=error)


@pytest.mark.parametrize(("dtype", "x"), [("uint8", 2.0**-57), ("uint8", FTZ), ("uint8", FTZ / 2), ("int8", FTZ / 2)])
def test_above_zero_is_never_zero_in_uint8_unless_it_is_subnormal(dtype: str, x: float) -> None:
    assert set(np.asarray(encode(jnp.full(SAMPLES, x, jnp.float32), dtype, BITS)).tolist()) <= (
        {0, 1} if x < FTZ else {1}
    )


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("wide", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("dtype", "x", "expected"),
    [
        *[(dtype, x, 0.0) for dtype in ALL for x in (0.0, -0.0)],
        *[(dtype, x, POSITIVE[dtype][-1]) for dtype in ALL for x in (255.0, 3e38)],
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
    values = POSITIVE[dtype]
    for share, expected in ((0.4, values[:-1]), (0.6, values[1:])):
        x = values[:-1] + np.float32(share) * np.diff(values)
        np.testing.assert_array_equal(decode(encode(jnp.asarray(x), dtype)), expected)


# --------------------------------------------------------------------------------------------- the state of optimizers

CODES: Any = {"mu": jnp.int8, "nu": jnp.uint8}
SHAPE = (64, 80)
# A large matrix, which is stored in codes, and a small array, which is not.
PARAMS = {"b": jnp.ones(3), "w": jax.random.normal(jax.random.key(1), SHAPE)}


def eight_bit(tx: Any, state_dtype: Any = CODES, **options: Any) -> Any:
    return training.store_state(tx, state_dtype, rounding="stochastic", **options)


def dtype_of(state: Any, name: str, key: str = "w") -> Any:
    return str(optax.tree.get(state, name)[key].dtype)


TARGET = jax.random.normal(jax.random.key(2), SHAPE)
I8, U8 = jnp.int8, jnp.uint8

# For each class of state an optimizer, with the moments that can be stored in 8 bits; and some that use one otherwise.
OPTIMIZERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "adabelief": (lambda: optax.adabelief(0.01), CODES),
    "adadelta": (lambda: optax.adadelta(1.0), {"e_g": U8, "e_x": U8}),
    "adafactor": (lambda: optax.adafactor(0.01), {"v": U8}),
    "adagrad": (lambda: optax.adagrad(0.1), {"sum_of_squares": U8}),
    "adam": (lambda: optax.adam(0.01), CODES),
    "adamax": (lambda: optax.adamax(0.01), CODES),
    "adan": (lambda: optax.adan(0.01), {"m": I8, "v": I8, "g": I8, "n": U8}),
    "ademamix": (lambda: optax.contrib.ademamix(0.01), {"m1": I8, "m2": I8, "nu": U8}),
    "amsgrad": (lambda: optax.amsgrad(0.01), {**CODES, "nu_max": U8}),
    "dadapt_adamw": (lambda: optax.contrib.dadapt_adamw(1.0), {"exp_avg": I8, "exp_avg_sq": U8, "grad_sum": I8}),
    "ema": (lambda: optax.chain(optax.ema(0.9), optax.scale(-0.01)), {"ema": I8}),
    "lars": (lambda: optax.lars(0.1, momentum=0.9), {"trace": I8}),
    "lbfgs": (lambda: optax.lbfgs(0.1, linesearch=None), {"diff_params_memory": I8, "diff_updates_memory": I8}),
    "lion": (lambda: optax.lion(0.01), {"mu": I8}),
    "madgrad": (lambda: optax.contrib.madgrad(0.01), {"s": I8, "grad_sum_sq": U8}),
    "momo": (lambda: optax.contrib.momo(0.1), {"exp_avg": I8}),
    "momo_adam": (lambda: optax.contrib.momo_adam(0.01), {"exp_avg": I8, "exp_avg_sq": U8}),
    "muon": (lambda: optax.contrib.muon(0.01), {"mu": I8}),
    "novograd": (lambda: optax.novograd(0.01), {"mu": I8}),
    "optimistic": (lambda: optax.optimistic_gradient_descent(0.01), {"previous_gradient": I8}),
    "prodigy": (lambda: optax.contrib.prodigy(), {"exp_avg": I8, "exp_avg_sq": U8, "grad_sum": I8}),
    "rmsprop": (lambda: optax.rmsprop(0.01, momentum=0.9), {"nu": U8, "trace": I8}),
    "rmsprop with bias correction": (lambda: optax.rmsprop(0.01, bias_correction=True), {"nu": U8}),
    "rprop": (lambda: optax.rprop(0.01), {"prev_updates": I8, "step_sizes": U8}),
    "simplified_ademamix": (lambda: optax.contrib.simplified_ademamix(0.001, b1=0.9), {"m": I8, "n": U8}),
    "sm3": (lambda: optax.sm3(0.1), {"mu": U8, "nu": I8}),  # nu has a sign
    "sophia": (lambda: optax.contrib.sophia(0.01), {"mu": I8, "nu": I8}),  # nu has a sign
    "yogi": (lambda: optax.yogi(0.01), CODES),
}


def scaled(make: Callable[[], Any]) -> Any:
    """In inject_hyperparams, with a hyperparameter that changes nothing."""
    return tko.inject_hyperparams(lambda scale: optax.chain(make(), optax.scale(scale)))(1.0)


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "bare": lambda make, names: eight_bit(make(), names),
    "inside of wrappers": lambda make, names: tko.MultiSteps(scaled(lambda: eight_bit(make(), names)), 2),
    "around wrappers": lambda make, names: tko.masked(
        eight_bit(tko.MultiSteps(tko.partition({"a": tko.apply_if_finite(scaled(make), 2)}, "a"), 2), names),
        {"b": False, "w": True},
    ),
}


def codes_of(state: Any) -> dict[str, Any]:
    """The dtype of each moment that is in codes, by its field."""
    found: dict[str, Any] = {}
    for path, x in jax.tree_util.tree_flatten_with_path(state, is_leaf=is_codes)[0]:
        fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
        found |= {fields[-1]: x.dtype} if is_codes(x) else {}
    return found


# Each optimizer by itself, and some in each place.
CELLS = [(name, "bare") for name in OPTIMIZERS if name != "madgrad" or has("optax.contrib.madgrad")]
CELLS += [(name, place) for place in PLACES if place != "bare" for name in ("adam", "sm3", "rmsprop")]


def loss(params: Any, key: Any) -> Any:
    noise = 10 * jnp.sum(jax.random.normal(key, SHAPE) * params["w"])
    return jnp.mean((params["w"] - TARGET) ** 2) * 2_000 + noise / 1_000 - 1e-3 * jnp.sum(params["b"] ** 2)


def train(tx: Any) -> tuple[Any, Any]:
    """The weights after some steps, and the loss of each."""

    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, key)
        extra = {"value": value, "obj_fn": lambda p: loss(p, key)}
        updates, state = tx.update(grads, state, params, **extra)
        return (tko.apply_updates(params, updates), state), value

    keys = jax.random.split(jax.random.key(0), 40)
    (params, _), losses = jax.jit(lambda x: jax.lax.scan(step, x, keys))((PARAMS, tx.init(PARAMS)))
    return params["w"], losses


@pytest.mark.parametrize("name, place", CELLS)
def test_each_moment_that_is_named_is_in_codes(name: str, place: str) -> None:
    make, names = OPTIMIZERS[name]
    small = ["mu"] if name == "sm3" else []  # an array for each axis
    state = jax.eval_shape(PLACES[place](make, names).init, PARAMS)
    assert codes_of(state) == {field: dtype for field, dtype in names.items() if field not in small}


@pytest.mark.table
@pytest.mark.parametrize("name, place", CELLS)
def test_training_is_that_of_f32(name: str, place: str) -> None:
    make, names = OPTIMIZERS[name]
    params, losses = train(PLACES[place](make, names))
    expected, wide = train(PLACES[place](make, {field: jnp.float32 for field in names}))
    assert np.isfinite(params).all() and np.isfinite(losses).all()
    assert np.linalg.norm(params - expected) < 0.35 * np.linalg.norm(expected - PARAMS["w"])
    assert losses[-1] < wide[-1] + 0.1 * (wide[0] - wide[-1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_small_or_not_named_is_not_in_codes(dtype: str) -> None:
    params = cases.cast(PARAMS, dtype)
    tx = eight_bit(optax.amsgrad(0.1), {"mu": jnp.int8, "nu": jnp.bfloat16, "nu_max": jnp.uint8})
    state = tx.init(params)
    assert type(state) is StochasticRoundingState
    updates, after = run(tx, params, jax.tree.map(lambda x: 0.1 * x + 0.05, params), 3)
    assert cases.signature(after) == cases.signature(state)
    assert cases.signature(updates) == cases.signature(params)
    assert [dtype_of(after, name) for name in ("mu", "nu", "nu_max")] == ["int8", "bfloat16", "uint8"]
    assert [dtype_of(after, name, "b") for name in ("mu", "nu", "nu_max")] == ["float32", "bfloat16", "float32"]
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, training.decode_state(after))))


def test_the_moments_are_right_on_average() -> None:
    params = jnp.zeros((256, 256))
    _, state = run(eight_bit(optax.scale_by_adam(b2=0.99)), params, jnp.full_like(params, 0.3), 200)
    numbers = training.decode_state(state).inner_state
    assert float(numbers.mu.mean()) == pytest.approx(0.3, rel=0.01)
    assert float(numbers.nu.mean()) == pytest.approx(0.09 * (1 - 0.99**200), rel=0.01)
    assert len(set(np.asarray(numbers.nu).ravel().tolist())) > 1


# The first rows of the table in docs/guides/precision.md, where MANY is "above 10,000". In units of the rate: the
# largest update with gradients from 1e-6 to 1, and from 100 to 1e8; and after gradients fell to a hundredth, the last
# ones divided by those of f32.
MANY = 1e4
UPDATES: dict[str, tuple[Callable[[Any], Any], tuple[float, float, float]]] = {
    "f32": (training.store_state, (1.3, 1.3, 1)),
    "int8, uint8": (eight_bit, (1.6, 2.6, 1.4)),
    "int8, bf16": (lambda tx: eight_bit(tx, {"mu": jnp.int8, "nu": jnp.bfloat16}), (1.2, 1.1, 1.02)),
    "bf16": (lambda tx: eight_bit(tx, jnp.bfloat16), (1.3, 1.3, 1.01)),
    "bf16, uint8": (lambda tx: eight_bit(tx, {"mu": jnp.bfloat16, "nu": jnp.uint8}), (1.5, MANY, 1.4)),
}


def sizes(hold: Callable[[Any], Any], scales: Any) -> Any:
    """What Adam subtracts in units of its rate, where each step and row of a matrix has gradients of one scale."""
    tx = hold(optax.adam(1.0))

    def step(state: Any, each: Any) -> tuple[Any, Any]:
        updates, state = tx.update(each[0][:, None] * jax.random.normal(each[1], (64, 64)), state)
        return state, jnp.abs(updates)

    keys = jax.random.split(jax.random.key(0), len(scales))
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, tx.init(jnp.zeros((64, 64))), (scales, keys))[1])())


@pytest.mark.slow
@pytest.mark.parametrize("name", UPDATES)
def test_updates_where_8_bits_usually_fail(name: str) -> None:
    hold, expected = UPDATES[name]
    largest = [sizes(hold, np.tile(np.logspace(*ends, 64, dtype="f"), (1_000, 1))).max() for ends in ((-6, 0), (2, 8))]
    fallen = np.repeat(np.array([1, 0.01], "f"), [1_000, 3_000])[:, None] * np.ones(64, "f")
    last, of_f32 = (np.sqrt(np.mean(sizes(x, fallen)[-100:] ** 2)) for x in (hold, training.store_state))
    assert np.minimum([*largest, last / of_f32], MANY) == pytest.approx(expected, rel=0.1)


def test_a_state_in_codes_is_decoded_and_encoded_again() -> None:
    params = cases.cast(PARAMS, jnp.bfloat16)
    tx = tko.MultiSteps(eight_bit(tko.adam(0.1)), 2)
    _, state = run(tx.gradient_transformation(), params, params, 6)
    numbers = training.decode_state(state)
    assert dtype_of(numbers, "mu") == "float32" and same_bits(training.decode_state(numbers), numbers)
    for known in (numbers, state):
        assert same_bits(training.encode_state(known, tx.init(params)), state)


def test_a_run_goes_on_from_f32_to_codes_and_back() -> None:
    wide, narrow = training.store_state(tko.adam(0.1), rounding="stochastic"), eight_bit(tko.adam(0.1))
    _, state = run(wide, PARAMS, PARAMS, 5)
    _, state = run(narrow, PARAMS, PARAMS, 1, training.encode_state(state, narrow.init(PARAMS)))
    _, state = run(wide, PARAMS, PARAMS, 1, training.decode_state(state))
    expected = optax.tree.get(run(wide, PARAMS, PARAMS, 7)[1], "nu")["w"]
    np.testing.assert_allclose(optax.tree.get(state, "nu")["w"], expected, rtol=0.3)


def test_a_checkpoint_comes_back_with_its_codes(tmp_path: Path) -> None:
    tx = eight_bit(tko.adamw(0.01))
    _, state = run(tx, PARAMS, PARAMS, 3)
    restored = through_orbax(state, tmp_path / "restored", tx.init(PARAMS))
    as_dicts = through_orbax(state, tmp_path / "as_dicts")  # without a target
    assert type(restored) is StochasticRoundingState and same_bits(restored, state)
    again, _ = tk.graft(tx.init(PARAMS), as_dicts)
    assert same_bits(again, state)


def test_graft_never_casts_codes() -> None:
    """Neither to numbers nor to codes of another dtype: it says so."""
    narrow, plain = eight_bit(tko.adam(0.1)), tko.adam(0.1)
    _, old = run(narrow, PARAMS, PARAMS, 5)
    for new, other in ((plain, old), (narrow, training.decode_state(old).inner_state)):
        fresh = new.init(PARAMS)
        got, _ = tk.graft(fresh, other, cast=True, strict=False)
        moments, untouched = optax.tree.get(got, "nu"), optax.tree.get(fresh, "nu")
        assert same_bits(moments["w"], untouched["w"])
        with pytest.raises(ValueError, match="codes"):
            tk.graft(fresh, other, cast=True, strict=True)


MEAN_TO_STORE: list[dict[str, Any]] = [
    {"dtype": jnp.bfloat16},
    {"dtype": {"mu": jnp.float32}},
    {"rounding": "stochastic"},
]
BETWEEN: dict[str, Callable[[Any], Any]] = {
    "wrappers": lambda tx: tko.chain(
        tko.clip(1.0), tko.partition({"a": tko.sgd(0.1), "b": optax.MultiSteps(tx, 2)}, "b")
    ),
    "what a factory makes": lambda tx: tko.inject_hyperparams(lambda rate: tko.chain(tx, tko.scale(rate)))(0.1),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_one_inside_another_is_found(between: str) -> None:
    make = BETWEEN[between]
    for outer, inner in itertools.product(MEAN_TO_STORE, repeat=2):
        tx = training.store_state(make(training.store_state(tko.adam(0.1), **inner)), **outer)
        with pytest.raises(TypeError, match="store_state"):
            tx.init(PARAMS)
    alone = make(training.store_state(tko.adam(0.1)))
    assert jax.tree.leaves(training.store_state(alone, jnp.float32).init(PARAMS))


def test_integers_that_the_transformation_has_of_its_own_are_no_codes() -> None:
    """The type says what are codes, not the dtype. Any state may have them, and a pattern names it."""

    def init(params: Any) -> Any:
        return {"flags": jnp.arange(5_000, dtype=jnp.int8), "moment": jax.tree.map(jnp.zeros_like, params)}

    tx = eight_bit(optax.GradientTransformation(init, optax.identity().update), {"moment.**": jnp.int8})
    _, state = run(tx, PARAMS, PARAMS, 2)
    numbers = training.decode_state(state).inner_state
    assert (state.inner_state["moment"]["w"].dtype, numbers["moment"]["w"].dtype) == (jnp.int8, jnp.float32)
    flags = init(PARAMS)["flags"]
    assert same_bits(state.inner_state["flags"], flags) and same_bits(numbers["flags"], flags)


def test_codes_say_what_they_are() -> None:
    tx = eight_bit(tko.adam(0.1))
    codes: Codes = optax.tree.get(tx.init(PARAMS), "nu")["w"]
    assert (codes.shape, codes.dtype, codes.bits, codes.sharding) == (SHAPE, jnp.uint8, 8, codes.codes.sharding)
    row = next(row for row in training.summary(tx, PARAMS).rows if row.path == "w")
    assert [(x.name, x.dtype, x.bytes) for x in row.state] == [("mu", "int8", 5120), ("nu", "uint8", 5120)]


# What takes codes for numbers.
ARITHMETIC: dict[str, Callable[[Any], Any]] = {
    "a product": lambda codes: 0.9 * codes,
    "a sum with NumPy": lambda codes: np.ones(SHAPE) + codes,
    "a root": jnp.sqrt,
    "an optimizer": lambda codes: tko.trace(0.9).update(jnp.ones(SHAPE), optax.TraceState(codes)),
    "a function on trees": tko.global_norm,
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_with_codes_fails(name: str) -> None:
    codes = optax.tree.get(eight_bit(tko.adam(0.1)).init(PARAMS), "mu")["w"]
    with pytest.raises(TypeError, match=r"[cC]odes"):
        ARITHMETIC[name](codes)


@pytest.mark.parametrize("convert", [training.decode_state, lambda state: training.encode_state(state, state)])
def test_a_converted_state_owns_its_arrays(convert: Any) -> None:
    tx = eight_bit(tko.adam(0.1))
    state = tx.init(PARAMS)
    made = convert(state)
    jax.jit(lambda state: tx.update(PARAMS, state, PARAMS), donate_argnums=0)(state)
    assert not any(x.is_deleted() for x in jax.tree.leaves(made))


def test_codes_go_where_arrays_go() -> None:
    tx = eight_bit(tko.adam(0.1))
    step = jax.jit(lambda state: tx.update(PARAMS, state, PARAMS)[1], donate_argnums=0)
    state = step(step(tx.init(PARAMS)))
    assert same_bits(state, run(tx, PARAMS, PARAMS, 2)[1])
    several = jax.vmap(tx.init)(jax.tree.map(lambda x: jnp.stack([x, x]), PARAMS))
    assert optax.tree.get(several, "mu")["w"].shape == (2, *SHAPE)
