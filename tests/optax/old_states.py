"""Optimizers whose states every later version must load, and the file with those that 1.0 made.

python -m tests.optax.old_states    writes tests/data/states_1_0.safetensors; only before 1.0 is released
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

import treekit as tk
from treekit import optax, training

FILE = Path(__file__).parent.parent / "data" / "states_1_0.safetensors"
IS_WEIGHT = tk.path_mask("*.w")
GROUPS = tk.path_labels({"*.w": "weights"}, default="rest")


def adamw(learning_rate: Any, weight_decay: Any = 0.1) -> optax.GradientTransformation:
    return optax.adamw(learning_rate, weight_decay=weight_decay, mask=IS_WEIGHT)


# Between them, they have every state class of treekit, and the wrappers of Optax that treekit makes its own.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "accumulated": lambda: optax.MultiSteps(
        optax.masked(optax.inject_hyperparams(adamw)(optax.linear_schedule(0.1, 0.0, 9)), IS_WEIGHT), 2, weighted=True
    ),
    "groups": lambda: optax.apply_if_finite(
        optax.partition(
            {"weights": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)), "rest": optax.sgd(0.1, 0.9)},
            GROUPS,
        ),
        2,
    ),
    "rounded": lambda: training.store_state(optax.adam(0.1), jnp.bfloat16, rounding="stochastic"),
    "averaged": lambda: optax.named_chain(
        ("sgd", optax.sgd(0.1, 0.9)),
        ("rates", training.scale_by_tree(lambda params: jax.tree.map(lambda x: optax.constant_schedule(0.5), params))),
        ("norm", optax.monitor({"largest": lambda updates: jnp.max(updates["first"]["w"])})),
        ("average", training.params_ema(0.9)),
    ),
    "line search": lambda: optax.lbfgs(0.1, memory_size=2, linesearch=None),
}


def start(name: str) -> tuple[Any, Any, Any]:
    """An optimizer, params, and the state that it makes for them."""
    layer = {"w": jnp.arange(6.0).reshape(2, 3) / 8 - 0.25, "b": jnp.ones(3)}
    params = {"first": layer, "second": {"w": jnp.sin(jnp.arange(9.0)).reshape(3, 3)}}
    optimizer = OPTIMIZERS[name]()
    return optimizer, params, optimizer.init(params)


def update(name: str, optimizer: Any, state: Any, params: Any) -> Any:
    """What `update` returns for some gradients."""
    grads = jax.tree.map(lambda x: 2 * x + 0.1, params)
    return optimizer.update(grads, state, params, **({"weight": 2.0} if name == "accumulated" else {}))


def some(updates: Any) -> dict[str, Any]:
    """A few numbers of each leaf, by name."""
    return {f"updates.{name}": np.asarray(x).ravel()[:4] for name, x in tk.to_state_dict(updates).items()}


def write() -> None:
    """Write the state after three updates, and what the next one gives."""
    arrays: dict[str, Any] = {}
    for name in OPTIMIZERS:
        optimizer, params, state = start(name)
        for _ in range(3):
            updates, state = update(name, optimizer, state, params)
            params = optax.apply_updates(params, updates)
        found = {f"state.{key}": np.asarray(x) for key, x in tk.to_state_dict(state).items()}
        updates, _ = update(name, optimizer, state, start(name)[1])
        arrays |= {f"{name}/{key}": x for key, x in {**found, **some(updates)}.items()}
    safetensors.numpy.save_file(arrays, FILE)


if __name__ == "__main__":
    write()
