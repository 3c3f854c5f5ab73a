"""What is known of states, by their classes: Optax's are declared here, and treekit's where they are defined."""

from typing import Any, NamedTuple

import optax

from treekit._base.predicates import has_name_of_state, is_of_optax
from treekit.optax._kernel.releases import existing

Fields = tuple[str, ...]


class Known(NamedTuple):
    """What is known of the states of one class, and of the transformation that makes them.

    Attributes:
        at_least_float32: the fields with averages of params, or sums of gradients, which need float32 at least.
        always_changes: the fields that change in every step, also for a parameter without a gradient: copies and
            averages of the current params, and the memory of L-BFGS.
        at_next_params: the fields with the value of the loss at the params to which all updates lead; infinite if it is
            unknown.
        of_no_param: the fields that belong to no parameter, even if they have the structure of the params:
            hyperparameters, and what a user measures by name.
        takes_rounds: whether the transformation takes several updates for one step. There, a missing gradient is a
            zero: the last update of a round of `sam` takes back what the others did.
        returns_updates: whether the transformation returns the updates that it receives.
        changes_updates: whether it is a wrapper that changes the updates of the transformation inside.
    """

    at_least_float32: Fields = ()
    always_changes: Fields = ()
    at_next_params: Fields = ()
    of_no_param: Fields = ()
    takes_rounds: bool = False
    returns_updates: bool = False
    changes_updates: bool = False


_NOTHING = Known()
_KNOWN: dict[Any, Known] = {}


def declare(state_class: type[Any], known: Known) -> None:
    """Say what is known of the states of a class."""
    _KNOWN[state_class] = known


def known(state_class: object) -> Known:
    """Return what is known of the states of a class."""
    return _KNOWN.get(state_class, _NOTHING)


def known_of(state: object) -> Known:
    """Return what is known of a state."""
    return known(type(state))


declare(optax.MultiStepsState, Known(at_least_float32=("acc_grads",), takes_rounds=True))
for cls in (optax.InjectHyperparamsState, optax.InjectStatefulHyperparamsState):
    declare(cls, Known(of_no_param=("hyperparams",)))
declare(optax.contrib.SAMState, Known(takes_rounds=True, changes_updates=True))
# L-BFGS pairs a step with the change of the gradient, over all params at once: if some of them kept what they had, they
# would have the pair of another step.
declare(
    optax.ScaleByLBFGSState,
    Known(always_changes=("params", "updates", "diff_params_memory", "diff_updates_memory")),
)
for cls in (optax.ScaleByBacktrackingLinesearchState, optax.ScaleByZoomLinesearchState):
    declare(cls, Known(at_next_params=("value",)))
for cls in (
    optax.ConditionallyTransformState,  # in a step that it skips, it returns the gradients
    optax.LookaheadState,
    optax.contrib.MechanicState,
    optax.contrib.ScheduleFreeState,
    optax.contrib.SplitRealAndImaginaryState,
    *existing(optax.contrib, "GaLoreState"),
):
    declare(cls, Known(changes_updates=True))
for cls in existing(optax, "MonitorState"):
    declare(cls, Known(of_no_param=("measurements", "measure_states"), returns_updates=True))
for cls in existing(optax, "SnapshotState"):
    declare(cls, Known(of_no_param=("measurement",)))


def is_optimizer_state(x: object) -> bool:
    """Whether `x` is a state of a class of Optax or treekit."""
    return has_name_of_state(type(x)) and is_of_optax(type(x))
