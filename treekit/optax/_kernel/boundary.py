"""The boundary of a transformation: raw models and missing gradients outside, trees of arrays inside.

Every update crosses it once, at the outermost transformation. Inside, transformations without a boundary, called
cores, are composed.
"""

from collections.abc import Callable
from typing import Any

from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._base.predicates import is_parameter
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit.optax._kernel.crossing import Crossing
from treekit.optax._kernel.diagnose import explain_init, explain_update
from treekit.optax._kernel.preserve_dtypes import keep_state, preserve_dtypes
from treekit.optax._kernel.selection import view_extra_args
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import (
    Apply,
    Core,
    DeclaringCore,
    GradientTransformation,
    core_of,
    is_ours,
    showing,
    without_multi_steps,
)


def normalize(tx: TransformationLike) -> GradientTransformation[Any]:
    """Return a transformation that accepts raw models and preserves dtypes; one of treekit's is returned unchanged."""
    tx = without_multi_steps(tx)
    if is_ours(tx) and tx.core is not None:
        return tx
    return at_boundary(core_of(tx))


def at_boundary(core: Core) -> GradientTransformation[Any]:
    """Wrap a core so that it sees only the leaves that can be parameters, and dtypes are preserved.

    `init` and `update` close over transformations only, so that Equinox's `closure_to_pytree`, which Optimistix applies
    to optimizers, finds the arrays among their hyperparameters. It follows every path to a function, so here, as in
    every core, `init` closes over the inner `init` alone: else their number would double with each wrapper.
    """
    inner = preserve_dtypes(core)
    inner_init = inner.init

    def init(params: Params) -> Any:
        if is_params_placeholder(params):  # a placeholder for any params
            return inner_init(params)
        _check_has_place_for_params(params)
        crossing = Crossing(None, params, is_init=True)
        inside_params = crossing.enter_params()
        with showing(crossing.originals, params):
            try:
                return inner_init(inside_params)
            except Exception as error:
                explain_init(error, inner_init, inside_params)
                raise

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        def update_inside(updates: Updates, params: Params, extra: dict[str, Any]) -> Any:
            return inner.update(updates, state, params, **extra)

        crossing = Crossing(updates, params, state)
        new_updates, new_state = _run_inside(update_inside, crossing, inner, updates, state, params, extra)
        new_state, accumulated = crossing.hold_missing(state, new_state)
        return crossing.leave(new_updates, accumulated), new_state

    init.__qualname__, update.__qualname__ = "init", "update"  # which Python's errors of missing arguments show
    return GradientTransformation(init, update, core)


def _check_has_place_for_params(params: Params) -> None:
    """Raise a TypeError for a leaf that cannot be a parameter: a class, a function, a string, a key."""
    if params is not None and jtu.all_leaves([params]) and not is_parameter(params):
        advice = "an instance of this class" if isinstance(params, type) else "a pytree with arrays"
        raise TypeError(
            f"init takes the params, or a model, and received {describe_value(params)}, which has no parameters. Pass "
            f"{advice}; a class of your own must be registered, with treekit.node or treekit.register_node"
        )


def whole_step(
    tx: GradientTransformation[Any],
    grads: Updates,
    state: OptState,
    params: Params,
    extra: dict[str, Any],
    apply: Apply,
) -> tuple[Any, Any]:
    """Take a whole step; that of `MultiSteps` itself, if it is outermost and no param has to be converted."""
    core = core_of(tx)
    step = core.step if isinstance(core, DeclaringCore) else None
    if step is None or not (crossing := Crossing(grads, params, state)).is_plain:
        updates, state = tx.update(grads, state, params, **extra)
        return apply(params, updates), state

    def apply_inside(inside_params: Params, updates: Updates) -> Any:
        return crossing.enter(apply(crossing.restore(inside_params, params), crossing.leave(updates)))

    def step_inside(grads: Updates, params: Params, extra: dict[str, Any]) -> Any:
        new_params, new_state = step(grads, state, params, extra, apply_inside)
        return new_params, keep_state(state, params, new_state)

    new_params, new_state = _run_inside(step_inside, crossing, preserve_dtypes(core), grads, state, params, extra)
    return crossing.restore(new_params, params), new_state


def _run_inside(
    run: Callable[[Any, Any, dict[str, Any]], tuple[Any, Any]],
    crossing: Crossing,
    inner: Core,
    updates: Updates,
    state: OptState,
    params: Params,
    extra: dict[str, Any],
) -> tuple[Any, Any]:
    """Call `run` with updates, params and extra arguments as cores see them, and explain its error."""
    inside_updates, inside_params = crossing.enter_updates(), crossing.enter_params()
    views = view_extra_args(extra, updates, params, inside_params, crossing.enter, crossing.restore)
    with showing(crossing.originals, updates if params is None else params):
        try:
            return run(inside_updates, inside_params, views)
        except Exception as error:
            explain_update(error, inner, inside_updates, state, inside_params, views)
            raise
