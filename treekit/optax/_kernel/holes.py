"""What stands for params that are not there: holes, and the placeholder with which Optax asks `init` for a state."""

from typing import Any

import optax

from treekit._base.jax import jtu
from treekit._base.types import Params

# `optax.tree_map_params` calls `init` with a placeholder for any params, to find the params in a state. Here its `init`
# keeps that placeholder.
_PLACEHOLDER: list[Any] = []
optax.tree_map_params(_PLACEHOLDER.append, jtu.tree_leaves, None)


def is_hole(x: object) -> bool:
    """Whether `x` is what a tree has for a leaf, or a subtree, that is left out: None or a MaskedNode."""
    return x is None or isinstance(x, optax.MaskedNode)


def is_params_placeholder(params: Params) -> bool:
    """Whether `init` was called by `optax.tree_map_params`: every core passes this placeholder on as it is."""
    return type(params) is type(_PLACEHOLDER[0])
