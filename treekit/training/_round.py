"""Take one step of an optimizer, or a whole round of a MultiSteps or sam, to see what it does to each leaf."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import optax

from treekit._base.dtype import dtype_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import can_be_trained
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, Updates
from treekit._compare.prefix import flatten_updates
from treekit.optax._kernel.state_map import map_state, numbers_of_leaves
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.optax._wrappers.rounds import MULTI_STEPS_STATES
from treekit.optax._wrappers.state_values import states_in

_MOST_MINI_STEPS = 1000


def filled(tree: Params, value: float, *, keep_others: bool = True) -> Any:
    """Fill the arrays that can be trained with a number. Other leaves are kept, or become None.

    Arrays that are alike become one and the same, so that the params of a large model fit a second time.
    """
    made: dict[Any, Any] = {}

    def fill(x: Any) -> Any:
        if not can_be_trained(x):
            return x if keep_others else None
        key = x.shape, dtype_of(x), getattr(x, "sharding", None)
        if key not in made:
            made[key] = jnp.full_like(x, value)
        return made[key]

    return jtu.tree_map(fill, tree)


class Round(NamedTuple):
    """A round of equal gradients.

    Attributes:
        updates: the update of each leaf; None for a leaf without one. For a leaf of a MultiSteps or sam, that is the
            sum of its updates until its own round ends; for any other, its first update.
        steps: how many steps were taken: until all rounds had ended.
    """

    updates: list[Any]
    steps: int


def take_round(
    tx: GradientTransformation[Any], params: Params, grads: Updates, state: OptState, curvature: float | None
) -> Round:
    """Take steps until each MultiSteps and sam in an optimizer has ended a round.

    The params stay as they are. So the last update of a round of sam is what the round does: there is nothing to take
    back, and the updates before do not count.

    Args:
        tx: the optimizer.
        params: the params.
        grads: the gradients, the same in each step; None for a leaf without one.
        state: the state before the first step.
        curvature: that of a made-up loss, for an optimizer that needs one; None passes no loss.

    Raises:
        ValueError: a round does not end within a thousand steps, since it is longer, or since it is held.
    """
    rounds = [(int(x.gradient_step), _leaves_of(x.acc_grads, params)) for x in _multi_steps(state)]
    totals: list[Any] = [None] * jtu.tree_structure(params).num_leaves
    waiting = set(range(len(totals)))  # the leaves whose step is not over
    # A leaf waits until all rounds that it is in have ended. An update that sam will take back does not count.
    for i in range(_MOST_MINI_STEPS):
        updates, state = take_step(tx, params, grads, state, curvature)
        astray = _astray(state, params)
        for leaf in waiting - astray:
            if updates[leaf] is not None:
                totals[leaf] = updates[leaf] if totals[leaf] is None else totals[leaf] + updates[leaf]
        pairs = zip(rounds, _multi_steps(state), strict=True)
        in_rounds = [leaves for (first_step, leaves), x in pairs if int(x.gradient_step) == first_step]
        waiting = astray.union(*in_rounds)
        if not waiting:
            return Round(totals, i + 1)
    raise ValueError(f"MultiSteps took no step in {_MOST_MINI_STEPS:,} mini-steps")


def take_step(
    tx: GradientTransformation[Any], params: Params, grads: Updates, state: OptState, curvature: float | None
) -> tuple[list[Any], OptState]:
    """Return the update of each leaf, and the next state."""
    extra = {} if curvature is None else _made_up_arguments(params, grads, curvature)
    updates, new_state = tx.update(grads, state, params, **extra)
    return flatten_updates(jtu.tree_structure(params), updates), new_state


def _multi_steps(state: OptState) -> Iterator[Any]:
    """Yield the states of MultiSteps in a state, also those inside of another one."""
    for x in states_in(state, MULTI_STEPS_STATES).values():
        yield x
        yield from _multi_steps(x.inner_opt_state)


def _astray(state: OptState, params: Params) -> set[int]:
    """Return the positions of the leaves that a sam has moved away from their params, and will move back."""
    moved = [x for x in states_in(state, optax.contrib.SAMState).values() if int(x.steps_since_sync)]
    return {leaf for x in moved for leaf in _leaves_of(x.cache, params)}


def _leaves_of(part: OptState, params: Params) -> set[int]:
    """Return the positions of the leaves for which a part of a state has arrays, such as accumulated gradients.

    Those are all leaves if the part is not like the params, as inside of `optax.flatten`.
    """
    found = {entry.param for entry in map_state(part, params)}
    return {i for i, number in enumerate(numbers_of_leaves(params)) if None in found or number in found}


def _made_up_arguments(params: Params, grads: Updates, curvature: float) -> dict[str, Any]:
    """Return the extra arguments for a quadratic loss with these gradients, and the weight of a micro-batch.

    Imaginary parts are left out.
    """

    # `value_fn` has a `weight`, since line searches refuse arguments that their function does not name.
    def value_fn(candidate: object, weight: float = 1.0) -> Any:
        total: Any = jnp.float32(curvature)  # so two curvatures show whether a step depends on the value of the loss
        trees = (jtu.tree_leaves(tree, is_leaf=is_none) for tree in (candidate, params, grads))
        for x, param, grad in zip(*trees, strict=True):
            if can_be_trained(param):
                away, slope = (jnp.ravel(y).real.astype(jnp.float32) for y in (x - param, grad))
                total += jnp.sum(slope * away + curvature / 2 * away * away)
        return total

    return {"value": jnp.float32(curvature), "grad": grads, "value_fn": value_fn, "weight": 1.0}
