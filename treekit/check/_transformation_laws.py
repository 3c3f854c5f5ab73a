"""Check the laws of a gradient transformation: init and update run, then the laws of the state and of the steps."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from treekit._base.describe import describe_error
from treekit._base.types import Params, TransformationLike, Updates
from treekit._diff.diff import tree_diff
from treekit.check import _state_laws, _step_laws
from treekit.check._case import Case, Run, default_gradients, rebuilt, run_steps
from treekit.check._laws import FILTER, REGISTER, Violation

# Traces are counted before other laws trace again.
LAWS: dict[str, Callable[[Case, Run], Iterator[Violation]]] = {
    "structure": _state_laws.keeps_structure,
    "dtype": _state_laws.keeps_dtypes,
    "weak type": _state_laws.keeps_weak_types,
    "updates": _step_laws.gives_updates_like_the_gradients,
    "traces": _step_laws.is_traced_once,
    "finite": _step_laws.stays_finite,
    "jitted init": _state_laws.can_be_made_under_jit,
    "scan": _step_laws.runs_in_scan,
    "vmap": _step_laws.runs_under_vmap,
    "donation": _state_laws.can_be_donated,
    "checkpoint": _state_laws.can_be_pickled,
    "moment": _state_laws.narrow_state_decays,
}


def transformation_laws(
    tx: TransformationLike,
    params: Params,
    grads: Updates,
    extra: dict[str, Any],
    laws: Collection[str] | None = None,
) -> Iterator[Violation]:
    """Yield the violations of the laws of a gradient transformation.

    Args:
        tx: the transformation.
        params: its params.
        grads: gradients; if None, gradients of one, as in `check_transformation`.
        extra: extra arguments of update.
        laws: the laws of `LAWS` to check; by default all of them. Init and update must run in any case.
    """
    try:
        grads = default_gradients(params) if grads is None else grads
    except Exception as error:  # the user's code may raise anything
        yield Violation(
            "the params can be rebuilt as gradients, with None for leaves that are not trained",
            found=describe_error(error),
            effect="gradients, updates and state cannot have the structure of the params",
            fix=REGISTER,
        )
        return
    try:
        given = rebuilt(params)
        state = tx.init(given)
    except Exception as error:
        yield Violation(
            "init takes the params",
            found=describe_error(error),
            effect="the optimizer cannot be used with these params",
            fix=f"{FILTER}, which passes only the inexact arrays to it",
        )
        return
    if diff := tree_diff(params, given):
        yield Violation(
            "init does not change the params",
            found=f"(params | after init)\n{diff}",
            effect="the model changes silently, and update gets other params than init did",
            fix="let init put what it adds into the state",
        )
    case = Case(tx, params, grads, extra)
    try:
        run = run_steps(case, state)
    except Exception as error:
        yield _step_laws.update_raises(error)
        return
    for name, law in LAWS.items():
        if laws is None or name in laws:
            yield from law(case, run)
