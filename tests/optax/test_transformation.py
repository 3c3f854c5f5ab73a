"""The class of transformations, the functions that make them, and Optax's functions on trees."""

import functools
import pickle
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko


def test_repr_is_the_call_that_made_it() -> None:
    assert repr(tko.adam(1e-3)) == "adam(learning_rate=0.001)"
    chain = tko.chain(tko.clip(1.0), tko.masked(tko.sgd(0.1), {"w": True}))
    assert repr(chain) == "chain(clip(max_delta=1.0), masked(inner=sgd(learning_rate=0.1), mask={'w': True}))"
    assert repr(tko.masked(optax.sgd(0.1), jnp.tanh)).startswith("masked(inner=GradientTransformation(init, update)")
    assert repr(tko.inject_hyperparams(tko.adam)(0.1)) == "inject_hyperparams(adam)(learning_rate=0.1)"
    assert repr(tko.scale_by_belief(0.9, eps=jnp.ones(2))) == "scale_by_belief(b1=0.9, eps=f32[2])"
    named = tko.named_chain(("clip", tko.clip(1.0)), ("step", optax.sgd(0.1)))
    assert repr(named) == "named_chain(('clip', clip(max_delta=1.0)), ('step', GradientTransformation(init, update)))"
    assert repr(tko.masked(tko.sgd(0.1), (True,))) == "masked(inner=sgd(learning_rate=0.1), mask=(True,))"

    def adam(rate: float, **others: Any) -> Any:
        return tko.adam(rate, **others)

    assert repr(tko.inject_hyperparams(adam)(0.1, b1=0.5)) == "inject_hyperparams(adam)(rate=0.1, b1=0.5)"
    init: Any = tko.adam(1e-3).init
    assert init.__name__ == "init"


@pytest.mark.parametrize("field", ["init", "update"])
def test_replace_drops_the_core(field: str) -> None:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda x: 7 * x, updates), state

    tx: Any = tko.sgd(0.1)
    own = tx._replace(**{field: update if field == "update" else tx.init})
    assert type(own) is optax.GradientTransformationExtraArgs
    params = cases.arrays()
    updates, _ = tko.chain(own).update(params, tko.chain(own).init(params), params)
    assert jnp.allclose(updates["w"], (7 if field == "update" else -0.1) * params["w"])


@pytest.mark.parametrize(
    "name", ["adam", "nadamw", "masked", "chain", "lbfgs", "global_norm", "contrib.muon", "tree.norm"]
)
def test_what_makes_transformations_can_be_pickled(name: str) -> None:
    factory: Any = functools.reduce(getattr, name.split("."), tko)
    assert pickle.loads(pickle.dumps(factory)) is factory
    bound = pickle.loads(pickle.dumps(functools.partial(factory, 1e-3)))
    assert bound.func is factory


def test_a_chain_of_something_else_names_the_argument() -> None:
    wrong: Any = "clip"
    with pytest.raises(TypeError, match=r"for args\[0\] of chain, found 'clip'.*optax\.named_chain"):
        tko.chain(wrong, tko.adam(0.1))


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


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_float8_params(dtype: Any) -> None:
    params, wide = {"w": jnp.ones(2, dtype)}, {"w": jnp.ones(2)}
    optimizers: list[tuple[Any, Any]] = [
        (tko.inject_hyperparams(tko.sgd)(0.5), params),
        (tko.sgd(0.5), wide),
        (tko.MultiSteps(tko.sgd(0.5), 1).gradient_transformation(), params),
    ]
    for tx, grads in optimizers:
        updates, _ = tx.update(grads, tx.init(params), params)
        assert (updates["w"].astype(jnp.float32) == -0.5).all()


HOOK = """
from jaxtyping import install_import_hook
install_import_hook("treekit", "beartype.beartype")
from treekit import optax
import jax.numpy as jnp
import treekit
print(optax.MultiSteps(optax.adam(0.1), 2, should_skip_update_fn=optax.skip_not_finite).init(jnp.ones(2)).mini_step)
print(len(treekit.tree_diff(jnp.ones(2), jnp.ones(2), rtol=0)))
"""


def test_a_user_may_hook_treekit_with_beartype() -> None:
    ran = subprocess.run([sys.executable, "-c", HOOK], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["0", "0"], ran.stderr


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
