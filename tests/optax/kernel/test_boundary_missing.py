"""A parameter without a gradient does not change, and neither do its moments."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.releases import needs
from treekit import optax as tko
from treekit import training

MOVING: dict[str, Callable[[], Any]] = {
    "adamw": lambda: tko.adamw(0.1, weight_decay=0.5),
    "momentum": lambda: tko.chain(tko.add_decayed_weights(0.1), tko.sgd(0.1, momentum=0.9)),
    "adafactor": lambda: tko.adafactor(0.1, min_dim_size_to_factor=1),
    "partition": lambda: tko.partition({"a": tko.adamw(0.1), "b": tko.lion(0.1)}, {"w": "a", "b": "b"}),
    "inject": lambda: tko.inject_hyperparams(tko.adamw)(0.1),
    "finite": lambda: tko.apply_if_finite(tko.masked(tko.adamw(0.1), True), 2),
    "schedule_free": lambda: tko.contrib.schedule_free_adamw(0.1, weight_decay=0.5),
    "optax": lambda: tko.chain(optax.adamw(0.1, weight_decay=0.5)),
}
START = {"w": jnp.ones((2, 3)), "b": jnp.full(3, 2.0)}


def taken(tx: Any, gradients: list[float | None], jitted: bool = True) -> tuple[Any, Any]:
    """Return the params and the state after steps with these gradients of "b"."""
    params: Any = START
    state = tx.init(params)
    update = jax.jit(tx.update) if jitted else tx.update
    for i, b in enumerate(gradients):
        grads = {"w": jnp.full((2, 3), 0.5 + i), "b": None if b is None else jnp.full(3, b)}
        updates, state = update(grads, state, params)
        params = tko.apply_updates(params, updates)
    return params, state


def of(param: str, state: Any) -> Any:
    return {name: x for name, x in tk.to_state_dict(state).items() if name.endswith(f".{param}")}


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("name", MOVING)
def test_neither_it_nor_its_moments_change_and_the_others_do_as_by_zeros(name: str, jitted: bool) -> None:
    """But for rates and estimates that parameters share, which these do not have."""
    tx = MOVING[name]()
    before, state = taken(tx, [1.0], jitted)
    after, later = taken(tx, [1.0, None, None], jitted)
    np.testing.assert_array_equal(after["b"], before["b"])
    assert of("b", state) and not tk.tree_diff(of("b", state), of("b", later))
    by_zeros, of_zeros = taken(tx, [1.0, 0.0, 0.0], jitted)
    np.testing.assert_array_equal(after["w"], by_zeros["w"])
    assert of("w", later) and not tk.tree_diff(of("w", later), of("w", of_zeros))


ROUNDS: dict[str, tuple[list[float | None], list[float | None]]] = {
    "then missing": ([1.0, None], [1.0, 0.0]),
    "first missing": ([None, 1.0], [0.0, 1.0]),
    "in the second round": ([1.0, 1.0, None, 1.0], [1.0, 1.0, 0.0, 1.0]),
    "in a whole round": ([1.0, 1.0, None, None], [1.0, 1.0, 0.0, 0.0]),
}
WITH_ROUNDS: dict[str, Callable[[Any], Any]] = {
    "outermost": lambda ms: ms,
    "chain": lambda ms: tko.chain(tko.clip(10.0), ms),
    "after a momentum": lambda ms: tko.chain(tko.trace(0.9), ms),
    "masked": lambda ms: tko.masked(ms, True),
}


@pytest.mark.table
@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("wrap", WITH_ROUNDS)
@pytest.mark.parametrize("name", ROUNDS)
def test_multi_steps_counts_a_missing_gradient_as_zero(name: str, wrap: str, jitted: bool) -> None:
    tx = WITH_ROUNDS[wrap](tko.MultiSteps(tko.adamw(0.1, weight_decay=0.5), 2))
    found, expected = (taken(tx, gradients, jitted) for gradients in ROUNDS[name])
    assert not tk.tree_diff(found, expected, rtol=1e-6)


def test_a_parameter_is_held_by_what_is_beside_multi_steps() -> None:
    """Each group of a partition as its own optimizer does."""
    groups: Any = {"w": tko.MultiSteps(tko.sgd(1.0), 1), "b": tko.adam(0.1)}
    tx = tko.partition(groups, {"w": "w", "b": "b"})
    grads: Any = {"w": None, "b": None}
    updates, state = tx.update(grads, tx.init(START), START)
    assert updates["b"] is None and (updates["w"] == 0).all()
    assert not tk.tree_diff(of("b", state), of("b", tx.init(START)))


# ----------------------------------------------------------------------------------- state that follows the params


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize(
    "wrap", [lambda ema: ema, lambda ema: tko.masked(ema, True), lambda ema: tko.partition({"a": ema}, "a")]
)
def test_an_average_of_the_params_follows_them_without_a_gradient(wrap: Callable[[Any], Any], jitted: bool) -> None:
    """`v` is 1 after each of five steps, of which only the first has a gradient."""
    params: Any = {"v": jnp.zeros(()), "w": jnp.zeros(())}
    tx = tko.chain(wrap(training.params_ema(0.5)), tko.sgd(1.0))
    state = tx.init(params)
    update = jax.jit(tx.update) if jitted else tx.update
    for i in range(5):
        updates, state = update({"v": -jnp.ones(()) if i == 0 else None, "w": -jnp.ones(())}, state, params)
        params = tko.apply_updates(params, updates)
    average = training.get_params_ema(state, params)
    weights = 0.5 ** np.arange(5)[::-1]
    np.testing.assert_allclose(average["v"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(average["w"], np.average(np.arange(1, 6), weights=weights), rtol=1e-6)


def test_sam_takes_back_what_it_did_to_a_parameter_without_a_gradient_in_the_last_update() -> None:
    tx = tko.contrib.sam(tko.sgd(0.5), tko.sgd(0.1), sync_period=2)
    params: Any = {"v": jnp.ones(()), "w": jnp.ones(())}
    state = tx.init(params)
    for i in range(4):
        grad = None if i % 2 else jnp.ones(())
        updates, state = tx.update({"v": grad, "w": jnp.ones(())}, state, params)
        params = tko.apply_updates(params, updates)
    np.testing.assert_allclose([params["v"], params["w"]], [1.0, 0.0], atol=1e-6)


def test_the_params_that_sam_puts_back_are_those_of_the_last_step() -> None:
    tx = tko.contrib.sam(tko.sgd(0.5), tko.sgd(0.1), sync_period=2)
    params: Any = {"v": jnp.zeros(()), "w": jnp.zeros(())}
    state = tx.init(params)
    for i in range(4):
        params = {**params, "v": jnp.asarray(float(i))}  # something else moves it
        updates, state = tx.update({"v": None, "w": jnp.ones(())}, state, params)
        params = tko.apply_updates(params, updates)
        cache = state.cache["v"]
        assert float(cache) == (i // 2) * 2  # the params at the start of the period


@needs("optax.monitor")
def test_a_measurement_by_names_of_params_is_of_no_param() -> None:
    params = {"w": jnp.ones(()), "b": jnp.ones(())}
    tx = tko.monitor({"w": lambda updates: updates["w"], "b": lambda updates: 2 * updates["w"]})
    state = tx.init(params)
    _, state = tx.update({"w": jnp.full((), 3.0), "b": None}, state, params)
    assert {name: float(x) for name, x in state.measurements.items()} == {"w": 3.0, "b": 6.0}
