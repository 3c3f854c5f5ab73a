"""`map_state`: which array of a state belongs to which parameter."""

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
Mapped = tuple[str, int | None]  # a field, and the index of a parameter


def each(field: str) -> list[Mapped]:
    return [(field, i) for i in (0, 1)]


def shared(*names: str) -> list[Mapped]:
    return [(name, None) for name in names]


OF_ADAM = [*shared("count"), *each("mu"), *each("nu")]
ADAM_OF_ONE: list[Mapped] = [("count", None), ("mu", 0), ("nu", 0)]
# For each: the optimizer, the params, and what the map says of each array: field and param.
CASES: dict[str, tuple[Callable[[], Any], Any, list[Mapped]]] = {
    "adam": (lambda: tko.adam(1e-3), PARAMS, OF_ADAM),
    "one array": (lambda: tko.adam(1e-3), jnp.ones(3), ADAM_OF_ONE),
    "one number": (lambda: tko.adam(1e-3), jnp.ones(()), ADAM_OF_ONE),
    "chain": (
        lambda: tko.chain(tko.clip(1.0), tko.trace(0.9), tko.params_ema(0.9)),
        PARAMS,
        [
            *each("trace"),
            *shared("ema_count"),
            *shared("ema_next_weight", "ema_weight_sum"),
            *each("params_ema"),
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
        [("trace", 1), ("trace", 0)],
    ),
    "MultiSteps": (
        lambda: tko.MultiSteps(tko.trace(0.9), 2),
        PARAMS,
        [*shared("mini_step", "gradient_step"), *each("trace"), *each("acc_grads")],
    ),
    "prodigy": (
        lambda: tko.contrib.prodigy(),
        {"w": jnp.ones(2)},
        [
            *[(name, 0) for name in ("exp_avg", "exp_avg_sq", "grad_sum")],
            ("params0", 0),
            *shared("estim_lr", "numerator_weighted"),
            *shared("count"),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_map_names_field_and_param(name: str) -> None:
    """And divides the path where the params begin."""
    make, params, expected = CASES[name]
    tx = make()
    state = tx.init(params)
    found = map_state(state, params)
    assert [(entry.field, entry.param) for entry in found] == expected
    assert [entry.path for entry in found] == [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for entry in found:
        assert entry.path[entry.depth :] == (() if entry.param is None else paths[entry.param])


def test_a_raw_model_and_its_arrays_have_one_map() -> None:
    model = eqx.nn.MLP(2, 2, 4, depth=1, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_array)
    state = tko.adam(1e-3).init(model)
    by_arrays = map_state(state, arrays)
    leaves = jax.tree.leaves(arrays, is_leaf=lambda x: x is None)
    for x, entry in zip(jax.tree.leaves(state), by_arrays, strict=True):
        assert entry.param is None or leaves[entry.param].shape == x.shape
    assert [entry.param is None for entry in by_arrays].count(False) == 2 * len(jax.tree.leaves(arrays))


def test_several_arrays_of_one_parameter() -> None:
    found = map_state(tko.lbfgs(memory_size=2).init(PARAMS), PARAMS)
    memory = [entry for entry in found if entry.field == "diff_params_memory"]
    assert [entry.param for entry in memory] == [0, 1]
