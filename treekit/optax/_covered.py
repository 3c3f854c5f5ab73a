"""Find out which params a state covers."""

from typing import Any

import numpy as np
import optax

from treekit._jax import jtu
from treekit._tree import is_none


def covered_leaves(state: Any, given: Any, leaves: list[Any], updates: list[Any]) -> list[Any]:
    """Return the leaves of the params that `init` received when it made a state, as far as the state shows.

    The state of a raw model has an entry for a Python float; the state of filtered params, like their gradients, does
    not. Trees in the state that are like the params show which of the two it is.

    Args:
        state: the state.
        given: the params, or the updates if params were not passed.
        leaves: the leaves of `given`, including None.
        updates: the update for each of them.
    """
    if jtu.all_leaves([given]) or all(update is not None for update in updates):
        return leaves

    def is_copy(x: Any) -> bool:
        return type(x) is type(given) and _leaves_like(x, given) is not None

    for copy in filter(is_copy, jtu.tree_leaves(state, is_leaf=is_copy)):
        leaves = list(map(_covered_leaf, _leaves_like(copy, given) or [], leaves, updates))
    return leaves


def _leaves_like(copy: Any, given: Any) -> list[Any] | None:
    """Return what `copy` has for each leaf of the params; None unless it has their structure and shapes.

    Either tree may have None or a MaskedNode as a placeholder.
    """
    leaves, treedef = jtu.tree_flatten(copy, is_leaf=_is_left_out)
    try:
        parts = treedef.flatten_up_to(given)
    except ValueError:
        return None
    found: list[Any] = []
    for leaf, part in zip(leaves, parts, strict=True):
        below = jtu.tree_leaves(part, is_leaf=is_none)
        if part is not None and not _is_left_out(leaf):
            if not jtu.all_leaves([part]) or np.shape(leaf) != np.shape(part):
                return None
        found += [leaf] * len(below)
    return found


def _covered_leaf(copy: Any, leaf: Any, update: Any) -> Any:
    """Return a leaf of the params, or None if the state does not cover it."""
    if copy is None:  # left out by init, or by a filter, although there may be an update
        return None if update is None else leaf
    if leaf is None:  # the shape of a param that is masked out is unknown, and not needed
        return 0.0 if isinstance(copy, optax.MaskedNode) else copy
    return leaf


def _is_left_out(x: Any) -> bool:
    return x is None or isinstance(x, optax.MaskedNode)
