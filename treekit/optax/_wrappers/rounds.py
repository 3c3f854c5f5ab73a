"""The core of `MultiSteps`: how does a step count in its round?

Each gradient has a weight, and each round has the sum of its weights so far. Without weights, each gradient has the
weight 1, and that sum is `mini_step`, the number of earlier steps in the round. A gradient that is skipped has the
weight 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from treekit._base.dtype import dtype_of, issubdtype, promoted_dtype, strengthen, strengthen_all
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import is_real_number, is_traced
from treekit._base.types import HasDtype, OptState, Params, Updates
from treekit._compare.prefix import flatten_up_to
from treekit._names.key_path import leaf_path_text
from treekit._text.describe import describe, describe_value
from treekit.optax._kernel.known_states import declare, known
from treekit.optax._kernel.transformation import Core
from treekit.optax._wrappers.in_place import run_step_if
from treekit.optax._wrappers.run_if import run_if
from treekit.optax._wrappers.weighted_sum import adding


class WeightedMultiStepsState(NamedTuple):
    """The state of `MultiSteps(..., weighted=True)`: that of Optax, and the sum of the weights in this round.

    Attributes:
        mini_step: the number of earlier steps in the round.
        gradient_step: the number of earlier rounds.
        inner_opt_state: the state of the inner transformation.
        acc_grads: the accumulated gradients.
        skip_state: what `should_skip_update_fn` returned last.
        weight_sum: the sum of the weights in the round, an array of shape (), float32, or float64 with
            `jax_enable_x64`; until the next round begins, that of the last one.
    """

    mini_step: Any
    gradient_step: Any
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any = ()
    weight_sum: Any = 0.0


declare(WeightedMultiStepsState, known(optax.MultiStepsState))

SKIPS = (
    "should_skip_update_fn must be a function of (updates, gradient_step, params) that returns (skip, state), such as "
    "optax.skip_not_finite"
)

MULTI_STEPS_STATES = (optax.MultiStepsState, WeightedMultiStepsState)


@dataclasses.dataclass(frozen=True, eq=False)
class Rounds:
    """The core of a `MultiSteps`, whose arguments these are; `inner` preserves dtypes and structure."""

    inner: Core
    every_k: int | Callable[[Any], Any]
    mean: bool
    should_skip: Callable[[Any, Any, Any], tuple[Any, Any]] | None
    accumulator_dtype: Any
    weighted: bool

    def init(self, params: Params) -> Any:
        zero = jnp.zeros([], jnp.int32)
        _, skip_state = self._skip(jtu.tree_map(jnp.zeros_like, params), zero, params)
        state = optax.MultiStepsState(zero, zero, self.inner.init(params), self._zero_accumulator(params), skip_state)
        return WeightedMultiStepsState(*state, jnp.zeros([], float)) if self.weighted else state

    def update(self, updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        step = self._advance(updates, state, params, extra)
        if self.weighted:
            extra = {**extra, "weight": step.weight_sum}  # the inner transformation may weigh rounds
        grads, treedef = jtu.tree_flatten(updates)
        acc_before = strengthen_all(treedef.flatten_up_to(state.acc_grads))
        _check_accumulator(updates, grads, acc_before)
        may_lack_weight = self.weighted or self.should_skip is not None
        weights = step.weight, step.weight_sum, step.is_first
        add = adding(*weights, acc_before, mean=self.mean, may_lack_weight=may_lack_weight)

        # What counts is `accumulate` in a step that only accumulates, and `inner_step` at the end of a round.
        def accumulate(acc: list[Any]) -> list[Any]:
            """Return the accumulator after this step."""
            return list(map(add, grads, acc))

        def inner_step(inner_state: OptState, acc: list[Any]) -> tuple[Any, Any]:
            """Return the updates of the inner transformation, in the shapes of the accumulator, and its state."""
            # A loop, which runs here, computes them once and in place. XLA would compute them again for each reader,
            # such as a clip by norm (JAX 0.10.2, tests/accelerators/test_multi_steps.py).
            sums = run_if(step.should_step, accumulate, acc)
            sums_of_round = treedef.unflatten(
                x.astype(_dtype_of_sum(grad, x)) for grad, x in zip(grads, sums, strict=True)
            )
            new_updates, new_inner_state = self.inner.update(sums_of_round, inner_state, params, **extra)
            return list(map(_broadcast_to, flatten_up_to(treedef, new_updates), acc)), new_inner_state

        new_updates, new_inner_state, new_acc = run_step_if(
            step.should_step, accumulate, inner_step, strengthen_all(state.inner_opt_state), acc_before
        )
        new_state = step.new_state._replace(inner_opt_state=new_inner_state, acc_grads=treedef.unflatten(new_acc))
        return treedef.unflatten(new_updates), new_state

    def _advance(self, updates: Updates, state: OptState, params: Params, extra: dict[str, Any]) -> "_Step":
        """Say how a step counts in its round.

        | after a step that | mini_step | gradient_step | weight_sum |
        |---|---|---|---|
        | is skipped | as it was | as it was | as it was |
        | is in the round | one more | as it was | more |
        | ends the round | 0 | one more | more, until the next round begins |
        | ends a round whose weights are all 0 | 0 | as it was | 0 |
        """
        mini_step, gradient_step = strengthen(state.mini_step), strengthen(state.gradient_step)
        k_steps = self.every_k
        if callable(k_steps):
            k_steps = k_steps(gradient_step)
        _check_k(k_steps)
        skip, skip_state = self._skip(updates, gradient_step, params)
        is_last = jnp.logical_and(mini_step >= k_steps - 1, jnp.logical_not(skip))

        given = _check_weight(extra.get("weight") if self.weighted else 1)
        weight = jnp.where(skip, jnp.zeros_like(given), given)
        sum_before = jnp.where(mini_step == 0, 0, strengthen(state.weight_sum)) if self.weighted else mini_step
        sum_before = sum_before.astype(weight.dtype)
        weight_sum = sum_before + weight
        # If all weights are 0, the round takes no step. If their sum is NaN, it takes one, and the update is NaN too.
        should_step = jnp.logical_and(is_last, weight_sum != 0) if self.weighted else is_last

        next_step = jnp.where(is_last, 0, optax.safe_increment(mini_step))
        new: Any = optax.MultiStepsState(
            mini_step=jnp.where(skip, mini_step, next_step),
            gradient_step=jnp.where(should_step, optax.safe_increment(gradient_step), gradient_step),
            inner_opt_state=None,
            acc_grads=None,
            skip_state=skip_state,
        )
        if self.weighted:
            kept = jnp.where(skip, strengthen(state.weight_sum), weight_sum)
            new = WeightedMultiStepsState(**new._asdict(), weight_sum=kept)
        return _Step(weight, weight_sum, sum_before == 0, should_step, new)

    def _skip(self, updates: Updates, gradient_step: object, params: Params) -> tuple[Any, Any]:
        if self.should_skip is None:
            return jnp.array(False), ()
        result = self.should_skip(updates, gradient_step, params)
        try:
            skip, skip_state = result
        except (TypeError, ValueError):
            raise TypeError(f"{SKIPS}; it returned {describe_value(result)}") from None
        if (dtype_of(skip), jnp.shape(skip)) != (jnp.bool_, ()):
            raise ValueError(
                "The `should_skip_update_fn` function should return a boolean scalar array, but it returned an array "
                f"of dtype {dtype_of(skip)} and shape {jnp.shape(skip)}"
            )
        return skip, skip_state

    def _zero_accumulator(self, params: Params) -> Any:
        def dtype(param: Any) -> Any:
            if self.accumulator_dtype is None:
                return param.dtype
            # The default means float32 at least. Any other dtype is taken as it is, but complex for complex params.
            if self.accumulator_dtype == jnp.float32 or jnp.iscomplexobj(param):
                return promoted_dtype(param, untyped.ShapeDtypeStruct((), self.accumulator_dtype))
            return jnp.finfo(self.accumulator_dtype).dtype  # of a complex one, the dtype of its parts

        def zeros(param: Any) -> Any:
            return jnp.zeros_like(param, dtype(param))

        return jtu.tree_map(zeros, params)


class _Step(NamedTuple):
    """How a step counts in its round.

    Attributes:
        weight: the weight of its gradients.
        weight_sum: the sum of the weights in the round, this one included.
        is_first: whether the sum of the weights was 0 before. Then the accumulator is replaced, not added to.
        should_step: whether the inner transformation runs, which it does at the end of a round in which there is
            something to step with.
        new_state: the state after the step, without the inner state and the accumulator.
    """

    weight: Float[Array, ""]
    weight_sum: Float[Array, ""]
    is_first: Bool[Array, ""]
    should_step: Any
    new_state: Any


def _dtype_of_sum(grad: HasDtype, acc: HasDtype) -> Any:
    """Return the dtype in which the inner transformation gets what was accumulated: that of the last gradient.

    But complex where it is complex, also if the last gradient is real.
    """
    would_be_cut = issubdtype(acc.dtype, jnp.complexfloating) and not issubdtype(grad.dtype, jnp.complexfloating)
    return promoted_dtype(grad, acc) if would_be_cut else grad.dtype


def _check_accumulator(updates: Updates, grads: list[Any], accs: list[Any]) -> None:
    """Raise a ValueError unless gradients can be accumulated.

    One of another shape would be broadcast, and integers would cut off what is added to them.
    """
    for i, (grad, acc) in enumerate(zip(grads, accs, strict=True)):
        if grad.shape != acc.shape or not issubdtype(acc.dtype, jnp.inexact):
            at = leaf_path_text(updates, i)
            raise ValueError(f"the gradient at {at} is {describe(grad)}, its accumulator {describe(acc)}")


def is_int(x: Any) -> bool:
    return np.shape(x) == () and issubdtype(dtype_of(x), np.integer)


def _check_k(k_steps: Any) -> None:
    """Raise unless the result of a schedule can be a number of steps."""
    if not is_int(k_steps):
        raise TypeError(
            f"every_k_schedule must return an int of shape (), the number of steps in the next round; it returned "
            f"{describe_value(k_steps)}. Pass a schedule of learning rates to the inner transformation instead"
        )
    if not is_traced(k_steps) and k_steps < 1:
        raise ValueError(f"every_k_schedule must return at least 1, but returned {k_steps}")


def _check_weight(weight: Any) -> Any:
    """Return the weight of a step as an array of floats; raise unless it can be one."""
    if not is_real_number(weight):
        raise TypeError(
            f"MultiSteps(..., weighted=True): weight must be a real number of shape (), found {describe_value(weight)}"
        )
    if not is_traced(weight) and not 0 <= float(weight) < np.inf:
        raise ValueError(f"weight must be finite and not negative, found {weight}")
    return jnp.asarray(weight, float)  # float64 with jax_enable_x64


def _broadcast_to(update: Any, place: HasDtype) -> Any:
    """Return an update in the shape of its accumulator; it may be a number for each param, and None for some."""
    return update if update is None or update.shape == place.shape else jnp.broadcast_to(update, place.shape)
