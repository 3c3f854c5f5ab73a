"""Runs the program: trains for a few steps with each optimizer, and tests what comes out."""

import jax

import treekit as tk
from treekit import optax
from treekit.testing import check_pytree, check_transformation

from . import models, optimizers, train
from .layers import Config
from .models import Model


def main() -> None:
    key = jax.random.key(0)
    model = Model.create(key, Config(width=8, depth=1))
    check_pytree(model)
    tk.check_types(model)
    check_transformation(optimizers.by_part(10), model)

    data = train.batches(3, 4)
    state, values = train.fit(optimizers.usual(3), model, data)
    assert len(values) == 3
    tk.check_types(state.model)
    tk.assert_trees_same(jax.tree.structure(state.model), jax.tree.structure(model))
    steps = optimizers.accumulated(4, 2).gradient_transformation()
    state_of_steps, _ = train.whole_step(steps, train.start(model, steps), data[0])
    assert not optax.MultiSteps(optax.sgd(1.0), 2).has_updated(state_of_steps.optimizer_state)
    average = optax.get_ema(train.fit(optimizers.averaged(3), model, data)[0].optimizer_state, model)
    tk.check_types(models.in_half(average, key).config)
    print(models.size(model), models.describe(model.head.weight), models.describe(jax.nn.relu))


if __name__ == "__main__":
    main()
