"""Find the trees in a state that are like the params, such as the moments of Adam."""

import optax

from treekit._base.jax import jtu
from treekit._base.types import PyTree


def match_params(x: object, numbered: PyTree) -> list[tuple[object, list[int]]] | None:
    """Return each leaf of `x` with the numbers of the params that it stands for.

    An array stands for one param; None and MaskedNode, the placeholders for what is left out, for any number of them.

    Args:
        x: a part of a state.
        numbered: the params, each replaced by its number. With the arrays themselves, JAX would write them into the
            error of a tree that does not fit, and copy all of them from their devices for that.

    Returns:
        One pair for each leaf or placeholder of `x`; None if `x` does not have the structure of the params.
    """
    if type(x) is not type(numbered) and not isinstance(numbered, int):
        return None
    leaves, treedef = jtu.tree_flatten(x, is_leaf=is_placeholder)
    try:
        parts = treedef.flatten_up_to(numbered)
    except ValueError:
        return None
    pairs = list(zip(leaves, parts, strict=True))
    if not all(isinstance(part, int) or is_placeholder(leaf) for leaf, part in pairs):
        return None
    return [(leaf, jtu.tree_leaves(part)) for leaf, part in pairs]


def is_placeholder(x: object) -> bool:
    """Whether `x` is a placeholder for params that are left out of a state: None or a MaskedNode."""
    return x is None or isinstance(x, optax.MaskedNode)
