"""`tree_map_params`: map over the params in a state."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import optax

from treekit._base.jax import jtu
from treekit._base.types import LeafPredicate, PyTree, TransformationLike
from treekit.optax._kernel.holes import is_hole

Initable: TypeAlias = TransformationLike | Callable[[Any], Any]
MappedState = TypeVar("MappedState")

_optax_tree_map_params = optax.tree_map_params


def tree_map_params(
    initable: Initable,
    f: Callable[..., Any],
    state: MappedState,
    /,
    *rest: PyTree,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: LeafPredicate | None = None,
) -> MappedState:
    """Map a function over the params in a state: `optax.tree_map_params`, without `is_leaf` for masked params.

    Args:
        initable: a transformation, or its init.
        f: called with a leaf of the state that belongs to a param, and the leaves of `rest` for that param.
        state: a state of the transformation.
        *rest: trees with the structure of the params.
        transform_non_params: called with every other leaf of the state.
        is_leaf: as in `jax.tree.map`, for the params in the state. Placeholders in the state (None, MaskedNode) are
            skipped, unless `is_leaf` selects them.

    Returns:
        The state with its leaves replaced by the results.

    >>> import jax.numpy as jnp
    >>> from treekit.optax import adam, masked
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx = masked(adam(1e-3), {"w": True, "b": False})
    >>> specs = tree_map_params(tx, lambda _, name: name, tx.init(params), {"w": "W", "b": "B"})
    >>> specs.inner_state[0].mu
    {'b': MaskedNode(), 'w': 'W'}
    """

    def is_chosen(x: object) -> bool:
        return is_leaf is not None and is_leaf(x)

    def stop(x: object) -> bool:
        return is_chosen(x) or is_hole(x)

    def f_unless_hole(x: object, *others: object) -> Any:
        return x if is_hole(x) and not is_chosen(x) else f(x, *others)

    def transform_each(x: object) -> Any:  # a measurement of a monitor may be a tree
        return x if transform_non_params is None else jtu.tree_map(transform_non_params, x, is_leaf=is_chosen)

    given = cast(Any, initable)
    out: MappedState = _optax_tree_map_params(
        given, f_unless_hole, state, *rest, transform_non_params=transform_each, is_leaf=stop
    )
    return out
