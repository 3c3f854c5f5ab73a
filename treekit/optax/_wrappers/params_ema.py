"""`params_ema`: keep an average of the params in the optimizer's state."""

from typing import Any, NamedTuple

import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from treekit._base.describe import describe_value
from treekit._base.dtype import issubdtype
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_real_number
from treekit._base.types import OptState, Params, Updates
from treekit._round import widen
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.transformation import GradientTransformation, described


class ParamsEmaState(NamedTuple):
    """The state of `params_ema`.

    Attributes:
        ema_count: the number of updates so far; int32, shape ().
        params_ema: the debiased average of the params, in float32 at least.
    """

    ema_count: Any  # not `count`, so that optax.tree.get finds only the count of adam
    params_ema: Any


@described
def params_ema(decay: ArrayLike) -> GradientTransformation[ParamsEmaState]:
    """Keep an exponential moving average of the params in the state; `get_ema` reads it.

    After t steps, it is the average of the params after each step, weighted by `decay**(t - i)` for step i. It is
    debiased: these weights are divided by their sum. The params themselves and the updates are not changed.

    It adds the params and their updates in float32 at least. Put it last in its chain: if another transformation
    follows, `get_ema` raises. If params of 16 bits are rounded stochastically, their mean is this sum. If they are
    rounded to nearest, small updates may be lost that the average does not lose.

    Args:
        decay: the fraction of the average that remains in each step; at least 0 and less than 1.

    Returns:
        A transformation that does not change the updates; its state is a `ParamsEmaState`. Inside `MultiSteps` it takes
        one step for each round, and inside `apply_if_finite` no step if the update is skipped.

    Raises:
        ValueError: `decay` is out of range; or `update` was called without the params.
        TypeError: `decay` is not a real number.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> optimizer = optax.chain(optax.sgd(1.0), optax.params_ema(0.5))
    >>> params = jnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(-jnp.ones(2), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> params, optax.get_ema(state).round(3)  # the params were 1 and then 2, which counts twice as much
    (Array([2., 2.], dtype=float32), Array([1.667, 1.667], dtype=float32))
    """
    _check_decay(decay)

    def init(params: Params) -> ParamsEmaState:
        return ParamsEmaState(jnp.zeros([], jnp.int32), jtu.tree_map(_wide, params))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("params_ema averages the params, so update needs them: update(updates, state, params)")
        count = optax.safe_increment(state.ema_count)
        log_decay = jnp.log(jnp.asarray(decay, float))
        # (1 - decay) / (1 - decay**count) is the weight of the newest params: 1 in the first step.
        weight = jnp.expm1(log_decay) / jnp.expm1(count.astype(log_decay.dtype) * log_decay)

        def average(old: Any, param: Any, update: Any) -> Any:
            return old + weight.astype(old.dtype) * (param.astype(old.dtype) + update.astype(old.dtype) - old)

        return updates, ParamsEmaState(count, jtu.tree_map(average, state.params_ema, params, updates))

    return at_boundary(optax.GradientTransformationExtraArgs(init, update))


def _check_decay(decay: Any) -> None:
    if not is_real_number(decay):
        raise TypeError(f"decay must be a real number, found {describe_value(decay)}")
    if not isinstance(decay, Tracer) and not 0 <= decay < 1:
        raise ValueError(f"decay must be at least 0 and less than 1, found {decay!r}")


def _wide(x: Any) -> Any:
    """Return a floating-point array in float32 at least, and a complex array unchanged."""
    return widen(x) if issubdtype(x.dtype, jnp.inexact) else x.astype(float)
