"""scale_by_tree: each leaf's updates are scaled by a rate of its own."""

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
from treekit import optax as tko
from treekit import training


def rate_of(x: Any) -> float:
    return 0.5 if getattr(x, "ndim", 0) > 1 else 0.25


def by_rank(params: Any) -> Any:
    """A function of the params: another rate for matrices."""
    return jax.tree.map(rate_of, params)


# Rates, which are functions of the params or made for some.
RATES: dict[str, Callable[[Any], Any]] = {
    "function": lambda params: by_rank,
    "tree_of_the_raw_model": by_rank,
    "tree_of_the_filtered_model": lambda params: by_rank(eqx.filter(params, eqx.is_inexact_array)),
    "with_other_leaves": lambda p: jax.tree.map(lambda x: x if callable(x) or isinstance(x, str) else rate_of(x), p),
    "schedules": lambda params: jax.tree.map(lambda x: lambda count: rate_of(x), params),
    "arrays": lambda params: jax.tree.map(lambda x: jnp.array(rate_of(x)), params),
}


@pytest.mark.table
@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("kind", ["f32", "none", "legacy", "eqx_raw", "nnx", "mixed", "int_key"])
def test_each_leaf_has_its_rate(name: str, kind: str) -> None:
    params = cases.make(kind)
    tx = training.scale_by_tree(RATES[name](params))
    grads = cases.grads_of(kind, params)
    state = tx.init(params)
    updates, after = eqx.filter_jit(tx.update)(grads, state, params)
    assert cases.signature(after) == cases.signature(state)

    def scaled(param: Any, grad: Any) -> Any:
        return None if grad is None or grad.dtype == jax.dtypes.float0 else rate_of(param) * grad

    assert cases.same_bits(updates, jax.tree.map(scaled, params, grads, is_leaf=lambda x: x is None))


def test_an_array_of_rates_broadcasts_to_its_leaf() -> None:
    """A rate for each layer of a stack, and for the new rows of an embedding."""
    params = {"embed": jnp.ones((3, 2)), "layers": {"w": jnp.ones((2, 3, 4)), "b": jnp.ones((2, 1, 5))}}
    rates = {"embed": jnp.array([[0.0], [0.0], [1.0]]), "layers": np.array([0.5, 2.0]).reshape(2, 1, 1)}
    tx = training.scale_by_tree(rates)
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    assert updates["embed"].tolist() == [[0, 0], [0, 0], [1, 1]]
    for x in updates["layers"].values():
        assert x.dtype == jnp.float32
        assert (x[0] == 0.5).all()
        assert (x[1] == 2.0).all()


@pytest.mark.parametrize("kind", ["eqx_raw", "bf16_f32_grads"])
def test_laws(kind: str) -> None:
    tx = tko.MultiSteps(tko.chain(tko.sgd(0.1), training.scale_by_tree(by_rank)), 2)
    cases.check_laws(tx.gradient_transformation(), kind, steps=2)


def test_a_schedule_is_called_with_the_number_of_updates() -> None:
    params = cases.arrays()
    tx = training.scale_by_tree({"w": lambda count: 1.0 + count, "b": 2.0})
    state = tx.init(params)
    for rate in (1.0, 2.0, 3.0):
        updates, state = tx.update(params, state, params)
        cases.assert_close(updates, {"w": rate * params["w"], "b": 2 * params["b"]})


def test_a_rate_covers_a_subtree_and_none_leaves_it() -> None:
    params = {"body": {"w": jnp.ones(2), "b": jnp.ones(2)}, "head": jnp.ones(2), "rest": [jnp.ones(2)]}
    for rates, expected in (({"body": 0.5, "head": 2, "rest": None}, [0.5, 0.5, 2, 1]), (0.5, [0.5] * 4)):
        tx: Any = training.scale_by_tree(rates)
        updates, _ = tx.update(params, tx.init(params))
        assert [float(x[0]) for x in jax.tree.leaves(updates)] == expected


INJECTED: dict[str, Any] = {
    "a function": lambda params: by_rank,
    "a tree": by_rank,
    "by name": lambda params: tk.path_labels({"**": 0.5}, default=0.25),
}


@pytest.mark.parametrize("name", INJECTED)
def test_injected_rates_are_passed_on(name: str) -> None:
    """Their parameter says that they are a tree or a function of the params, so no function of them is a schedule."""
    params = cases.make("eqx_raw")
    grads = cases.gradient(params)
    rates = INJECTED[name](params)
    plain, tx = training.scale_by_tree(rates), tko.inject_hyperparams(training.scale_by_tree)(rates)
    state = tx.init(params)
    assert training.get_hyperparams(state) == {}
    cases.assert_close(tx.update(grads, state, params)[0], plain.update(grads, plain.init(params), params)[0])


def test_integer_updates_times_a_rate_are_floats() -> None:
    params = {"w": jnp.ones(2)}
    tx = training.scale_by_tree({"w": 0.5})
    updates, _ = tx.update({"w": jnp.array([5, 10])}, tx.init(params), params)
    assert updates["w"].tolist() == [2.5, 5.0]


def test_the_count_of_an_optimizer_is_found_beside_its_own() -> None:
    tx = tko.chain(tko.adam(0.1), training.scale_by_tree({"w": 1.0, "b": 0.5}))
    assert int(optax.tree.get(tx.init(cases.arrays()), "count")) == 0
