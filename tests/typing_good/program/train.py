"""The loop: states, whole steps, averages, hyperparameters that are read and changed, and a checkpoint."""

import pickle
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

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
