"""`map_state`: which array of a state belongs to which parameter, and what it is."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import treekit.optax as tko
from treekit.optax._state_map import map_state

PARAMS = {"b": jnp.ones(2), "w": jnp.ones((2, 3))}
Mapped = tuple[str, int | None, str]  # a field, the index of a parameter, and a role


def each(field: str, role: str = "moment") -> list[Mapped]:
    return [(field, i, role) for i in (0, 1)]


def shared(role: str, *names: str) -> list[Mapped]:
    return [(name, None, role) for name in names]


OF_ADAM = [*shared("count", "count"), *each("mu"), *each("nu")]
ADAM_OF_ONE: list[Mapped] = [("count", None, "count"), ("mu", 0, "moment"), ("nu", 0, "moment")]
# For each: the optimizer, the params, and what the map says of each array: field, param and role.
CASES: dict[str, tuple[Callable[[], Any], Any, list[Mapped]]] = {
    "adam": (lambda: tko.adam(1e-3), PARAMS, OF_ADAM),
    "one array": (lambda: tko.adam(1e-3), jnp.ones(3), ADAM_OF_ONE),
    "one number": (lambda: tko.adam(1e-3), jnp.ones(()), ADAM_OF_ONE),
    "chain": (
        lambda: tko.chain(tko.clip(1.0), tko.trace(0.9), tko.params_ema(0.9)),
        PARAMS,
        [
            *each("trace"),
            *shared("count", "ema_count"),
            *shared("average", "ema_next_weight", "ema_weight_sum"),
            *each("params_ema", "average"),
        ],
    ),
    "params in a tuple, as the states of a chain are": (
        lambda: optax.chain(optax.trace(0.9), optax.scale(1.0)),
        (jnp.ones(2), jnp.ones(2)),
        each("trace"),
    ),
    "partition": (
        lambda: tko.partition({"x": tko.trace(0.9), "y": tko.trace(0.9)}, {"b": "y", "w": "x"}),
        PARAMS,
        [("trace", 1, "moment"), ("trace", 0, "moment")],
    ),
    "MultiSteps": (
        lambda: tko.MultiSteps(tko.trace(0.9), 2),
        PARAMS,
        [*shared("count", "mini_step", "gradient_step"), *each("trace"), *each("acc_grads", "accumulator")],
    ),
    "params with the names of hyperparameters": (
        lambda: tko.inject_hyperparams(tko.sgd)(0.1, 0.9),
        {"learning_rate": jnp.ones(()), "momentum": jnp.ones(())},
        [*shared("count", "count"), *shared("hyperparameter", "hyperparams", "hyperparams"), *each("trace")],
    ),
    "prodigy": (
        lambda: tko.contrib.prodigy(),
        {"w": jnp.ones(2)},
        [
            *[(name, 0, "moment") for name in ("exp_avg", "exp_avg_sq", "grad_sum")],
            ("params0", 0, "params"),
            *shared("other", "estim_lr", "numerator_weighted"),
            *shared("count", "count"),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_init", [True, False], ids=["with init", "by structure"])
def test_the_map_names_field_param_and_role(name: str, with_init: bool) -> None:
    """And divides the path where the params begin."""
    make, params, expected = CASES[name]
    tx = make()
    state = tx.init(params)
    found = map_state(state, params, tx.init if with_init else None)
    assert [(entry.field, entry.param, entry.role) for entry in found] == expected
    assert [entry.path for entry in found] == [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for entry in found:
        assert entry.path[entry.depth :] == (() if entry.param is None else paths[entry.param])


def test_a_raw_model_and_its_arrays_have_one_map() -> None:
    model = eqx.nn.MLP(2, 2, 4, depth=1, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_array)
    state = tko.adam(1e-3).init(model)
    by_arrays = map_state(state, arrays)
    assert by_arrays == map_state(state, arrays, tko.adam(1e-3).init)
    leaves = jax.tree.leaves(arrays, is_leaf=lambda x: x is None)
    for x, entry in zip(jax.tree.leaves(state), by_arrays, strict=True):
        assert entry.param is None or leaves[entry.param].shape == x.shape
    assert [entry.role for entry in by_arrays].count("moment") == 2 * len(jax.tree.leaves(arrays))


def test_an_optimizer_that_takes_no_placeholder_is_mapped_by_structure() -> None:
    state = tko.lbfgs(memory_size=2).init(PARAMS)
    found = map_state(state, PARAMS, tko.lbfgs(memory_size=2).init)
    assert found == map_state(state, PARAMS)
    memory = [entry for entry in found if entry.field == "diff_params_memory"]
    assert [(entry.param, entry.role) for entry in memory] == [(0, "moment"), (1, "moment")]
