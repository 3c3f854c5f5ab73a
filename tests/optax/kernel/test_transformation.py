"""The class of transformations, and the functions that make them."""

import copy
import functools
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko
from treekit import training
from treekit.optax._kernel.transformation import own_core


def test_another_update_is_used_instead_of_the_core() -> None:
    """And it sees what is trained alone."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(lambda g, p: 7 * p, updates, params), state

    sevens: Any = tko.sgd(0.1)._replace(update=update)
    params, grads = {"w": jnp.ones(2), "name": "scale"}, {"w": jnp.ones(2), "name": None}
    txs: list[Any] = [sevens, tko.chain(sevens), tko.MultiSteps(sevens, 1)]
    for tx in txs:
        after: Any = training.apply_gradients(tx, grads, tx.init(params), params)[0]
        assert (after["w"] == 8).all()


def threes(base: Any) -> Any:
    """An `init` of the user's own that has the attributes of treekit's, as one that `jax.jit` returns has them."""
    return functools.wraps(base.init)(lambda params: base.init(params)._replace(trace=jnp.full(8, 3.0)))


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: tko.chain(tx),
    "selective_transform": lambda tx: tko.transforms.selective_transform(tx, freeze_mask=False),
    "masked": lambda tx: tko.masked(tx, True),
    "MultiSteps": lambda tx: tko.MultiSteps(tx, 2),
    "partition": lambda tx: tko.partition({"a": tx}, "a"),
    "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 2),
    "inject_hyperparams": lambda tx: tko.inject_hyperparams(lambda: tx)(),
    "dtype_preserving": lambda tx: training.store_state(tx),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_an_init_of_the_user_s_own_is_called(name: str) -> None:
    base: Any = tko.trace(0.9)
    state = WRAPPERS[name](base._replace(init=threes(base))).init(jnp.zeros(8))
    assert (optax.tree.get(state, "trace") == 3).all()


@pytest.mark.parametrize("name", ["adam", "masked", "chain", "lbfgs", "contrib.muon", "tree.norm"])
def test_what_makes_transformations_can_be_pickled(name: str) -> None:
    factory: Any = functools.reduce(getattr, name.split("."), tko)
    assert pickle.loads(pickle.dumps(factory)) is factory
    bound = pickle.loads(pickle.dumps(functools.partial(factory, 1e-3)))
    assert bound.func is factory


LINKS: dict[str, tuple[Any, Any]] = {  # the second undoes what the first does
    "shape": (lambda x: jnp.stack([x, x]), lambda x: x[0]),
    "complex": (lambda x: 1j * x, jnp.imag),
    "int8": (lambda x: x.astype(jnp.int8), lambda x: x.astype(jnp.float32)),
}


@pytest.mark.parametrize("name", LINKS)
def test_links_of_plain_optax_may_pass_other_arrays_to_each_other(name: str) -> None:
    def link(f: Any) -> Any:
        return optax.stateless(lambda updates, _: jax.tree.map(f, updates))

    links = list(map(link, LINKS[name]))
    params = [jnp.array([1.0, 2.0])]
    updates, _ = tko.chain(*links).update(params, tko.chain(*links).init(params), params)
    np.testing.assert_array_equal(updates[0], params[0])


def test_float8_params() -> None:
    params, wide = {"w": jnp.ones(2, jnp.float8_e4m3fn)}, {"w": jnp.ones(2)}
    rounds: Any = tko.MultiSteps(tko.sgd(0.5), 1)
    sums: Any = tko.MultiSteps(tko.sgd(0.5), 1, use_grad_mean=False, accumulator_dtype=None)
    injected = tko.inject_hyperparams(optax.sgd)(0.5, momentum=0.5)
    for tx, grads in ((tko.sgd(0.5), wide), (rounds, params), (sums, params), (injected, params)):
        state = tx.init(params)
        updates, after = jax.jit(tx.update)(grads, state, params)
        assert (updates["w"].astype(jnp.float32) == -0.5).all()
        assert cases.signature(after) == cases.signature(state)


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


REBUILT: dict[str, Callable[[Any], Any]] = {
    "tree_map": lambda tx: jax.tree.map(lambda x: x, tx),
    "_replace": lambda tx: tx._replace(),
    "copy": copy.copy,
    "filter_jit": lambda tx: eqx.filter_jit(lambda tx: tx)(tx),
    "partition and combine": lambda tx: eqx.combine(*eqx.partition(tx, eqx.is_array)),
}


@pytest.mark.parametrize("tx", [tko.adam(1e-3), tko.MultiSteps(tko.sgd(1.0), 2).gradient_transformation()])
@pytest.mark.parametrize("way", REBUILT)
def test_what_jax_rebuilds_is_what_it_was(way: str, tx: Any) -> None:
    again = REBUILT[way](tx)
    assert type(again) is type(tx) and again == tx
    assert own_core(tx) is not None and own_core(again) is own_core(tx)


def test_what_has_only_the_init_of_a_transformation_has_no_core() -> None:
    assert own_core(types.SimpleNamespace(init=tko.adam(1e-3).init)) is None
