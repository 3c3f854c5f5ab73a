"""schedule_free_eval_params: for raw models, with dtypes preserved, wherever in a state it is.

get_ema, which searches in the same way, is in test_average.py.
"""

import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko


@pytest.mark.parametrize("kind", cases.PARAMS)
def test_params_to_evaluate_with_keep_their_dtypes_and_are_optax_where_that_works(kind: str) -> None:
    params = cases.PARAMS[kind]()
    tx = tko.contrib.schedule_free_sgd(0.1)
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(cases.grads_of(kind, params), state, params)
        params = tko.apply_updates(params, updates)
    out = tko.contrib.schedule_free_eval_params(state, params)
    assert cases.signature(out) == cases.signature(params)
    treedef: Any = jax.tree.structure(params)
    pairs = zip(treedef.flatten_up_to(params), treedef.flatten_up_to(state.z), strict=True)
    arrays, z = zip(*[(p, z) for p, z in pairs if eqx.is_inexact_array(p)], strict=True)
    theirs = optax.contrib.schedule_free_eval_params(state._replace(z=list(z)), list(arrays))
    cases.assert_close(cases.inexact(out), cases.cast_like(theirs, cases.inexact(params)))


def test_a_state_of_another_kind_is_an_error_that_says_so() -> None:
    for state in (tko.adam(0.1).init(jnp.ones(2)), types.SimpleNamespace(b1=None, z=None), None):
        with pytest.raises(ValueError, match=r"requires a ScheduleFreeState as input, or .*, found a .* without"):
            tko.contrib.schedule_free_eval_params(state, jnp.ones(2))


FREE = optax.contrib.schedule_free_sgd(0.1)
SCHEDULE_FREE: dict[str, Callable[[Any], Any]] = {
    "chains": lambda tx: tko.chain(tko.clip(1.0), optax.chain(tx)),
    "named_chain": lambda tx: tko.named_chain(("clip", tko.clip(1.0)), ("tx", tx)),
    "averaged": lambda tx: tko.chain(tx, tko.params_ema(0.5), tko.monitor({"norm": optax.tree.norm})),
    "conditional": lambda tx: tko.conditionally_mask(tx, lambda step: step % 2 == 0),
    "rounds": lambda tx: tko.MultiSteps(tx, 2),
    "if_finite": lambda tx: tko.apply_if_finite(tx, 3),
    "injected": lambda tx: tko.inject_hyperparams(lambda scale: tko.chain(tko.scale(scale), tx))(1.0),
    "groups": lambda tx: tko.partition({"a": tx, "b": tko.sgd(0.1), "c": tx}, {"w": "a", "b": "b", "c": "c"}),
}


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_its_state_is_found_in_wrappers(name: str) -> None:
    params = {"w": jnp.arange(3.0), "b": jnp.ones(2), "c": jnp.ones(4)}
    grads = jax.tree.map(lambda x: 0.5 + 0 * x, params)

    def train(tx: Any, steps: int = 4) -> Any:
        state, trained = tx.init(params), params
        for _ in range(steps):
            updates, state = tx.update(grads, state, trained)
            trained = tko.apply_updates(trained, updates)
        return trained, state

    (trained, state), (other, _) = train(FREE), train(tko.sgd(0.1))
    expected = tko.contrib.schedule_free_eval_params(state, trained)
    if name == "groups":
        expected["b"] = other["b"]
    trained, state = train(SCHEDULE_FREE[name](FREE), 8 if name in ("rounds", "conditional") else 4)
    cases.assert_close(tko.contrib.schedule_free_eval_params(state, trained), expected)


def test_params_of_other_shapes_are_an_error() -> None:
    state = FREE.init({"w": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"at w, the params have f32\[3\], and the states of schedule_free f32\[2\]"):
        tko.contrib.schedule_free_eval_params(state, {"w": jnp.ones(3)})


# What applies other updates than those of schedule_free, and the words of the error.
CHANGED: dict[str, tuple[Any, str]] = {
    "followed": (optax.chain(FREE, optax.scale(0.5)), r"schedule_free is at 0 .* Put it last"),
    "inside": (optax.contrib.mechanize(FREE), r"changes its updates \(MechanicState\)"),
    "two": (tko.chain(*[tko.masked(FREE, {"w": True, "b": i}) for i in (False, True)]), "another .* follows it"),
    "conditional": (
        tko.conditionally_transform(FREE, lambda step: step > 0),
        r"schedule_free is at inner_state .* changes its updates \(ConditionallyTransformState\)",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_where_other_updates_are_applied_it_is_an_error(name: str) -> None:
    tx, message = CHANGED[name]
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    with pytest.raises(ValueError, match=message):
        tko.contrib.schedule_free_eval_params(tx.init(params), params)
