"""Which leaves can no gradient move?"""

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
    """Return which of the leaves that do not move are frozen: their update depends on no gradient and no param of them.

    The gradients and params of these leaves are multiplied by a number over which `jax.vmap` maps. What depends on it
    is batched, such as the update of a schedule that is 0 now, which is the product of 0 and a gradient. JAX computes
    everything else at once.

    A transformation may ask a count whether to use the gradients. So the counts in the state are traced, by a `vmap`
    around that one: if they are not known, both answers are computed. The counts of a MultiSteps are known, since
    `take_round` reads them. If the user's own code reads a count, it has to be known too.
    """
    treedef, (state_leaves, state_treedef) = jtu.tree_structure(params), jtu.tree_flatten(state)
    are_counts = [_is_count(x, entry) for x, entry in zip(state_leaves, map_state(state, params), strict=True)]
    is_batched = [False] * sum(still)

    @custom_vmap
    def ask(updates: list[Any]) -> list[Any]:
        return updates

    @ask.def_vmap
    def answer(_: int, batched: list[list[Any]], updates: list[Any]) -> tuple[list[Any], list[Any]]:
        is_batched[:] = map(bool, batched[0][1:])
        return updates, batched[0]

    def scaled(structure: PyTreeDef, tree: Any, which: list[bool], factor: Any) -> Any:
        pairs = zip(structure.flatten_up_to(tree), which, strict=True)
        return structure.unflatten(x * factor.astype(x.dtype) if is_scaled else x for x, is_scaled in pairs)

    def step(of_counts: Any, factor: Any) -> Any:
        grads = scaled(treedef, filled(params, 1.0, others=False), still, factor)
        start = scaled(state_treedef, state, are_counts, of_counts)
        updates = take_round(tx, scaled(treedef, params, still, factor), grads, start, curvature)
        # The factor is batched, so it is asked about this `vmap`, and not about that of the counts.
        ask([factor, *(x for x, is_still in zip(updates, still, strict=True) if is_still)])
        return factor

    def mapped(of_counts: Any) -> Any:
        return untyped.vmap(functools.partial(step, of_counts))(jnp.ones(1))

    try:
        untyped.vmap(mapped)(jnp.ones(1))
    except Exception:  # an optimizer of the user's may look at values, and raise anything
        try:
            mapped(jnp.ones(()))
        except Exception:
            return [False] * len(still)
    batched = iter(is_batched)
    return [is_still and not next(batched) for is_still in still]


def _is_count(x: Any, entry: Entry) -> bool:
    """Whether an array of a state is a count, and not one of a MultiSteps."""
    return issubdtype(dtype_of(x), jnp.integer) and np.shape(x) == () and entry.owner not in MULTI_STEPS_STATES
