"""`lookahead`, whose params are a pair of trees: Optax's own, for trees of arrays."""

import optax

from treekit._base.describe import describe
from treekit._base.jax import jtu
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import is_parameter
from treekit._base.types import Params, TransformationLike
from treekit.optax._transformation import core_of


def lookahead(
    fast_optimizer: TransformationLike, sync_period: int, slow_step_size: float, reset_state: bool = False
) -> optax.GradientTransformation:
    """Take steps with one copy of the params, and let another one follow: `optax.lookahead`, for filtered models.

    Its params are a pair, `optax.LookaheadParams`, so it must be outermost.

    Args:
        fast_optimizer: the transformation that updates the fast params.
        sync_period: the number of steps between two synchronizations.
        slow_step_size: the step of the slow params towards the fast ones.
        reset_state: whether to reset the state of `fast_optimizer` at each synchronization.

    Returns:
        A transformation of plain Optax; its state is an `optax.LookaheadState`.

    Raises:
        TypeError: raised by `init` for a leaf that is not a number or an array; the message names the key path.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5)
    >>> state = tx.init(optax.LookaheadParams.init_synced({"w": jnp.ones(2)}))
    """
    fast = optax.GradientTransformation(core_of(fast_optimizer).init, core_of(fast_optimizer).update)
    tx = optax.lookahead(fast, sync_period, slow_step_size, reset_state)

    def init(params: Params) -> optax.LookaheadState:
        for i, x in enumerate(jtu.tree_leaves(params)):
            if not is_parameter(x):
                raise TypeError(
                    f"lookahead computes with all leaves of its params, and has {describe(x)} at "
                    f"{leaf_path_text(params, i)}. Filter the model: treekit.filter(model, treekit.is_inexact_array)"
                )
        state: optax.LookaheadState = tx.init(params)
        return state

    return optax.GradientTransformation(init, tx.update)
