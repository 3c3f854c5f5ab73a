"""State and params in 16 bits, rounded stochastically: they move where to nearest they stand still."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from tests.optax.cases import same_bits
from treekit import optax as tko

BF16 = jnp.dtype(jnp.bfloat16)
F32 = jnp.dtype(jnp.float32)


def stochastic(tx: Any, **options: Any) -> Any:
    return tko.dtype_preserving(tx, rounding="stochastic", **options)


def run(*args: Any) -> Any:
    """The state after some steps on the same params."""
    return cases.run(*args)[1]


def mean_of(state: Any, name: str) -> float:
    found = jax.tree.leaves(optax.tree.get(state, name))
    return float(np.mean([np.asarray(x).astype(np.float64).mean() for x in found]))


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "state": stochastic,
    "state_dtype": lambda tx: stochastic(tx, state_dtype=jnp.bfloat16),
    "of_multi_steps": lambda tx: stochastic(tko.MultiSteps(tx, 2).gradient_transformation()),
    "masked": lambda tx: tko.masked(stochastic(tx), lambda params: jax.tree.map(lambda x: x.ndim > 1, params)),
    "inject": lambda tx: tko.inject_hyperparams(lambda scale: stochastic(optax.chain(tx, optax.scale(scale))))(0.5),
}
CELLS = cases.cells(WRAPPERS, 0, whole=("state",), every=9)
CELLS += [(WRAPPERS["state"], name, "bf16") for name in ("muon", "adafactor", "lbfgs", "backtracking")]


@pytest.mark.table
@pytest.mark.parametrize("wrap, name, kind", CELLS)
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind, steps=2)


def test_a_second_moment_decays() -> None:
    """Gradients of 1, then of 0.01: in f32 the second moment falls; in bf16, to nearest, it never does."""
    params, ones = jnp.zeros((16, 64), jnp.bfloat16), jnp.ones((16, 64), jnp.bfloat16)
    txs = {
        "nearest": tko.dtype_preserving(optax.adam(1e-3)),
        "f32": tko.dtype_preserving(optax.adam(1e-3), state_dtype=jnp.float32),
        "stochastic": stochastic(optax.adam(1e-3)),
        "stochastic, float16": stochastic(optax.adam(1e-3), state_dtype="float16"),
    }
    ends = {}
    for rounding, tx in txs.items():
        state = run(tx, params, ones, 300)
        ends[rounding] = mean_of(run(tx, params, 0.01 * ones, 1500, state), "nu")
    assert ends["nearest"] > 2 * ends["f32"]
    assert [ends["stochastic"], ends["stochastic, float16"]] == pytest.approx([ends["f32"]] * 2, rel=0.03)


def test_state_in_f32_is_computed_in_f32() -> None:
    """The state is that of f32 params and gradients, to the bit."""
    params = cases.arrays(jnp.bfloat16)
    grads = cases.cast(cases.gradient(params), jnp.bfloat16)
    held = run(tko.dtype_preserving(optax.adamw(0.01), state_dtype=jnp.float32), params, grads, 20)
    wide = run(tko.adamw(0.01), cases.cast(params, F32), cases.cast(grads, F32), 20)
    assert same_bits(held, wide)


def test_state_is_computed_in_f32_and_only_then_rounded() -> None:
    """One step: each value is a bf16 neighbour of what f32 gives from the same state."""
    params = {"w": jnp.linspace(-1, 1, 6000).reshape(60, 100).astype(jnp.bfloat16)}
    grads = jax.tree.map(lambda x: (0.3 * x + 0.5).astype(jnp.bfloat16), params)
    tx = stochastic(optax.adam(0.01))
    state = run(tx, params, grads, 3)
    after = run(tx, params, grads, 1, state)
    nu, after = (optax.tree.get(x, "nu")["w"].astype(jnp.float32) for x in (state, after))
    exact = 0.999 * nu + 0.001 * grads["w"].astype(jnp.float32) ** 2
    assert bool((jnp.abs(after - exact) < 2**-7 * exact).all())
    assert bool(jnp.any(after > exact)) and bool(jnp.any(after < exact))
    assert float(jnp.mean((after - exact) / exact)) == pytest.approx(0, abs=2**-7 / 60)


def test_a_hyperparameter_in_the_state_is_not_narrowed() -> None:
    """In bf16, b2 = 0.999 would be 1, and the first update NaN."""
    params = cases.arrays()
    for rounding in ("nearest", "stochastic"):
        tx = tko.dtype_preserving(tko.inject_hyperparams(optax.adam)(0.1), state_dtype=jnp.bfloat16, rounding=rounding)
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


def test_under_vmap_every_member_has_its_own_state() -> None:
    stacked = jnp.stack([jnp.full(64, 0.1), jnp.full(64, 3.0)]).astype(jnp.bfloat16)

    def train(params: Any) -> Any:
        return run(stochastic(optax.adam(0.01)), params, params, 10)

    alone = [train(stacked[i]) for i in range(2)]
    assert same_bits(jax.vmap(train)(stacked), jax.tree.map(lambda *xs: jnp.stack(xs), *alone))


@pytest.mark.parametrize("state_dtype", [None, {"mu": jnp.int8, "nu": jnp.uint8}], ids=["16 bits", "8 bits"])
def test_optax_finds_its_way_in_the_state(state_dtype: Any) -> None:
    params = {"w": jnp.ones((64, 64), BF16), "b": jnp.ones(3, BF16)}
    tx = stochastic(optax.adam(0.1), state_dtype=state_dtype)
    state = run(tx, params, params, 3)
    assert int(optax.tree.get(state, "count")) == int(state.rounding_count) == 3
    names = {"w": "W", "b": "B"}
    named = tko.tree_map_params(tx, lambda _, name: name, state, names, transform_non_params=lambda _: "other")
    assert optax.tree.get(named, "nu") == names
    assert named.rounding_count == "other"
    zeroed = optax.tree.set(state, mu=jax.tree.map(jnp.zeros_like, params))
    assert mean_of(zeroed, "mu") == 0


def test_f32_state_is_not_touched() -> None:
    params = cases.arrays()
    found = run(stochastic(optax.adam(0.1)), params, params, 5).inner_state
    assert same_bits(found, run(tko.adam(0.1), params, params, 5))


@pytest.mark.parametrize("state_dtype", [None, jnp.float32])
def test_updates_are_rounded_stochastically_too(state_dtype: Any) -> None:
    """A weight decay that is less than half a unit of the update it is added to arrives all the same."""
    params, signs = jnp.full(40_000, 0.15, BF16), jnp.where(jnp.arange(40_000) % 2, 1, -1).astype(BF16)
    tx = optax.chain(optax.scale_by_sign(), optax.add_decayed_weights(0.01))
    ours = stochastic(tx, state_dtype=state_dtype)
    updates, _ = jax.jit(ours.update)(signs, ours.init(params), params)
    assert updates.dtype == BF16
    mean = float(jnp.mean(updates.astype(F32) - signs.astype(F32)))
    assert mean == pytest.approx(0.01 * float(params[0]), rel=0.1)


@pytest.mark.parametrize("state_dtype", [None, {"trace": jnp.int8}], ids=["16 bits", "8 bits"])
def test_a_step_can_be_differentiated(state_dtype: Any) -> None:
    """As one learns a learning rate: the derivative is that of the step in f32."""

    def end(rate: jax.Array) -> jax.Array:
        inner = optax.chain(optax.scale_by_learning_rate(rate), optax.trace(0.5))
        tx = stochastic(inner, state_dtype=state_dtype)
        params, grads = jnp.ones((64, 64), BF16), jnp.full((64, 64), 0.5)
        _, state = tx.update(grads, tx.init(params), params)
        updates, _ = tx.update(grads, state, params)
        return jnp.sum(tko.apply_updates(params, updates, key=jax.random.key(0)).astype(jnp.float32))

    derivative = -0.75 if state_dtype is None else -0.5  # codes have none
    assert float(jax.grad(end)(jnp.float32(0.1))) / 64**2 == pytest.approx(derivative)


def test_a_bad_key_and_a_complex_update_are_errors_that_say_so() -> None:
    wrong: Any = 0
    with pytest.raises(TypeError, match=r"key must be one key, such as jax\.random\.key\(0\); found 0"):
        tko.apply_updates(jnp.ones(2), jnp.ones(2), key=wrong)
    with pytest.raises(TypeError, match=r"complex64 for a leaf of dtype bfloat16"):
        tko.apply_updates(jnp.ones(2, BF16), jnp.ones(2, jnp.complex64), key=jax.random.key(0))


def test_a_state_without_rounding_goes_on_as_the_inner_state() -> None:
    params = jnp.ones(4, BF16)
    state: Any = stochastic(optax.adam(0.1)).init(params)
    plain = optax.adam(0.1).init(params)
    updates, _ = stochastic(optax.adam(0.1)).update(params, state._replace(inner_state=plain), params)
    assert updates.dtype == BF16
