"""Find out what one step of an optimizer does to each leaf, by taking it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from treekit._base.describe import describe_error
from treekit._base.dtype import has_no_update
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import has_gradient
from treekit._base.tree import flatten_updates, is_none
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates

_STEEP, _FLAT = 1e3, 1e-3  # curvatures for which any line search finds different steps
_MOST_MINI_STEPS = 1000
_LATER = "in the second step; 0 in the first"
_VARIED = "0 for a gradient of ones, but not for others"


class Effect(NamedTuple):
    """What a step does to one leaf.

    Attributes:
        size: the root mean square of the update, negative if it goes along the gradient instead of against it; None if
            unknown.
        note: why it is unknown, or another remark.
    """

    size: float | None
    note: str = ""


def probe_step(
    tx: TransformationLike, state: OptState, params: Params, slope: float, *, net: bool = False
) -> list[Effect]:
    """Return, for each leaf of the params, what a step from `state` with a gradient of `slope` everywhere does.

    Args:
        tx: the optimizer.
        state: its state.
        params: the params.
        slope: the gradient.
        net: subtract the effect of a step with a gradient of zero.
    """
    try:
        return _effects(tx, state, params, slope, net)
    except Exception as error:  # an optimizer that needs more than gradients may raise anything
        problem = error
    try:
        steep, flat = (_effects(tx, state, params, slope, net, curvature) for curvature in (_STEEP, _FLAT))
    except Exception:
        return [Effect(None, f"fails: {describe_error(problem)}")] * len(jtu.tree_leaves(params))
    same = (a == b and np.isfinite(a.size or 0.0) for a, b in zip(steep, flat, strict=True))
    return [a if s else Effect(None, "depends on the loss") for a, s in zip(steep, same, strict=True)]


def _effects(
    tx: TransformationLike, state: OptState, params: Params, slope: float, net: bool, curvature: float | None = None
) -> list[Effect]:
    """Take one step, and more for leaves whose step is zero.

    In a warm-up, the second step is not zero. A step with centered gradients, or one that keeps params positive, is not
    zero for a gradient that varies and has another sign.
    """

    def step(states: list[Any], grads: Updates) -> tuple[list[Effect], list[Any]]:
        steps: list[tuple[Any, Any]] = []
        for state, x in zip(states, (grads, _full(params, 0.0)), strict=False):
            extra = {} if curvature is None else _loss(params, x, curvature)
            steps.append(_take_round(tx, x, state, params, extra))
        return _sizes(params, *[updates for updates, _ in steps]), [state for _, state in steps]

    first = [state] * (2 if net else 1)
    effects, second = step(first, _full(params, slope))
    if any(a.size == 0 for a in effects):
        later, _ = step(second, _full(params, slope))
        effects = [
            b._replace(note=_LATER) if a.size == 0 and b.size else a for a, b in zip(effects, later, strict=True)
        ]
    if slope and any(a.size == 0 for a in effects):
        varied, _ = step(first, _varied(params))
        effects = [
            a._replace(note=_VARIED) if a.size == 0 and b.size else a for a, b in zip(effects, varied, strict=True)
        ]
    return effects


def _full(params: Params, slope: float) -> Any:
    """Return a gradient that is `slope` everywhere."""

    def full(x: object) -> Any:
        return jnp.full_like(x, slope) if has_gradient(x) else None

    return jtu.tree_map(full, params)


def _varied(params: Params) -> Any:
    """Return a gradient that differs in each number, and is negative."""

    def varied(x: Any) -> Any:
        return -jnp.linspace(1, 2, x.size).reshape(x.shape).astype(x.dtype) if has_gradient(x) else None

    return jtu.tree_map(varied, params)


def _take_round(
    tx: TransformationLike, grads: Updates, state: OptState, params: Params, extra: dict[str, Any]
) -> tuple[Any, Any]:
    """Take one step, or the mini-steps of one round of MultiSteps."""

    def update(grads: Updates, state: OptState) -> tuple[Any, Any]:
        updates, new_state = tx.update(grads, state, params, **extra)
        return updates, new_state

    if not (rounds := _rounds(state)):
        return update(grads, state)
    jitted: Callable[..., tuple[Any, Any]] = untyped.jit(update)
    for _ in range(_MOST_MINI_STEPS):
        updates, state = jitted(grads, state)
        if all(new > old for new, old in zip(_rounds(state), rounds, strict=True)):
            return updates, state
    raise ValueError(f"MultiSteps took no step in {_MOST_MINI_STEPS:,} mini-steps")


def _rounds(state: OptState) -> list[int]:
    """Return the number of rounds that each MultiSteps in a state has finished."""

    def stop(x: object) -> bool:
        return isinstance(x, optax.MultiStepsState)

    return [int(x.gradient_step) for x in jtu.tree_leaves(state, is_leaf=stop) if stop(x)]


def _loss(params: Params, grads: Updates, curvature: float) -> dict[str, Any]:
    """Return the extra arguments for a quadratic loss with these gradients."""

    def value_fn(candidate: object, *args: object, **kwargs: object) -> Any:
        trees = (candidate, params, grads)
        trios = zip(*(jtu.tree_leaves(tree, is_leaf=is_none) for tree in trees), strict=True)
        terms = [_term(x - p, g, curvature) for x, p, g in trios if has_gradient(p)]
        return sum(terms, jnp.float32(curvature))

    return {"value": jnp.float32(curvature), "grad": grads, "value_fn": value_fn}


def _term(away: Any, grad: Any, curvature: float) -> Any:
    distance, slope = (jnp.ravel(x).real.astype(jnp.float32) for x in (away, grad))
    return jnp.sum(slope * distance + curvature / 2 * distance * distance)


def _sizes(params: Params, updates: Updates, rest: PyTree = None) -> list[Effect]:
    """Return the sizes of updates, minus those of updates without a gradient."""
    leaves, treedef = jtu.tree_flatten(params)
    parts = [flatten_updates(treedef, tree) for tree in (updates, rest)]
    sizes = jax.device_get([_size(*pair) for pair in zip(*parts, strict=True)])  # one transfer for all
    return [_effect(x, float(size)) for x, size in zip(leaves, sizes, strict=True)]


def _effect(param: object, size: float) -> Effect:
    if not has_gradient(param):
        return Effect(None, "has no gradient")
    return Effect(size) if np.isfinite(size) else Effect(None, "is not finite")


def _size(update: object, rest: object) -> Any:
    if has_no_update(update):
        return 0.0
    wide = jnp.asarray(update).astype(jnp.complex64 if jnp.iscomplexobj(update) else jnp.float32)
    if not has_no_update(rest):  # without a gradient, some optimizers divide 0 by 0
        wide -= jnp.nan_to_num(jnp.asarray(rest).astype(wide.dtype), nan=0, posinf=0, neginf=0)
    size = jnp.sqrt(jnp.sum(jnp.abs(wide) ** 2) / max(wide.size, 1))
    return jnp.where(jnp.sum(wide.real) > 0, -size, size)
