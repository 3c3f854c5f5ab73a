"""A parameter without a gradient does not change, and neither do its moments."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from treekit import optax as tko

MOVING: dict[str, Callable[[], Any]] = {
    "adamw": lambda: tko.adamw(0.1, weight_decay=0.5),
    "momentum": lambda: tko.chain(tko.add_decayed_weights(0.1), tko.sgd(0.1, momentum=0.9)),
    "lion": lambda: tko.lion(0.1),
    "adafactor": lambda: tko.adafactor(0.1, min_dim_size_to_factor=1),
    "masked": lambda: tko.masked(tko.adamw(0.1, weight_decay=0.5), {"w": True, "b": True}),
    "partition": lambda: tko.partition({"a": tko.adamw(0.1), "b": tko.lion(0.1)}, {"w": "a", "b": "b"}),
    "inject": lambda: tko.inject_hyperparams(tko.adamw)(0.1),
    "finite": lambda: tko.apply_if_finite(tko.adamw(0.1), 2),
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
def test_neither_the_parameter_nor_its_moments_change(name: str, jitted: bool) -> None:
    tx = MOVING[name]()
    before, state = taken(tx, [1.0], jitted)
    after, later = taken(tx, [1.0, None, None], jitted)
    np.testing.assert_array_equal(after["b"], before["b"])
    assert of("b", state) and not tk.tree_diff(of("b", state), of("b", later))
    assert (after["w"] != before["w"]).all() and tk.tree_diff(of("w", state), of("w", later))


@pytest.mark.parametrize("name", MOVING)
def test_one_that_never_has_a_gradient_does_not_change_the_others(name: str) -> None:
    """But for rates and estimates that parameters share, which these do not have."""
    tx = MOVING[name]()
    zero, none = (taken(tx, [b] * 3)[0] for b in (0.0, None))
    np.testing.assert_array_equal(none["w"], zero["w"])
    np.testing.assert_array_equal(none["b"], START["b"])


ROUNDS: dict[str, tuple[list[float | None], list[float | None]]] = {
    "then missing": ([1.0, None], [1.0, 0.0]),
    "first missing": ([None, 1.0], [0.0, 1.0]),
    "in the second round": ([1.0, 1.0, None, 1.0], [1.0, 1.0, 0.0, 1.0]),
}
WITH_ROUNDS: dict[str, Callable[[Any], Any]] = {
    "outermost": lambda ms: ms,
    "chain": lambda ms: tko.chain(tko.clip(10.0), ms),
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


@pytest.mark.parametrize("wrap", WITH_ROUNDS)
def test_in_multi_steps_a_parameter_without_a_gradient_in_the_round_moves_as_by_zeros(wrap: str) -> None:
    tx = WITH_ROUNDS[wrap](tko.MultiSteps(tko.adamw(0.1, weight_decay=0.5), 2))
    found, expected = (taken(tx, [1.0, 1.0, *more]) for more in ([None, None], [0.0, 0.0]))
    assert not tk.tree_diff(found, expected, rtol=1e-6)
    assert (found[0]["b"] != taken(tx, [1.0, 1.0])[0]["b"]).all()


def test_a_parameter_is_held_by_what_is_beside_multi_steps() -> None:
    """Each group of a partition as its own optimizer does."""
    groups: Any = {"w": tko.MultiSteps(tko.sgd(1.0), 1), "b": tko.adam(0.1)}
    tx = tko.partition(groups, {"w": "w", "b": "b"})
    grads: Any = {"w": None, "b": None}
    updates, state = tx.update(grads, tx.init(START), START)
    assert updates["b"] is None and (updates["w"] == 0).all()
    assert not tk.tree_diff(of("b", state), of("b", tx.init(START)))


def test_multi_steps_moves_a_parameter_of_earlier_gradients_and_never_a_number() -> None:
    """What it accumulated is never lost, also if the last micro-step of the round has no gradient."""
    tx = tko.MultiSteps(tko.sgd(1.0), 2)
    params = {"w": jnp.ones(2), "rate": 0.5}
    state = tx.init(params)
    updates: Any = None
    for w in (jnp.ones(2), None):
        updates, state = tx.update({"w": w, "rate": None}, state, params)
    assert (updates["w"] == -0.5).all() and updates["rate"] is None
    with pytest.raises(ValueError, match=r"(?s)Pass the params too.*array against None"):
        tx.update({"w": None, "rate": None}, state)


FLOAT0 = {name: np.zeros(x.shape, jax.dtypes.float0) for name, x in START.items()}
# An optimizer, and gradients that are all missing, which raise whatever the optimizer would do with them.
NOTHING: dict[str, tuple[Any, Any]] = {
    "none": (tko.adamw(0.1), None),
    "float0": (tko.sgd(0.1), FLOAT0),
    "MultiSteps": (tko.MultiSteps(tko.sgd(0.1), 2), None),
    "masked": (tko.masked(tko.sgd(0.1), {"w": True, "b": False}), {"w": None, "b": None}),
    "frozen": (tko.partition({0: tko.sgd(0.1), 1: optax.set_to_zero()}, 1), None),
    "filtered": (tko.filtered(tko.adamw(0.1), False), None),
}


@pytest.mark.parametrize("name", NOTHING)
def test_gradients_that_are_all_missing_raise_in_a_whole_step(name: str) -> None:
    tx, grads = NOTHING[name]
    state = tx.init(START)
    with pytest.raises(ValueError, match=r"grads has no gradient.*nothing would be trained"):
        tko.apply_gradients(tx, grads, state, START)
    tx.update(grads, state, START)  # as in Optax


class Buffers(eqx.Module):
    mean: jax.Array = eqx.field(metadata={"trainable": False})


@pytest.mark.parametrize("params", [{}, {"n": 2, "f": jnp.tanh}, Buffers(jnp.ones(2))])
def test_params_without_arrays_that_are_trained_have_no_gradient_to_miss(params: Any) -> None:
    tx = tko.sgd(0.1)
    assert not tk.tree_diff(tko.apply_gradients(tx, None, tx.init(params), params)[0], params)
