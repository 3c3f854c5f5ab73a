"""What one step of an optimizer does to each leaf, measured by taking steps."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.dtype import dtype_of, is_prng_key
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import can_be_trained, is_parameter
from treekit._base.types import OptState, Params
from treekit._text.describe import describe_error
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.training._frozen import find_frozen
from treekit.training._round import Round, filled, take_round

# The notes of leaves that are never trained: one that does not move, whatever the gradients and params of such leaves
# are; and what an optimizer does not see.
FROZEN, NO_GRADIENT, NO_PARAMETER, DECLARED = "frozen", "has no gradient", "not a parameter", "trainable=False"
NEVER_TRAINED = (FROZEN, NO_GRADIENT, NO_PARAMETER, DECLARED)
_STEEP, _FLAT = 1e3, 1e-3  # curvatures for which a line search finds different steps


class Effect(NamedTuple):
    """What one step does to one leaf. A number has a minus if it makes a leaf of ones grow, and is None if unknown.

    Attributes:
        step: the root mean square of what a gradient of ones adds to the update.
        decay: the root mean square of the update without a gradient.
        note: a remark, or "".
    """

    step: float | None
    decay: float | None
    note: str = ""


class _Measured(NamedTuple):
    """What one step does to each leaf, and what it would do if one thing were different.

    Attributes:
        effects: what it does, without notes.
        changed: what it does with other PRNG keys, and with another loss, by the note of a leaf for which that matters.
        curvature: that of the loss; None without a loss.
        steps: how many steps its round takes.
    """

    effects: list[Effect]
    changed: dict[str, list[Effect]]
    curvature: float | None
    steps: int


def find_effects(tx: GradientTransformation[Any], params: Params, state: OptState, when: str) -> list[Effect]:
    """Return what one step does to each leaf of the params.

    Args:
        tx: the optimizer.
        params: the params, filled with ones.
        state: the state before the step.
        when: which step this is, for the note of a leaf that a gradient does not move.
    """
    leaves = jtu.tree_leaves(params)
    try:
        effects, changed, curvature, steps = _measure_with_loss_if_needed(tx, params, state)
    except Exception as error:  # an optimizer may raise anything
        failed = Effect(None, None, f"fails: {describe_error(error)}")
        return [failed if can_be_trained(x) else _untrained(x) for x in leaves]
    unmoved = [
        can_be_trained(x) and (effect.step, effect.decay) == (0, 0) for x, effect in zip(leaves, effects, strict=True)
    ]
    frozen = find_frozen(tx, params, state, curvature, unmoved, steps)
    return [
        _noted(effects[i], {note: others[i] for note, others in changed.items()}, frozen[i], when)
        if can_be_trained(x)
        else _untrained(x)
        for i, x in enumerate(leaves)
    ]


def _measure_with_loss_if_needed(tx: GradientTransformation[Any], params: Params, state: OptState) -> _Measured:
    """Measure a step, and with changes; with a loss if it fails without one. Raise the first error if both fail."""
    try:
        return _measure_with_changes(tx, params, state, None)
    except Exception:
        with contextlib.suppress(Exception):
            return _measure_with_changes(tx, params, state, _STEEP)
        raise


def _measure_with_changes(
    tx: GradientTransformation[Any], params: Params, state: OptState, curvature: float | None
) -> _Measured:
    """Measure a step; with other PRNG keys too, if the state has keys; and with another loss too, if it gets one."""
    effects, steps = _measure(tx, params, state, curvature)
    changed: dict[str, list[Effect]] = {}
    other_state = _with_other_keys(state)
    if other_state is not None:
        changed["random"], _ = _measure(tx, params, other_state, curvature)
    if curvature is not None:
        changed["depends on the loss"], _ = _measure(tx, params, state, _FLAT)
    return _Measured(effects, changed, curvature, steps)


def _noted(effect: Effect, changed: Mapping[str, Effect], is_frozen: bool, when: str) -> Effect:
    """Return an effect with a note, and without the numbers that depend on what was changed."""
    step, decay, _ = effect
    of_step = [note for note, other in changed.items() if not _are_alike(step, other.step)]
    of_decay = [note for note, other in changed.items() if not _are_alike(decay, other.decay)]
    if notes := dict.fromkeys([*of_step, *of_decay]):
        return Effect(None if of_step else step, None if of_decay else decay, ", ".join(notes))
    if step is None:
        return effect._replace(note="is not finite")
    if decay is None:
        return effect._replace(note="is not finite without a gradient")
    if is_frozen:
        return effect._replace(note=FROZEN)
    if step == 0:
        return effect._replace(note=f"0 {when}")
    if step < 0:
        return effect._replace(note="along the gradient, not against it: masked out?")
    return effect


def _untrained(x: object) -> Effect:
    return Effect(None, None, NO_GRADIENT if is_parameter(x) else NO_PARAMETER)


def _are_alike(first: float | None, second: float | None) -> bool:
    """Whether two numbers are about the same, or both unknown."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-3)


def _measure(
    tx: GradientTransformation[Any], params: Params, state: OptState, curvature: float | None
) -> tuple[list[Effect], int]:
    """Return what one step does to each leaf, and how many steps its round takes. A curvature is that of a loss."""

    def round_of(slope: float) -> Round:
        return take_round(tx, params, filled(params, slope, keep_others=False), state, curvature)

    with_gradient, without = round_of(1.0), round_of(0.0)
    pairs = zip(with_gradient.updates, without.updates, strict=True)
    sizes: list[Any] = jax.device_get([_sizes_on_device(*pair) for pair in pairs])
    return [Effect(*map(_if_finite, pair)) for pair in sizes], with_gradient.steps


def _sizes(update: Any, rest: Any) -> tuple[Any, Any]:
    """Return the numbers of an `Effect`, of an update with a gradient and of the update without, the rest.

    Without a gradient, some optimizers divide 0 by 0, so what is not finite in `rest` counts as 0 in the difference.
    """
    if update is None or rest is None:
        return 0.0, 0.0
    wide = jnp.complex64 if jnp.iscomplexobj(update) else jnp.float32
    update, rest = update.astype(wide), rest.astype(wide)
    step = update - jnp.nan_to_num(rest, nan=0, posinf=0, neginf=0)
    return _signed_size(step), _signed_size(rest)


def _signed_size(x: Any) -> Any:
    size = jnp.sqrt(jnp.sum(jnp.abs(x) ** 2) / max(x.size, 1))
    return jnp.where(jnp.sum(x.real) > 0, -size, size)


_sizes_on_device: Any = untyped.jit(_sizes)


def _if_finite(x: Any) -> Any:
    return float(x) if np.isfinite(x) else None


def _with_other_keys(state: OptState) -> Any:
    """Return a state with other PRNG keys, of the new style or the old; None without keys.

    Keys of the old style are plain arrays, so another array of their dtype and shape counts as one too.
    """

    def other(x: Any) -> Any:
        if not is_prng_key(x):
            return x
        if dtype_of(x) == jnp.uint32:
            return x ^ 1
        return untyped.random.wrap_key_data(jax.random.key_data(x) ^ 1, impl=jax.random.key_impl(x))

    return jtu.tree_map(other, state) if any(map(is_prng_key, jtu.tree_leaves(state))) else None
