"""Optax's functions on trees take raw models: leaves that cannot be parameters do not count and do not change."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from tests.releases import keys
from treekit import optax as tko

MODEL = {"w": jnp.full((2, 3), 2.0), "b": jnp.arange(3.0), "rate": 0.5, "activation": jax.nn.relu, "name": "mlp"}
ARRAYS = {"w": MODEL["w"], "b": MODEL["b"], "rate": jnp.asarray(0.5), "activation": None, "name": None}
# The arguments of the functions of optax.tree, where `...` is the tree; the others take only a tree.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add": (..., ..., ...),
    "add_scale": (..., 2.0, ...),
    "batch_shape": (..., (2, 4)),
    "bias_correction": (..., 0.9, 2),
    "cast": (..., jnp.bfloat16),
    "clip": (..., -1.0, 1.0),
    "full_like": (..., 3.0),
    "random_like": (jax.random.key(0), ...),
    "scale": (2.0, ...),
    "update_infinity_moment": (..., ..., 0.9, 1e-8),
    "update_moment": (..., ..., 0.9, 1),
    "update_moment_per_elem_norm": (..., ..., 0.9, 2),
    "where": (True, ..., ...),
    **dict.fromkeys(("allclose", "cast_like", "div", "mul", "sub", "vdot"), (..., ...)),
}
# These take states or keys, or look only at the structure of a tree.
NOT_ON_TREES = {"get", "get_all_with_path", "map_params", "set", "split_key_like", "unwrap_random_key_data"}
FUNCTIONS = sorted(name for name in dir(optax.tree) if not name.startswith("_") and name not in NOT_ON_TREES)


def call(o: Any, name: str, tree: Any) -> Any:
    return getattr(o.tree, name)(*(tree if x is ... else x for x in ARGUMENTS.get(name, (...,))))


# That of 0.2.5 takes no tree with a Python number.
@pytest.mark.parametrize("name", keys(FUNCTIONS, {"add_scale": "optax>=0.2.6"}))
def test_each_function_on_trees_takes_a_raw_model(name: str) -> None:
    ours, theirs = call(tko, name, MODEL), call(optax, name, ARRAYS)
    if isinstance(ours, dict):
        assert ours["activation"] is jax.nn.relu and ours["name"] == "mlp"
        cases.assert_close(jax.tree.map(jnp.asarray, {**ours, "activation": None, "name": None}), theirs)
    else:
        assert ours == theirs
    assert getattr(tko.tree_utils, f"tree_{name}") is getattr(tko.tree, name)


NORMS = ("tree_utils.tree_l1_norm", "tree_utils.tree_l2_norm", "tree_utils.tree_linf_norm")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [*NORMS, "per_example_global_norm_clip", "per_example_layer_norm_clip"])
def test_the_norms_and_clipping_per_example_take_raw_models(name: str) -> None:
    arrays = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones((2, 1)), "activation": None}
    ours, theirs = (operator.attrgetter(name)(o) for o in (tko, optax))
    limits = () if name in NORMS else (1.0,)
    cases.assert_close(ours({**arrays, "activation": jax.nn.relu}, *limits), theirs(arrays, *limits))
    assert ours.__name__ == name.rpartition(".")[2]


def test_random_like_leaves_integers_and_bools_as_they_are() -> None:
    model = {"w": jnp.ones(3), "rate": 0.5, "n": jnp.arange(3), "on": True, "depth": 2, "activation": jax.nn.relu}
    drawn: Any = tko.tree.random_like(jax.random.key(0), model)
    for name in ("n", "on", "depth", "activation"):
        assert drawn[name] is model[name]
    assert (drawn["w"] != 1).all() and drawn["rate"].shape == ()
    whole = {name: model[name] for name in ("w", "n")}
    cast: Any = tko.tree.random_like(jax.random.key(0), whole, dtype=jnp.float32)  # as plain Optax does
    cases.assert_close(cast, optax.tree.random_like(jax.random.key(0), whole, dtype=jnp.float32))


LEAVES: dict[str, Any] = {
    "bf16": {"w": jnp.full((2, 3), 2.0, jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)},
    "NumPy": {"w": np.full((2, 3), 2.0), "b": np.arange(1.0, 4.0)},
    "integers": {"a": jnp.arange(1, 3), "b": np.arange(1, 3)},
    "Python numbers": {"a": 2.0, "b": 3},
    "one number": 2.0,
    "bools": {"x": True, "y": jnp.array(True)},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_on_trees_is_that_of_optax_where_it_works(name: str) -> None:
    """With Python numbers, and with NumPy's 64 bits, too."""
    for kind, leaves in LEAVES.items():
        try:
            theirs = call(optax, name, leaves)
        except Exception:  # it has no answer
            continue
        ours = call(tko, name, leaves)
        assert cases.structure(ours) == cases.structure(theirs), kind
        for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert type(x) is type(y) and cases.signature(x) == cases.signature(y), kind
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y), kind)
