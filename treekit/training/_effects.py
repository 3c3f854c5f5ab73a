"""What does one step of an optimizer do to each leaf? Asked of the optimizer itself, by taking steps."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.describe import describe_error
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import can_be_trained, is_parameter
from treekit._base.types import OptState, Params
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.training._frozen import find_frozen
from treekit.training._round import filled, take_round

_STEEP, _FLAT = 1e3, 1e-3  # curvatures for which a line search finds different steps


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
        second: the second, with other PRNG keys, or a loss of another curvature; without keys and loss, the first.
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
    differs without a loss is random.

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
    frozen = find_frozen(tx, params, state, measured.curvature, still) if any(still) else [False] * len(leaves)
    pairs = zip(measured.first, measured.second, strict=True)
    known = [
        _effect_of(*pair, measured.why_they_differ, is_frozen, when)
        for pair, is_frozen in zip(pairs, frozen, strict=True)
    ]
    return [one if can_be_trained(x) else _no_effect(x) for x, one in zip(leaves, known, strict=True)]


def _effect_of(first: Effect, second: Effect, why_they_differ: str, is_frozen: bool, when: str) -> Effect:
    """Return the effect on a leaf that was measured twice, with a note."""
    are_alike = _are_alike(first.step, second.step), _are_alike(first.decay, second.decay)
    if not all(are_alike):
        step, decay = (x if is_alike else None for x, is_alike in zip(first[:2], are_alike, strict=True))
        return Effect(step, decay, why_they_differ)
    if first.step is None:
        return first._replace(note="is not finite")
    if first.decay is None:
        return first._replace(note="is not finite without a gradient")
    if is_frozen:
        return first._replace(note="frozen")
    if first.step == 0:
        return first._replace(note=f"0 {when}")
    if first.step < 0:
        return first._replace(note="along the gradient, not against it: masked out?")
    return first


def _measure_twice(tx: GradientTransformation[Any], params: Params, state: OptState) -> _Measured | str:
    """Return two measurements; or, if the optimizer fails with a loss too, why it does with a gradient alone."""
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


def _no_effect(x: object) -> Effect:
    return Effect(None, None, "has no gradient" if is_parameter(x) else "not a parameter")


def _are_alike(first: float | None, second: float | None) -> bool:
    """Whether two numbers are about the same, or both unknown."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-3)


def _measure(tx: GradientTransformation[Any], params: Params, state: OptState, curvature: float | None) -> list[Effect]:
    """Return what one step does to each leaf, without notes; with a loss of this curvature, if it is not None."""

    def updates_of(slope: float) -> list[Any]:
        return take_round(tx, params, filled(params, slope, others=False), state, curvature)

    pairs = zip(updates_of(1.0), updates_of(0.0), strict=True)
    measured: list[Any] = jax.device_get([_sizes(*pair) for pair in pairs])
    return [Effect(*map(_if_finite, pair)) for pair in measured]


def _if_finite(x: Any) -> Any:
    return float(x) if np.isfinite(x) else None


def _sizes_of(update: Any, rest: Any) -> tuple[Any, Any]:
    """Return the root mean square of `update - rest`, with a minus if it goes along a gradient of ones; and of `rest`.

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


def _with_other_keys(state: OptState) -> Any:
    """Return a state with other PRNG keys, of the new style or the old; None without keys."""

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
