"""Errors of what each transformation may raise: gradients, states, missing parts, extra arguments and apply_updates."""

from typing import Any

import jax.numpy as jnp

from tests.errors.mistake import Mistake
from treekit import optax as tko

PARAMS = {"w": jnp.ones(2)}
RATE: Any = "1e-3"

MISTAKES: dict[str, Mistake] = {
    "a state for the params": Mistake(
        lambda: tko.adam(0.1).init(tko.adam(0.1).init(PARAMS)), TypeError, "the state of an optimizer"
    ),
    "a rate that is a string": Mistake(lambda: tko.adam(RATE), TypeError, "learning_rate of adam"),
}
