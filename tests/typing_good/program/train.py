"""The loop: states, whole steps, averages, hyperparameters that are read and changed, and a checkpoint."""

import pickle
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, reveal_type

import jax
import jax.numpy as jnp
import numpy as np

import treekit as tk
from treekit import optax
from treekit.typing import GradientTransformation

from .models import Model

S = TypeVar("S")


@tk.node
class TrainState(Generic[S]):
    """What a step takes and returns."""

    model: Model
    optimizer_state: S
    step: jax.Array


class Batch(NamedTuple):
    x: jax.Array
    y: jax.Array


def batches(number: int, size: int) -> list[Batch]:
    random = np.random.default_rng(0)
    xs = random.normal(size=(number, size, 2)).astype(np.float32)
    return [Batch(jnp.asarray(x), jnp.asarray(x[:, 0] * x[:, 1])) for x in xs]


def loss(model: Model, batch: Batch) -> jax.Array:
    predictions = jax.vmap(model)(batch.x)
    return jnp.mean(optax.l2_loss(predictions, batch.y))


def gradients(model: Model, batch: Batch) -> tuple[jax.Array, Model]:
    """The loss, and its gradients; None for what is not an inexact array."""
    arrays, others = tk.partition(model, tk.is_inexact_array)

    def of_arrays(arrays: Model) -> jax.Array:
        return loss(tk.combine(arrays, others), batch)

    result: tuple[jax.Array, Model] = jax.value_and_grad(of_arrays)(arrays)
    return result


def start(model: Model, optimizer: GradientTransformation[S]) -> TrainState[S]:
    return TrainState(model, optimizer.init(model), jnp.zeros([], int))


def step(optimizer: GradientTransformation[S], state: TrainState[S], batch: Batch) -> tuple[TrainState[S], jax.Array]:
    value, grads = gradients(state.model, batch)
    updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.model)
    model = optax.apply_updates(state.model, updates)
    return TrainState(model, optimizer_state, state.step + 1), value


def whole_step(
    optimizer: GradientTransformation[S], state: TrainState[S], batch: Batch
) -> tuple[TrainState[S], jax.Array]:
    """The same, in one call of the optimizer."""
    value, grads = gradients(state.model, batch)
    model, optimizer_state = optax.apply_gradients(optimizer, grads, state.optimizer_state, state.model)
    return TrainState(model, optimizer_state, state.step + 1), value


def fit(optimizer: GradientTransformation[S], model: Model, data: list[Batch]) -> tuple[TrainState[S], list[float]]:
    state, values = start(model, optimizer), list[float]()
    for batch in data:
        state, value = step(optimizer, state, batch)
        values.append(float(value))
    return state, values


def slower(state: TrainState[S], factor: float) -> TrainState[S]:
    """A state with lower rates, for hyperparameters that follow no schedule."""
    found = optax.get_hyperparams(state.optimizer_state)
    lower = {name: factor * value for name, value in found.items() if name.endswith("learning_rate")}
    return tk.replace(state, optimizer_state=optax.set_hyperparams(state.optimizer_state, lower))


def save(state: TrainState[Any], path: Path) -> None:
    path.write_bytes(pickle.dumps(tk.filter_arrays(state)))


def look(model: Model, batch: Batch) -> None:
    optimizer = optax.adam(1e-3)
    state = reveal_type(start(model, optimizer))
    grads = gradients(model, batch)[1]
    reveal_type(optimizer.update(grads, state.optimizer_state, model)[0])
    reveal_type(optax.apply_updates(model, grads))
    reveal_type(optax.apply_gradients(optimizer, grads, state.optimizer_state, model))
    reveal_type(slower(state, 0.5))
    reveal_type(optax.get_hyperparams(state.optimizer_state))
    averages = optax.params_ema(0.9)
    reveal_type(averages.init(model).params_ema)
    reveal_type(optax.get_ema(averages.init(model), model))
    reveal_type(optax.value_and_grad_from_state(loss)(model, batch, state=optax.lbfgs().init(model)))
    steps = optax.MultiSteps(optimizer, 2)
    reveal_type(steps.has_updated(steps.init(model)))
    reveal_type(optax.tree_map_params(optimizer, lambda leaf: leaf, state.optimizer_state))
    reveal_type(optax.losses.l2_loss(batch.y))  # Optax's
