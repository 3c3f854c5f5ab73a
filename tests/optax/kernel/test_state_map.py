"""`map_state`: which array of a state belongs to which parameter."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import treekit.optax as tko
from tests.releases import needs
from treekit import training
from treekit.optax._kernel.known_states import _KNOWN
from treekit.optax._kernel.state_map import map_state

PARAMS = {"b": jnp.ones(2), "w": jnp.ones((2, 3))}
Mapped = tuple[str, int | None]  # a field, and the index of a parameter


def each(field: str) -> list[Mapped]:
    return [(field, i) for i in (0, 1)]


def shared(*names: str) -> list[Mapped]:
    return [(name, None) for name in names]


COUNT = optax.GradientTransformation(lambda params: jnp.zeros([], jnp.int32), lambda g, s, p=None: (g, s + 1))
NUMBERS = optax.GradientTransformation(
    lambda params: jax.tree.map(lambda x: jnp.zeros([]), params), lambda g, s, p=None: (g, s)
)

# For each: the optimizer, the params, and what the map says of each array: field and param.
CASES: dict[str, tuple[Any, Any, list[Mapped]]] = {
    "adam": (tko.adam(1e-3), PARAMS, [*shared("count"), *each("mu"), *each("nu")]),
    "one number": (tko.adam(1e-3), jnp.ones(()), [("count", None), ("mu", 0), ("nu", 0)]),
    "hyperparameters of one number": (
        tko.inject_hyperparams(tko.trace)(0.9),
        jnp.ones(()),
        [*shared("count", "hyperparams"), ("trace", 0)],
    ),
    "chain": (
        tko.chain(tko.clip(1.0), tko.trace(0.9), training.params_ema(0.9)),
        PARAMS,
        [*each("trace"), *shared("ema_count", "ema_next_weight", "ema_weight_sum"), *each("params_ema")],
    ),
    "params in a tuple, as the states of a chain are": (
        optax.chain(optax.trace(0.9), optax.scale(1.0)),
        (jnp.ones(2), jnp.ones(2)),
        each("trace"),
    ),
    "counts in a chain, as many as params in a tuple": (
        optax.chain(COUNT, COUNT),
        (jnp.ones(2), jnp.ones(2)),
        shared("", ""),
    ),
    "a number for each param, in no class": (tko.chain(NUMBERS, tko.trace(0.9)), PARAMS, [*each(""), *each("trace")]),
    "the same alone": (tko.chain(NUMBERS), PARAMS, each("")),
    "real and imaginary": (
        tko.contrib.split_real_and_imaginary(tko.trace(0.9)),
        {"c": jnp.ones(2, complex), "w": jnp.ones(2)},
        [("trace", 0), ("trace", 0), ("trace", 1)],
    ),
    "one complex array": (
        tko.contrib.split_real_and_imaginary(tko.trace(0.9)),
        jnp.ones(2, complex),
        [("trace", 0), ("trace", 0)],
    ),
    "states of schedules, with the names of params": (
        tko.inject_hyperparams(tko.sgd)(lambda count: 0.1, momentum=0.9),
        {"learning_rate": jnp.ones(2), "momentum": jnp.ones(2)},
        [*shared("count", "hyperparams", "hyperparams", "count"), *each("trace")],
    ),
    "partition": (
        tko.partition({"x": tko.trace(0.9), "y": tko.trace(0.9)}, {"b": "y", "w": "x"}),
        PARAMS,
        [("trace", 1), ("trace", 0)],
    ),
    "MultiSteps": (
        tko.MultiSteps(tko.trace(0.9), 2),
        PARAMS,
        [*shared("mini_step", "gradient_step"), *each("trace"), *each("acc_grads")],
    ),
    "a number for each layer": (
        optax.GradientTransformation(lambda params: optax.TraceState({"a": 1.0, "b": 2.0}), optax.identity().update),
        {"a": {"x": jnp.ones(2)}, "b": jnp.ones(2)},
        shared("trace", "trace"),
    ),
    "an estimated rate": (
        tko.contrib.prodigy(),
        {"w": jnp.ones(2)},
        [
            *[(name, 0) for name in ("exp_avg", "exp_avg_sq", "grad_sum", "params0")],
            *shared("estim_lr", "numerator_weighted", "count"),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_map_names_field_and_param(name: str) -> None:
    """And divides the path where the params begin."""
    tx, params, expected = CASES[name]
    state = tx.init(params)
    found = map_state(state, params)
    assert [(entry.field, entry.param) for entry in found] == expected
    assert [entry.path for entry in found] == [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for entry in found:
        path = () if entry.param is None else paths[entry.param]
        assert entry.path[entry.depth :][: len(path)] == path


def test_what_is_left_out_of_a_raw_model_is_counted() -> None:
    model = {"f": jnp.tanh, "n": None, "w": jnp.ones(2)}
    assert [entry.param for entry in map_state(tko.trace(0.9).init(model), model)] == [2]


def test_several_arrays_of_one_parameter() -> None:
    found = map_state(tko.lbfgs(memory_size=2).init(PARAMS), PARAMS)
    memory = [entry for entry in found if entry.field == "diff_params_memory"]
    assert [entry.param for entry in memory] == [0, 1]


@needs("optax>=0.2.8")
def test_what_is_known_is_of_fields_that_classes_have() -> None:
    """A name that is wrong, or that Optax has changed, would silently say nothing."""
    modules = [vars(module) for name, module in [*sys.modules.items()] if name.startswith(("optax.", "treekit."))]
    classes: dict[str, Any] = {name: x for names in modules for name, x in names.items() if isinstance(x, type)}
    for name, known in _KNOWN.items():
        fields = [field for value in known if isinstance(value, tuple) for field in value]
        assert set(fields) <= set(classes[name]._fields), name
