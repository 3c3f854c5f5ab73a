"""Which params a state covers."""

from typing import Any

import numpy as np
import optax

from treekit._jax import jtu
from treekit._tree import is_none


def covered_leaves(state: Any, given: Any, leaves: list[Any], updates: list[Any]) -> list[Any]:
    """The leaves of the params that `init` was given when it made a state, as far as the state tells.

    A Python float has a place in the state of a raw model, and none in gradients or in filtered params; a state that
    was made of filtered params has none for it. Trees in the state that are like the params show which it was.

    Args:
        state: the state.
        given: the params, or the updates where no params are given.
        leaves: those of `given`, None among them.
        updates: the update for each of them.
    """
    if jtu.all_leaves([given]) or all(update is not None for update in updates):
        return leaves

    def is_copy(x: Any) -> bool:
        return type(x) is type(given) and _leaves_like(x, given) is not None

    copies = [x for x in jtu.tree_leaves(state, is_leaf=is_copy) if is_copy(x)]
    columns = [found for copy in copies if (found := _leaves_like(copy, given))]
    return list(map(_covered_leaf, leaves, updates, zip(*columns, strict=True))) if columns else leaves


def _leaves_like(copy: Any, given: Any) -> list[Any] | None:
    """What `copy` has for each leaf of the params; None unless it has their structure and shapes.

    None or a MaskedNode, in either, may stand for what is left out.
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


def _covered_leaf(leaf: Any, update: Any, copies: tuple[Any, ...]) -> Any:
    """A leaf of the params given, as the state covers it.

    In a chain one copy may have an array where another is masked: the array tells most, then None, then MaskedNode.
    """
    arrays = [copy for copy in copies if not _is_left_out(copy)]
    if arrays:
        return arrays[-1] if leaf is None else leaf
    if update is None and any(copy is None for copy in copies):  # left out by init, or by a filter
        return None
    # No shape is known of a param that is masked out and not given, and none is needed.
    return 0.0 if leaf is None and any(copy is not None for copy in copies) else leaf


def _is_left_out(x: Any) -> bool:
    return x is None or isinstance(x, optax.MaskedNode)
