"""The laws of a gradient transformation: init and update run, and then every law of the state and of the steps."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from treekit._describe import describe_error
from treekit._diff import tree_diff
from treekit.check import _state_laws, _step_laws
from treekit.check._case import Case, Run, default_gradients, rebuilt, run_steps
from treekit.check._laws import FILTER, REGISTER, Violation

# Tracing is counted before other laws trace again.
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
    tx: Any,
    params: Any,
    grads: Any,
    extra: dict[str, Any],
    laws: Collection[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Violation]:
    """Yield what violates the laws of a gradient transformation.

    Args:
        tx: the transformation.
        params: its params.
        grads: gradients; None stands for ones, as in `check_transformation`.
        extra: extra arguments of update.
        laws: those of `LAWS` to check; by default all of them. Init and update always have to run.
        progress: called with the name of each law before it is checked.
    """
    progress("init and update")
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
            fix=f"{FILTER}, which shows it the inexact arrays only",
        )
        return
    if diff := tree_diff(params, given):
        yield Violation(
            "init leaves the params as they are",
            found=f"(params | after init)\n{diff}",
            effect="the model changes unnoticed, and update gets other params than the optimizer was made for",
            fix="let init return as state what it adds",
        )
    case = Case(tx, params, grads, extra)
    try:
        run = run_steps(case, state)
    except Exception as error:
        yield _step_laws.update_raises(error)
        return
    for name, law in LAWS.items():
        if laws is None or name in laws:
            progress(name)
            yield from law(case, run)
