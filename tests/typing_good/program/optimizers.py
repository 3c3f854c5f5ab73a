"""Optimizers: factories of Optax's, wrappers, schedules and labels."""

from typing import Any

import jax

import treekit as tk
from treekit import optax
from treekit.typing import GradientTransformation

from .models import Model


def is_matrix(leaf: object) -> bool:
    return tk.is_array(leaf) and leaf.ndim > 1


def decays(model: Model) -> Model:
    """Weight decay for matrices only."""
    mask: Model = jax.tree.map(is_matrix, model)
    return mask


def rate(steps: int, peak: float = 1e-2) -> optax.Schedule:
    return optax.warmup_cosine_decay_schedule(0.0, peak, steps // 10, steps)


def usual(steps: int) -> GradientTransformation[tuple[Any, ...]]:
    """Clipped gradients, decay of matrices, and a rate that can be read."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.inject_hyperparams(optax.adamw)(rate(steps), weight_decay=1e-4, mask=decays),
    )


def by_part(steps: int) -> GradientTransformation[optax.PartitionState]:
    """The head at a rate of its own, the scaler not at all."""
    labels = tk.path_labels({"scaler.**": "frozen", "head.**": "head"}, default="body")
    groups = {
        "head": optax.sgd(1e-3, momentum=0.9),
        "body": usual(steps),
        "frozen": optax.set_to_zero(),
    }
    return optax.partition(groups, labels)


def accumulated(steps: int, every: int) -> optax.MultiSteps:
    return optax.MultiSteps(optax.dtype_preserving(usual(steps), state_dtype="float32"), every_k_schedule=every)


def averaged(steps: int) -> GradientTransformation[tuple[Any, ...]]:
    return optax.chain(usual(steps), optax.params_ema(0.99))
