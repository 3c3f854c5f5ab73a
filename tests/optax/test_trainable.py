"""Fields marked `trainable=False`, under optimizers: no state, no update, no decay."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treekit as tk
from treekit import optax

ONE = jnp.ones(2)


@tk.node
class Norm:
    scale: Any
    mean: Any = tk.field(trainable=False)


class Module(eqx.Module):
    weight: Any
    buffer: Any = eqx.field(metadata={"trainable": False})


@pytest.mark.parametrize("how", ("filtered", "MultiSteps", "chain"))
def test_a_buffer_has_no_state_no_update_and_no_decay(how: str) -> None:
    tx: Any = optax.filtered(optax.adamw(0.1, weight_decay=0.5), tk.trainable)
    tx = {"filtered": tx, "MultiSteps": optax.MultiSteps(tx, 1), "chain": optax.chain(tx, optax.scale(1.0))}[how]
    model = Module(Norm(ONE, 5 * ONE), 7 * ONE)
    state = tx.init(model)
    adam: Any = optax.tree.get(state, "mu")
    assert (adam.weight.mean, adam.buffer) == (None, None) and adam.weight.scale.shape == (2,)
    new, _ = jax.jit(lambda s, m: optax.apply_gradients(tx, m, s, m))(state, model)
    np.testing.assert_array_equal(np.stack([new.weight.mean, new.buffer]), [[5, 5], [7, 7]])
    assert (new.weight.scale < 0.9).all()


def test_as_a_mask_of_optax() -> None:
    model = Norm(ONE, ONE)
    updates, _ = optax.freeze(tk.trainable).update(model, optax.freeze(tk.trainable).init(model), model)
    np.testing.assert_array_equal(updates.scale, [0, 0])
    assert updates.mean is None
    decay = optax.adamw(1.0, weight_decay=1.0, mask=tk.trainable)
    updates, _ = decay.update(Norm(0 * ONE, 0 * ONE), decay.init(model), model)
    np.testing.assert_array_equal(updates.scale, [-1, -1])
    assert updates.mean is None
