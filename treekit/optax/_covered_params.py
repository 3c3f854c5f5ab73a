"""Find out which params a state covers."""

from typing import Any

import optax

from treekit._dtype import shape_of
from treekit._jax import jtu
from treekit._tree import is_none
from treekit._types import OptState, Params


def covered_leaves(state: OptState, given: Params, leaves: list[Any], updates: list[Any]) -> list[Any]:
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

    def is_copy(x: object) -> bool:
        return type(x) is type(given) and _leaves_like(x, given) is not None

    copies = [x for x in jtu.tree_leaves(state, is_leaf=is_copy) if is_copy(x)]
    columns = [found for copy in copies if (found := _leaves_like(copy, given))]
    return list(map(_covered_leaf, leaves, updates, zip(*columns, strict=True))) if columns else leaves


def _leaves_like(copy: Params, given: Params) -> list[Any] | None:
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
            if not jtu.all_leaves([part]) or shape_of(leaf) != shape_of(part):
                return None
        found += [leaf] * len(below)
    return found


def _covered_leaf(leaf: object, update: object, copies: tuple[Any, ...]) -> Any:
    """Return a leaf of the params, or None if the state does not cover it.

    In a chain, one copy may have an array where another is masked: the array decides, then None, then MaskedNode.
    """
    arrays = [copy for copy in copies if not _is_left_out(copy)]
    if arrays:
        return arrays[-1] if leaf is None else leaf
    if update is None and any(copy is None for copy in copies):  # left out by init, or by a filter
        return None
    # The shape of a param that is masked out and was not passed is unknown, and not needed.
    return 0.0 if leaf is None and any(copy is not None for copy in copies) else leaf


def _is_left_out(x: object) -> bool:
    return x is None or isinstance(x, optax.MaskedNode)
