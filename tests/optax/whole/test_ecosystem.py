"""treekit.optax where it is used: with Equinox, Diffrax and Optimistix; tests/optax/whole/test_flax.py has Flax."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optimistix
import pytest

from tests.optax import cases
from treekit import optax as tko

X = jax.random.normal(jax.random.key(0), (32, 2), jnp.float32)
Y = X[:, :1] * X[:, 1:]


def error(predicted: jax.Array, truth: jax.Array = Y) -> jax.Array:
    return jnp.mean((predicted - truth).astype(jnp.float32) ** 2)


def check_falls(update: Callable[..., Any], *carry: Any, steps: int = 80, below: float = 0.12) -> None:
    """The loss, which `update` returns last, falls below what it says; the best constant has 1."""
    losses: list[float] = []
    for _ in range(steps):
        out = update(*carry)
        carry, value = out[:-1], out[-1]
        losses.append(float(value / jnp.var(Y)))
    assert losses[-1] < below < losses[0], losses


# --------------------------------------------------------------------------------------------------------- Equinox


def network(key: jax.Array) -> eqx.nn.Sequential:
    """Leaves of every sort: arrays, an activation function, Dropout's rate, and the indices of BatchNorm's state."""
    mlp = eqx.nn.MLP(2, 16, 16, depth=1, activation=jax.nn.gelu, dtype=jnp.float32, key=key)
    norm = eqx.nn.BatchNorm(16, axis_name="batch", mode="batch", dtype=jnp.float32)
    return eqx.nn.Sequential([mlp, norm, eqx.nn.Dropout(0.02), eqx.nn.Linear(16, 1, dtype=jnp.float32, key=key)])


def test_equinox_with_dropout_and_batch_norm() -> None:
    make: Any = eqx.nn.make_with_state(network)
    model, norm = make(jax.random.key(0))
    # Of plain Optax's transformation where the wrapper is ours, so that the wrapper alone has to do it.
    adamw = tko.inject_hyperparams(optax.adamw)(optax.cosine_decay_schedule(0.1, 40), mask=cases.mask_of)
    tx = tko.MultiSteps(adamw, 2).gradient_transformation()

    def loss(model: Any, norm: Any, key: Any) -> Any:
        batched: Any = jax.vmap(lambda x, key: model(x, norm, key=key), axis_name="batch", out_axes=(0, None))
        out, norm = batched(X, jax.random.split(key, len(X)))
        return error(out), norm

    value_and_grad: Any = eqx.filter_value_and_grad(loss, has_aux=True)

    @eqx.filter_jit
    def update(model: Any, norm: Any, state: Any, key: Any) -> Any:
        now, key = jax.random.split(key)
        (value, norm), grads = value_and_grad(model, norm, now)
        updates, state = tx.update(grads, state, model)
        return eqx.apply_updates(model, updates), norm, state, key, value

    check_falls(update, model, norm, tx.init(model), jax.random.key(1))


# --------------------------------------------------------------------------------------------------------- Diffrax


@pytest.mark.slow
@pytest.mark.usefixtures("leaks")  # with which diffrax's own gradient raises
def test_diffrax_neural_ode_with_lbfgs_on_the_raw_model() -> None:
    times = jnp.linspace(0, 3, 7)
    spiral = jnp.exp(-0.2 * times)[:, None] * jnp.stack([jnp.cos(times), jnp.sin(times)], axis=1)
    model = eqx.nn.MLP(2, 2, 8, depth=1, activation=jnp.tanh, key=jax.random.key(0))
    tx = tko.lbfgs()

    def loss(model: Any) -> jax.Array:
        term, saveat = diffrax.ODETerm(lambda t, y, args: model(y)), diffrax.SaveAt(ts=times)
        states = diffrax.diffeqsolve(term, diffrax.Euler(), 0, 3, 0.125, spiral[0], saveat=saveat, max_steps=24)
        return error(jnp.asarray(states.ys), spiral)

    @eqx.filter_jit
    def update(model: Any, state: Any) -> Any:
        value, grads = tko.value_and_grad_from_state(loss)(model, state=state)
        updates, state = tx.update(grads, state, model, value=value, grad=grads, value_fn=loss)
        return tko.apply_updates(model, updates), state, value

    check_falls(update, model, tx.init(model), steps=30, below=1e-3)


# ------------------------------------------------------------------------------------------------------ Optimistix


def only_w(params: Any) -> Any:
    return {"w": True, "b": False}


def bowl(y: Any, _: Any) -> jax.Array:
    return jnp.sum(jnp.array([1.0, 5.0]) * (y["w"] - 1) ** 2) + jnp.sum((y["b"] - 2) ** 2)


def left(tx: Any) -> float:
    solver: Any = optimistix.OptaxMinimiser(tx, rtol=1e-4, atol=1e-4)
    found: Any = optimistix.minimise(bowl, solver, {"w": jnp.zeros(2), "b": jnp.zeros(())}, max_steps=300, throw=False)
    return float(bowl(found.value, None))


# Optimistix takes functions apart, to make trees of what they close over.
MINIMISED: dict[str, Callable[[], Any]] = {
    "nested": lambda: tko.MultiSteps(tko.inject_hyperparams(tko.adamw)(0.1, mask=only_w), 1).gradient_transformation(),
    "partition": lambda: tko.partition({True: tko.adam(0.1), False: tko.sgd(0.1)}, only_w),
}


@pytest.mark.parametrize("name", MINIMISED)
def test_optimistix_also_with_a_mask_function(name: str) -> None:
    assert left(MINIMISED[name]()) < 1e-2


# Optimistix makes a tree of all that functions close over. Prints, for each wrapper, how many functions that are in one
# to five of them around an optimizer: Optax's number doubles each time.
COUNT = """
import equinox.internal, jax
from treekit import optax as o

only_w = {"w": True, "b": False}
for wrap in (
    lambda tx: o.masked(o.chain(tx, o.scale(1.0)), only_w),
    lambda tx: o.partition({True: tx, False: o.set_to_zero()}, lambda params: only_w),
    lambda tx: o.transforms.selective_transform(tx, freeze_mask=only_w),
    lambda tx: o.conditionally_transform(tx, lambda step: step > 1),
    lambda tx: o.apply_if_finite(tx, 3),
):
    tx = o.scale_by_adam()
    for _ in range(5):
        tx = wrap(tx)
        tree = equinox.internal.closure_to_pytree((tx.init, tx.update))
        functions = []
        jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, type(tree[0])) and bool(functions.append(x)))
        print(len(functions), end=" ")
    print()
"""


def test_optimistix_sees_at_most_twice_as_many_functions_for_each_wrapper() -> None:
    # Here the import hook wraps each function in several.
    printed = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        counts = list(map(int, line.split()))
        assert counts[0] > 5
        assert all(after <= 2 * before + 45 for before, after in itertools.pairwise(counts)), printed
