"""Which params a state covers, and the trees in it that are like the params."""

import itertools
from typing import Any

import numpy as np
import optax

from treekit._jax import jtu
from treekit._tree import is_none
from treekit.optax._selection import update_parts


def covered_params(state: Any, updates: Any, given: Any) -> Any:
    """The params that `init` was given when it made a state, as far as the state tells.

    A Python float has a place in the state of a raw model, and none in gradients or in filtered params; a state that
    was made of filtered params has none for it. Trees in the state that are like the params show which it was.
    """
    if jtu.all_leaves([given]) or all(x is not None for x in jtu.tree_leaves(updates, is_leaf=is_none)):
        return given

    def is_copy(x: Any) -> bool:
        return type(x) is type(given) and _matches(x, given)

    covered = given
    for copy in filter(is_copy, jtu.tree_leaves(state, is_leaf=is_copy)):
        leaves, treedef = jtu.tree_flatten(copy, is_leaf=_is_left_out)
        parts = zip(leaves, treedef.flatten_up_to(covered), update_parts(treedef, updates), strict=True)
        covered = treedef.unflatten(itertools.starmap(_covered_part, parts))
    return covered


def _matches(copy: Any, given: Any) -> bool:
    """Whether a tree has the structure and the shapes of the params, but for what is left out of either."""
    leaves, treedef = jtu.tree_flatten(copy, is_leaf=_is_left_out)
    try:
        parts = treedef.flatten_up_to(given)
    except ValueError:
        return False
    present = [(x, part) for x, part in zip(leaves, parts, strict=True) if part is not None and not _is_left_out(x)]
    return all(jtu.all_leaves([part]) and np.shape(x) == np.shape(part) for x, part in present)


def _covered_part(copy: Any, part: Any, update: Any) -> Any:
    """A leaf or subtree of the params given, as the state covers it."""
    if copy is None:  # left out by init, or by a filter, which may have an update to drop
        return None if update is None else part
    if part is None:  # no shape is known of a param that is masked out, and none is needed
        return 0.0 if isinstance(copy, optax.MaskedNode) else copy
    return part


def _is_left_out(x: Any) -> bool:
    return x is None or isinstance(x, optax.MaskedNode)
