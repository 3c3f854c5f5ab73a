"""Optimizer state in codes of 8 bits: dtype_preserving(tx, state_dtype={"mu": jnp.int8, "nu": jnp.uint8})."""

import importlib
import operator
import pickle
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
from tests.releases import needs
from treekit import optax as tko
from treekit._codes import Codes, is_codes
from treekit.optax._beyond.eight_bits import decode, encode

orbax: Any = importlib.import_module("orbax.checkpoint")  # has no types
CODES: Any = {"mu": jnp.int8, "nu": jnp.uint8}
LARGE = (64, 64)


def params_of(dtype: Any = jnp.float32) -> Any:
    """A large matrix, which is stored in codes, and a small one, which is not."""
    large = jnp.linspace(-1, 1, 4096).reshape(LARGE)
    return {"w": large.astype(dtype), "b": jnp.ones(3, dtype), "embed": {"table": (2 * large).astype(dtype)}}


def eight_bit(tx: Any, state_dtype: Any = CODES, **options: Any) -> Any:
    return tko.dtype_preserving(tx, state_dtype=state_dtype, rounding="stochastic", **options)


def dtype_of(state: Any, name: str, key: str = "w") -> Any:
    return str(optax.tree.get(state, name)[key].dtype)


StochasticRoundingState: Any = type(eight_bit(tko.adam(0.1)).init(jnp.ones(1)))


SHAPE = (64, 80)
PARAMS = {"b": jnp.ones(3), "w": jax.random.normal(jax.random.key(1), SHAPE)}
TARGET = jax.random.normal(jax.random.key(2), SHAPE)
I8, U8 = np.dtype(np.int8), np.dtype(np.uint8)
MU_NU = {"mu": I8, "nu": U8}

# For each class of state an optimizer, with the moments that can be stored in 8 bits; and some that use one otherwise.
OPTIMIZERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "adabelief": (lambda: optax.adabelief(0.01), MU_NU),
    "adadelta": (lambda: optax.adadelta(1.0), {"e_g": U8, "e_x": U8}),
    "adafactor": (lambda: optax.adafactor(0.01), {"v": U8}),
    "adagrad": (lambda: optax.adagrad(0.1), {"sum_of_squares": U8}),
    "adam": (lambda: optax.adam(0.01), MU_NU),
    "adamax": (lambda: optax.adamax(0.01), MU_NU),
    "adan": (lambda: optax.adan(0.01), {"m": I8, "v": I8, "g": I8, "n": U8}),
    "ademamix": (lambda: optax.contrib.ademamix(0.01), {"m1": I8, "m2": I8, "nu": U8}),
    "amsgrad": (lambda: optax.amsgrad(0.01), {**MU_NU, "nu_max": U8}),
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
    "yogi": (lambda: optax.yogi(0.01), MU_NU),
}
NEEDS = {"madgrad": ["optax.contrib.madgrad"]}
PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "bare": lambda make, names: eight_bit(make(), names),
    "partition": lambda make, names: eight_bit(
        tko.partition({"a": make(), "b": optax.sgd(0.1)}, {"b": "b", "w": "a"}), names
    ),
    "in MultiSteps": lambda make, names: tko.MultiSteps(eight_bit(make(), names), 2).gradient_transformation(),
    "of inject": lambda make, names: eight_bit(
        tko.inject_hyperparams(lambda scale: optax.chain(make(), optax.scale(scale)))(1.0), names
    ),
    "in inject": lambda make, names: tko.inject_hyperparams(
        lambda scale: optax.chain(eight_bit(make(), names), optax.scale(scale))
    )(1.0),
    "all of them": lambda make, names: tko.masked(
        eight_bit(tko.MultiSteps(tko.partition({"a": tko.apply_if_finite(make(), 2)}, "a"), 2), names),
        {"b": False, "w": True},
    ),
}


def dtypes_of(state: Any) -> dict[str, Any]:
    """The dtype of each moment of `w` that is large, by its field."""
    found = {}
    for path, x in jax.tree_util.tree_flatten_with_path(state)[0]:
        fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey) and key.name != "codes"]
        if np.prod(x.shape) >= 4096:
            found[fields[-1]] = x.dtype
    return found


# Each optimizer by itself, and some in each place.
CELLS: list[Any] = [pytest.param(name, "bare", marks=needs(*NEEDS.get(name, ()))) for name in OPTIMIZERS]
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
    found = dtypes_of(jax.eval_shape(PLACES[place](make, names).init, PARAMS))
    small = ("mu",) if name == "sm3" else ()  # an array for each axis
    assert {field: dtype for field, dtype in found.items() if field in names} == {
        field: dtype for field, dtype in names.items() if field not in small
    }


def test_a_state_of_your_own_may_be_in_codes() -> None:
    tx = eight_bit(optax.GradientTransformation(lambda params: {"m": params}, optax.identity().update), {"m.**": I8})
    assert tx.init(params_of()).inner_state["m"]["w"].dtype == I8


def test_a_wrong_sign_shows() -> None:
    """In uint8 a negative number is NaN; in int8 a small second moment is zero, so that an update is huge."""
    params = jnp.zeros(LARGE)
    _, state = run(eight_bit(optax.trace(0.9), {"trace": U8}), params, jnp.full_like(params, -0.1), 1)
    assert np.isnan(tko.decode_state(state).inner_state.trace).all()
    updates, _ = run(eight_bit(optax.scale_by_adam(b2=0.99999), {"nu": I8}), params, jnp.full_like(params, 1e-6), 200)
    assert float(jnp.abs(jax.tree.leaves(updates)[0]).max()) > 10


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
    params = params_of(dtype)
    tx = eight_bit(optax.amsgrad(0.1), {"mu": jnp.int8, "nu": jnp.bfloat16, "nu_max": jnp.uint8})
    state = tx.init(params)
    assert type(state) is StochasticRoundingState
    updates, after = run(tx, params, jax.tree.map(lambda x: 0.1 * x + 0.05, params), 3)
    assert cases.signature(after) == cases.signature(state)
    assert cases.signature(updates) == cases.signature(params)
    assert [dtype_of(after, name) for name in ("mu", "nu", "nu_max")] == ["int8", "bfloat16", "uint8"]
    assert [dtype_of(after, name, "b") for name in ("mu", "nu", "nu_max")] == ["float32", "bfloat16", "float32"]
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, tko.decode_state(after))))


def test_the_mini_steps_of_multi_steps_do_not_change_codes() -> None:
    tx = eight_bit(tko.MultiSteps(tko.adam(0.1), 3).gradient_transformation())
    params = params_of()
    _, three = run(tx, params, params, 3)
    _, five = run(tx, params, params, 2, three)
    assert all(same_bits(optax.tree.get(three, name), optax.tree.get(five, name)) for name in ("mu", "nu"))


def test_the_moments_are_right_on_average() -> None:
    params = jnp.zeros((256, 256))
    _, state = run(eight_bit(optax.scale_by_adam(b2=0.99)), params, jnp.full_like(params, 0.3), 200)
    numbers = tko.decode_state(state).inner_state
    assert float(numbers.mu.mean()) == pytest.approx(0.3, rel=0.01)
    assert float(numbers.nu.mean()) == pytest.approx(0.09 * (1 - 0.99**200), rel=0.01)
    assert len(set(np.asarray(numbers.nu).ravel().tolist())) > 1


def to_nearest(mu: Any, nu: Any) -> Callable[[Any], Any]:
    """Adam with moments in dtypes and with a rounding that `dtype_preserving` refuses."""

    def stored(x: Any, dtype: Any) -> Any:
        return decode(encode(x, dtype)) if dtype in (jnp.int8, jnp.uint8) else x.astype(dtype).astype(x.dtype)

    def hold(tx: Any) -> Any:
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            updates, (adam, *others) = tx.update(updates, state, params)
            return updates, (adam._replace(mu=stored(adam.mu, mu), nu=stored(adam.nu, nu)), *others)

        return optax.GradientTransformation(tx.init, update)

    return hold


# The table of docs/eight_bits.md, where MANY is "above 10,000". In units of the rate: the largest update with gradients
# from 1e-6 to 1, and from 100 to 1e8; and after gradients fell to a hundredth, the last ones divided by those of f32.
MANY = 1e4
UPDATES: dict[str, tuple[Callable[[Any], Any], tuple[float, float, float]]] = {
    "f32": (tko.dtype_preserving, (1.3, 1.3, 1)),
    "int8, uint8": (eight_bit, (1.6, 2.6, 1.4)),
    "int8, bf16": (lambda tx: eight_bit(tx, {"mu": jnp.int8, "nu": jnp.bfloat16}), (1.2, 1.1, 1.02)),
    "bf16": (lambda tx: eight_bit(tx, jnp.bfloat16), (1.3, 1.3, 1.01)),
    "bf16, uint8": (lambda tx: eight_bit(tx, {"mu": jnp.bfloat16, "nu": jnp.uint8}), (1.5, MANY, 1.4)),
    "int8, uint8, to nearest": (to_nearest(jnp.int8, jnp.uint8), (3, 2.6, 0.54)),
    "float8_e4m3fn, to nearest": (to_nearest(jnp.float8_e4m3fn, jnp.float8_e4m3fn), (MANY, np.nan, 0.49)),
    "float8_e5m2, to nearest": (to_nearest(jnp.float8_e5m2, jnp.float8_e5m2), (MANY, np.nan, 0.54)),
}


def sizes(hold: Callable[[Any], Any], scales: Any) -> Any:
    """What Adam subtracts in units of its rate, where each step and row of a matrix has gradients of one scale."""
    tx = hold(optax.adam(1.0))

    def step(state: Any, each: Any) -> tuple[Any, Any]:
        updates, state = tx.update(each[0][:, None] * jax.random.normal(each[1], LARGE), state)
        return state, jnp.abs(updates)

    keys = jax.random.split(jax.random.key(0), len(scales))
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, tx.init(jnp.zeros(LARGE)), (scales, keys))[1])())


@pytest.mark.slow
@pytest.mark.parametrize("name", UPDATES)
def test_updates_where_8_bits_usually_fail(name: str) -> None:
    hold, expected = UPDATES[name]
    largest = [sizes(hold, np.tile(np.logspace(*ends, 64, dtype="f"), (1_000, 1))).max() for ends in ((-6, 0), (2, 8))]
    fallen = np.repeat(np.array([1, 0.01], "f"), [1_000, 3_000])[:, None] * np.ones(64, "f")
    last, of_f32 = (np.sqrt(np.mean(sizes(x, fallen)[-100:] ** 2)) for x in (hold, tko.dtype_preserving))
    assert np.minimum([*largest, last / of_f32], MANY) == pytest.approx(expected, rel=0.1, nan_ok=True)


def test_decode_and_encode_are_inverses() -> None:
    params = params_of(jnp.bfloat16)
    tx = tko.MultiSteps(eight_bit(tko.adam(0.1)), 2)
    _, state = run(tx.gradient_transformation(), params, params, 6)
    numbers = tko.decode_state(state)
    assert type(numbers.inner_opt_state) is StochasticRoundingState
    assert dtype_of(numbers, "mu") == "float32"
    assert same_bits(tko.encode_state(numbers, tx.init(params)), state)
    assert same_bits(tko.encode_state(state, tx.init(params)), state)
    assert same_bits(tko.decode_state(numbers), numbers)


def test_from_wide_state_to_codes_and_back() -> None:
    params = params_of()
    wide = tko.dtype_preserving(tko.adam(0.1), rounding="stochastic")
    narrow = eight_bit(tko.adam(0.1))
    _, before = run(wide, params, params, 5)
    _, after = run(narrow, params, params, 1, tko.encode_state(before, narrow.init(params)))
    _, again = run(wide, params, params, 1, tko.decode_state(after))
    expected = optax.tree.get(run(wide, params, params, 7)[1], "nu")["w"]
    np.testing.assert_allclose(optax.tree.get(again, "nu")["w"], expected, rtol=0.3)
    fresh = narrow.init(params)
    assert same_bits(tko.encode_state(fresh._replace(inner_state=tko.adam(0.1).init(params)), fresh), fresh)


def test_a_checkpoint_comes_back_with_its_codes(tmp_path: Path) -> None:
    params = params_of()
    tx = eight_bit(tko.adamw(0.01))
    _, state = run(tx, params, params, 3)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", tx.init(params))
        as_dicts = checkpointer.restore(tmp_path / "state")  # without a target
    assert type(restored) is StochasticRoundingState and same_bits(restored, state)
    again, _ = tk.graft(tx.init(params), as_dicts)
    assert same_bits(again, state)


def test_graft_never_casts_codes() -> None:
    """Neither to numbers nor to codes of another dtype: it says so."""
    params = params_of()
    narrow, plain = eight_bit(tko.adam(0.1)), tko.adam(0.1)
    _, old = run(narrow, params, params, 5)
    for new, other in ((plain, old), (narrow, tko.decode_state(old).inner_state)):
        fresh = new.init(params)
        got, _ = tk.graft(fresh, other, cast=True, strict=False)
        moments, untouched = optax.tree.get(got, "nu"), optax.tree.get(fresh, "nu")
        assert same_bits((moments["w"], moments["embed"]), (untouched["w"], untouched["embed"]))
        with pytest.raises(ValueError, match="codes"):
            tk.graft(fresh, other, cast=True, strict=True)


def test_encode_wants_the_same_structure_and_shapes() -> None:
    narrow = eight_bit(tko.adam(0.1))
    fresh = narrow.init(params_of())
    with pytest.raises(ValueError, match=r"differ in their structure.*like\._replace\(inner_state"):
        tko.encode_state(tko.adam(0.1).init(params_of()), fresh)
    with pytest.raises(ValueError, match=r"mu\.b: shape \(4,\) for a leaf of shape \(3,\)"):
        tko.encode_state(narrow.init({**params_of(), "b": jnp.ones(4)}), fresh)


OTHERS: Any = [
    {"state_dtype": jnp.bfloat16},
    {"state_dtype": {"mu": jnp.float32}},
    {"rounding": "stochastic"},
    {"state_dtype": CODES, "rounding": "stochastic"},
]
BETWEEN: dict[str, Callable[[Any], Any]] = {
    "chains": lambda tx: tko.chain(tko.clip(1.0), optax.chain(tko.filtered(tx))),
    "partition": lambda tx: tko.partition({"a": tko.sgd(0.1), "b": tx}, "b"),
    "plain MultiSteps": lambda tx: optax.MultiSteps(tx, 2),
    "only preserving": lambda tx: tko.dtype_preserving(tko.conditionally_transform(tx, lambda step: step > 2)),
    "what a factory makes": lambda tx: tko.inject_hyperparams(lambda rate: tko.chain(tx, tko.scale(rate)))(0.1),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_one_inside_another_is_found(between: str) -> None:
    make = BETWEEN[between]
    for outer, inner in [(x, OTHERS[0]) for x in OTHERS] + [(OTHERS[-1], x) for x in OTHERS]:
        tx = make(tko.dtype_preserving(tko.adam(0.1), **inner))
        with pytest.raises(TypeError, match=r"\) is inside dtype_preserving\(.*Give state_dtype to one of them"):
            tko.dtype_preserving(tx, **outer).init(params_of())
    alone = make(tko.dtype_preserving(tko.adam(0.1)))
    assert jax.tree.leaves(tko.dtype_preserving(alone, state_dtype=jnp.float32).init(params_of()))


def test_side_by_side_they_are_two() -> None:
    params = params_of()
    tx = tko.chain(eight_bit(tko.scale_by_adam()), eight_bit(tko.trace(0.9), {"trace": jnp.int8}))
    _, state = run(tx, params, params, 3)
    assert (dtype_of(state, "mu"), dtype_of(state, "trace")) == ("int8", "int8")


MADE_WITH: dict[str, Callable[[], Any]] = {
    "codes": lambda: eight_bit(tko.adam(0.1)),
    "wide": lambda: tko.dtype_preserving(tko.adam(0.1), rounding="stochastic"),
    "16 bits": lambda: tko.dtype_preserving(tko.adam(0.1), state_dtype=jnp.bfloat16, rounding="stochastic"),
    "mu in codes": lambda: eight_bit(tko.adam(0.1), {"mu": jnp.int8, "nu": jnp.bfloat16}),
    "mu in 16 bits": lambda: tko.dtype_preserving(tko.adam(0.1), state_dtype={"mu": jnp.bfloat16}),
    "to nearest": lambda: tko.dtype_preserving(tko.adam(0.1), state_dtype=jnp.bfloat16),
    "nothing": lambda: tko.adam(0.1),
}
# An optimizer, that whose state it is given, and the words of the error.
OTHERWISE = [
    ("wide", "codes", r"has int8 at 0\.mu\.embed\.table, .* stores no codes.*optax\.decode_state"),
    ("16 bits", "codes", r"has float32 at 0\.mu\.b, .* stores bfloat16.*optax\.decode_state"),
    ("mu in codes", "codes", r"has float32 at 0\.nu\.b, .* stores bfloat16.*optax\.decode_state"),
    ("codes", "wide", r"has float32 at 0\.mu\.embed\.table, .* stores int8.*to codes with optax\.encode_state"),
    ("codes", "nothing", r"needs the StochasticRoundingState.* found a tuple.*and convert it with optax\.encode_state"),
    ("codes", "mu in codes", r"has bfloat16 at 0\.nu\.b, .* stores float32"),
    ("mu in 16 bits", "nothing", r"has float32 at 0\.mu\.b, .* stores bfloat16"),
    ("to nearest", "nothing", r"has float32 at 0\.mu\.b, .* stores bfloat16.* Make it again with init"),
]


@pytest.mark.parametrize("optimizer, of, message", OTHERWISE)
def test_a_state_made_with_other_dtypes(optimizer: str, of: str, message: str) -> None:
    params = params_of()
    with pytest.raises(TypeError, match=message):
        MADE_WITH[optimizer]().update(params, MADE_WITH[of]().init(params), params)


def test_an_optimizer_without_codes_does_not_read_them() -> None:
    state = eight_bit(tko.adam(0.1)).init(params_of()).inner_state
    with pytest.raises(TypeError, match="Codes"):
        tko.adam(0.1).update(params_of(), state, params_of())


def test_integers_that_the_transformation_has_of_its_own_are_no_codes() -> None:
    """The type says what are codes, not the dtype."""

    def init(params: Any) -> Any:
        return {"flags": jnp.arange(5_000, dtype=jnp.int8)}, optax.TraceState(jax.tree.map(jnp.zeros_like, params))

    params = params_of()
    tx = eight_bit(optax.GradientTransformation(init, optax.identity().update), {"trace": jnp.int8})
    _, state = run(tx, params, params, 2)
    numbers = tko.decode_state(state)
    assert dtype_of(state, "trace") == "int8" and dtype_of(numbers, "trace") == "float32"
    assert same_bits(state.inner_state[0], init(params)[0]) and same_bits(numbers.inner_state[0], init(params)[0])


def test_codes_say_what_they_are() -> None:
    state = eight_bit(tko.adam(0.1)).init(params_of())
    codes: Codes = optax.tree.get(state, "nu")["w"]
    assert is_codes(codes) and not is_codes(codes.codes)
    assert (codes.shape, codes.dtype, codes.bits, codes.sharding) == (LARGE, jnp.uint8, 8, codes.codes.sharding)
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(codes)[0]] == [".codes"]
    assert "inner_state.0.nu.w.codes" in tk.to_state_dict(state)
    row = next(row for row in tko.summary(eight_bit(tko.adam(0.1)), params_of()).rows if row.path == "w")
    assert {(x.name, x.dtype, x.bytes) for x in row.state} >= {("mu", "int8", 4096), ("nu", "uint8", 4096)}


OPERATIONS: list[Callable[[Any], Any]] = [lambda x: 0.9 * x, lambda x: np.ones(LARGE) + x, lambda x: x > 0, jnp.sqrt]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_arithmetic_with_codes_fails(operation: Callable[[Any], Any]) -> None:
    codes = optax.tree.get(eight_bit(tko.adam(0.1)).init(params_of()), "mu")["w"]
    with pytest.raises(TypeError, match="Codes"):
        operation(codes)


def test_codes_go_where_arrays_go() -> None:
    params = params_of()
    tx = eight_bit(tko.adam(0.1))
    step = jax.jit(lambda state: tx.update(params, state, params)[1], donate_argnums=0)
    state = step(step(tx.init(params)))
    assert same_bits(state, run(tx, params, params, 2)[1])
    several = jax.vmap(tx.init)(jax.tree.map(lambda x: jnp.stack([x, x]), params))
    assert optax.tree.get(several, "mu")["w"].shape == (2, *LARGE)
    for other in (jax.device_put(state, jax.devices()[0]), pickle.loads(pickle.dumps(state))):
        assert same_bits(other, state)


@pytest.mark.parametrize("name", ["global_norm", "tree.sum", "tree.norm", "tree.cast"])
def test_functions_of_trees_refuse_codes(name: str) -> None:
    moments = optax.tree.get(eight_bit(tko.adam(0.1)).init(params_of()), "mu")
    function = operator.attrgetter(name)(tko)
    with pytest.raises(TypeError, match=r"received 8-bit codes, which are not numbers: convert them with decode_state"):
        function(moments, jnp.float32) if name == "tree.cast" else function(moments)
