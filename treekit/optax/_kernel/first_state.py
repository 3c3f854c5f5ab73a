"""What `init` returns: a state in arrays of its own. And the nodes that it makes, which Flax NNX replaces."""

import contextlib
from collections.abc import Callable
from typing import Any

import optax

from treekit._base.dtype import strengthen_all, unshared
from treekit._base.flax import is_nnx_state
from treekit._base.jax import jtu, untyped
from treekit._base.tree import in_nodes_of
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


def from_nnx(init: Callable[[Any], Any], state: OptState, like: Params) -> Any:
    """Return a state in the nodes that `init` makes, if Flax NNX has put it into others; else the state itself.

    After a step, `flax.nnx.Optimizer` has an `nnx.State` where a state had a list, a tuple or another node for a param.
    An update that takes such a list apart, `a, b = state`, would get the keys of the `nnx.State`.

    Args:
        init: the `init` of the core.
        state: the state that update received.
        like: the params inside, or the updates.
    """
    if is_nnx_state(like):
        with contextlib.suppress(Exception):  # an init that cannot be traced
            return in_nodes_of(untyped.eval_shape(init, like), state, kind=object)
    return state


def back_to_nnx(received: OptState, new_state: OptState) -> Any:
    """Return a new state in the nodes of the one that update received."""
    return in_nodes_of(received, new_state, kind=object)
