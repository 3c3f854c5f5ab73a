"""`lookahead`: the params are a pair of models, with fast and slow weights."""

from typing import Any

import optax

from treekit._base.jax import jnp, jtu
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.check_params import check_has_params
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._kernel.trained import trained


def lookahead(
    fast_optimizer: TransformationLike, sync_period: int, slow_step_size: float, reset_state: bool = False
) -> optax.GradientTransformation:
    """Let slow weights follow fast ones every few steps: `optax.lookahead` for every model.

    The params are a pair, and so are the updates, so it cannot be inside of another transformation.

    Args:
        fast_optimizer: the transformation of the fast weights.
        sync_period: after how many steps the slow weights move towards the fast ones, which are then set to them.
        slow_step_size: how far they move, as a fraction of the way.
        reset_state: whether the state of `fast_optimizer` is then that of `init` again.

    Returns:
        A transformation of `optax.LookaheadParams`, with the gradients of the fast weights; its state is an
        `optax.LookaheadState`. A parameter without a gradient has a zero for its gradient.

    Raises:
        ValueError: `sync_period` is less than 1; or, raised by `update`, the params are missing.
        TypeError: `fast_optimizer` is not a transformation. Raised by `init` if the params are not a pair.

    Source: Zhang et al., Lookahead Optimizer: k steps forward, 1 step back, 2019.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = optax.LookaheadParams.init_synced({"w": jnp.ones(2), "activation": jnp.tanh})
    >>> tx = lookahead(optax.sgd(0.5), sync_period=1, slow_step_size=0.5)
    >>> updates, _ = tx.update({"w": jnp.ones(2), "activation": None}, tx.init(params), params)
    >>> updates.slow
    {'activation': None, 'w': Array([-0.25, -0.25], dtype=float32)}
    """
    crossed = at_boundary(fast_optimizer)

    def update_fast(updates: Updates, state: OptState, params: Params = None) -> tuple[Any, Any]:
        new_updates, new_state = crossed.update(updates, state, params)
        return jtu.tree_map(_zero_if_none, params, new_updates), new_state

    # Optax computes with the pair, in which nothing else may be than what is trained.
    pair = optax.lookahead(
        optax.GradientTransformation(crossed.init, update_fast), sync_period, slow_step_size, reset_state
    )

    def init(params: Any) -> Any:
        if not (isinstance(params, optax.LookaheadParams) or is_params_placeholder(params)):
            raise TypeError(
                "the params of lookahead must be optax.LookaheadParams.init_synced(params), and its updates the "
                f"gradients of params.fast, found {type(params).__qualname__}"
            )
        return pair.init(params)

    def update(updates: Updates, state: OptState, params: Any = None) -> tuple[Any, Any]:
        check_has_params(params)
        both = optax.LookaheadParams(trained(params.fast), trained(params.slow))
        out: tuple[Any, Any] = pair.update(updates, state, both)
        return out

    return optax.GradientTransformation(init, update)


def _zero_if_none(param: Any, update: Any) -> Any:
    return jnp.zeros_like(param) if update is None else update
