"""`MultiSteps`: accumulate gradients over rounds of steps, and run a transformation on the last step of each."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import numpy as np
import optax
from jax.typing import DTypeLike

from treekit._base.flax import values_of_variables
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._base.types import OptState, Params, TransformationLike
from treekit._text.describe import describe_value, type_name
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.preserve import preserving
from treekit.optax._kernel.taken import is_taken
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._kernel.types import U
from treekit.optax._wrappers.rounds import SKIPS, Rounds, WeightedMultiStepsState, is_int
from treekit.optax._wrappers.state_values import states_in

if TYPE_CHECKING:  # `pyright --verifytypes` does not know classes whose base is in a package without py.typed
    from typing_extensions import TypeVar as TypeVarWithDefault

    _Base = object
    # To type checkers, `MultiSteps` is one without weights.
    StepsState = TypeVarWithDefault("StepsState", default=optax.MultiStepsState)
    Steps = int | np.integer[Any] | np.ndarray[Any, Any] | jax.Array | Callable[[Any], Any]
else:
    Steps = Any  # so that our own error comes before that of a run-time checker
    _Base = optax.MultiSteps
    StepsState = TypeVar("StepsState")


class MultiSteps(Generic[StepsState], _Base):
    """Accumulate gradients over rounds of k steps: an `optax.MultiSteps` that discards a NaN after its round.

    The inner transformation runs on the k-th step only. The accumulator is then set to zero, not multiplied by zero, so
    a NaN does not survive its round. Steps that only accumulate return exact zeros. A gradient that is missing, None or
    float0, is a zero. Every leaf of the state keeps its dtype. Extra arguments reach the inner transformation on the
    step that runs it.

    Args:
        opt: the inner transformation.
        every_k_schedule: the number of steps in a round: an int, or a function from the number of rounds so far to an
            int.
        use_grad_mean: pass the mean of the gradients to `opt`, else their sum.
        should_skip_update_fn: takes the updates, the number of rounds so far and the params. It returns two values:
            whether to skip this step, as a bool array of shape (), and a tree that is stored as the state's
            `skip_state`. See `optax.skip_not_finite`.
        accumulator_dtype: the dtype in which gradients are accumulated. By default, it is float32 or the dtype of the
            leaf, whichever is wider, and complex for complex leaves. With None, it is the dtype of the leaf.
        weighted: whether `update` takes the `weight` of each step, such as its number of tokens. The mean is then the
            sum of weight times gradient over the sum of weights, as if all micro-batches were one batch, whatever their
            sizes. A weight of 0 leaves out its step, and a round whose weights are all 0 is skipped. The inner
            transformation receives the sum of the round as its `weight`. The state is then a `WeightedMultiStepsState`,
            which has that sum; for type checkers, write `MultiSteps[WeightedMultiStepsState](…, weighted=True)`.

    Raises:
        ValueError: `every_k_schedule` is less than 1.
        TypeError: `opt` is not a transformation, or `should_skip_update_fn` not a function.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> ms = MultiSteps(optax.sgd(1.0), every_k_schedule=2)
    >>> params = jnp.zeros(2)
    >>> updates, state = ms.update(jnp.ones(2), ms.init(params), params)
    >>> updates, bool(ms.has_updated(state))
    (Array([0., 0.], dtype=float32), False)
    >>> updates, state = ms.update(3 * jnp.ones(2), state, params)
    >>> updates, bool(ms.has_updated(state))
    (Array([-2., -2.], dtype=float32), True)
    """

    def __init__(
        self,
        opt: TransformationLike,
        every_k_schedule: Steps,
        use_grad_mean: bool = True,
        should_skip_update_fn: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None,
        accumulator_dtype: DTypeLike | None = jnp.float32,
        *,
        weighted: bool = False,
    ) -> None:
        k: Any = every_k_schedule
        if not callable(k) and (not is_int(k) or is_traced(k) or not 1 <= int(k) < 2**31):
            raise ValueError(
                "every_k_schedule must be an int of at least 1 and below 2**31, or a function, found "
                f"{describe_value(k)}. MultiSteps takes (optimizer, k), in this order"
            )
        if should_skip_update_fn is not None and not callable(should_skip_update_fn):
            raise TypeError(f"{SKIPS}; found {describe_value(should_skip_update_fn)}")
        dtype = None if accumulator_dtype is None else jnp.dtype(accumulator_dtype)
        self._opt = at_boundary(opt)  # what the user asks for
        inner, every_k = preserving(core_of(opt)), k if callable(k) else int(k)  # what runs
        self._rounds = Rounds(inner, every_k, use_grad_mean, should_skip_update_fn, dtype, weighted)
        self._tx = at_boundary(Core(self._rounds.init, self._rounds.update))

    @property
    def inner_opt(self) -> GradientTransformation[Any]:
        """Return the inner transformation."""
        return self._opt

    def init(self, params: Params) -> StepsState:
        """Return the state before the first step.

        Args:
            params: the params, or a raw model.
        """
        state: StepsState = self._tx.init(params)
        return state

    def update(
        self, updates: U, state: StepsState, params: Params = None, **extra_args: object
    ) -> tuple[U, StepsState]:
        """Accumulate; on the k-th step, run the inner transformation on the accumulated gradients.

        Args:
            updates: the gradients of this step.
            state: the state.
            params: the params, or a raw model.
            **extra_args: extra arguments of the inner transformation; and `weight`, a real number of shape (), if
                `weighted` is True. It must be finite and not negative. Under jit its value is not known, so one that is
                NaN or negative may give wrong updates.

        Returns:
            The inner transformation's updates on the k-th step, else zeros; and the new state.

        Raises:
            ValueError, TypeError: `every_k_schedule` does not return an int of at least 1; or `should_skip_update_fn`
                does not return a bool array of shape () and a state; or there is a `weight` that nothing takes.
        """
        self._check_weight_is_taken(state, extra_args)
        new_updates, new_state = self._tx.update(updates, state, params, **extra_args)
        return new_updates, new_state

    def has_updated(self, state: optax.MultiStepsState | WeightedMultiStepsState) -> jax.Array:
        """Return a bool array of shape (): whether a round ended with a step, and nothing was accumulated since.

        Raises:
            TypeError: `state` is not that of a `MultiSteps`.
        """
        if not hasattr(state, "mini_step"):
            raise TypeError(
                f"has_updated takes the state of a MultiSteps, found one of type {type_name(state)}. In a chain or a "
                "wrapper, pass the part of the state that is of the MultiSteps"
            )
        # `nnx.Optimizer` keeps each array of a state in a variable, which does not compare as its value does.
        mini_step, gradient_step = values_of_variables((state.mini_step, state.gradient_step))
        weight = values_of_variables(state.weight_sum) if isinstance(state, WeightedMultiStepsState) else 1
        # A round whose weights are all 0 has ended without a step.
        updated: jax.Array = (mini_step == 0) & (weight != 0) & (gradient_step > 0)
        return updated

    def _check_weight_is_taken(self, state: OptState, extra_args: Mapping[str, object]) -> None:
        """Raise a TypeError if there is a `weight` that neither this nor the inner transformation takes."""
        if self._rounds.weighted or "weight" not in extra_args:
            return
        if not is_taken("weight", [core_of(self._opt).update]) and not states_in(state, WeightedMultiStepsState):
            raise TypeError("this MultiSteps has no weights: MultiSteps(optimizer, k, weighted=True) has")

    def gradient_transformation(self) -> GradientTransformation[StepsState]:
        """Return a transformation with this `init` and `update`, to use in a chain or a wrapper."""
        is_subclassed = (type(self).init, type(self).update) != (MultiSteps.init, MultiSteps.update)
        return at_boundary(Core(self.init, self.update)) if is_subclassed else self._tx
