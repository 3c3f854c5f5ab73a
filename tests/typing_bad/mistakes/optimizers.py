"""Mistakes in the making of optimizers. See tests/test_typing.py."""

import jax

import treekit as tk
from treekit import optax, training


@tk.node
class Model:
    weight: jax.Array


def decays(model: Model) -> Model:
    return model


def makers(model: Model) -> None:
    optax.adamm(1e-3)  # both
    optax.adamw(1e-3, wieght_decay=0.1)  # pyright
    optax.adamw("1e-3")  # pyright
    optax.chain([optax.clip(1.0), optax.adam(1e-3)])  # both
    optax.chain(optax.clip(1.0), optax.adam)  # both
    optax.losses.l2_los(model.weight)  # both
    optax.warmup_cosine_decay_schedule(0.0, 1e-2, 20)  # pyright


def wrappers(model: Model) -> None:
    optax.selective_transform(optax.adam, freeze_mask=True)  # both
    optax.masked(decays, optax.adam(1e-3))  # both
    optax.masked(optax.adam(1e-3), "bias")  # neither: a mask is a tree of any class, and str is one
    optax.partition([optax.adam(1e-3)], "a")  # both
    training.store_state(optax.adam(1e-3), rounding="random")  # both
    optax.MultiSteps(optax.adam(1e-3), 2.5)  # both
    optax.inject_hyperparams(optax.adam(1e-3))  # pyright
    optax.inject_hyperparams(optax.adam)(learning_rat=1e-3)  # neither: any argument may be a schedule instead
    training.params_ema("0.99")  # both
    training.param_groups(optax.adamw, {"head.**": 0.1}, 1e-3)  # neither: rows in a variable may have any types
    training.param_groups(optax.adamw(1e-3), {"head.**": None})  # pyright
    training.times("2")  # both
    optax.monitor({"norm": "norm"})  # pyright
    optax.conditionally_mask(optax.adam(1e-3), True)  # both


def options(model: Model) -> None:
    optax.masked(optax.adam(1e-3), True, mask_compatible=True)  # both
    optax.apply_if_finite(optax.adam(1e-3))  # both
    optax.lbfgs(memory=3)  # both
    optax.inject_hyperparams(optax.adam, only=3)  # both
