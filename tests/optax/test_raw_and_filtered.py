"""A state belongs to the raw model and to the filtered one alike: what init was given, update need not be given."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.optax import cases
from treekit import optax as tko


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "other", params)


def filtered(model: Any) -> Any:
    return eqx.filter(model, eqx.is_inexact_array)


def whole(model: Any) -> Any:
    return model


WRAPPED: dict[str, Callable[[], Any]] = {
    "adam": lambda: tko.adam(0.1),
    "masked": lambda: tko.masked(tko.adamw(0.1), lambda p: jax.tree.map(lambda label: label == "matrix", matrices(p))),
    "partition": lambda: tko.partition({"matrix": tko.adam(0.1), "other": tko.sgd(0.1, momentum=0.9)}, matrices),
    "inject": lambda: tko.inject_hyperparams(tko.adamw)(0.1),
    "apply_if_finite": lambda: tko.apply_if_finite(tko.adam(0.1), 2),
    "MultiSteps": lambda: tko.MultiSteps(tko.adam(0.1), 1).gradient_transformation(),
    "chain": lambda: tko.chain(tko.filtered(tko.trace(0.9)), tko.scale_by_adam()),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("at_init, at_update", [(whole, filtered), (filtered, whole)], ids=["raw_first", "raw_last"])
def test_init_and_update_may_see_either(name: str, at_init: Any, at_update: Any) -> None:
    tx = WRAPPED[name]()
    model: Any = cases.model()
    if name in ("masked", "partition"):
        model = model.mlp  # without the Python float of Dropout, which has a MaskedNode in the state of the raw model
    grads = jax.tree.map(jnp.ones_like, filtered(model))
    state = tx.init(at_init(model))
    updates, new_state = tx.update(grads, state, at_update(model))
    expected, expected_state = tx.update(grads, state, at_init(model))
    assert cases.signature(new_state) == cases.signature(state) == cases.signature(expected_state)
    cases.assert_close(updates, expected)
    params, whole_state = tko.apply_gradients(tx, grads, state, at_update(model))
    assert cases.signature(whole_state) == cases.signature(state)
    cases.assert_close(filtered(params), filtered(tko.apply_updates(at_update(model), updates)))


@pytest.mark.parametrize("name", WRAPPED)
def test_float0_beside_a_state_of_filtered_params_means_none(name: str) -> None:
    tx, params = WRAPPED[name](), {"w": jnp.ones((2, 2)), "n": jnp.arange(2)}
    state = tx.init(filtered(params))
    for missing in (None, np.zeros(2, jax.dtypes.float0)):
        updates, new_state = tx.update({"w": jnp.ones((2, 2)), "n": missing}, state, params)
        assert updates["n"] is None and (updates["w"] != 0).all()
        assert cases.signature(new_state) == cases.signature(state)


@pytest.mark.parametrize("name", ["mask", "param_labels"])
def test_a_spec_with_a_wrong_key_says_what_to_do(name: str) -> None:
    params = cases.arrays()
    tx = (
        tko.masked(tko.adam(0.1), {"w": True, "bias": False})
        if name == "mask"
        else tko.partition({"a": tko.adam(0.1)}, {"w": "a", "bias": "a"})
    )
    with pytest.raises(
        ValueError, match=rf"(?s){name} does not fit.* bias,.*Make {name} with jax.tree.map over the params"
    ):
        tx.init(params)
