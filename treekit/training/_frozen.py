"""Which leaves do not move whatever their gradients and params are?"""

import functools
from typing import Any

import numpy as np
from jax.custom_batching import custom_vmap

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.types import OptState, Params, PyTreeDef
from treekit.optax._kernel.state_map import Entry, map_state
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.optax._wrappers.rounds import MULTI_STEPS_STATES
from treekit.training._round import filled, take_round


def find_frozen(
    tx: GradientTransformation[Any], params: Params, state: OptState, curvature: float | None, still: list[bool]
) -> list[bool]:
    """Return which of the leaves that do not move are frozen: their updates depend on no gradient or param of theirs.

    Those gradients and params are multiplied by a factor over which `jax.vmap` maps. An update that depends on them is
    then batched, such as that of a schedule which is 0 now, since it is the product of 0 and a gradient. Outside of
    `jit`, JAX computes with known values whatever is not batched.

    But a transformation may ask a count whether to use the gradients at all. So counts in the state are multiplied by a
    factor too, over which another `vmap` maps, around the first: a count is then not known, and both branches run. The
    counts of a MultiSteps stay known, since `take_round` reads them. If the user's own code reads a count, the step
    fails, and is taken again with known counts. If it still fails, no leaf counts as frozen.

    Args:
        tx: the optimizer.
        params: the params, filled with ones.
        state: the state before the step.
        curvature: that of the loss, as in `take_round`.
        still: for each leaf, whether it does not move.
    """
    treedef, (state_leaves, state_treedef) = jtu.tree_structure(params), jtu.tree_flatten(state)
    are_counts = [_is_count(x, entry) for x, entry in zip(state_leaves, map_state(state, params), strict=True)]
    are_batched = [False] * sum(still)  # for each leaf that does not move, whether its update is
    record = _recorder(are_batched)

    def step(count_factor: Any, factor: Any) -> Any:
        grads = _scaled(treedef, filled(params, 1.0, others=False), still, factor)
        start = _scaled(state_treedef, state, are_counts, count_factor)
        updates = take_round(tx, _scaled(treedef, params, still, factor), grads, start, curvature)
        record([factor, *(x for x, is_still in zip(updates, still, strict=True) if is_still)])
        return factor

    def mapped(count_factor: Any) -> Any:
        return untyped.vmap(functools.partial(step, count_factor))(jnp.ones(1))

    try:
        untyped.vmap(mapped)(jnp.ones(1))
    except Exception:  # the user's own code may raise anything
        try:
            mapped(jnp.ones(()))
        except Exception:
            return [False] * len(still)
    batched = iter(are_batched)
    return [is_still and not next(batched) for is_still in still]


def _recorder(are_batched: list[bool]) -> Any:
    """Return a function that records which items of a list are batched, after the first, by the `vmap` of the first."""

    @custom_vmap
    def record(xs: list[Any]) -> list[Any]:
        return xs

    @record.def_vmap
    def rule(_: int, batched: list[list[Any]], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        are_batched[:] = map(bool, batched[0][1:])
        return xs, batched[0]

    return record


def _scaled(structure: PyTreeDef, tree: Any, which: list[bool], factor: Any) -> Any:
    """Multiply some leaves of a tree by a factor."""
    pairs = zip(structure.flatten_up_to(tree), which, strict=True)
    return structure.unflatten(x * factor.astype(x.dtype) if is_scaled else x for x, is_scaled in pairs)


def _is_count(x: Any, entry: Entry) -> bool:
    """Whether an array of a state is a count, and not one of a MultiSteps."""
    return issubdtype(dtype_of(x), jnp.integer) and np.shape(x) == () and entry.owner not in MULTI_STEPS_STATES
