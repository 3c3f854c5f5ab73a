"""Mistakes in the use of optimizers and of their states. See tests/test_typing.py."""

import jax

import treekit as tk
from treekit import optax, training
from treekit.testing import check_transformation


@tk.node
class Model:
    weight: jax.Array


@tk.node
class TrainState:
    model: Model
    optimizer_state: optax.MaskedState


def loss(model: Model, x: jax.Array) -> jax.Array:
    return x @ model.weight


def steps(model: Model, grads: Model, x: jax.Array) -> None:
    masked, multi = optax.masked(optax.adam(1e-3), True), optax.MultiSteps(optax.adam(1e-3), 2)
    adam, state = optax.adam(1e-3), masked.init(model)
    masked.update(state, grads, model)  # pyright
    masked.update(grads, multi.init(model), model)  # pyright
    adam.update(grads, state, model)  # pyright
    updates: Model = masked.update(grads, state, model)  # both
    state.inner_states  # pyright
    adam.init(model)[0].muu  # pyright
    multi.has_updated(state)  # pyright
    TrainState(model, multi.init(model))  # pyright
    optax.apply_updates(grads, model)  # neither: gradients have the class of the model
    optax.apply_updates(model, grads, key=0)  # both
    grads = optax.apply_updates(state, grads)  # pyright
    training.apply_gradients(grads, adam, state, model)  # both
    training.set_hyperparams(state, 0.1)  # both
    training.summary(model, adam)  # both
    training.get_params_ema(model, state).weight  # pyright
    check_transformation(model, adam)  # both
