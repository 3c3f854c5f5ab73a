"""Optax's functions on trees take raw models: leaves that cannot be parameters do not count and do not change."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko


def test_functions_on_trees_take_raw_models() -> None:
    model: Any = cases.model()
    arrays = eqx.filter(model, lambda x: eqx.is_array(x) or isinstance(x, (bool, float)))
    with pytest.warns(DeprecationWarning, match="global_norm"):
        norm = float(tko.global_norm(model))
    assert norm == float(tko.tree.norm(model)) == float(optax.tree.norm(arrays))
    assert tko.tree.size(model) == optax.tree.size(arrays)
    cast = tko.tree.cast(model, jnp.bfloat16)
    assert cast.mlp.activation is model.mlp.activation and cast.mlp.layers[0].weight.dtype == jnp.bfloat16
    zeros: Any = tko.tree.zeros_like(model)
    assert cases.structure(zeros) == cases.structure(model) and not zeros.mlp.layers[0].weight.any()
    random: Any = tko.tree.random_like(jax.random.key(0), model.mlp)  # it has noise for floating leaves only
    assert random.activation is model.mlp.activation and random.layers[0].weight.any()
    assert (tko.tree.add(jnp.ones(2), jnp.ones(2)) == 2).all()


def test_random_like_leaves_integers_and_bools_as_they_are() -> None:
    model = {"w": jnp.ones(3), "rate": 0.5, "n": jnp.arange(3), "on": True, "depth": 2, "activation": jax.nn.relu}
    drawn: Any = tko.tree.random_like(jax.random.key(0), model)
    for name in ("n", "on", "depth", "activation"):
        assert drawn[name] is model[name]
    assert (drawn["w"] != 1).all() and drawn["rate"].shape == ()
    whole = jax.tree.map(jnp.asarray, {name: model[name] for name in ("w", "n")})
    cast: Any = tko.tree.random_like(jax.random.key(0), whole, dtype=jnp.float32)  # as plain Optax does
    cases.assert_close(cast, optax.tree.random_like(jax.random.key(0), whole, dtype=jnp.float32))
    with pytest.raises(ValueError, match="must be a float"):
        optax.tree.random_like(jax.random.key(0), whole)
