"""`lookahead` on whole models, as Optax's page shows it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same


def train(o: Any, model: Any, grads_of: Any, *, reset_state: bool, steps: int = 5) -> Any:
    tx = o.lookahead(o.adam(0.1), sync_period=2, slow_step_size=0.5, reset_state=reset_state)
    params = o.LookaheadParams.init_synced(model)
    state = tx.init(params)

    @eqx.filter_jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(grads_of(params.fast), state, params)
        return o.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params, state


@pytest.mark.parametrize("kind", ["f32", "bf16", "eqx_raw", "node", "int_key", "none"])
@pytest.mark.parametrize("reset_state", [False, True])
def test_the_numbers_are_those_of_optax_on_the_filtered_model(kind: str, reset_state: bool) -> None:
    model = cases.make(kind)
    arrays, others = eqx.partition(model, eqx.is_inexact_array)
    (fast, slow), state = train(tko, model, cases.gradient, reset_state=reset_state)
    assert cases.structure((fast, slow)) == cases.structure((model, model))
    theirs, state_of_optax = train(
        optax, arrays, lambda p: cases.gradient(eqx.combine(p, others)), reset_state=reset_state
    )
    assert cases.same_bits([eqx.filter(x, eqx.is_inexact_array) for x in (fast, slow)], list(theirs))
    assert cases.structure(state) == cases.structure(state_of_optax)


def test_a_missing_gradient_is_a_zero() -> None:
    params = cases.arrays()

    def grads_of(missing: Any) -> Any:
        return lambda p: {**cases.gradient(p), "b": missing}

    ours = train(tko, params, grads_of(None), reset_state=False)[0]
    assert cases.same_bits(ours.fast["b"], params["b"])
    cases.assert_close(ours, train(tko, params, grads_of(jnp.zeros(2)), reset_state=False)[0])


def test_donated() -> None:
    params = tko.LookaheadParams.init_synced(cases.arrays())
    tx = tko.lookahead(tko.adam(0.1), 2, 0.5)
    state = jax.jit(lambda s: tx.update(cases.gradient(params.fast), s, params)[1], donate_argnums=0)(tx.init(params))
    assert state.steps_since_sync == 1


def test_apply_gradients_takes_a_step_of_the_pair() -> None:
    model = cases.make("eqx_raw")
    tx, params = tko.lookahead(tko.adam(0.1), 1, 0.5), optax.LookaheadParams.init_synced(model)
    grads, state = cases.gradient(model), tx.init(params)
    updates, _ = tx.update(grads, state, params)
    new, _ = training.apply_gradients(tx, grads, state, params)
    assert_trees_same(new, tko.apply_updates(params, updates))


def test_its_state_can_be_mapped() -> None:
    """Optax finds what is like the params by a placeholder for them."""
    tx, params = tko.lookahead(tko.adam(0.1), 1, 0.5), optax.LookaheadParams.init_synced({"w": jnp.ones(2)})
    state: Any = optax.tree.map_params(tx, lambda x: x + 1, tx.init(params))
    assert state.fast_state[0].mu["w"].tolist() == [1.0, 1.0]
