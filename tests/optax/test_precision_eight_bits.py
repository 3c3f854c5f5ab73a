"""Optimizer state in codes of 8 bits: dtype_preserving(tx, state_dtype={"mu": jnp.int8, "nu": jnp.uint8})."""

import importlib
import itertools
import operator
import os
import pickle
import re
import subprocess
import sys
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
from treekit import optax as tko
from treekit._codes import Codes, decode, is_codes

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
    found = [value[key] for _, value in optax.tree.get_all_with_path(state, name)]  # muon has one group for each kind
    return next(str(x.dtype) for x in found if hasattr(x, "dtype"))


StochasticRoundingState: Any = type(eight_bit(tko.adam(0.1)).init(jnp.ones(1)))

# ------------------------------------------------------------------------------------------------------------- laws

OPTIMIZERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "adam": (lambda: optax.adam(0.1), CODES),
    "adamw": (lambda: tko.adamw(0.1), CODES),
    "amsgrad": (lambda: optax.amsgrad(0.1), {**CODES, "nu_max": jnp.uint8}),
    "lamb": (lambda: optax.lamb(0.1), CODES),
    "lion": (lambda: optax.lion(0.1), {"mu": jnp.int8}),
    "rmsprop": (lambda: optax.rmsprop(0.1), {"nu": jnp.uint8}),
    "sgd": (lambda: optax.sgd(0.1, momentum=0.9), {"trace": jnp.int8}),
    "ademamix": (lambda: optax.contrib.ademamix(0.1), {"m1": jnp.int8, "m2": jnp.int8, "nu": jnp.uint8}),
    "adopt": (lambda: optax.contrib.adopt(0.1), CODES),
    "muon": (lambda: optax.contrib.muon(0.1), {"mu": jnp.int8}),
    "quieter": (lambda: optax.adam(0.1), {"mu": jnp.int8, "nu": jnp.bfloat16}),
}
WRAPPED: dict[str, Callable[[], Any]] = {
    "chain": lambda: tko.chain(tko.clip(1.0), eight_bit(tko.adam(0.1))),
    "masked": lambda: tko.masked(eight_bit(tko.adam(0.1)), {"w": True, "b": True, "embed": False}),
    "of masked": lambda: eight_bit(tko.masked(tko.adam(0.1), {"w": True, "b": True, "embed": False})),
    "partition": lambda: tko.partition(
        {"a": eight_bit(tko.adam(0.1)), "b": tko.sgd(0.1)}, {"w": "a", "b": "b", "embed": "b"}
    ),
    "of partition": lambda: eight_bit(
        tko.partition({"a": tko.adam(0.1), "b": tko.sgd(0.1)}, {"w": "a", "b": "a", "embed": "b"})
    ),
    "inject": lambda: tko.inject_hyperparams(lambda rate: eight_bit(tko.adam(rate)))(0.1),
    "of inject": lambda: eight_bit(tko.inject_hyperparams(tko.adam)(0.1)),
    "multi_steps": lambda: tko.MultiSteps(eight_bit(tko.adam(0.1)), 2).gradient_transformation(),
    "of multi_steps": lambda: eight_bit(tko.MultiSteps(tko.adam(0.1), 2).gradient_transformation()),
    "apply_if_finite": lambda: tko.apply_if_finite(eight_bit(tko.adam(0.1)), 3),
    "filtered": lambda: tko.filtered(eight_bit(tko.adam(0.1))),
}


@pytest.mark.parametrize("name, dtype", [*zip(OPTIMIZERS, itertools.cycle(["float32", "bfloat16"]), strict=False)])
def test_each_accumulator_that_is_named_is_in_codes(name: str, dtype: str) -> None:
    make, names = OPTIMIZERS[name]
    params = params_of(dtype)
    tx = eight_bit(make(), names)
    state = tx.init(params)
    assert type(state) is StochasticRoundingState
    grads = jax.tree.map(lambda x: 0.1 * x + 0.05, params)
    updates, after = run(tx, params, grads, 3)
    assert cases.signature(after) == cases.signature(state)
    assert cases.signature(updates) == cases.signature(params)
    for field, wanted in names.items():
        assert dtype_of(after, field) == jnp.dtype(wanted)
        if wanted != jnp.bfloat16:
            assert dtype_of(after, field, "b") == "float32"
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, tko.decode_state(after))))


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_inside_and_outside(name: str) -> None:
    params = params_of()
    tx = WRAPPED[name]()
    state = tx.init(params)
    updates, after = run(tx, params, params, 4)
    assert cases.signature(after) == cases.signature(state)
    assert dtype_of(after, "mu") == "int8" and dtype_of(after, "nu") == "uint8"
    wide = optax.tree.get(tko.decode_state(after), "nu")["w"]
    assert wide.dtype == jnp.float32 and bool(jnp.isfinite(wide).all()) and float(wide.max()) > 0
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(updates))
    summary = tko.summary(tx, params)
    row = next(row for row in summary.rows if row.path == "w")
    assert {(x.name, x.dtype, x.bytes) for x in row.state} >= {("mu", "int8", 4096), ("nu", "uint8", 4096)}


def test_the_mini_steps_of_multi_steps_do_not_change_codes() -> None:
    tx = eight_bit(tko.MultiSteps(tko.adam(0.1), 3).gradient_transformation())
    params = params_of()
    _, three = run(tx, params, params, 3)
    _, five = run(tx, params, params, 2, three)
    for name in ("mu", "nu"):
        assert same_bits(optax.tree.get(three, name), optax.tree.get(five, name))


def test_a_pattern_keeps_some_arrays_wide_and_comes_before_names() -> None:
    for keys in (["mu", "nu", "**.embed.**"], ["**.embed.**", "mu", "nu"]):
        names = {key: CODES.get(key, jnp.float32) for key in keys}
        state = eight_bit(optax.adam(0.1), names).init(params_of(jnp.bfloat16))
        assert dtype_of(state, "mu") == "int8" and dtype_of(state, "nu") == "uint8"
        assert optax.tree.get(state, "mu")["embed"]["table"].dtype == jnp.float32
    state = eight_bit(optax.adam(0.1), {"mu": jnp.int8, re.compile(r".*mu\.embed.*"): "float32"}).init(params_of())
    assert optax.tree.get(state, "mu")["embed"]["table"].dtype == jnp.float32


# ----------------------------------------------------------------------------------------------------------- numbers


def test_the_moments_are_right_on_average() -> None:
    params = jnp.zeros((256, 256))
    _, state = run(eight_bit(optax.scale_by_adam(b2=0.99)), params, jnp.full_like(params, 0.3), 200)
    numbers = tko.decode_state(state).inner_state
    assert float(numbers.mu.mean()) == pytest.approx(0.3, rel=0.01)
    assert float(numbers.nu.mean()) == pytest.approx(0.09 * (1 - 0.99**200), rel=0.01)
    assert len(set(np.asarray(numbers.nu).ravel().tolist())) > 1


def test_no_gradient_moves_nothing() -> None:
    params = params_of()
    updates, state = run(eight_bit(optax.adam(0.1)), params, jax.tree.map(jnp.zeros_like, params), 50)
    assert not any(bool(x.any()) for x in jax.tree.leaves((updates, state.inner_state[0].mu, state.inner_state[0].nu)))


def test_six_decades_in_a_row() -> None:
    """No update is much larger than the rate, where the gradients of a row have six decades."""
    params, scale = jnp.zeros(LARGE), jnp.broadcast_to(jnp.logspace(-6, 0, 64), LARGE)
    tx = eight_bit(optax.adam(1.0))

    def step(state: Any, key: Any) -> Any:
        updates, state = tx.update(scale * jax.random.normal(key, LARGE), state, params)
        return state, jnp.abs(updates).max()

    keys = jax.random.split(jax.random.key(0), 300)
    assert float(jax.jit(lambda state: jax.lax.scan(step, state, keys)[1])(tx.init(params)).max()) < 4


def test_updates_grow_again_after_the_gradients_have_fallen() -> None:
    params = jnp.zeros(LARGE)
    sizes = []
    for tx in (eight_bit(optax.adam(1.0, b2=0.99)), tko.adam(1.0, b2=0.99)):
        _, state = run(tx, params, jnp.ones(LARGE), 100)
        updates, _ = run(tx, params, jnp.full(LARGE, 0.01), 1_000, state)
        sizes.append(float(jnp.sqrt(jnp.mean(updates**2))))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.5)


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf_are_not_lost(bad: float) -> None:
    """As in f32: what was NaN once stays so, and its neighbours do not notice."""
    params = jnp.zeros(LARGE)
    tx = eight_bit(optax.adam(0.1))
    _, state = run(tx, params, params.at[0, 0].set(bad), 1)
    updates, after = run(tx, params, jnp.ones(LARGE), 5, state)
    assert np.isnan(updates[0, 0]) and np.isfinite(np.asarray(updates).ravel()[1:]).all()
    assert np.isnan(tko.decode_state(after).inner_state[0].nu[0, 0])


@pytest.mark.usefixtures("nans")
def test_a_negative_number_in_uint8_is_nan() -> None:
    """Where no trial is possible, it is not silently another number."""

    def init(params: Any) -> Any:
        if params.shape != (100, 100):
            raise ValueError("only 100 x 100")
        return optax.ScaleByRmsState(jnp.zeros((100, 100)))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return updates, optax.ScaleByRmsState(state.nu + updates)

    tx = eight_bit(optax.GradientTransformation(init, update), {"nu": jnp.uint8})
    _, state = run(tx, jnp.zeros((100, 100)), jnp.full((100, 100), -1.0), 1)
    assert bool(jnp.isnan(tko.decode_state(state).inner_state.nu).all())


def test_a_rate_can_be_learned_through_a_step() -> None:
    params = jnp.ones(LARGE)

    def end(rate: Any) -> Any:
        tx = eight_bit(optax.chain(optax.trace(0.9), optax.scale_by_learning_rate(rate)), {"trace": jnp.int8})
        state = tx.init(params)
        _, state = tx.update(params, state, params)
        return jnp.sum(tx.update(params, state, params)[0])

    assert float(jax.grad(end)(0.1)) == pytest.approx(float(end(1.0)), rel=1e-3)


# ----------------------------------------------------------------------------------------------- reading and writing


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


def test_integers_that_are_not_codes_are_not_decoded() -> None:
    state = {"mu": jnp.arange(5, dtype=jnp.int8), "inner": StochasticRoundingState(0, jnp.arange(5, dtype=jnp.uint8))}
    assert same_bits(tko.decode_state(state), state)


def test_from_wide_state_to_codes_and_back() -> None:
    params = params_of()
    wide = tko.dtype_preserving(tko.adam(0.1), rounding="stochastic")
    narrow = eight_bit(tko.adam(0.1))
    _, before = run(wide, params, params, 5)
    _, after = run(narrow, params, params, 1, tko.encode_state(before, narrow.init(params)))
    _, again = run(wide, params, params, 1, tko.decode_state(after))
    expected = optax.tree.get(run(wide, params, params, 7)[1], "nu")["w"]
    np.testing.assert_allclose(optax.tree.get(again, "nu")["w"], expected, rtol=0.3)
    plain = tko.adam(0.1).init(params)
    fresh = narrow.init(params)
    assert same_bits(tko.encode_state(fresh._replace(inner_state=plain), fresh), fresh)


def as_dicts(x: Any) -> Any:
    """What Orbax restores without a target."""
    if isinstance(x, tuple):
        names = getattr(x, "_fields", None) or map(str, range(len(x)))
        return {name: as_dicts(y) for name, y in zip(names, x, strict=True)}
    return {key: as_dicts(y) for key, y in x.items()} if isinstance(x, dict) else x


def test_a_checkpoint_comes_back_with_its_codes(tmp_path: Path) -> None:
    params = params_of()
    tx = eight_bit(tko.adamw(0.01))
    _, state = run(tx, params, params, 3)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", tx.init(params))
    assert type(restored) is StochasticRoundingState and same_bits(restored, state)
    again, _ = tk.graft(tx.init(params), as_dicts(state))
    assert same_bits(again, state)


def test_graft_never_casts_codes() -> None:
    """Neither to numbers nor to codes of another dtype: it says so."""
    params = params_of()
    narrow, plain = eight_bit(tko.adam(0.1)), tko.adam(0.1)
    _, old = run(narrow, params, params, 5)
    for new, other in ((plain, old), (narrow, tko.decode_state(old).inner_state)):
        fresh = new.init(params)
        got, _ = tk.graft(fresh, other, cast=True, strict=False)
        for name in ("mu", "nu"):
            moments, untouched = optax.tree.get(got, name), optax.tree.get(fresh, name)
            assert same_bits((moments["w"], moments["embed"]), (untouched["w"], untouched["embed"]))
        with pytest.raises(ValueError, match="codes"):
            tk.graft(fresh, other, cast=True, strict=True)
    again, _ = tk.graft(narrow.init(params), old)
    assert same_bits(again, old)


def test_encode_wants_the_same_structure_and_shapes() -> None:
    narrow = eight_bit(tko.adam(0.1))
    fresh = narrow.init(params_of())
    with pytest.raises(ValueError, match=r"differ in their structure.*like\._replace\(inner_state"):
        tko.encode_state(tko.adam(0.1).init(params_of()), fresh)
    with pytest.raises(ValueError, match=r"mu\.b: shape \(4,\) for a leaf of shape \(3,\)"):
        tko.encode_state(narrow.init({**params_of(), "b": jnp.ones(4)}), fresh)


def test_the_params_in_the_state_are_found() -> None:
    params = params_of()
    tx = eight_bit(tko.adam(0.1))
    names = jax.tree.map(lambda x: str(x.shape), params)
    named = tko.tree_map_params(tx, lambda _, name: name, tx.init(params), names)
    assert optax.tree.get(named, "nu") == names


# ------------------------------------------------------------------------------------------------------------ errors


OTHERS: Any = [
    {"state_dtype": jnp.float32},
    {"state_dtype": jnp.bfloat16},
    {"state_dtype": {"mu": jnp.float32}},
    {"rounding": "stochastic"},
    {"state_dtype": CODES, "rounding": "stochastic"},
]
BETWEEN: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda tx: tx,
    "chain": lambda tx: tko.chain(tko.clip(1.0), tko.filtered(tx)),
    "named chain": lambda tx: tko.named_chain(("a", tx)),
    "plain chain": lambda tx: optax.chain(optax.clip(1.0), tx),
    "masked": lambda tx: tko.masked(tx, True),
    "plain masked": lambda tx: optax.masked(tx, True),
    "partition": lambda tx: tko.partition({"a": tko.sgd(0.1), "b": tx}, "b"),
    "MultiSteps": lambda tx: tko.MultiSteps(tx, 2),
    "plain MultiSteps": lambda tx: optax.MultiSteps(tx, 2),
    "plain MultiSteps, its transformation": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 2),
    "conditionally": lambda tx: tko.conditionally_transform(tx, lambda step: step > 2),
    "only preserving": lambda tx: tko.dtype_preserving(tx),
    "schedule_free": lambda tx: tko.contrib.schedule_free(tx, 0.1),
    "all of them": lambda tx: tko.MultiSteps(tko.masked(optax.chain(tko.apply_if_finite(tx, 2)), True), 2),
}


@pytest.mark.parametrize("outer, inner", [(x, OTHERS[0]) for x in OTHERS] + [(OTHERS[-1], x) for x in OTHERS], ids=str)
def test_one_inside_another(outer: Any, inner: Any) -> None:
    with pytest.raises(
        TypeError, match=r"dtype_preserving\(.* is inside dtype_preserving\(.*Give state_dtype to one of"
    ):
        tko.dtype_preserving(tko.chain(tko.dtype_preserving(tko.adam(0.1), **inner)), **outer).init(params_of())


@pytest.mark.parametrize("between", BETWEEN)
def test_it_is_found_inside_any_wrapper(between: str) -> None:
    inner = tko.dtype_preserving(tko.adam(0.1), state_dtype=jnp.bfloat16)
    with pytest.raises(TypeError, match=r"is inside dtype_preserving\(.*Give state_dtype to one of them"):
        tko.dtype_preserving(BETWEEN[between](inner), state_dtype=jnp.float32).init(params_of())
    alone = BETWEEN[between](tko.dtype_preserving(tko.adam(0.1)))
    assert jax.tree.leaves(tko.dtype_preserving(alone, state_dtype=jnp.float32).init(params_of()))


def test_it_is_found_in_what_a_factory_makes() -> None:
    tx = tko.inject_hyperparams(lambda rate: tko.dtype_preserving(tko.adam(rate), state_dtype=jnp.bfloat16))(0.1)
    for options in OTHERS:
        with pytest.raises(TypeError, match=r"is inside dtype_preserving\(.*Give state_dtype to one of them"):
            tko.dtype_preserving(tx, **options).init(params_of())


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
    "nothing": lambda: tko.adam(0.1),
}
ENCODE, DECODE = r"convert it with optax\.encode_state", r"onvert its codes of 8 bits with optax\.decode_state"
# An optimizer, that whose state it is given, and the words of the error.
OTHERWISE = [
    ("wide", "codes", r"has moments in codes of 8 bits, int8 at 0\.mu\..*optax\.decode_state"),
    ("16 bits", "codes", rf"this state has Codes .*{DECODE}"),
    ("mu in codes", "codes", rf"0\.nu\..* this state has Codes .*{DECODE}"),
    ("codes", "wide", rf"(?i)\['mu'\] is int8, .* has float32 at .*mu.* {ENCODE}"),
    ("codes", "nothing", rf"needs the StochasticRoundingState.*and {ENCODE}"),
    ("codes", "mu in codes", r"\['nu'\] is float32 below 4,096 elements, .* has bfloat16 at .*nu.*encode_state"),
]


@pytest.mark.parametrize("optimizer, of, message", OTHERWISE)
def test_a_state_made_with_other_dtypes(optimizer: str, of: str, message: str) -> None:
    params = params_of()
    with pytest.raises(TypeError, match=message):
        MADE_WITH[optimizer]().update(params, MADE_WITH[of]().init(params), params)


@pytest.mark.parametrize("make", [tko.adam, optax.adam, tko.adamw, optax.adamw])
def test_an_optimizer_without_codes_does_not_read_them(make: Any) -> None:
    """Not even as the integers that they are."""
    params = params_of()
    state = eight_bit(make(0.1)).init(params).inner_state
    with pytest.raises(TypeError, match=r"unsupported operand type.* and 'Codes'"):
        make(0.1).update(params, state, params)
    with pytest.raises(TypeError, match=rf"this state has Codes .*{DECODE}"):
        tko.adam(0.1).update(params, eight_bit(tko.adam(0.1)).init(params).inner_state, params)


@pytest.mark.parametrize(
    ("make", "names", "message"),
    [
        (
            lambda: tko.MultiSteps(tko.sgd(0.1), 2).gradient_transformation(),
            {"acc_grads": jnp.int8},
            r"acc_grads\.b is an accumulator of gradients, which needs float32 at least: leave 'acc_grads' out",
        ),
        (lambda: tko.params_ema(0.9), {"params_ema": jnp.bfloat16}, "an average of the params, which needs float32"),
    ],
)
def test_what_cannot_be_stored_in_fewer_bits(make: Any, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eight_bit(make(), names).init(params_of())


def test_integers_that_the_transformation_has_of_its_own_are_no_codes() -> None:
    """The type says what are codes, not the dtype."""

    def init(params: Any) -> Any:
        return {"flags": jnp.arange(5_000, dtype=jnp.int8)}, optax.TraceState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return updates, (state[0], optax.TraceState(jax.tree.map(lambda x, t: x + t, updates, state[1].trace)))

    tx = eight_bit(optax.GradientTransformation(init, update), {"trace": jnp.int8})
    params = params_of()
    _, state = run(tx, params, params, 2)
    assert same_bits(state.inner_state[0], init(params)[0])
    assert dtype_of(state, "trace") == "int8" and dtype_of(tko.decode_state(state), "trace") == "float32"
    assert same_bits(tko.decode_state(state).inner_state[0], init(params)[0])


# ------------------------------------------------------------------------------------------------------------- Codes


def test_codes_say_what_they_are() -> None:
    state = eight_bit(tko.adam(0.1)).init(params_of())
    codes: Codes = optax.tree.get(state, "nu")["w"]
    assert is_codes(codes) and not is_codes(codes.codes)
    assert (codes.shape, codes.dtype, codes.bits, codes.sharding) == (LARGE, jnp.uint8, 8, codes.codes.sharding)
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(codes)[0]] == [".codes"]
    assert "inner_state.0.nu.w.codes" in tk.to_state_dict(state)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: 0.9 * x,
    "int": lambda x: x + 1,
    "array": lambda x: jnp.ones(LARGE) * x,
    "array of NumPy": lambda x: np.ones(LARGE) + x,
    "number of NumPy": lambda x: np.float32(0.9) * x,
    "itself": lambda x: x - x,
    "negative": lambda x: -x,
    "comparison": lambda x: x > 0,
    "sqrt": jnp.sqrt,
    "where": lambda x: jnp.where(True, x, 0.0),
    "asarray": jnp.asarray,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_arithmetic_with_codes_fails(operation: str) -> None:
    codes = optax.tree.get(eight_bit(tko.adam(0.1)).init(params_of()), "mu")["w"]
    with pytest.raises(TypeError, match="Codes"):
        OPERATIONS[operation](codes)


def test_codes_go_where_arrays_go() -> None:
    """Through jit with donation, scan, vmap of states, device_put, pickle and a copy."""
    params = params_of()
    tx = eight_bit(tko.adam(0.1))
    step = jax.jit(lambda state: tx.update(params, state, params)[1], donate_argnums=0)
    state = step(step(tx.init(params)))
    assert same_bits(state, run(tx, params, params, 2)[1])
    several = jax.vmap(tx.init)(jax.tree.map(lambda x: jnp.stack([x, x]), params))
    assert optax.tree.get(several, "mu")["w"].shape == (2, *LARGE)
    for other in (
        jax.device_put(state, jax.devices()[0]),
        pickle.loads(pickle.dumps(state)),
        jax.tree.map(lambda x: x, state),
    ):
        assert same_bits(other, state)
    held = tko.encode_state(tko.decode_state(state), state)
    assert same_bits(held, state)
    codes = optax.tree.get(state, "mu")["w"]
    assert same_bits(decode(codes.codes), optax.tree.get(tko.decode_state(state), "mu")["w"])


SHARDED = """
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from treekit import optax
from treekit._codes import is_codes

names = {"mu": jnp.int8, "nu": jnp.uint8}
tx = optax.dtype_preserving(optax.adam(0.1), state_dtype=names, rounding="stochastic")
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    sharding = NamedSharding(mesh, P("data", "model"))
    with jax.set_mesh(mesh):
        w = jax.device_put(jnp.ones((64, 64)), sharding)
        for params, outer in (
            (w, tx),
            ({"w": w}, optax.MultiSteps(tx, 2)),
            ({"layers": [{"w": w, "frozen": None}]}, optax.masked(tx, True)),
            ({"w": w}, optax.inject_hyperparams(lambda: tx)()),
        ):
            step = None
            for init in (outer.init, jax.jit(outer.init)):
                state = init(params)
                step = step or jax.jit(outer.update, donate_argnums=1).lower(params, state, params).compile()
                for _ in range(3):  # a compiled step takes the shardings for which it was compiled
                    found = [x for x in jax.tree.leaves(state, is_leaf=is_codes) if is_codes(x)]
                    assert [str(x.dtype) for x in found] == ["int8", "uint8"]
                    assert all(x.sharding.is_equivalent_to(sharding, 2) for x in found), found
                    _, state = step(params, state, params)
"""


def test_codes_are_sharded_as_their_params_on_8_devices() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    settings = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["global_norm", "tree.sum", "tree.norm", "tree.cast"])
def test_functions_of_trees_refuse_codes(name: str) -> None:
    moments = optax.tree.get(eight_bit(tko.adam(0.1)).init(params_of()), "mu")
    function = operator.attrgetter(name)(tko)
    with pytest.raises(TypeError, match=r"received 8-bit codes, which are not numbers: convert them with decode_state"):
        function(moments, jnp.float32) if name == "tree.cast" else function(moments)
