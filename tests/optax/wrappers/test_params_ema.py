"""params_ema and get_ema: the debiased average of the params, wherever in the optimizer it is kept."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.optax import cases
from treekit import optax as tko


def expected(history: list[Any], decay: float) -> Any:
    """By the definition, in float64."""
    weights = np.array([decay ** (len(history) - 1 - i) for i in range(len(history))])
    return sum(w * np.asarray(x).astype(np.complex128) for w, x in zip(weights, history, strict=True)) / weights.sum()


def train(tx: Any, params: Any, steps: int, kind: str = "f32") -> tuple[list[Any], Any]:
    """The params after each step, and the state."""

    @eqx.filter_jit
    def step(params: Any, state: Any) -> Any:
        grads = cases.grads_of(kind, params)
        updates, state = tx.update(grads, state, params)
        return tko.apply_updates(params, updates), state

    state = tx.init(params)
    history = []
    for _ in range(steps):
        params, state = step(params, state)
        history.append(params)
    return history, state


KINDS = ["f32", "c64", "none", "bare", "namedtuple", "eqx_raw", "node", "legacy", "nnx", "linen", "int_key"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_it_is_the_debiased_average_of_the_params(kind: str, decay: float) -> None:
    params = cases.make(kind)
    history, state = train(tko.chain(tko.sgd(0.1), tko.params_ema(decay)), params, 4, kind)
    average = tko.get_ema(state, history[-1])
    assert cases.signature(average)[0] == cases.signature(history[-1])[0]
    for x, *xs in zip(jax.tree.leaves(average), *map(jax.tree.leaves, history), strict=True):
        if eqx.is_inexact_array(x):
            np.testing.assert_allclose(x, expected(xs, decay), rtol=2e-6)
        else:
            assert x is xs[-1] or bool(jnp.all(x == xs[-1]))


@pytest.mark.parametrize("kind", ["f32", "bf16", "eqx_bf16", "nnx", "c64"])
def test_laws(kind: str) -> None:
    _, state = cases.check_laws(tko.chain(tko.adam(0.01), tko.params_ema(0.9)), kind)
    ema = tko.get_ema(state)
    assert all(x.dtype in (jnp.float32, jnp.complex64) for x in jax.tree.leaves(ema))
    cases.check_laws(tko.filtered(tko.chain(tko.adam(0.01), tko.params_ema(0.9))), kind, steps=2)


def test_updates_pass_and_plain_optax_takes_it() -> None:
    params = cases.arrays()
    tx = optax.chain(optax.sgd(0.1), tko.params_ema(0.0))
    updates, state = tx.update(params, tx.init(params), params)
    cases.assert_close(updates, jax.tree.map(lambda x: -0.1 * x, params))
    cases.assert_close(tko.get_ema(state), optax.apply_updates(params, updates))


def test_before_the_first_step_it_is_the_params() -> None:
    params = cases.arrays(jnp.bfloat16)
    tx = tko.params_ema(0.9)
    ema = tko.get_ema(tx.init(params))
    cases.assert_close(ema, cases.cast(params, jnp.float32))


def test_of_bf16_params_it_is_kept_in_f32() -> None:
    """What rounding to nearest loses of an update, the average does not."""
    params = jnp.ones(2, jnp.bfloat16)
    tx = tko.params_ema(0.0)
    updates, state = tx.update(jnp.full(2, 1e-4, jnp.float32), tx.init(params), params)
    assert (tko.apply_updates(params, updates) == params).all()
    assert tko.get_ema(state)[0] == np.float32(1) + np.float32(1e-4)
    assert tko.get_ema(state, params).dtype == jnp.bfloat16


def test_with_stochastic_rounding_its_mean_is_that_of_the_params() -> None:
    params = jnp.ones(20_000, jnp.bfloat16)
    tx = tko.params_ema(0.9)
    state = tx.init(params)
    total = 0.0
    for i in range(5):
        updates, state = tx.update(jnp.full(20_000, 1e-3, jnp.float32), state, params)
        params = tko.apply_updates(params, updates, key=jax.random.key(i))
        total = 0.9 * total + float(params.astype(jnp.float32).mean())
    weights = sum(0.9**i for i in range(5))
    assert float(tko.get_ema(state).mean()) == pytest.approx(total / weights, abs=1e-4)


def test_inside_multi_steps_it_is_once_a_round() -> None:
    tx = tko.MultiSteps(tko.chain(tko.sgd(0.1), tko.params_ema(0.5)), 2).gradient_transformation()
    history, state = train(tx, cases.arrays(), 6)
    assert int(optax.tree.get(state, "ema_count")) == 3
    rounds = [jax.tree.map(np.asarray, params) for params in history[1::2]]
    for key in ("w", "b"):
        np.testing.assert_allclose(tko.get_ema(state)[key], expected([p[key] for p in rounds], 0.5), rtol=2e-6)


@pytest.mark.usefixtures("nans")
def test_where_an_update_is_skipped_so_is_the_average() -> None:
    tx = tko.apply_if_finite(tko.chain(tko.sgd(0.1), tko.params_ema(0.5)), 3)
    params = cases.arrays()
    _, state = tx.update(params, tx.init(params), params)
    _, after = tx.update(jax.tree.map(lambda x: x * jnp.nan, params), state, params)
    cases.assert_close(tko.get_ema(after), tko.get_ema(state))


def test_the_decay_may_be_injected() -> None:
    tx = tko.chain(tko.sgd(0.1), tko.inject_hyperparams(tko.params_ema)(0.5))
    history, state = train(tx, cases.arrays(), 3)
    np.testing.assert_allclose(tko.get_ema(state)["w"], expected([p["w"] for p in history], 0.5), rtol=2e-6)


def test_what_masked_leaves_out_is_taken_from_the_params() -> None:
    model = cases.model()
    tx = tko.chain(tko.sgd(0.1), tko.masked(tko.params_ema(0.5), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)))
    history, state = train(tx, model, 3)
    average = tko.get_ema(state, history[-1])
    assert average.mlp.layers[0].bias is history[-1].mlp.layers[0].bias
    weights = [m.mlp.layers[0].weight for m in history]
    np.testing.assert_allclose(average.mlp.layers[0].weight, expected(weights, 0.5), rtol=2e-6)
    assert average(jnp.ones(2)).shape == (1,)


def test_in_flax_s_optimizer() -> None:
    model: Any = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    optimizer: Any = nnx.Optimizer(model, tko.chain(tko.sgd(0.5), tko.params_ema(0.0)), wrt=nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    params = nnx.as_pure(nnx.state(model, nnx.Param))
    cases.assert_close(nnx.as_pure(tko.get_ema(optimizer.opt_state)), params)
    cases.assert_close(tko.get_ema(nnx.as_pure(optimizer.opt_state), params), params)


def test_the_state_can_be_donated() -> None:
    params = cases.arrays()
    tx = tko.params_ema(0.9)
    state = tx.init(params)
    jitted = jax.jit(tx.update, donate_argnums=1)
    for _ in range(2):
        _, state = jitted(params, state, params)
    cases.assert_close(tko.get_ema(state), jax.tree.map(lambda x: 2 * x, params))


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("decay", [1, 1.0, -0.1, 2])
def test_a_decay_out_of_range(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay must be at least 0 and less than 1, found {decay}"):
        tko.params_ema(decay)


def test_it_needs_the_params() -> None:
    tx = tko.params_ema(0.9)
    with pytest.raises(ValueError, match="params_ema averages the params, so update needs them"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))


EMA = tko.params_ema(0.5)
GROUPS = {"w": "a", "b": "b"}
# With a state of one of these, get_ema returns the average of the params, or raises.
LAST: dict[str, Callable[[], Any]] = {
    "chain": lambda: tko.chain(tko.sgd(0.1), EMA),
    "chain_of_optax": lambda: optax.chain(optax.clip(1.0), optax.chain(optax.sgd(0.1), EMA)),
    "named_chain": lambda: tko.named_chain(("sgd", tko.sgd(0.1)), ("ema", EMA)),
    "named_chain_of_optax": lambda: optax.named_chain(("sgd", optax.sgd(0.1)), ("ema", EMA)),
    "rounds": lambda: tko.MultiSteps(tko.chain(tko.sgd(0.1), EMA), 1),
    "rounds_of_optax": lambda: optax.MultiSteps(optax.chain(optax.sgd(0.1), EMA), 1).gradient_transformation(),
    "groups": lambda: tko.partition({x: tko.chain(tko.sgd(0.1), EMA) for x in "ab"}, GROUPS),
    "groups_of_optax": lambda: optax.partition({x: optax.chain(optax.sgd(0.1), EMA) for x in "ab"}, GROUPS),
    "one_group": lambda: tko.partition({"a": tko.chain(tko.sgd(0.1), EMA), "b": tko.sgd(0.1)}, GROUPS),
    "masked": lambda: tko.chain(tko.masked(tko.chain(tko.sgd(0.1), EMA), True)),
    "if_finite": lambda: tko.apply_if_finite(tko.chain(tko.sgd(0.1), EMA), 3),
    "around_schedule_free": lambda: tko.chain(tko.contrib.schedule_free_sgd(0.1), EMA),
}  # fmt: skip
NOT_LAST: dict[str, Callable[[], Any]] = {
    "chain": lambda: tko.chain(EMA, tko.scale(2.0)),
    "chain_of_optax": lambda: optax.chain(optax.clip(1.0), optax.chain(optax.sgd(1.0), EMA, optax.scale(0.1))),
    "two": lambda: tko.chain(EMA, EMA, tko.scale(2.0)),
    "nested": lambda: tko.chain(tko.chain(tko.sgd(1.0), EMA), tko.scale(2.0)),
    "nested_in_optax": lambda: optax.chain(optax.chain(optax.sgd(1.0), EMA), optax.scale(2.0)),
    "named_chain": lambda: tko.named_chain(("ema", EMA), ("sgd", tko.sgd(0.1))),
    "named_chain_of_optax": lambda: optax.named_chain(("ema", EMA), ("sgd", optax.sgd(0.1))),
    "masked": lambda: tko.chain(tko.masked(tko.chain(tko.sgd(1.0), EMA), True), tko.scale(2.0)),
    "rounds": lambda: tko.MultiSteps(tko.chain(EMA, tko.sgd(1.0)), 2),
    "after_rounds": lambda: tko.chain(tko.MultiSteps(EMA, 2), tko.scale(2.0)),
    "groups": lambda: tko.chain(tko.partition({"a": EMA, "b": EMA}, GROUPS), tko.sgd(1.0)),
    "in_a_group": lambda: tko.partition({"a": EMA, "b": tko.chain(EMA, tko.sgd(1.0))}, GROUPS),
    "if_finite": lambda: tko.apply_if_finite(tko.chain(EMA, tko.sgd(1.0)), 3),
    "in_schedule_free": lambda: optax.contrib.schedule_free(optax.chain(optax.sgd(0.1), EMA), 0.1),
    "in_mechanic": lambda: optax.contrib.mechanize(optax.chain(optax.sgd(0.1), EMA)),
    "in_sam": lambda: optax.contrib.sam(optax.chain(optax.sgd(0.1), EMA), optax.sgd(0.1)),
    "in_lookahead": lambda: optax.lookahead(optax.chain(optax.sgd(0.1), EMA), 2, 0.5),
}


@pytest.mark.parametrize("name", LAST)
def test_anywhere_in_a_state_it_is_the_average_of_the_params(name: str) -> None:
    history, state = train(LAST[name](), {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, 3)
    average = tko.get_ema(state, history[-1])
    np.testing.assert_allclose(average["w"], expected([p["w"] for p in history], 0.5), rtol=2e-6)
    averaged = history[-1:] if name == "one_group" else history
    np.testing.assert_allclose(average["b"], expected([p["b"] for p in averaged], 0.5), rtol=2e-6)


@pytest.mark.parametrize("name", NOT_LAST)
def test_where_the_params_do_not_get_its_updates_reading_it_is_an_error(name: str) -> None:
    params: Any = {"w": jnp.ones(2), "b": jnp.ones(2)}
    params = optax.LookaheadParams(params, params) if name == "in_lookahead" else params
    with pytest.raises(ValueError, match=r"params_ema is at .* of the state, .*[pP]ut (it last|params_ema around it)"):
        tko.get_ema(NOT_LAST[name]().init(params))


def test_averages_of_different_decays_may_follow_each_other() -> None:
    tx = tko.chain(tko.sgd(1.0), EMA, tko.params_ema(0.9))
    state = tx.init(cases.arrays())
    for params in (None, cases.arrays()):
        with pytest.raises(ValueError, match=r"several averages of the params, at 1, 2"):
            tko.get_ema(state, params)
    cases.assert_close(tko.get_ema(state[1]), cases.arrays())


def test_a_state_without_it_and_one_with_several() -> None:
    params = cases.arrays()
    with pytest.raises(ValueError, match=r"no average of the params: optax.chain\(optimizer, optax.params_ema"):
        tko.get_ema(tko.chain(tko.adam(0.1), tko.ema(0.9)).init(params))
    tx = tko.partition({"a": tko.params_ema(0.9), "b": tko.params_ema(0.9)}, {"w": "a", "b": "b"})
    with pytest.raises(ValueError, match=r"several .* at inner_states\.a\.inner_state, inner_states\.b"):
        tko.get_ema(tx.init(params))


def test_params_of_another_structure() -> None:
    state = tko.params_ema(0.9).init(cases.arrays())
    with pytest.raises(ValueError, match=r"(?s)does not fit the tree that was found in the state.*\bw\b"):
        tko.get_ema(state, {"w": {"x": jnp.ones(2)}, "b": jnp.ones(2)})


@pytest.mark.parametrize("decay", [jnp.ones(2), jnp.array(0.5j)])
def test_a_decay_that_is_not_a_real_number_is_an_error(decay: Any) -> None:
    with pytest.raises(TypeError, match="decay must be a real number"):
        tko.params_ema(decay)


def test_a_decay_that_is_an_array_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 0 and less than 1"):
        tko.params_ema(jnp.array(1.0))


def test_the_average_of_an_nnx_optimizer_for_its_model() -> None:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tko.chain(tko.sgd(0.1), tko.params_ema(0.5)), wrt=nnx.Param)
    start = jax.tree.map(jnp.copy, nnx.state(model, nnx.Param))
    optimizer.update(model, jax.tree.map(jnp.ones_like, start))
    average = tko.get_ema(optimizer.opt_state, nnx.state(model, nnx.Param))
    cases.assert_close(jax.tree.leaves(average), jax.tree.leaves(nnx.state(model, nnx.Param)))
    of_module = tko.get_ema(optimizer.opt_state, model)
    assert isinstance(of_module, nnx.Linear)
    with pytest.raises(ValueError, match="the tree that was found in the state"):
        tko.get_ema(optimizer.opt_state, {"x": jnp.ones(2)})
