"""`conditionally_transform` and `conditionally_mask`: run a transformation in some steps only."""

from collections.abc import Callable
from typing import Any, Literal, overload

import optax

from treekit._base.dtype import strengthen
from treekit._base.jax import jnp
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.preserve_dtypes import preserve_dtypes
from treekit.optax._kernel.step_if import conditional
from treekit.optax._kernel.transformation import GradientTransformation, core_of, described


@overload
def conditionally_transform(
    inner: TransformationLike, should_transform_fn: Callable[[Any], Any], forward_extra_args: Literal[False] = False
) -> GradientTransformation[optax.ConditionallyTransformState]: ...
@overload
def conditionally_transform(
    inner: TransformationLike, should_transform_fn: Callable[..., Any], forward_extra_args: bool
) -> GradientTransformation[optax.ConditionallyTransformState]: ...
@described
def conditionally_transform(
    inner: TransformationLike,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool = False,
) -> GradientTransformation[optax.ConditionallyTransformState]:
    """Run a transformation in some steps, and pass updates on unchanged in the others, for every mix of dtypes.

    Args:
        inner: any transformation.
        should_transform_fn: takes the number of the step, an int32 array of shape (), and returns whether to run
            `inner`, a bool array of shape ().
        forward_extra_args: whether to pass the extra arguments of `update` to it too.

    Returns:
        A transformation; its state is an `optax.ConditionallyTransformState`.

    Raises:
        TypeError: `inner` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = conditionally_transform(optax.scale(2.0), lambda step: step > 0)
    >>> updates, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    >>> updates, tx.update(jnp.ones(2), state)[0]
    (Array([1., 1.], dtype=float32), Array([2., 2.], dtype=float32))
    """
    return _run_conditionally(inner, should_transform_fn, forward_extra_args, optax.ConditionallyTransformState, _same)


@overload
def conditionally_mask(
    inner: TransformationLike, should_transform_fn: Callable[[Any], Any], forward_extra_args: Literal[False] = False
) -> GradientTransformation[optax.ConditionallyMaskState]: ...
@overload
def conditionally_mask(
    inner: TransformationLike, should_transform_fn: Callable[..., Any], forward_extra_args: bool
) -> GradientTransformation[optax.ConditionallyMaskState]: ...
@described
def conditionally_mask(
    inner: TransformationLike,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool = False,
) -> GradientTransformation[optax.ConditionallyMaskState]:
    """Run a transformation in some steps, and return zero updates in the others, for every mix of dtypes.

    Args:
        inner: any transformation.
        should_transform_fn: as in `conditionally_transform`.
        forward_extra_args: as in `conditionally_transform`.

    Returns:
        A transformation; its state is an `optax.ConditionallyMaskState`.

    Raises:
        TypeError: `inner` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = conditionally_mask(optax.scale(2.0), lambda step: step > 0)
    >>> tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[0]
    Array([0., 0.], dtype=float32)
    """
    return _run_conditionally(
        inner, should_transform_fn, forward_extra_args, optax.ConditionallyMaskState, jnp.zeros_like
    )


def _run_conditionally(
    inner: TransformationLike,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool,
    state_class: Callable[..., Any],
    otherwise: Callable[[Any], Any],
) -> GradientTransformation[Any]:
    inner_init, update_if = core_of(inner).init, conditional(preserve_dtypes(inner), otherwise)

    def init(params: Params) -> Any:
        return state_class(inner_state=inner_init(params), step=jnp.zeros([], jnp.int32))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        should_transform = should_transform_fn(strengthen(state.step), **(extra if forward_extra_args else {}))
        new_updates, inner_state = update_if(should_transform, updates, state.inner_state, params, extra)
        return new_updates, state_class(inner_state=inner_state, step=optax.safe_increment(state.step))

    return at_boundary(optax.GradientTransformationExtraArgs(init, update))


def _same(x: object) -> Any:
    return x
