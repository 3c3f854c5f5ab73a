"""Where in a round of `MultiSteps` a step is."""

import dataclasses
from typing import Any

import numpy as np
import optax
from jax.core import Tracer

from treekit._base.describe import describe_value
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._base.types import OptState, Updates


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a step in a round.

    Attributes:
        mini_step: the number of earlier steps in the round.
        gradient_step: the number of earlier rounds.
        skip: whether the step is skipped.
        skip_state: the state of the skip function.
        should_step: whether the step ends the round.
    """

    mini_step: Any
    gradient_step: Any
    skip: Any
    skip_state: Any
    should_step: Any

    def state(self, inner_state: OptState, acc: Updates) -> optax.MultiStepsState:
        """Return the state after the step."""
        next_step = jnp.where(self.should_step, 0, optax.safe_increment(self.mini_step))
        return optax.MultiStepsState(
            mini_step=jnp.where(self.skip, self.mini_step, next_step),
            gradient_step=jnp.where(self.should_step, optax.safe_increment(self.gradient_step), self.gradient_step),
            inner_opt_state=inner_state,
            acc_grads=acc,
            skip_state=self.skip_state,
        )


def is_int(x: Any) -> bool:
    return np.shape(x) == () and issubdtype(dtype_of(x), np.integer)


def check_k(k_steps: Any) -> None:
    """Raise unless the result of a schedule can be a number of steps."""
    if not is_int(k_steps):
        raise TypeError(
            f"every_k_schedule must return an int of shape (), the number of steps in the next round; it returned "
            f"{describe_value(k_steps)}. Pass a schedule of learning rates to the inner transformation instead"
        )
    if not isinstance(k_steps, Tracer) and k_steps < 1:
        raise ValueError(f"every_k_schedule must return at least 1, but returned {k_steps}")
