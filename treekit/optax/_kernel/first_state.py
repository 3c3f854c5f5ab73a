"""What `init` returns: a state in arrays of its own."""

from typing import Any

import optax

from treekit._base.dtype import strengthen_all, unshared
from treekit._base.jax import jtu
from treekit._base.types import OptState, Params
from treekit.optax._kernel.sharding import shard_alike


def first_state(state: OptState, params: Params) -> Any:
    """Return a state that `init` made, strongly typed, in arrays of its own, and sharded as the params."""
    _check_not_lookahead(state)
    leaves, treedef = jtu.tree_flatten(strengthen_all(state))
    return shard_alike(treedef.unflatten(unshared(leaves, jtu.tree_leaves(params))), params)


def _check_not_lookahead(state: OptState) -> None:
    """Raise a TypeError for a state of lookahead inside the boundary: its params are a pair, and updates are not."""

    def is_of_lookahead(x: object) -> bool:
        return isinstance(x, optax.LookaheadState)

    if any(map(is_of_lookahead, jtu.tree_leaves(state, is_leaf=is_of_lookahead))):
        raise TypeError("optax.lookahead, whose params are a pair, cannot be wrapped: use it outermost")
