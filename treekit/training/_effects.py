"""What does one step of an optimizer do to each leaf? Asked of the optimizer itself, by taking steps."""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.custom_batching import custom_vmap

from treekit._base.describe import describe_error
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import can_be_trained, is_parameter
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, PyTreeDef, Updates
from treekit._compare.prefix import flatten_updates
from treekit.optax._kernel.state_map import Entry, map_state, numbers_of_leaves
from treekit.optax._kernel.state_values import states_in
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.optax._wrappers.rounds import MULTI_STEPS_STATES

_MOST_MINI_STEPS = 1000
_STEEP, _FLAT = 1e3, 1e-3  # curvatures for which any line search finds different steps


class Effect(NamedTuple):
    """What one step does to one leaf.

    Attributes:
        step: the root mean square of what a gradient of ones adds to the update, with a minus if that goes along the
            gradient; None if it is unknown.
        decay: the root mean square of the update without a gradient; None if it is unknown.
        note: a remark, or "".
    """

    step: float | None
    decay: float | None
    note: str = ""


class _Measured(NamedTuple):
    """Two measurements of what one step does to each leaf.

    Attributes:
        first: the first.
        second: the second, with other PRNG keys, or a loss of another curvature.
        why_they_differ: the note of a leaf for which they differ.
        curvature: that of the loss of the first; None without a loss.
    """

    first: list[Effect]
    second: list[Effect]
    why_they_differ: str
    curvature: float | None


def find_effects(tx: GradientTransformation[Any], params: Params, state: OptState, when: str) -> list[Effect]:
    """Return what one step does to each leaf of the params.

    An optimizer that fails with a gradient alone may need a loss. It is then measured with two losses of different
    curvature: what differs depends on the loss. If the state has PRNG keys, the second measurement has others: what
    differs is random.

    Args:
        tx: the optimizer.
        params: the params, filled with ones.
        state: the state before the step.
        when: which step this is, for the note of a leaf that does not move.
    """
    leaves = jtu.tree_leaves(params)
    measured = _measure_twice(tx, params, state)
    if isinstance(measured, str):
        return [Effect(None, None, measured) if can_be_trained(x) else _no_effect(x) for x in leaves]
    still = [can_be_trained(x) and one.step == one.decay == 0 for x, one in zip(leaves, measured.first, strict=True)]
    frozen = _find_frozen(tx, params, state, measured.curvature, still) if any(still) else [False] * len(leaves)

    def effect(x: object, one: Effect, other: Effect, is_frozen: bool) -> Effect:
        if not can_be_trained(x):
            return _no_effect(x)
        if not (_are_alike(one.step, other.step) and _are_alike(one.decay, other.decay)):
            step = one.step if _are_alike(one.step, other.step) else None
            decay = one.decay if _are_alike(one.decay, other.decay) else None
            return Effect(step, decay, measured.why_they_differ)
        if one.step is None:
            return one._replace(note="is not finite")
        if one.decay is None:
            return one._replace(note="is not finite without a gradient")
        if is_frozen:
            return one._replace(note="frozen")
        if one.step == 0:
            return one._replace(note=f"0 {when}")
        return one._replace(note="along the gradient, not against it: masked out?") if one.step < 0 else one

    return list(map(effect, leaves, measured.first, measured.second, frozen))


def _measure_twice(tx: GradientTransformation[Any], params: Params, state: OptState) -> _Measured | str:
    """Return two measurements; or why the optimizer fails, with a gradient alone and with a loss."""
    other_state = _with_other_keys(state)
    try:
        first = _measure(tx, params, state, None)
        second = first if other_state is None else _measure(tx, params, other_state, None)
        return _Measured(first, second, "random", None)
    except Exception as error:  # an optimizer that needs more than gradients may raise anything
        problem = error
    try:
        first = _measure(tx, params, state, _STEEP)
        second = _measure(tx, params, state if other_state is None else other_state, _FLAT)
        return _Measured(first, second, "depends on the loss", _STEEP)
    except Exception:
        return f"fails: {describe_error(problem)}"


def _find_frozen(
    tx: GradientTransformation[Any], params: Params, state: OptState, curvature: float | None, still: list[bool]
) -> list[bool]:
    """Return which of the leaves that do not move are frozen: their update depends on no gradient and no param of them.

    The gradients and params of these leaves are multiplied by a number over which `jax.vmap` maps. What depends on it
    is batched, such as the update of a schedule that is 0 now, which is the product of 0 and a gradient. JAX computes
    everything else at once.

    A transformation may ask a count whether to use the gradients. So the counts in the state are traced, by a `vmap`
    around that one: if they are not known, both answers are computed. The counts of a MultiSteps are known, since
    `_take_round` reads them. If the user's own code reads a count, it has to be known too.
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
        updates = _take_round(tx, scaled(treedef, params, still, factor), grads, start, curvature)
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


def _no_effect(x: object) -> Effect:
    return Effect(None, None, "has no gradient" if is_parameter(x) else "not a parameter")


def _are_alike(first: float | None, second: float | None) -> bool:
    """Whether two numbers are about the same, or both unknown."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-3)


def _measure(tx: GradientTransformation[Any], params: Params, state: OptState, curvature: float | None) -> list[Effect]:
    def updates_of(slope: float) -> list[Any]:
        return _take_round(tx, params, filled(params, slope, others=False), state, curvature)

    pairs = zip(updates_of(1.0), updates_of(0.0), strict=True)
    measured: list[Any] = jax.device_get([_sizes(*pair) for pair in pairs])
    return [Effect(*map(_if_finite, pair)) for pair in measured]


def _if_finite(x: Any) -> Any:
    return float(x) if np.isfinite(x) else None


def _sizes_of(update: Any, rest: Any) -> tuple[Any, Any]:
    """Return the root mean squares of `update - rest`, negative if it goes along a gradient of ones, and of `rest`.

    Without a gradient, some optimizers divide 0 by 0, so what is not finite in `rest` counts as 0 in the difference.
    """
    if update is None or rest is None:
        return 0.0, 0.0
    wide = jnp.complex64 if jnp.iscomplexobj(update) else jnp.float32
    update, rest = update.astype(wide), rest.astype(wide)
    step = update - jnp.nan_to_num(rest, nan=0, posinf=0, neginf=0)
    size, rest_size = (jnp.sqrt(jnp.sum(jnp.abs(x) ** 2) / max(x.size, 1)) for x in (step, rest))
    return jnp.where(jnp.sum(step.real) > 0, -size, size), rest_size


_sizes: Any = untyped.jit(_sizes_of)


def _take_round(
    tx: GradientTransformation[Any], params: Params, grads: Updates, state: OptState, curvature: float | None
) -> list[Any]:
    """Return the update of one step for each leaf.

    For a leaf of a MultiSteps, that is the sum of its updates in a round of equal gradients. For any other leaf, it is
    the first update, also if this goes on until the rounds of others end.
    """
    extra = {} if curvature is None else _made_up_arguments(params, grads, curvature)
    treedef = jtu.tree_structure(params)
    rounds = [(int(x.gradient_step), _accumulated(x, params)) for x in _multi_steps(state)]
    totals: list[Any] = [None] * treedef.num_leaves
    unfinished = set(range(treedef.num_leaves))  # all; later, the leaves of a MultiSteps whose round goes on
    for _ in range(_MOST_MINI_STEPS):
        updates, state = tx.update(grads, state, params, **extra)
        for i, x in enumerate(flatten_updates(treedef, updates)):
            if i in unfinished and x is not None:
                totals[i] = x if totals[i] is None else totals[i] + x
        now = [int(x.gradient_step) for x in _multi_steps(state)]
        unfinished = {i for (start, leaves), n in zip(rounds, now, strict=True) if n == start for i in leaves}
        if not unfinished:
            return totals
    raise ValueError(f"MultiSteps took no step in {_MOST_MINI_STEPS:,} mini-steps")


def _multi_steps(state: OptState) -> Iterator[Any]:
    """Yield the states of MultiSteps in a state, also those inside of another one."""
    for x in states_in(state, MULTI_STEPS_STATES).values():
        yield x
        yield from _multi_steps(x.inner_opt_state)


def _accumulated(state: Any, params: Params) -> set[int]:
    """Return the numbers of the leaves whose gradients a MultiSteps accumulates.

    Those are all leaves if its accumulators are not like the params, as inside of `optax.flatten`.
    """
    found = {entry.param for entry in map_state(state.acc_grads, params)}
    return {i for i, number in enumerate(numbers_of_leaves(params)) if None in found or number in found}


def filled(tree: Params, value: float, *, others: bool = True) -> Any:
    """Fill arrays that can have a gradient; those that are alike become one array. Other leaves are kept, or None."""
    made: dict[Any, Any] = {}

    def fill(x: Any) -> Any:
        if not can_be_trained(x):
            return x if others else None
        key = x.shape, dtype_of(x), getattr(x, "sharding", None)
        if key not in made:
            made[key] = jnp.full_like(x, value)
        return made[key]

    return jtu.tree_map(fill, tree)


def _made_up_arguments(params: Params, grads: Updates, curvature: float) -> dict[str, Any]:
    """Return the extra arguments for a quadratic loss with these gradients, and the weight of a micro-batch."""

    # `value_fn` has a `weight`, since line searches refuse arguments that their function does not name.
    def value_fn(candidate: object, weight: float = 1.0) -> Any:
        total: Any = jnp.float32(curvature)
        trees = (jtu.tree_leaves(tree, is_leaf=is_none) for tree in (candidate, params, grads))
        for x, param, grad in zip(*trees, strict=True):
            if can_be_trained(param):
                away, slope = (jnp.ravel(y).real.astype(jnp.float32) for y in (x - param, grad))
                total += jnp.sum(slope * away + curvature / 2 * away * away)
        return total

    return {"value": jnp.float32(curvature), "grad": grads, "value_fn": value_fn, "weight": 1.0}


def _with_other_keys(state: OptState) -> Any:
    """Return a state with other PRNG keys, of the new style or, as in Optax's noise, of the old; None without keys."""

    def is_key(x: Any) -> bool:
        dtype = dtype_of(x)
        is_old = dtype == jnp.uint32 and np.shape(x) in ((2,), (4,))
        return is_old or (dtype is not None and issubdtype(dtype, jax.dtypes.prng_key))

    def other(x: Any) -> Any:
        if not is_key(x):
            return x
        if dtype_of(x) == jnp.uint32:
            return x ^ 1
        return untyped.random.wrap_key_data(jax.random.key_data(x) ^ 1, impl=jax.random.key_impl(x))

    return jtu.tree_map(other, state) if any(map(is_key, jtu.tree_leaves(state))) else None
