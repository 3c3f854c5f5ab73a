"""lbfgs: on raw models, in any floating dtype, inside scan, traced once."""

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.optax import cases
from tests.releases import enable_x64
from treekit import optax as tko
from treekit import training
from treekit.training import StateError


def fit(model: cases.Model) -> jax.Array:
    """The loss of a small regression."""
    x = jnp.linspace(-1, 1, 16).reshape(8, 2).astype(model.mlp.layers[0].weight.dtype)
    return jnp.mean((jax.vmap(model)(x)[:, 0] - x[:, 0] * x[:, 1]).astype(jnp.float32) ** 2)


def train(tx: Any, model: Any, loss: Callable[[Any], jax.Array], steps: int) -> tuple[Any, Any, list[float]]:
    """The model, the state and the losses."""
    losses = [float(loss(model))]

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        value, grad = eqx.filter_value_and_grad(loss)(model)
        updates, state = tx.update(grad, state, model, value=value, grad=grad, value_fn=loss)
        return tko.apply_updates(model, updates), state

    state = tx.init(model)
    for _ in range(steps):
        model, state = step(model, state)
        losses.append(float(loss(model)))
    return model, state, losses


def vectors(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim <= 1, params)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda tx: tx,
    "masked": lambda tx: optax.chain(tko.masked(tx, cases.mask_of), tko.transforms.freeze(vectors)),
    "partition": lambda tx: tko.partition({True: tx, False: optax.set_to_zero()}, cases.mask_of),
    "selective_transform": lambda tx: tko.transforms.selective_transform(tx, freeze_mask=False),
    "dtype_preserving": lambda tx: training.store_state(tx),
    "multi_steps": lambda tx: tko.MultiSteps(tx, 1).gradient_transformation(),
    "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 2),
    "twice": lambda tx: tko.masked(tko.partition({"a": tx}, "a"), True),
}


@pytest.mark.table
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_loss_of_a_raw_model_falls_through_every_wrapper(wrapper: str) -> None:
    """The search sees the whole model, and what it does not train stays."""
    model = cases.model()
    after, _, losses = train(WRAPPERS[wrapper](tko.lbfgs()), model, fit, 8)
    assert losses[-1] < 0.7 * losses[0]
    assert all(b <= a * 1.001 for a, b in itertools.pairwise(losses)), "never up, but by rounding"
    assert after.name == "model" and after.dropout.p == 0.25


DTYPES = [(dtype, dtype) for dtype in (jnp.bfloat16, jnp.float16, jnp.float64)] + [(jnp.float64, jnp.float32)]


@pytest.mark.table
@pytest.mark.parametrize("of_w, of_b", DTYPES)
def test_every_floating_dtype_or_two_at_once(of_w: Any, of_b: Any) -> None:
    with enable_x64(jnp.float64 in (of_w, of_b)):
        params = {"w": cases.matrix().astype(of_w), "b": jnp.ones(2, of_b)}
        tx = tko.lbfgs()
        after, state, losses = train(tx, params, cases.loss, 4)
        assert losses[-1] < losses[0]
        _, grads = tko.value_and_grad_from_state(cases.loss)(after, state=state)
        assert cases.signature((after, grads, state)) == cases.signature((params, params, tx.init(params)))


@pytest.mark.usefixtures("nans")  # Optax divides 0 by 0 in the first step, and does not use it
def test_a_value_in_another_dtype_than_the_state_s_is_cast() -> None:
    params = cases.arrays()
    tx = tko.lbfgs()
    grads = cases.gradient(params)
    value = cases.loss(params).astype(jnp.float16)
    extra = {"value": value, "grad": grads, "value_fn": lambda p: cases.loss(p).astype(jnp.float16)}
    _, state = tx.update(grads, tx.init(params), params, **extra)
    assert cases.signature(state) == cases.signature(tx.init(params))


@pytest.mark.table
@pytest.mark.parametrize("wrapper", ["bare", "selective_transform", "masked", "partition", "dtype_preserving"])
def test_value_and_grad_come_from_the_state_on_raw_models(wrapper: str) -> None:
    """From the second step on, the function returns 0, so what is computed again is wrong; a part is computed."""
    model = cases.model()
    tx = WRAPPERS[wrapper](tko.lbfgs())
    is_part = wrapper in ("masked", "partition")
    calls: list[int] = []

    def scaled(model: Any, factor: Any, *, shift: float) -> Any:
        return factor * fit(model) + shift

    @eqx.filter_jit
    def step(model: Any, state: Any, factor: Any) -> Any:
        calls.append(1)
        value, grad = tko.value_and_grad_from_state(scaled)(model, factor, state=state, shift=0.0)
        updates, state = tx.update(grad, state, model, value=value, grad=grad, value_fn=fit)
        return tko.apply_updates(model, updates), state, value, grad

    state = tx.init(model)
    for number in range(4):
        want_value, want_grad = eqx.filter_value_and_grad(fit)(model)
        model, state, value, grad = step(model, state, jnp.float32(is_part or number == 0))
        np.testing.assert_allclose(value, want_value, rtol=1e-5)
        cases.assert_close(grad, want_grad, rtol=1e-3)
    assert len(calls) == 1


def test_value_and_grad_are_computed_where_a_subtree_is_masked_out() -> None:
    params = {"a": jnp.ones(2), "b": {"c": jnp.ones(3)}}
    state = tko.masked(tko.lbfgs(), {"a": True, "b": False}).init(params)
    value, grad = tko.value_and_grad_from_state(cases.loss)(params, state=state)
    cases.assert_close((value, grad), jax.value_and_grad(cases.loss)(params))


def test_the_value_that_a_line_search_found_is_unknown_where_a_parameter_has_no_update() -> None:
    def loss(params: Any) -> Any:
        return jnp.sum((params["w"] - 3) ** 2) + jnp.sum((params["b"] * params["w"] - 5) ** 2)

    params: Any = {"w": jnp.ones(1), "b": jnp.ones(1)}
    tx = tko.lbfgs()
    state = tx.init(params)
    for missing in ({}, {"b": None}):
        value, grads = jax.value_and_grad(loss)(params)
        grads |= missing
        updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=loss)
        params = tko.apply_updates(params, updates)
        found = tko.value_and_grad_from_state(loss)(params, state=state)
        cases.assert_close(found, jax.value_and_grad(loss)(params), rtol=1e-4)


def test_params_may_be_called_as_the_fields_of_the_state_are() -> None:
    params = {"value": jnp.ones(2), "grad": jnp.ones(3)}
    tx = tko.lbfgs()
    state = tx.init(params)
    for _ in range(2):
        value, grad = tko.value_and_grad_from_state(cases.loss)(params, state=state)
        cases.assert_close((value, grad), jax.value_and_grad(cases.loss)(params))
        updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=cases.loss)
        params = tko.apply_updates(params, updates)


def test_a_state_with_another_memory_does_not_fit() -> None:
    """Optax would read and write entries that it does not have."""
    params = jnp.ones(2)
    for then, now in ((2, 3), (3, 2)):
        state = tko.lbfgs(memory_size=then, linesearch=None).init(params)
        with pytest.raises(StateError, match=f"memory of {then} .*memory_size={now}"):
            tko.lbfgs(memory_size=now, linesearch=None).update(params, state, params)


def test_without_a_line_search_the_argument_grad_is_not_read() -> None:
    """Another transformation may have changed the shapes of the params."""
    params, tx = cases.matrix(), tko.flatten(tko.lbfgs(0.1, linesearch=None))
    state = tx.init(params)
    assert cases.same_bits(tx.update(params, state, params, grad=params), tx.update(params, state, params))


def test_a_missing_gradient_is_as_a_zero_gradient_since_each_pair_of_steps_is_of_all_params() -> None:
    def loss(params: Any) -> Any:
        return jnp.sum((params["a"] - 1.5) ** 2) + jnp.sum((params["b"] * params["a"]) ** 2)

    def trained(missing: Any) -> Any:
        params: Any = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([3.0, 4.0])}
        tx: Any = tko.lbfgs(memory_size=2)
        state = tx.init(params)
        for _ in range(6):
            value, grads = jax.value_and_grad(loss)(params)
            grads = grads | {"b": missing}
            updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=loss)
            params = tko.apply_updates(params, updates)
        return params["a"], state[0]

    assert not tk.tree_diff(trained(None), trained(jnp.zeros(2)))
