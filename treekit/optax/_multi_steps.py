"""MultiSteps: accumulate gradients, and run the inner transformation on every k-th step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jax.core import Tracer

from treekit._describe import describe_value
from treekit._dtype import dtype_of, promoted_dtype, strengthen
from treekit._jax import jnp, jtu, lax, untyped
from treekit.optax._boundary import at_boundary, normalize
from treekit.optax._dtypes import keep_state, keep_updates, preserve_dtypes
from treekit.optax._step_if import run_if, run_step_if
from treekit.optax._traced import zeros
from treekit.optax._transformation import GradientTransformation, SteppingCore, core_of, step_of
from treekit.optax._types import TransformationLike, U

if TYPE_CHECKING:  # what derives from a class of a package without py.typed is unknown to `pyright --verifytypes`
    _Base = object
else:
    _Base = optax.MultiSteps


class MultiSteps(_Base):
    """`optax.MultiSteps` that runs the inner transformation on the k-th step only, and forgets each round.

    The accumulator is set to zero after a round, not multiplied by it, so a NaN cannot outlive its round; a step that
    holds returns zeros that nothing has been multiplied by. State is chosen, never averaged, so any dtype is kept.
    Extra arguments reach the inner transformation on the step that runs it.

    Args:
        opt: the inner transformation.
        every_k_schedule: how many steps make a round: an int, or a function from the count of rounds to one.
        use_grad_mean: hand the mean of the gradients to `opt`, else their sum.
        should_skip_update_fn: takes updates, the count of rounds and params; returns a bool array of shape (), whether
            to leave this step out, and a tree for the state's `skip_state`. See `optax.skip_not_finite`.
        accumulator_dtype: the dtype in which gradients are accumulated. The default means float32 at least, wider where
            the leaf is; a complex leaf is accumulated in a complex dtype. None: the dtype of the leaf.

    Raises:
        ValueError: `every_k_schedule` is an int below 1, or gives one that is known when it is traced.
        TypeError: it is a function that gives no int.

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
        every_k_schedule: int | Callable[[Any], Any],
        use_grad_mean: bool = True,
        should_skip_update_fn: Callable[..., Any] | None = None,
        accumulator_dtype: Any = jnp.float32,
    ) -> None:
        if not callable(every_k_schedule) and not (_is_int(every_k_schedule) and every_k_schedule >= 1):
            raise ValueError(f"every_k_schedule must be an int of at least 1 or a function, found {every_k_schedule!r}")
        self._opt = normalize(opt)
        self._inner = core_of(opt)
        self._every_k = every_k_schedule
        self._mean = use_grad_mean
        self._should_skip = should_skip_update_fn
        self._accumulator_dtype = accumulator_dtype
        core = SteppingCore(self._init, self._update, self._whole_step)
        self._tx = at_boundary(core).described_as(lambda: f"MultiSteps({self._opt!r}, {every_k_schedule!r})")

    @property
    def inner_opt(self) -> GradientTransformation[Any]:
        """The inner transformation."""
        return self._opt

    def init(self, params: Any) -> optax.MultiStepsState:
        """The state before the first step.

        Args:
            params: the params, or a raw model.
        """
        state: optax.MultiStepsState = self._tx.init(params)
        return state

    def update(
        self, updates: U, state: optax.MultiStepsState, params: Any = None, **extra_args: Any
    ) -> tuple[U, optax.MultiStepsState]:
        """Accumulate; on the k-th step, run the inner transformation on what is accumulated.

        Args:
            updates: the gradients of this step.
            state: the state.
            params: the params, or a raw model.
            **extra_args: for the inner transformation.

        Returns:
            The inner transformation's updates on the k-th step, else zeros; and the new state.
        """
        new_updates, new_state = self._tx.update(updates, state, params, **extra_args)
        return new_updates, new_state

    def has_updated(self, state: optax.MultiStepsState) -> jax.Array:
        """Whether the step that returned `state` ran the inner transformation; a bool array of shape ()."""
        updated: jax.Array = jnp.logical_and(state.mini_step == 0, state.gradient_step > 0)
        return updated

    def gradient_transformation(self) -> GradientTransformation[optax.MultiStepsState]:
        """`init` and `update` as a transformation."""
        return self._tx

    def _init(self, params: Any) -> optax.MultiStepsState:
        zero = jnp.zeros([], jnp.int32)
        _, skip_state = self._skip(jtu.tree_map(jnp.zeros_like, params), zero, params)
        inner_state = preserve_dtypes(self._inner).init(params)
        return optax.MultiStepsState(zero, zero, inner_state, self._zero_accumulator(params), skip_state)

    def _update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        at = self._position(updates, state, params)
        leaves, treedef = jtu.tree_flatten(updates)

        def accumulate(acc: list[Any]) -> list[Any]:
            return self._accumulate(at, leaves, acc)

        def inner_step(old: Any, accumulated: list[Any]) -> tuple[list[Any], Any]:
            grads = list(map(_cast_to, leaves, accumulated))
            new_updates, new = self._inner.update(treedef.unflatten(grads), old, params, **extra)
            # The loop, or cond, wants the dtypes that it is given.
            return keep_updates(grads, treedef, params, new_updates), keep_state(old, params, new)

        inner_state, acc = jtu.tree_map(strengthen, (state.inner_opt_state, treedef.flatten_up_to(state.acc_grads)))
        news, inner_state, acc = run_step_if(at.should_step, accumulate, inner_step, inner_state, acc)
        return treedef.unflatten(news), at.state(inner_state, treedef.unflatten(acc))

    def _whole_step(self, updates: Any, state: Any, params: Any, extra: Any, apply: Any) -> tuple[Any, Any]:
        """The params go where the state goes, so a step that only accumulates does not touch them."""
        at = self._position(updates, state, params)
        inner_step = step_of(self._inner, preserve_dtypes(self._inner))
        leaves, treedef = jtu.tree_flatten(updates)

        def run(carry: Any) -> Any:
            params, inner_state, acc = carry
            accumulated = treedef.unflatten(map(_cast_to, leaves, acc))
            params, inner_state = inner_step(accumulated, inner_state, params, extra, apply)
            return params, inner_state, _clear(at.should_step, acc, treedef.flatten_up_to(params))

        inner_state, acc = jtu.tree_map(strengthen, (state.inner_opt_state, treedef.flatten_up_to(state.acc_grads)))
        carry = params, inner_state, self._accumulate(at, leaves, acc)
        params, inner_state, acc = run_if(at.should_step, run, carry)
        return params, at.state(inner_state, treedef.unflatten(acc))

    def _position(self, updates: Any, state: Any, params: Any) -> "_Position":
        mini_step, gradient_step = strengthen(state.mini_step), strengthen(state.gradient_step)
        k_steps = self._every_k(gradient_step) if callable(self._every_k) else self._every_k
        _check_k(k_steps)
        skip, skip_state = self._skip(updates, gradient_step, params)
        should_step = jnp.logical_and(mini_step >= k_steps - 1, jnp.logical_not(skip))
        return _Position(mini_step, gradient_step, skip, skip_state, should_step)

    def _accumulate(self, at: "_Position", leaves: list[Any], acc: list[Any]) -> list[Any]:
        return list(map(functools.partial(_accumulate_jitted, self._mean, at.mini_step, at.skip), leaves, acc))

    def _skip(self, updates: Any, gradient_step: Any, params: Any) -> tuple[Any, Any]:
        if self._should_skip is None:
            return jnp.array(False), ()
        skip, skip_state = self._should_skip(updates, gradient_step, params)
        if (dtype_of(skip), jnp.shape(skip)) != (jnp.bool_, ()):
            raise ValueError(
                "The `should_skip_update_fn` function should return a boolean scalar array, but it returned an array "
                f"of dtype {dtype_of(skip)} and shape {jnp.shape(skip)}"
            )
        return skip, skip_state

    def _zero_accumulator(self, params: Any) -> Any:
        def dtype(p: Any) -> Any:
            if self._accumulator_dtype is None:
                return p.dtype
            widest = promoted_dtype(p, untyped.ShapeDtypeStruct((), self._accumulator_dtype))
            return widest if self._accumulator_dtype == jnp.float32 or jnp.iscomplexobj(p) else self._accumulator_dtype

        return jtu.tree_map(lambda p: jnp.zeros_like(p, dtype(p)), params)


@dataclasses.dataclass(frozen=True)
class _Position:
    """Where in a round a step is.

    Attributes:
        mini_step: how many steps of the round were before it.
        gradient_step: how many rounds were before it.
        skip: whether the step is left out.
        skip_state: what the skip function keeps.
        should_step: whether the step ends the round.
    """

    mini_step: Any
    gradient_step: Any
    skip: Any
    skip_state: Any
    should_step: Any

    def state(self, inner_state: Any, acc: Any) -> optax.MultiStepsState:
        """The state after the step."""
        next_step = jnp.where(self.should_step, 0, optax.safe_increment(self.mini_step))
        return optax.MultiStepsState(
            mini_step=jnp.where(self.skip, self.mini_step, next_step),
            gradient_step=jnp.where(self.should_step, optax.safe_increment(self.gradient_step), self.gradient_step),
            inner_opt_state=inner_state,
            acc_grads=acc,
            skip_state=self.skip_state,
        )


def _accumulate(mean: bool, mini_step: Any, skip: Any, update: Any, acc: Any) -> Any:
    grad = update.astype(acc.dtype)
    # The mean by Welford's update, which never holds a sum k times as large as what it is of.
    more = acc + (grad - acc) / (mini_step + 1).astype(acc.dtype) if mean else acc + grad
    # Nothing of an earlier round counts; and 0 + -0.0 would be 0.0.
    return jnp.where(skip, acc, jnp.where(mini_step == 0, grad, more))


# Traced once for each shape; inline, since XLA copies what goes into a call of its own.
_accumulate_jitted: Any = untyped.jit(_accumulate, static_argnums=0, inline=True)


def _clear(should_step: Any, acc: list[Any], params: list[Any]) -> list[Any]:
    """Zeros for what is accumulated, after the step that reads it.

    CPUs run operations in the order in which they depend on each other. What reads the new params comes after all that
    reads the accumulator, so it needs no copy of that.
    """

    def after(acc: Any, params: Any) -> Any:
        return [_zero_after(should_step, x, p) for x, p in zip(acc, params, strict=True)]

    def at_any_time(acc: Any, _: Any) -> Any:
        return zeros(acc)

    cleared: list[Any] = lax.platform_dependent(*lax.stop_gradient((acc, params)), cpu=after, default=at_any_time)
    return cleared


def _zero_after(should_step: Any, x: Any, param: Any) -> Any:
    zero = jnp.zeros_like(x)
    if jnp.shape(param) != x.shape or untyped.typeof(param).sharding != untyped.typeof(x).sharding:
        return zero
    like = param if jnp.iscomplexobj(x) else jnp.real(param)
    return lax.select(should_step, zero, like.astype(x.dtype))


def _is_int(x: Any) -> bool:
    return np.shape(x) == () and bool(jnp.issubdtype(dtype_of(x), np.integer))


def _check_k(k_steps: Any) -> None:
    """Raise where what a schedule gave can be no number of steps."""
    if not _is_int(k_steps):
        raise TypeError(
            f"every_k_schedule must give an int of shape (), how many steps the next round has; it gave "
            f"{describe_value(k_steps)}. A schedule of learning rates belongs into the inner transformation"
        )
    if not isinstance(k_steps, Tracer) and k_steps < 1:
        raise ValueError(f"every_k_schedule must give at least 1, and gave {k_steps}")


def _cast_to(like: Any, x: Any) -> Any:
    return x.astype(like.dtype)
