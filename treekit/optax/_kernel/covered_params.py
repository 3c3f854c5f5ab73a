"""Find out which params a state covers."""

from typing import Any

from treekit._base.dtype import shape_of
from treekit._base.jax import jtu
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params
from treekit.optax._kernel.state_map import is_placeholder, match_params


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

    numbered = jtu.tree_structure(given, is_leaf=is_none).unflatten(range(len(leaves)))

    columns: list[list[Any]] = []

    def is_copy(x: object) -> bool:  # called once for each node
        pairs = match_params(x, numbered)
        if pairs and all(map(has_shape_of_param, pairs)):
            columns.append([leaf for leaf, numbers in pairs for _ in numbers])
            return True
        return False

    def has_shape_of_param(pair: tuple[object, list[int]]) -> bool:
        param = leaves[pair[1][0]] if pair[1] else None
        return is_placeholder(pair[0]) or param is None or shape_of(pair[0]) == shape_of(param)

    jtu.tree_leaves(state, is_leaf=is_copy)
    return list(map(_covered_leaf, leaves, updates, zip(*columns, strict=True))) if columns else leaves


def _covered_leaf(leaf: object, update: object, copies: tuple[Any, ...]) -> Any:
    """Return a leaf of the params, or None if the state does not cover it.

    In a chain, one copy may have an array where another is masked: the array decides, then None, then MaskedNode.
    """
    arrays = [copy for copy in copies if not is_placeholder(copy)]
    if arrays:
        return arrays[-1] if leaf is None else leaf
    if update is None and any(copy is None for copy in copies):  # left out by init, or by a filter
        return None
    # The shape of a param that is masked out and was not passed is unknown, and not needed.
    return 0.0 if leaf is None and any(copy is not None for copy in copies) else leaf
