"""`MultiSteps`: accumulate gradients over rounds of steps, and run a transformation on the last step of each."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Shaped

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import dtype_of, issubdtype, promoted_dtype, strengthen, strengthen_all
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import is_real_number, is_traced
from treekit._base.types import HasDtype, OptState, Params, TransformationLike, Updates
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.in_place import run_if, run_step_if
from treekit.optax._kernel.known_states import declare, known
from treekit.optax._kernel.preserve import preserving
from treekit.optax._kernel.transformation import Core, GradientTransformation, U, core_of
from treekit.optax._wrappers.traced import named_schedule


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
        TypeError: `opt` is not a transformation, or `accumulator_dtype` is not floating-point or complex.

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
        if not callable(k) and (not _is_int(k) or is_traced(k) or int(k) < 1):
            raise ValueError(
                f"every_k_schedule must be an int of at least 1 or a function, found {describe_value(k)}. MultiSteps "
                "takes (optimizer, k), in this order"
            )
        if accumulator_dtype is not None and not issubdtype(jnp.dtype(accumulator_dtype), jnp.inexact):
            raise TypeError(
                f"accumulator_dtype must be floating-point or complex, found {jnp.dtype(accumulator_dtype)}: the mean "
                "of gradients is not an integer"
            )
        self._opt = at_boundary(opt)  # what the user asks for
        inner, every_k = preserving(core_of(opt)), k if callable(k) else int(k)  # what runs
        self._steps = _Steps(inner, every_k, use_grad_mean, should_skip_update_fn, accumulator_dtype, weighted)
        self._tx = at_boundary(Core(self._steps.init, self._steps.update))

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
                `weighted` is True. It must be finite and not negative. Under jit its value is not known: a NaN shows in
                the updates of its round, and a negative one is used as it is.

        Returns:
            The inner transformation's updates on the k-th step, else zeros; and the new state.

        Raises:
            ValueError, TypeError: `every_k_schedule` does not return an int of at least 1; or `should_skip_update_fn`
                does not return a bool array of shape (); or there is a `weight` that nothing takes.
        """
        self._check_weight_is_taken(state, extra_args)
        new_updates, new_state = self._tx.update(updates, state, params, **extra_args)
        return new_updates, new_state

    def has_updated(self, state: optax.MultiStepsState | WeightedMultiStepsState) -> jax.Array:
        """Return a bool array of shape (): whether a round ended with a step, and nothing was accumulated since."""
        has_weight = state.weight_sum != 0 if isinstance(state, WeightedMultiStepsState) else True
        updated: jax.Array = (state.mini_step == 0) & has_weight & (state.gradient_step > 0)
        return updated

    def _check_weight_is_taken(self, state: OptState, extra_args: Mapping[str, object]) -> None:
        """Raise a TypeError if there is a `weight` that neither this nor the inner transformation takes."""
        if self._steps.weighted or "weight" not in extra_args:
            return
        takes_weight = "weight" in inspect.signature(core_of(self._opt).update).parameters
        if not takes_weight and not any(map(_is_weighted, jtu.tree_leaves(state, is_leaf=_is_weighted))):
            raise TypeError("this MultiSteps has no weights: MultiSteps(optimizer, k, weighted=True) has")

    def gradient_transformation(self) -> GradientTransformation[StepsState]:
        """Return a transformation with this `init` and `update`, to use in a chain or a wrapper."""
        is_subclassed = (type(self).init, type(self).update) != (MultiSteps.init, MultiSteps.update)
        return at_boundary(Core(self.init, self.update)) if is_subclassed else self._tx


class _Advance(NamedTuple):
    """How a step counts in its round.

    Attributes:
        weight: the weight of the gradients, 0 if they are skipped, and 1 without weights.
        weight_sum: the sum of the weights in the round, this one included.
        is_first: whether it has all of that sum, so that what an earlier round has left is discarded.
        should_step: whether the inner transformation runs, which it does at the end of a round in which there is
            something to step with.
        new_state: the state after the step, without the inner state and the accumulator.
    """

    weight: Any
    weight_sum: Any
    is_first: Any
    should_step: Any
    new_state: Any


@dataclasses.dataclass(frozen=True, eq=False)
class _Steps:
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
        weight, weight_sum, is_first, should_step, new_state = self._advance(updates, state, params, extra)
        if self.weighted:
            extra = {**extra, "weight": weight_sum}
        grads, treedef = jtu.tree_flatten(updates)
        inner_state, before = strengthen_all((state.inner_opt_state, treedef.flatten_up_to(state.acc_grads)))
        for i, (grad, acc) in enumerate(zip(grads, before, strict=True)):
            # One of another shape would be broadcast, and one of integers would cut off what is added to it.
            if grad.shape != acc.shape or not issubdtype(acc.dtype, jnp.inexact):
                at = leaf_path_text(updates, i)
                raise ValueError(f"the gradient at {at} is {describe(grad)}, its accumulator {describe(acc)}")

        # A gradient of weight 0 may be NaN.
        may_be_skipped = self.weighted or self.should_skip is not None
        is_skipped = weight == 0 if may_be_skipped else None
        factors = {acc.dtype: _factor(self.mean, weight, weight_sum, acc) for acc in before}

        def accumulate(before: list[Any]) -> list[Any]:
            pairs = zip(grads, before, strict=True)
            return [_accumulate(self.mean, is_skipped, is_first, factors[acc.dtype], grad, acc) for grad, acc in pairs]

        def inner_step(inner_state: OptState, before: list[Any]) -> tuple[Any, Any]:
            # `should_step` is true here. `run_if` is for XLA, which computes the sum once in a loop, and outside of one
            # again for each reader, such as a clip by norm (JAX 0.10.2, tests/accelerators/test_multi_steps.py).
            sums = zip(grads, run_if(should_step, accumulate, before), strict=True)
            of_round = treedef.unflatten(x.astype(grad.dtype) for grad, x in sums)
            new_updates, new_inner_state = self.inner.update(of_round, inner_state, params, **extra)
            # They take the place of the accumulator, so they have its shapes.
            return list(map(_broadcast_to, treedef.flatten_up_to(new_updates), before)), new_inner_state

        news, inner_state, after = run_step_if(should_step, accumulate, inner_step, inner_state, before)
        return treedef.unflatten(news), new_state._replace(
            inner_opt_state=inner_state, acc_grads=treedef.unflatten(after)
        )

    def _advance(self, updates: Updates, state: OptState, params: Params, extra: dict[str, Any]) -> "_Advance":
        """Say how a step counts. Without weights, each gradient has the weight 1, so `mini_step` is the sum so far."""
        mini_step, gradient_step = strengthen(state.mini_step), strengthen(state.gradient_step)
        k_steps = self.every_k
        if callable(k_steps):
            k_steps = named_schedule(k_steps, "every_k_schedule of MultiSteps")(gradient_step)
        _check_k(k_steps)
        skip, skip_state = self._skip(updates, gradient_step, params)
        is_last = jnp.logical_and(mini_step >= k_steps - 1, jnp.logical_not(skip))

        given = _check_weight(extra.get("weight") if self.weighted else 1)
        weight = jnp.where(skip, jnp.zeros_like(given), given)
        sum_before = jnp.where(mini_step == 0, 0, strengthen(state.weight_sum)) if self.weighted else mini_step
        sum_before = sum_before.astype(weight.dtype)
        weight_sum = sum_before + weight
        # A round without any weight has no step. One whose weight is NaN has, so that it is seen.
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
        return _Advance(weight, weight_sum, sum_before == 0, should_step, new)

    def _skip(self, updates: Updates, gradient_step: object, params: Params) -> tuple[Any, Any]:
        if self.should_skip is None:
            return jnp.array(False), ()
        result: Any = self.should_skip(updates, gradient_step, params)
        if not isinstance(result, _SEQUENCES) or len(result) != 2:
            raise TypeError(
                "should_skip_update_fn must return two values, whether to skip and a tree for the state, such as "
                f"(skip, ()); it returned {describe_value(result)}"
            )
        skip, skip_state = result
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
            if self.accumulator_dtype == jnp.float32 or jnp.iscomplexobj(param):  # at least this, and complex
                return promoted_dtype(param, untyped.ShapeDtypeStruct((), self.accumulator_dtype))
            return self.accumulator_dtype

        return jtu.tree_map(jnp.zeros_like, params, jtu.tree_map(dtype, params))


def _factor(mean: bool, weight: Float[Array, ""], weight_sum: Float[Array, ""], acc: HasDtype) -> Any:
    """Return the factor of a gradient in a sum; in a mean, what its difference to the mean so far is divided by."""
    wide = promoted_dtype(weight, acc)  # float16 cannot represent 100,000 tokens
    if not mean:
        return weight.astype(wide)
    is_skipped = weight == 0
    # Also where the result is not chosen, a derivative of 0 / 0 is NaN.
    ratio = weight_sum.astype(wide) / jnp.where(is_skipped, 1, weight).astype(wide)
    return jnp.where(is_skipped, 1, ratio).astype(acc.dtype)


def _accumulate_one(
    mean: bool,
    is_skipped: Bool[Array, ""] | None,
    is_first: Bool[Array, ""],
    factor: Shaped[Array, ""],
    grad: Shaped[Array, "*shape"],
    acc: Shaped[Array, "*shape"],
) -> Any:
    grad = grad.astype(acc.dtype)
    if mean:  # Welford's update of the mean, which never needs a sum that is k times as large
        first, more = grad, acc + (grad - acc) / factor
    else:
        first = (factor * grad).astype(acc.dtype)
        more = acc + first
    new = lax.select(is_first, first, more)  # not added to zero, so that -0.0 is preserved
    return new if is_skipped is None else lax.select(is_skipped, acc, new)


# Traced once for each shape, and inlined, so that the program is that of the function itself.
_accumulate: Any = untyped.jit(_accumulate_one, static_argnums=0, inline=True)


def _is_weighted(x: object) -> bool:
    return isinstance(x, WeightedMultiStepsState)


_SEQUENCES: Any = (tuple, list)


def _is_int(x: Any) -> bool:
    return np.shape(x) == () and issubdtype(dtype_of(x), np.integer)


def _check_k(k_steps: Any) -> None:
    """Raise unless the result of a schedule can be a number of steps."""
    if not _is_int(k_steps):
        raise TypeError(
            f"every_k_schedule must return an int of shape (), the number of steps in the next round; it returned "
            f"{describe_value(k_steps)}. Pass a schedule of learning rates to the inner transformation instead"
        )
    if not is_traced(k_steps) and k_steps < 1:
        raise ValueError(f"every_k_schedule must return at least 1, but returned {k_steps}")


def _check_weight(weight: Any) -> Any:
    """Return the weight of a step as an array of floats; raise unless it can be one."""
    if weight is None:
        raise TypeError(
            "missing the required keyword-only argument 'weight': MultiSteps(..., weighted=True) needs the weight of "
            "each step, such as its number of tokens: update(grads, state, params, weight=n)"
        )
    if not is_real_number(weight):
        raise TypeError(f"weight must be a real number of shape (), found {describe_value(weight)}")
    if not is_traced(weight) and not 0 <= float(weight) < np.inf:
        raise ValueError(f"weight must be finite and not negative, found {weight}")
    return jnp.asarray(weight, float)  # float64 with jax_enable_x64


def _broadcast_to(update: Any, place: HasDtype) -> Any:
    """Return an update in the shape of its accumulator; it may be a number for each param, and None for some."""
    return update if update is None or update.shape == place.shape else jnp.broadcast_to(update, place.shape)
