"""store_state: users' own transformations, with the dtypes of their state kept, or stated for all or by name."""

import functools
import itertools
import re
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
from tests.optax.cases import same_bits
from tests.releases import enable_x64, has
from tests.saved import through_orbax
from treekit import optax as tko
from treekit import training

BF16, F32 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
MU_NU: Any = {"mu": jnp.bfloat16, "nu": jnp.float32}
by_name: Any = functools.partial(training.store_state, dtype=MU_NU)


def stochastic(tx: Any, **options: Any) -> Any:
    return training.store_state(tx, rounding="stochastic", **options)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "dtype_preserving": lambda tx: training.store_state(tx),
    "of_selective_transform": lambda tx: training.store_state(
        tko.transforms.selective_transform(tx, freeze_mask=False)
    ),
    "f32": lambda tx: training.store_state(tx, jnp.float32),
}
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "stochastic": stochastic,
    "state_dtype": lambda tx: stochastic(tx, dtype=jnp.bfloat16),
    "of_multi_steps": lambda tx: stochastic(tko.MultiSteps(tx, 2).gradient_transformation()),
    "masked": lambda tx: tko.masked(stochastic(tx), lambda params: jax.tree.map(lambda x: x.ndim > 1, params)),
    "inject": lambda tx: tko.inject_hyperparams(lambda scale: stochastic(optax.chain(tx, optax.scale(scale))))(0.5),
}
CELLS = [
    *cases.cells(WRAPPERS, 1, whole=("dtype_preserving",), every=3),
    *cases.cells(ROUNDED, 0, whole=("stochastic",), every=9),
    *[(training.store_state, name, "bf16_f32_grads") for name in ("adam", "radam", "amsgrad", "rmsprop", "yogi")],
    *[(by_name, "adamw", kind) for kind in ("bf16_f32_grads", "c64", "eqx_raw")],
    *[(functools.partial(by_name, rounding="stochastic"), "adamw", kind) for kind in ("bf16", "mixed", "nnx")],
    *[(stochastic, name, "bf16") for name in ("muon", "adafactor", "lbfgs", "backtracking")],
]


def dtypes(state: Any, name: str) -> set[str]:
    return {str(x.dtype) for x in jax.tree.leaves(optax.tree.get(state, name))}


@pytest.mark.table
@pytest.mark.parametrize("wrap, name, kind", CELLS)
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


@pytest.mark.parametrize(
    ("names", "mu", "nu", "trace"),
    [
        ({"mu": jnp.bfloat16}, "bfloat16", "float32", "float32"),
        ({re.compile(r"0\.mu\..*"): jnp.float16, "0.**": jnp.bfloat16}, "float16", "bfloat16", "float32"),
        (
            {"trace": jnp.bfloat16, "**.trace.w": jnp.float16, "mu": "float16"},
            "float16",
            "float32",
            "float16 bfloat16",
        ),
    ],
)
def test_by_name_or_by_pattern(names: Any, mu: str, nu: str, trace: str) -> None:
    tx = training.store_state(optax.chain(optax.scale_by_adam(), optax.trace(0.9)), names)
    params = {"w": jnp.ones(3, jnp.float32), "b": jnp.ones(3, jnp.float32)}
    state = tx.init(params)
    _, after = jax.jit(tx.update)(params, state, params)
    assert [dtypes(after, name) for name in ("mu", "nu", "trace")] == [{mu}, {nu}, {*trace.split()}]
    assert cases.signature(after) == cases.signature(state)


@pytest.mark.parametrize(
    "params",
    [{"mu": jnp.ones(2), "nu": {"mu": jnp.ones(2)}}, [cases.Partial(jnp.add, mu=jnp.ones(2))]],
    ids=["named", "without key paths"],
)
def test_a_param_with_the_name_of_an_accumulator_is_not_taken_for_it(params: Any) -> None:
    tx = training.store_state(optax.chain(optax.clip(1.0), optax.scale_by_adam()), MU_NU)
    mu, nu = (jax.tree.leaves(x) for x in tx.init(params)[1][1:])
    assert ({x.dtype for x in mu}, {x.dtype for x in nu}) == ({jnp.dtype(jnp.bfloat16)}, {F32})


def test_a_hyperparameter_is_found_by_its_path() -> None:
    params = {"learning_rate": jnp.ones(2)}
    names = {"hyperparams.learning_rate": jnp.bfloat16}
    tx = training.store_state(tko.inject_hyperparams(tko.adam)(0.1), names)
    state: Any = tx.init(params)
    assert state.hyperparams["learning_rate"].dtype == jnp.bfloat16 and state.hyperparams["b1"].dtype == F32
    assert dtypes(state, "mu") == {"float32"}
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("state_dtype", [float, {"mu": np.float64, "nu": "float64"}])
def test_a_dtype_of_64_bits_is_what_jax_makes_of_it(state_dtype: Any, x64: bool) -> None:
    tx = training.store_state(tko.adam(0.1), state_dtype)
    with enable_x64(x64):
        params = {"w": jnp.ones(2, jnp.float32)}
        _, state = tx.update(params, tx.init(params), params)
        assert dtypes(state, "mu") == dtypes(state, "nu") == {jnp.asarray(1.0).dtype.name}


def test_it_computes_in_f32() -> None:
    """The new first moment is rounded once, where bf16 arithmetic would round each term."""
    tx = training.store_state(optax.trace(0.9), {"trace": jnp.bfloat16})
    grads = jnp.asarray(np.linspace(0.1, 1, 50), jnp.float32)
    _, state = tx.update(grads, tx.init(grads))
    updates, state = tx.update(grads, state)
    first = grads.astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_allclose(updates, grads + 0.9 * first, rtol=1e-6)
    assert (state.trace == (grads + 0.9 * first).astype(jnp.bfloat16)).all()


def test_a_group_of_a_partition_may_be_empty() -> None:
    adam = training.store_state(tko.adam(0.1), MU_NU)
    tx = tko.partition({"a": adam, "none": adam, "b": tko.sgd(0.1)}, {"w": "a", "b": "b"})
    params = cases.arrays()
    state = tx.init(params)
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


def test_a_python_number_in_the_state_has_no_dtype() -> None:
    """As users set a hyperparameter: it has the dtype of its array from the next update on."""
    for names in ({"mu": jnp.bfloat16, "**.learning_rate": jnp.float32}, jnp.float32):
        tx: Any = training.store_state(tko.inject_hyperparams(tko.adam)(0.1), names)
        params = {"w": jnp.ones(2)}
        state = tx.init(params)
        state.hyperparams["learning_rate"] = 0.5
        updates, after = tx.update(params, state, params)
        np.testing.assert_allclose(updates["w"], -0.5, rtol=1e-2)
        assert after.hyperparams["learning_rate"].dtype == jnp.float32


# Without the bias corrections of Adam, which raise under strict promotion in Optax, for params of any dtype.
STRICT: Any = {
    "rmsprop": (lambda: tko.rmsprop(0.1, momentum=0.9), {"nu": jnp.float32, "trace": jnp.bfloat16}),
    "decayed": (lambda: tko.chain(tko.add_decayed_weights(0.1), tko.trace(0.9)), jnp.bfloat16),
    "MultiSteps": (lambda: tko.MultiSteps(tko.rmsprop(0.1), 2), jnp.float32),
}


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("name", STRICT)
def test_it_computes_under_strict_promotion(name: str, dtype: Any, rounding: Any) -> None:
    """What it widens itself is cast explicitly, and the results are those of the usual promotion."""
    make, state_dtype = STRICT[name]
    params = {"w": jnp.linspace(-1, 1, 40).astype(dtype)}

    def two_steps() -> Any:
        tx = training.store_state(make(), state_dtype, rounding=rounding)
        updates, state = tx.update(params, tx.init(params), params)
        return tx.update(updates, state, params)

    expected = two_steps()
    with jax.numpy_dtype_promotion("strict"):
        assert same_bits(two_steps(), expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("state_dtype", [jnp.bfloat16, {"**": jnp.bfloat16}, {"trace": jnp.bfloat16}])
def test_averages_and_sums_of_gradients_stay_in_float32(state_dtype: Any, rounding: Any) -> None:
    """An average of bf16 cannot move, and a sum of many gradients loses them."""
    sums = tko.MultiSteps(optax.sgd(0.1, momentum=0.9), 2).gradient_transformation()
    tx = training.store_state(tko.chain(sums, training.params_ema(0.999)), state_dtype, rounding=rounding)
    for dtype in (jnp.float32, jnp.bfloat16):
        params = {"w": jnp.ones(3, dtype)}
        state = tx.init(params)
        _, after = jax.jit(tx.update)(params, state, params)
        assert cases.signature(after) == cases.signature(state)
        assert dtypes(after, "acc_grads") == dtypes(after, "params_ema") == {"float32"}
        assert dtypes(after, "trace") == {"bfloat16"}


FOR_ALL: list[Any] = [bool, jnp.complex64, "bf16", "uint8", jnp.uint16, jnp.float8_e4m3fn]
BY_NAME: list[Any] = [{"mu": None}, {"mu": jnp.int16}, {"mu": jnp.int4}, {"mu": jnp.float32, "nu": jnp.uint8}]


@pytest.mark.parametrize("state_dtype", FOR_ALL + BY_NAME)
def test_what_is_not_a_dtype_of_a_state_is_refused(state_dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype"):
        training.store_state(optax.adam(0.1), state_dtype, rounding="stochastic")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_complex_moments_keep_their_dtype_next_to_those_that_change(dtype: str) -> None:
    tx = training.store_state(tko.adam(0.1), {"mu": dtype}, rounding="stochastic")
    params = {"w": jnp.ones(2, jnp.complex64), "b": jnp.ones(3, jnp.bfloat16)}
    assert dtypes(tx.init(params), "mu") == {"complex64", dtype}


OF_ADAM: Any = tko.adam(0.1)
IN_BF16 = training.store_state(OF_ADAM, jnp.bfloat16)
# An optimizer, and one whose state does not fit it.
CONVERTED: dict[str, tuple[Any, Any]] = {
    "to bf16": (IN_BF16, OF_ADAM),
    "to f32": (training.store_state(OF_ADAM, jnp.float32), IN_BF16),
    "to bf16, in a wrapper": (tko.MultiSteps(IN_BF16, 2), tko.MultiSteps(OF_ADAM, 2)),
    "to f32 for one moment": (stochastic(OF_ADAM, dtype={"mu": jnp.float32}), stochastic(OF_ADAM, dtype=jnp.bfloat16)),
    "to be rounded": (stochastic(OF_ADAM), OF_ADAM),
    "to be rounded to bf16, in a wrapper": (
        tko.masked(stochastic(OF_ADAM, dtype=jnp.bfloat16), {"w": True}),
        tko.masked(OF_ADAM, {"w": True}),
    ),
}


@pytest.mark.parametrize("optimizer, other", CONVERTED.values(), ids=CONVERTED)
def test_a_state_of_other_dtypes_becomes_one_that_fits_as_the_error_says(optimizer: Any, other: Any) -> None:
    params = {"w": jnp.ones(3)}
    state = other.init(params)
    with pytest.raises(training.StateError) as raised:
        optimizer.update(params, state, params)
    advice = str(raised.value).partition("convert it: ")[2]
    converted = eval(advice, {"treekit": tk, "optimizer": optimizer, "params": params, "state": state})
    _, after = optimizer.update(params, converted, params)
    assert cases.signature(after) == cases.signature(optimizer.init(params))


MEANT_TO_STORE: list[dict[str, Any]] = [
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
    make, params = BETWEEN[between], {"w": jnp.ones(3)}
    for outer, inner in itertools.product(MEANT_TO_STORE, repeat=2):
        tx = training.store_state(make(training.store_state(tko.adam(0.1), **inner)), **outer)
        with pytest.raises(TypeError, match="store_state"):
            tx.init(params)
    alone = make(training.store_state(tko.adam(0.1)))
    assert jax.tree.leaves(training.store_state(alone, jnp.float32).init(params))


# ------------------------------------------------------------------------------------------------ stochastic rounding


def run(*args: Any) -> Any:
    """The state after some steps on the same params."""
    return cases.run(*args)[1]


def test_a_second_moment_decays() -> None:
    """Gradients of 1, then of 0.01: in f32 the second moment falls; in bf16, to nearest, it never does."""
    params, ones = jnp.zeros((16, 64), jnp.bfloat16), jnp.ones((16, 64), jnp.bfloat16)
    txs = {
        "nearest": training.store_state(optax.adam(1e-3)),
        "f32": training.store_state(optax.adam(1e-3), jnp.float32),
        "stochastic": stochastic(optax.adam(1e-3)),
        "stochastic, float16": stochastic(optax.adam(1e-3), dtype="float16"),
    }
    ends = {}
    for rounding, tx in txs.items():
        state = run(tx, params, 0.01 * ones, 1500, run(tx, params, ones, 300))
        ends[rounding] = float(optax.tree.get(state, "nu").astype(jnp.float32).mean())
    assert ends["nearest"] > 2 * ends["f32"]
    assert [ends["stochastic"], ends["stochastic, float16"]] == pytest.approx([ends["f32"]] * 2, rel=0.03)


def test_state_in_f32_is_computed_in_f32() -> None:
    """The state is that of f32 params and gradients, to the bit."""
    params = cases.arrays(jnp.bfloat16)
    grads = cases.cast(cases.gradient(params), jnp.bfloat16)
    held = run(training.store_state(optax.adamw(0.01), jnp.float32), params, grads, 20)
    wide = run(tko.adamw(0.01), cases.cast(params, F32), cases.cast(grads, F32), 20)
    assert same_bits(held, wide)


def test_a_hyperparameter_in_the_state_is_not_narrowed() -> None:
    """In bf16, b2 = 0.999 would be 1, and the first update NaN."""
    params = cases.arrays()
    for rounding in ("nearest", "stochastic"):
        tx = training.store_state(tko.inject_hyperparams(optax.adam)(0.1), jnp.bfloat16, rounding=rounding)
        updates, state = tx.update(params, tx.init(params), params)
        assert optax.tree.get(state, "b2").dtype == F32
        assert optax.tree.get(state, "mu")["w"].dtype == BF16
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(updates))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_updates_too_small_for_a_param_arrive_on_average(dtype: str) -> None:
    params, update = jnp.ones(4096, dtype), jnp.full(4096, 2.0**-12)
    after = tko.apply_updates(params, update, key=jax.random.key(0))
    assert after.dtype == dtype
    assert float(after.astype(jnp.float32).mean()) == pytest.approx(1 + 2**-12, abs=2**-10)
    assert len(set(after.astype(jnp.float32).tolist())) == 2
    assert bool((tko.apply_updates(params, update) == 1).all())


@pytest.mark.parametrize("kind", ["f16", "mixed", "c64", "eqx_bf16", "int_key"])
def test_apply_updates_with_a_key_keeps_structure_and_dtypes(kind: str) -> None:
    params = cases.make(kind)
    grads = cases.grads_of(kind, params)
    with_key = tko.apply_updates(params, grads, key=jax.random.key(0))
    without = tko.apply_updates(params, grads)
    assert cases.signature(with_key) == cases.signature(params)
    for x, y in zip(*(jax.tree.leaves(cases.arrays_of(tree)) for tree in (with_key, without)), strict=True):
        if jnp.issubdtype(x.dtype, jnp.floating):
            np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=2**-7)
        if x.dtype not in (jnp.bfloat16, jnp.float16) and not jnp.issubdtype(x.dtype, jax.dtypes.extended):
            assert same_bits(x, y)


def test_each_leaf_and_each_step_is_rounded_with_bits_of_its_own() -> None:
    params = {name: jnp.zeros(4096, jnp.bfloat16) for name in "ab"}
    grads = jax.tree.map(lambda x: jnp.full_like(x, 0.3), params)
    tx = stochastic(optax.trace(0.999))
    first, second = run(tx, params, grads, 8), run(tx, params, grads, 9)
    trace = optax.tree.get(first, "trace")
    assert not same_bits(trace["a"], trace["b"])
    assert not same_bits(trace, optax.tree.get(second, "trace"))
    a, b = (np.asarray(trace[name]).astype(np.float64) for name in "ab")
    assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(4096) < 5
    assert int(second.rounding_count) == 9


def test_a_seed_makes_a_run_and_another_makes_another() -> None:
    params = cases.arrays(jnp.bfloat16)
    runs = [run(stochastic(optax.adam(0.1), seed=seed), params, params, 30) for seed in (0, 0, 1, -1, 2**32)]
    assert same_bits(runs[0], runs[1])
    assert not any(same_bits(runs[i], runs[j]) for i in range(2, 5) for j in range(i))


def test_optax_finds_its_way_in_the_state() -> None:
    params = {"w": jnp.ones((2, 3), BF16), "b": jnp.ones(3, BF16)}
    tx = stochastic(optax.adam(0.1))
    state = run(tx, params, params, 3)
    assert int(optax.tree.get(state, "count")) == int(state.rounding_count) == 3
    names = {"w": "W", "b": "B"}
    named = tko.tree_map_params(tx, lambda _, name: name, state, names, transform_non_params=lambda _: "other")
    assert optax.tree.get(named, "nu") == names
    assert named.rounding_count == "other"


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_what_is_f32_is_not_rounded(dtype: Any) -> None:
    """State, and updates of f32 params, whatever their gradients are."""
    params = cases.arrays()
    grads = cases.cast(params, dtype)
    updates, state = cases.run(stochastic(optax.adam(0.1)), params, grads, 5)
    assert same_bits((updates, state.inner_state), cases.run(tko.adam(0.1), params, cases.cast(grads, F32), 5))


@pytest.mark.parametrize("state_dtype", [None, jnp.float32])
def test_updates_are_rounded_stochastically_too(state_dtype: Any) -> None:
    """A weight decay that is less than half a unit of the update it is added to arrives all the same."""
    params, signs = jnp.full(40_000, 0.15, BF16), jnp.where(jnp.arange(40_000) % 2, 1, -1).astype(BF16)
    tx = optax.chain(optax.scale_by_sign(), optax.add_decayed_weights(0.01))
    ours = stochastic(tx, dtype=state_dtype)
    updates, _ = jax.jit(ours.update)(signs, ours.init(params), params)
    assert updates.dtype == BF16
    mean = float(jnp.mean(updates.astype(F32) - signs.astype(F32)))
    assert mean == pytest.approx(0.01 * float(params[0]), rel=0.1)


def test_a_step_can_be_differentiated() -> None:
    """As one learns a learning rate: the derivative is that of the step in f32."""

    def end(rate: jax.Array) -> jax.Array:
        inner = optax.chain(optax.scale_by_learning_rate(rate), optax.trace(0.5))
        tx = stochastic(inner)
        params, grads = jnp.ones((64, 64), BF16), jnp.full((64, 64), 0.5)
        _, state = tx.update(grads, tx.init(params), params)
        updates, _ = tx.update(grads, state, params)
        return jnp.sum(tko.apply_updates(params, updates, key=jax.random.key(0)).astype(jnp.float32))

    assert float(jax.grad(end)(jnp.float32(0.1))) / 64**2 == pytest.approx(-0.75)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_update_of_an_integer_without_the_params_is_a_float(rounding: Any) -> None:
    """As in Optax."""
    tx = training.store_state(optax.sgd(0.5), jnp.float32, rounding=rounding)
    grads = {"w": jnp.full(2, 3)}
    updates, _ = tx.update(grads, tx.init({"w": jnp.ones(2)}))
    np.testing.assert_array_equal(updates["w"], -np.full(2, 1.5))
    assert not updates["w"].weak_type


# ------------------------------------------------------------------------------------------- 16 bits instead of f32

SHAPE = (64, 80)
PARAMS = {"b": jnp.ones(3), "w": jax.random.normal(jax.random.key(1), SHAPE)}
TARGET = jax.random.normal(jax.random.key(2), SHAPE)

# For each class of state an optimizer, and some that use one otherwise.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adabelief": lambda: optax.adabelief(0.01),
    "adadelta": lambda: optax.adadelta(1.0),
    "adafactor": lambda: optax.adafactor(0.01),
    "adagrad": lambda: optax.adagrad(0.1),
    "adam": lambda: optax.adam(0.01),
    "adamax": lambda: optax.adamax(0.01),
    "adan": lambda: optax.adan(0.01),
    "ademamix": lambda: optax.contrib.ademamix(0.01),
    "amsgrad": lambda: optax.amsgrad(0.01),
    "dadapt_adamw": lambda: optax.contrib.dadapt_adamw(1.0),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.scale(-0.01)),
    "lars": lambda: optax.lars(0.1, momentum=0.9),
    "lbfgs": lambda: optax.lbfgs(0.1, linesearch=None),
    "lion": lambda: optax.lion(0.01),
    "madgrad": lambda: optax.contrib.madgrad(0.01),
    "momo": lambda: optax.contrib.momo(0.1),
    "momo_adam": lambda: optax.contrib.momo_adam(0.01),
    "muon": lambda: optax.contrib.muon(0.01),
    "novograd": lambda: optax.novograd(0.01),
    "optimistic": lambda: optax.optimistic_gradient_descent(0.01),
    "prodigy": lambda: optax.contrib.prodigy(),
    "rmsprop": lambda: optax.rmsprop(0.01, momentum=0.9),
    "rmsprop with bias correction": lambda: optax.rmsprop(0.01, bias_correction=True),
    "rprop": lambda: optax.rprop(0.01),
    "simplified_ademamix": lambda: optax.contrib.simplified_ademamix(0.001, b1=0.9),
    "sm3": lambda: optax.sm3(0.1),
    "sophia": lambda: optax.contrib.sophia(0.01),
    "yogi": lambda: optax.yogi(0.01),
}


def scaled(make: Callable[[], Any]) -> Any:
    """In inject_hyperparams, with a hyperparameter that changes nothing."""
    return tko.inject_hyperparams(lambda scale: optax.chain(make(), optax.scale(scale)))(1.0)


PLACES: dict[str, Callable[..., Any]] = {
    "bare": lambda make, store: store(make()),
    "inside of wrappers": lambda make, store: tko.MultiSteps(scaled(lambda: store(make())), 2),
    "around wrappers": lambda make, store: tko.masked(
        store(tko.MultiSteps(tko.partition({"a": tko.apply_if_finite(scaled(make), 2)}, "a"), 2)),
        {"b": False, "w": True},
    ),
}
# Each optimizer by itself, and some in each place.
TRAINED = [(name, "bare") for name in OPTIMIZERS if name != "madgrad" or has("optax.contrib.madgrad")]
TRAINED += [(name, place) for place in PLACES if place != "bare" for name in ("adam", "sm3", "rmsprop")]


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


@pytest.mark.table
@pytest.mark.parametrize("name, place", TRAINED)
def test_training_is_that_of_f32(name: str, place: str) -> None:
    make = OPTIMIZERS[name]
    params, losses = train(PLACES[place](make, functools.partial(stochastic, dtype=jnp.bfloat16)))
    expected, wide = train(PLACES[place](make, functools.partial(training.store_state, dtype=jnp.float32)))
    assert np.isfinite(params).all() and np.isfinite(losses).all()
    assert np.linalg.norm(params - expected) < 0.05 * np.linalg.norm(expected - PARAMS["w"])
    assert losses[-1] < wide[-1] + 0.01 * (wide[0] - wide[-1])


def sizes(tx: Any, scales: Any) -> Any:
    """What Adam subtracts in units of its rate, where each step and row of a matrix has gradients of one scale."""

    def step(state: Any, each: Any) -> tuple[Any, Any]:
        updates, state = tx.update(each[0][:, None] * jax.random.normal(each[1], (64, 64)), state)
        return state, jnp.abs(updates)

    keys = jax.random.split(jax.random.key(0), len(scales))
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, tx.init(jnp.zeros((64, 64))), (scales, keys))[1])())


@pytest.mark.slow
def test_updates_of_adam_are_as_large_as_in_f32() -> None:
    """The largest with gradients from 1e-6 to 1, and from 100 to 1e8; and the last, after gradients have fallen."""
    wide, narrow = tko.adam(1.0), stochastic(tko.adam(1.0), dtype=jnp.bfloat16)
    for ends in ((-6, 0), (2, 8)):
        scales = np.tile(np.logspace(*ends, 64, dtype="f"), (1_000, 1))
        assert sizes(narrow, scales).max() == pytest.approx(sizes(wide, scales).max(), rel=0.05)
    fallen = np.repeat(np.array([1, 0.01], "f"), [1_000, 3_000])[:, None] * np.ones(64, "f")
    last, of_f32 = (np.sqrt(np.mean(sizes(tx, fallen)[-100:] ** 2)) for tx in (narrow, wide))
    assert last == pytest.approx(of_f32, rel=0.05)


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    tx = stochastic(tko.adamw(0.01), dtype=jnp.bfloat16)
    state = run(tx, PARAMS, PARAMS, 3)
    restored = through_orbax(state, tmp_path / "restored", tx.init(PARAMS))
    as_dicts = through_orbax(state, tmp_path / "as_dicts")  # without a target
    assert type(restored) is training.StochasticRoundingState and same_bits(restored, state)
    again, _ = tk.graft(tx.init(PARAMS), as_dicts)
    assert same_bits(again, state)
