"""Find out what one step of an optimizer does to each leaf, by taking it."""

import contextlib
from typing import Any, NamedTuple

from treekit._base.describe import describe_error
from treekit._base.jax import jtu
from treekit._base.predicates import has_gradient, is_array
from treekit._base.tree import flatten_updates
from treekit._base.types import OptState, PyTree, Updates
from treekit.optax._functions.evaluate import TRACKED, UNKNOWN, Unknown
from treekit.optax._functions.take_rounds import Rounds, Start, Taken, gradients, sizes, varied_gradients
from treekit.optax._kernel.state_map import Entry

_STEEP, _FLAT = 1e3, 1e-3  # curvatures for which any line search finds different steps
_INFINITE = "is not finite"
_NOW = "0 at this count"
_LATER = "in the second step; 0 in the first"
_VARIED = "0 for a gradient of ones, but not for others"
_TRIED = "0 for the gradients that were tried"


class Effect(NamedTuple):
    """What a step does to one leaf.

    Attributes:
        step: the root mean square of what a gradient of ones adds to the update, negative if it goes along the gradient
            instead of against it; None if unknown.
        decay: the root mean square of what params of ones add; None if unknown.
        note: why something is unknown, or another remark.
    """

    step: float | None
    decay: float | None
    note: str = ""


def probe_step(start: Start) -> list[Effect]:
    """Return what one step does to each leaf of the params."""
    try:
        return _effects(start, Rounds(start.tx))
    except Exception as error:  # an optimizer that needs more than gradients may raise anything
        problem = error
    try:
        steep, flat = (_effects(start, Rounds(start.tx, curvature)) for curvature in (_STEEP, _FLAT))
    except Exception:
        return [Effect(None, None, f"fails: {describe_error(problem)}")] * len(jtu.tree_leaves(start.params))
    return [_either(*pair) for pair in zip(steep, flat, strict=True)]


def _either(a: Effect, b: Effect) -> Effect:
    """Return what two steps have in common, whose losses have different curvatures."""
    decay = a.decay if a.decay == b.decay else None
    is_same = a.step == b.step and a.note == b.note != _INFINITE
    return Effect(a.step, decay, a.note) if is_same else Effect(None, decay, "depends on the loss")


def _effects(start: Start, rounds: Rounds) -> list[Effect]:
    found = _measure(start, rounds)
    notes = [f"moves by {abs(x):.2g} without a gradient" if x else "" for x in found.rests]
    if (other := start.with_other_keys()) is not None:
        same = zip(found.sizes, _measure(other, rounds).sizes, notes, strict=True)
        notes = [note if a == b else "random" for a, b, note in same]
    steps = list(found.steps)
    for i, (step, note) in _explain_zeros(start, rounds, found).items():
        steps[i], notes[i] = step, notes[i] or note
    return list(map(_effect, jtu.tree_leaves(start.params), steps, found.decays, notes))


def _effect(param: object, step: float | None, decay: float | None, note: str) -> Effect:
    if not has_gradient(param):
        return Effect(None, None, "has no gradient")
    return Effect(step, None if decay is None else abs(decay), _INFINITE if step is None else note)


class _Measured(NamedTuple):
    """Sizes of updates for each leaf, None where they are not finite.

    Attributes:
        steps: what a gradient of ones adds.
        decays: what params of ones add.
        rests: what the update is for params and gradients of zeros.
        taken: the step with a gradient of ones, and one with a gradient of zeros if that may have updates.
    """

    steps: list[float | None]
    decays: list[float | None]
    rests: list[float | None]
    taken: tuple[Taken, Taken | None]

    @property
    def sizes(self) -> list[tuple[float | None, float | None]]:
        return list(zip(self.steps, self.rests, strict=True))


def _measure(start: Start, rounds: Rounds) -> _Measured:
    def at_rest(value: float) -> Any:
        alike = start.with_params(value)
        return rounds.take(gradients(alike.params, 0.0), alike.state, alike.params).updates

    at_one = at_rest(1.0)
    decays: list[float | None]
    decays = rests = sizes(start.params, at_one)
    moves = any(x != 0 for x in rests)
    if moves:
        at_zero = at_rest(0.0)
        decays, rests = sizes(start.params, at_one, at_zero), sizes(start.params, at_zero)
    if start.has_copies:
        decays = [None for _ in decays]
    steps, taken = _net(start, rounds, gradients(start.params, 1.0), start.state, start.state if moves else None)
    return _Measured(steps, decays, rests, taken)


def _net(
    start: Start, rounds: Rounds, grads: Updates, state: OptState, still_state: OptState
) -> tuple[list[float | None], tuple[Taken, Taken | None]]:
    """Return the sizes of what gradients add to the update, and the steps.

    Args:
        start: the params.
        rounds: the optimizer.
        grads: the gradients.
        state: the state before the step.
        still_state: the state before the step without a gradient; None if that has no updates.
    """
    moved = rounds.take(grads, state, start.params)
    if still_state is None:
        return sizes(start.params, moved.updates), (moved, None)
    still = rounds.take(gradients(start.params, 0.0), still_state, start.params)
    return sizes(start.params, moved.updates, still.updates), (moved, still)


def _explain_zeros(start: Start, rounds: Rounds, found: _Measured) -> dict[int, tuple[float | None, str]]:
    """Return a step and a note for each leaf whose step is zero, unless no gradient ever reaches its update."""
    zeros = [i for i, x in enumerate(found.steps) if x == 0]
    if not zeros:
        return {}
    moved, still = found.taken
    second, _ = _net(start, rounds, gradients(start.params, 1.0), moved.after, still and still.after)
    explained = {i: (second[i], _LATER) for i in zeros if second[i]}
    zeros = [i for i in zeros if i not in explained]
    if not zeros or not (zeros := _with_effect(start, rounds, moved.before, zeros)):
        return explained
    not_now = set(zeros).difference(_with_effect(start, rounds, moved.before, zeros, at_this_count=True))
    varied, _ = _net(start, rounds, varied_gradients(start.params), start.state, still and start.state)
    return explained | {i: (0.0, _NOW if i in not_now else _VARIED if varied[i] else _TRIED) for i in zeros}


def _with_effect(
    start: Start, rounds: Rounds, state: OptState, chosen: list[int], *, at_this_count: bool = False
) -> list[int]:
    """Return those of the leaves on whose updates gradients may have an effect: in any step, or in one at this count.

    Arrays in the state that are not counts or hyperparameters may come from gradients.
    """

    def hide(x: object, entry: Entry) -> Any:
        if not is_array(x) or entry.role == "hyperparameter" or entry.field == "mini_step":
            return x
        return TRACKED if entry.role != "count" else x if at_this_count else UNKNOWN

    grads = gradients(start.params, 1.0)
    with contextlib.suppress(Exception):  # some optimizers cannot be traced
        leaves, treedef = jtu.tree_flatten(state)
        hidden = treedef.unflatten(map(hide, leaves, start.entries))
        program = rounds.program(grads, state, start.params)
        updates, _ = program(_hide_all(grads, TRACKED), hidden, _hide_all(start.params, UNKNOWN))
        parts = flatten_updates(jtu.tree_structure(start.params), updates)
        return [i for i in chosen if parts[i] is TRACKED]
    return chosen


def _hide_all(tree: PyTree, place: Unknown) -> Any:
    def hide(x: object) -> Any:
        return place if is_array(x) else x

    return jtu.tree_map(hide, tree)
