"""Find out what one step of an optimizer does to each leaf, by taking it."""

import contextlib
import dataclasses
import functools
from typing import Any, NamedTuple

from treekit._base.describe import describe_error
from treekit._base.jax import jtu
from treekit._base.predicates import has_gradient, is_array
from treekit._base.tree import flatten_updates
from treekit._base.types import PyTree
from treekit._jaxpr.evaluate import TRACKED, UNKNOWN, Unknown
from treekit.optax._functions.take_rounds import Start, Steps, gradients, sizes, varied_gradients
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
        return _effects(Steps(start))
    except Exception as error:  # an optimizer that needs more than gradients may raise anything
        problem = error
    try:
        steep, flat = (_effects(Steps(start, curvature)) for curvature in (_STEEP, _FLAT))
    except Exception:
        return [Effect(None, None, f"fails: {describe_error(problem)}")] * len(jtu.tree_leaves(start.params))
    return [_either(*pair) for pair in zip(steep, flat, strict=True)]


def _either(a: Effect, b: Effect) -> Effect:
    """Return what two steps have in common, whose losses have different curvatures."""
    decay = a.decay if a.decay == b.decay else None
    is_same = a.step == b.step and a.note == b.note != _INFINITE
    return Effect(a.step, decay, a.note) if is_same else Effect(None, decay, "depends on the loss")


def _effects(probe: Steps) -> list[Effect]:
    first = _measure(probe, 0)
    measured, notes = [first] * len(first.steps), [""] * len(first.steps)
    if zeros := [i for i, x in enumerate(first.steps) if x == 0]:
        second = _measure(probe, 1)
        for i in (i for i in zeros if second.steps[i]):
            measured[i], notes[i] = second, _LATER
        for i, note in _explain_zeros(probe, [i for i in zeros if not notes[i]]).items():
            notes[i] = note
    other = probe.start.with_other_keys()
    others = first if other is None else _measure(Steps(other, probe.curvature), 0)
    for i, found in enumerate(measured):
        if rest := found.rests[i]:
            notes[i] = "; ".join(filter(None, (notes[i], f"moves by {abs(rest):.2g} without a gradient")))
        if first.sizes[i] != others.sizes[i]:
            notes[i] = "random"
    leaves = jtu.tree_leaves(probe.start.params)
    return [_effect(leaf, measured[i].steps[i], measured[i].decays[i], notes[i]) for i, leaf in enumerate(leaves)]


def _effect(param: object, step: float | None, decay: float | None, note: str) -> Effect:
    if not has_gradient(param):
        return Effect(None, None, "has no gradient")
    return Effect(step, None if decay is None else abs(decay), _INFINITE if step is None else note)


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Sizes of updates for each leaf, None where they are not finite.

    Attributes:
        steps: what a gradient of ones adds.
        decays: what params of ones add.
        rests: what the update is for params and gradients of zeros.
    """

    steps: list[float | None]
    decays: list[float | None]
    rests: list[float | None]

    @functools.cached_property
    def sizes(self) -> list[tuple[float | None, float | None]]:
        return list(zip(self.steps, self.rests, strict=True))


def _measure(probe: Steps, n: int) -> _Measured:
    """Measure the step with number `n`."""
    params = probe.start.params
    at_one = probe.take(n, 0.0, 1.0).updates
    decays: list[float | None]
    decays = rests = sizes(params, at_one)
    moves = any(x != 0 for x in rests)
    if moves:
        at_zero = probe.take(n, 0.0, 0.0).updates
        decays, rests = sizes(params, at_one, at_zero), sizes(params, at_zero)
    if probe.start.has_copies:
        decays = [None for _ in decays]
    still = probe.take(n, 0.0).updates if moves else None
    return _Measured(sizes(params, probe.take(n, 1.0).updates, still), decays, rests)


def _explain_zeros(probe: Steps, zeros: list[int]) -> dict[int, str]:
    """Return a note for each of these leaves, whose step is zero, unless no gradient ever reaches its update."""
    zeros = zeros and _with_effect(probe, zeros)
    if not zeros:
        return {}
    not_now = set(zeros).difference(_with_effect(probe, zeros, at_this_count=True))
    start = probe.start
    moved = probe.round(varied_gradients(start.params), start.state, start.params).updates
    varied = sizes(start.params, moved, probe.take(0, 0.0).updates)
    return {i: _NOW if i in not_now else _VARIED if varied[i] else _TRIED for i in zeros}


def _with_effect(probe: Steps, chosen: list[int], *, at_this_count: bool = False) -> list[int]:
    """Return those of the leaves on whose updates gradients may have an effect: in any step, or in one at this count.

    Arrays in the state that are not counts or hyperparameters may come from gradients.
    """
    start, state = probe.start, probe.take(0, 1.0).before

    def hide(x: object, entry: Entry) -> Any:
        if not is_array(x) or entry.role == "hyperparameter" or entry.field == "mini_step":
            return x
        return TRACKED if entry.role != "count" else x if at_this_count else UNKNOWN

    grads = gradients(start.params, 1.0)
    with contextlib.suppress(Exception):  # some optimizers cannot be traced
        leaves, treedef = jtu.tree_flatten(state)
        hidden = treedef.unflatten(map(hide, leaves, start.entries))
        program = probe.program(grads, state, start.params)
        updates, _ = program(_hide_all(grads, TRACKED), hidden, _hide_all(start.params, UNKNOWN))
        parts = flatten_updates(jtu.tree_structure(start.params), updates)
        return [i for i in chosen if parts[i] is TRACKED]
    return chosen


def _hide_all(tree: PyTree, place: Unknown) -> Any:
    def hide(x: object) -> Any:
        return place if is_array(x) else x

    return jtu.tree_map(hide, tree)
