"""monitor: measurements of the updates, stored in the state from `init` on."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.releases import keys, needs
from treekit import optax as tko

pytestmark = needs("optax.monitor")

PARAMS: Any = {"w": jnp.array([3.0, 4.0]), "name": "scale"}
GRADS: Any = {**PARAMS, "name": None}


def ratio(updates: Any, params: Any) -> Any:
    return jax.tree.map(lambda u, p: jnp.linalg.norm(u) / jnp.linalg.norm(p), updates, params)


# Measures, and what they are for these params after sgd(0.5) with the params as the gradient.
TAKEN: dict[str, tuple[Any, Any]] = {
    "two required": (ratio, {"w": 0.5, "name": None}),
    "jitted": (jax.jit(ratio), {"w": 0.5, "name": None}),
    "a partial": (functools.partial(lambda factor, u, p: factor * ratio(u, p)["w"], 2), 1.0),
    "one required": (lambda u, p=None: 1.0 if p is None else 0.0, 1.0),
    "of C, whose arguments are unknown": (operator.itemgetter("w"), [-1.5, -2.0]),
    "any number": (lambda *trees: float(len(trees)), 1.0),
}


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: tko.MultiSteps(tx, 1)], ids=["plain", "rounds"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_measure_that_requires_two_arguments_receives_the_params(name: str, wrap: Any) -> None:
    measure, wanted = TAKEN[name]
    tx = wrap(tko.chain(tko.sgd(0.5), tko.monitor({"measured": measure})))
    _, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert jax.tree.map(lambda x: x.tolist(), tko.tree.get(state, "measured")) == wanted


def test_tree_map_params_maps_the_other_states() -> None:
    """It calls `init` with a placeholder for any params, which cannot be measured."""
    tx = tko.chain(tko.monitor({"measured": ratio}), tko.adam(0.1))
    state = tx.init(PARAMS)
    marked: Any = tko.tree_map_params(tx, lambda _: "param", state, transform_non_params=lambda _: "other")
    assert marked[1][0].mu["w"] == "param"
    assert marked[0].measurements == jax.tree.map(lambda _: "other", state[0].measurements)


@pytest.mark.parametrize("name", keys(["snapshot", "monitor", "average"], {"average": "optax.measure_with_ema"}))
def test_what_is_named_as_the_params_are_is_measured_without_a_gradient_too(name: str) -> None:
    def measure(updates: Any) -> dict[str, Any]:
        return dict.fromkeys(("w", "b"), tko.tree.max(updates))

    makes: dict[str, Callable[[], Any]] = {
        "snapshot": lambda: tko.snapshot("m", measure),
        "monitor": lambda: tko.monitor({"m": measure}),
        "average": lambda: tko.monitor({"m": tko.measure_with_ema(measure, 0.5)}),
    }
    tx = makes[name]()
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    state = tx.init(params)
    for grads in ({"w": params["w"], "b": 5 * params["b"]}, *[{"w": 2 * params["w"], "b": None}] * 2):
        _, state = tx.update(grads, state, params)
    measured = tko.tree.get(state, "m")
    assert float(measured["w"]) == float(measured["b"]) < 5
