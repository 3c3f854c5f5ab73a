"""conditionally_transform and conditionally_mask: steps that run the inner transformation, and steps that do not."""

import jax
import jax.numpy as jnp
import pytest

from tests.optax import cases
from treekit import optax as tko


@pytest.mark.parametrize("wrap", ["conditionally_transform", "conditionally_mask"])
def test_conditionally_with_gradients_narrower_than_their_params(wrap: str) -> None:
    params, grads = {"w": jnp.ones(2)}, {"w": jnp.ones(2, jnp.bfloat16)}
    tx = getattr(tko, wrap)(tko.adam(0.1), lambda step: step >= 1)
    update = jax.jit(tx.update)
    held, state = update(grads, tx.init(params), params)
    run, _ = update(grads, state, params)
    assert held["w"].dtype == run["w"].dtype == jnp.float32
    assert (held["w"] == (1 if wrap == "conditionally_transform" else 0)).all()
    assert (run["w"] < 0).all()


@pytest.mark.parametrize("wrap", ["conditionally_transform", "conditionally_mask"])
def test_conditionally_leaves_what_filtered_freezes_frozen(wrap: str) -> None:
    params = cases.arrays()
    tx = getattr(tko, wrap)(tko.filtered(tko.sgd(0.1), {"w": True, "b": False}), lambda step: step >= 1)
    state = tx.init(params)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(params, state, params)
        assert updates["b"] is None and updates["w"].shape == params["w"].shape
