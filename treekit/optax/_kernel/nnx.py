"""Flax NNX returns a state in nodes of its own: a core gets those that `init` makes, and Flax gets its own again."""

import contextlib
from collections.abc import Callable
from typing import Any

from treekit._base.flax import is_nnx_state
from treekit._base.jax import untyped
from treekit._base.types import OptState, Params
from treekit._compare.nodes import in_nodes_of


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
            return in_nodes_of(untyped.eval_shape(init, like), state, kind=object)  # of any class
    return state


def back_to_nnx(received: OptState, new_state: OptState) -> Any:
    """Return a new state in the nodes of the one that update received."""
    return in_nodes_of(received, new_state, kind=object)
