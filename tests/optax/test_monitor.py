"""monitor: measurements of the updates, stored in the state from `init` on."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from treekit import optax as tko

PARAMS: Any = {"w": jnp.ones(2), "name": "scale"}
MEASURES: dict[str, Callable[..., Any]] = {
    "of a leaf": lambda u: jnp.abs(u["w"]).mean(),
    "of the whole": optax.tree.norm,
    "a tree": lambda u: jax.tree.map(jnp.mean, u),
    "of the params too": lambda u, p: jax.tree.map(lambda u, p: jnp.mean(u / p), u, p),
}


@pytest.mark.parametrize("name", MEASURES)
def test_tree_map_params_maps_the_other_states(name: str) -> None:
    """It calls `init` with a placeholder for any params, which cannot be measured."""
    tx = tko.chain(tko.monitor({name: MEASURES[name]}), tko.adam(0.1))
    state = tx.init(PARAMS)
    for _ in range(2):
        marked: Any = tko.tree_map_params(tx, lambda _: "param", state, transform_non_params=lambda _: "other")
        assert marked[1][0].mu["w"] == "param"
        others = jax.tree.map(lambda _: "other", state[0].measurements)
        assert marked[0].measurements == others
        state = tx.update({"w": jnp.ones(2), "name": None}, state, PARAMS)[1]


def test_what_is_no_measure_is_an_error_that_names_it() -> None:
    wrong: Any = {"norm": 3}
    with pytest.raises(TypeError, match=r"the measure 'norm' must be a .*found 3"):
        tko.monitor(wrong)
    alone: Any = optax.tree.norm
    with pytest.raises(TypeError, match=r"measures must map names to functions of the updates, .* found <function"):
        tko.monitor(alone)


def ratio(updates: Any, params: Any) -> Any:
    return jax.tree.map(lambda u, p: jnp.linalg.norm(u) / jnp.linalg.norm(p), updates, params)


# Measures, and what they are for params of (3, 4) after sgd(0.5) with the params as the gradient.
TAKEN: dict[str, tuple[Any, Any]] = {
    "two required": (ratio, {"w": 0.5}),
    "jitted": (jax.jit(ratio), {"w": 0.5}),
    "a partial": (functools.partial(lambda factor, u, p: factor * ratio(u, p)["w"], 2), 1.0),
    "one required": (lambda u, p=None: 1.0 if p is None else 0.0, 1.0),
    "any number": (lambda *trees: float(len(trees)), 1.0),
    "of Optax": (optax.tree.norm, 2.5),
    "of treekit": (tko.tree.norm, 2.5),
    "of a library": (lambda u: jnp.linalg.norm(u["w"]), 2.5),
}


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: tko.MultiSteps(tx, 1)], ids=["plain", "rounds"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_measure_that_requires_two_arguments_receives_the_params(name: str, wrap: Any) -> None:
    measure, wanted = TAKEN[name]
    params: Any = {"w": jnp.array([3.0, 4.0]), "name": "scale"}
    tx = wrap(tko.chain(tko.sgd(0.5), tko.monitor({"measured": measure})))
    state = tx.init(params)
    grads = {"w": params["w"], "name": None}
    _, state = tx.update(grads, state, params)
    found = tko.tree.get(state, "measured")
    assert jax.tree.map(float, found) == ({**wanted, "name": None} if isinstance(wanted, dict) else wanted)


def test_such_a_measure_needs_the_params() -> None:
    tx = tko.monitor({"ratio": ratio})
    state = tx.init({"w": jnp.ones(2)})
    with pytest.raises(ValueError, match="the measure 'ratio' takes the params, so update needs them"):
        tx.update({"w": jnp.ones(2)}, state)
