"""Find the leaves that are frozen: no gradient and no param of theirs changes their update.

JAX has no question "does this depend on that?". But under a `vmap` over a number, what depends on it is batched, and a
function with a rule of its own for `vmap` is told what is. So `note_batched`, below, exists for its rule.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.custom_batching import custom_vmap

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.types import OptState, Params, PyTreeDef
from treekit.optax._kernel.state_map import Entry, map_state
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.optax._wrappers.rounds import MULTI_STEPS_STATES
from treekit.training._round import filled, take_step

_ONE = np.ones(1, np.float32)


def find_frozen(
    tx: GradientTransformation[Any],
    params: Params,
    state: OptState,
    curvature: float | None,
    unmoved: list[bool],
    steps: int,
) -> list[bool]:
    """Return which of the leaves that do not move are frozen: their updates depend on no gradient or param of theirs.

    A leaf that does not move in this step may move in a later one: the update of a schedule that is 0 now is the
    product of 0 and a gradient. So the gradients and params of all leaves that do not move are multiplied by a factor,
    and JAX says which updates depend on it.

    A step may also ask a count whether to use the gradients at all, as `conditionally_mask` does. So the counts in the
    state are multiplied by another factor. JAX does not know then which branch runs, so both count. The counts of a
    MultiSteps are left as they are: its rounds are the same in each step.

    Args:
        tx: the optimizer.
        params: the params, filled with ones.
        state: the state before the step.
        curvature: that of the loss, as in `take_round`.
        unmoved: for each leaf, whether it does not move in this step.
        steps: how many steps a round takes.

    Returns:
        For each leaf, whether it is frozen; False for all if the optimizer's own code reads a count, which fails.
    """
    if not any(unmoved):
        return unmoved
    treedef, (state_leaves, state_treedef) = jtu.tree_structure(params), jtu.tree_flatten(state)
    are_counts = [_is_count(x, entry) for x, entry in zip(state_leaves, map_state(state, params), strict=True)]

    def updates_of_steps(count_factor: Any, factor: Any) -> list[list[Any]]:
        grads = _scaled(treedef, filled(params, 1.0, keep_others=False), unmoved, factor)
        scaled_params = _scaled(treedef, params, unmoved, factor)
        now = _scaled(state_treedef, state, are_counts, count_factor)
        of_steps: list[list[Any]] = []
        for _ in range(steps):
            updates, now = take_step(tx, scaled_params, grads, now, curvature)
            of_steps.append(updates)
        return of_steps

    try:
        depend = _which_depend_on_factor(updates_of_steps)
    except Exception:  # the optimizer's own code may raise anything
        return [False] * len(unmoved)
    return [is_unmoved and not depends for is_unmoved, depends in zip(unmoved, depend, strict=True)]


def _which_depend_on_factor(updates_of_steps: Callable[[Any, Any], list[list[Any]]]) -> list[bool]:
    """Return for each leaf whether one of its updates depends on the factor, the second argument.

    An inner `vmap` maps over the factor, so what depends on it is batched. (Outside of `jit`, JAX computes what is not
    batched as if there were no `vmap`.) An outer one maps over the factor of the counts: a `cond` whose predicate is
    batched computes both branches, and depends on what either does.
    """
    depend: list[bool] = []

    # It returns the factor. What matters is its rule, to which the inner `vmap` says what is batched.
    @custom_vmap
    def note_batched(factor: Any, of_steps: list[list[Any]]) -> Any:
        return factor

    @note_batched.def_vmap
    def rule(_: int, batched: Any, factor: Any, of_steps: list[list[Any]]) -> tuple[Any, bool]:
        depend[:] = map(any, zip(*batched[1], strict=True))  # None for a leaf without an update
        return factor, True

    def run(count_factor: Any, factor: Any) -> Any:
        return note_batched(factor, updates_of_steps(count_factor, factor))

    def over_factor(count_factor: Any) -> Any:
        return untyped.vmap(functools.partial(run, count_factor))(_ONE)

    untyped.vmap(over_factor)(_ONE)
    return depend


def _scaled(structure: PyTreeDef, tree: Any, are_scaled: list[bool], factor: Any) -> Any:
    """Multiply some leaves of a tree by a factor."""
    pairs = zip(structure.flatten_up_to(tree), are_scaled, strict=True)
    return structure.unflatten(x * factor.astype(x.dtype) if is_scaled else x for x, is_scaled in pairs)


def _is_count(x: Any, entry: Entry) -> bool:
    """Whether an array of a state is a count, and not one of a MultiSteps."""
    return issubdtype(dtype_of(x), jnp.integer) and np.shape(x) == () and entry.owner not in MULTI_STEPS_STATES
