"""Where in a round of `MultiSteps` a step is."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import optax

from treekit._base.describe import describe_value
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._base.predicates import is_real_number, is_traced
from treekit._base.types import OptState, Updates


class WeightedMultiStepsState(NamedTuple):
    """The state of `MultiSteps(..., weighted=True)`: that of Optax, and the sum of the weights in this round.

    Attributes:
        mini_step: the number of earlier steps in the round.
        gradient_step: the number of earlier rounds.
        inner_opt_state: the state of the inner transformation.
        acc_grads: the accumulated gradients.
        skip_state: what `should_skip_update_fn` returned last.
        weight_sum: the sum of the weights of the gradients in `acc_grads`, a float32 array of shape ().
    """

    mini_step: Any
    gradient_step: Any
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any = ()
    weight_sum: Any = 0.0


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a step in a round.

    Attributes:
        mini_step: the number of earlier steps in the round.
        gradient_step: the number of earlier rounds.
        skip: whether the step is skipped.
        skip_state: the state of the skip function.
        is_last: whether the step ends the round.
        weight: the weight of the gradients; None without weights.
        weight_sum: the sum of the weights in the round, this one included; None without weights.
        should_step: whether the inner transformation runs: at the end of a round in which there is something to step
            with.
    """

    mini_step: Any
    gradient_step: Any
    skip: Any
    skip_state: Any
    is_last: Any
    weight: Any
    weight_sum: Any
    should_step: Any

    def state(self, inner_state: OptState, acc: Updates) -> Any:
        """Return the state after the step."""
        next_step = jnp.where(self.is_last, 0, optax.safe_increment(self.mini_step))
        state = optax.MultiStepsState(
            mini_step=jnp.where(self.skip, self.mini_step, next_step),
            gradient_step=jnp.where(self.should_step, optax.safe_increment(self.gradient_step), self.gradient_step),
            inner_opt_state=inner_state,
            acc_grads=acc,
            skip_state=self.skip_state,
        )
        if self.weight is None:
            return state
        return WeightedMultiStepsState(
            *state, jnp.where(self.is_last, jnp.zeros_like(self.weight_sum), self.weight_sum)
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
    if not is_traced(k_steps) and k_steps < 1:
        raise ValueError(f"every_k_schedule must return at least 1, but returned {k_steps}")


def check_weight(weight: Any) -> Any:
    """Return the weight of a step as a float32 array; raise unless it can be one."""
    if weight is None:
        raise TypeError(
            "MultiSteps(..., weighted=True) needs the weight of each step, such as its number of tokens: "
            "update(grads, state, params, weight=n)"
        )
    if not is_real_number(weight):
        raise TypeError(f"weight must be a real number of shape (), found {describe_value(weight)}")
    if not is_traced(weight) and not 0 <= float(weight) < np.inf:
        raise ValueError(f"weight must be finite and not negative, found {weight}")
    return jnp.asarray(weight, jnp.float32)
