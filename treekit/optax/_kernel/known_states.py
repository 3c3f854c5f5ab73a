"""What is known of states, by their classes: Optax's are declared here, and treekit's where they are defined."""

from typing import Any, NamedTuple

from treekit._base.states import is_known_code

Fields = tuple[str, ...]


class Known(NamedTuple):
    """What is known of the states of one class, and of the transformation that makes them.

    Attributes:
        at_least_float32: the fields with copies and averages of params, from which others are computed, or sums of
            gradients over a round. They need float32 at least.
        always_changes: the fields that change in every step, also for a parameter without a gradient: copies and
            averages of the current params, and the memory of L-BFGS.
        at_next_params: the fields with the value of the loss at the params to which all updates lead; infinite if it is
            unknown.
        of_no_param: the fields that belong to no parameter, even if they have the structure of the params:
            hyperparameters, coefficients, and what a user measures by name. They are not narrowed.
        schedule_counts: the counts that only schedules and conditions read. One that also corrects moments, as in adam,
            has to fit the moments, so it is not among them.
        of_all: the fields that belong to no parameter and are the same for all: other counts of updates, and copies of
            arguments. So groups of params can share them, as they share schedule counts, in one state.
        takes_rounds: whether the transformation takes several updates for one step. There, a missing gradient is a
            zero: the last update of a round of `sam` takes back what the others did.
        returns_updates: whether the transformation returns the updates that it receives.
        changes_updates: whether it is a wrapper that changes the updates of the transformation inside.
    """

    at_least_float32: Fields = ()
    always_changes: Fields = ()
    at_next_params: Fields = ()
    of_no_param: Fields = ()
    schedule_counts: Fields = ()
    of_all: Fields = ()
    takes_rounds: bool = False
    returns_updates: bool = False
    changes_updates: bool = False


# Of Optax's classes, by their names: not all of them are public, and not every release has all.
_KNOWN: dict[str, Known] = {
    "AccumulateAvgUpdatesState": Known(at_least_float32=("avg_grad",), takes_rounds=True),
    "AddNoiseState": Known(of_all=("count",)),
    "ApplyEvery": Known(at_least_float32=("grad_acc",), takes_rounds=True),
    "COCOBState": Known(at_least_float32=("init_particles",)),
    "ConditionallyMaskState": Known(schedule_counts=("step",)),
    # In a step that it skips, it returns the gradients.
    "ConditionallyTransformState": Known(schedule_counts=("step",), changes_updates=True),
    "DoGState": Known(at_least_float32=("init_params",)),
    "DoWGState": Known(at_least_float32=("init_params",)),
    "EmaState": Known(of_all=("count",)),
    "FactoredState": Known(of_all=("count",)),
    "GaLoreState": Known(changes_updates=True),
    "InjectHyperparamsState": Known(schedule_counts=("count",), of_no_param=("hyperparams",)),
    "InjectStatefulHyperparamsState": Known(
        schedule_counts=("count",), of_no_param=("hyperparams", "hyperparams_states")
    ),
    "LookaheadState": Known(changes_updates=True),
    "MadgradState": Known(at_least_float32=("x0",), of_all=("count",)),
    "MechanicState": Known(at_least_float32=("x0",), of_no_param=("r", "m", "v", "s"), changes_updates=True),
    "MonitorState": Known(of_no_param=("measurements", "measure_states"), returns_updates=True),
    "MultiStepsState": Known(
        at_least_float32=("acc_grads",),
        of_no_param=("skip_state",),
        schedule_counts=("gradient_step",),
        takes_rounds=True,
    ),
    "MuonState": Known(of_no_param=("ns_coeffs",), of_all=("count", "ns_coeffs")),
    "ProdigyState": Known(at_least_float32=("params0",)),
    "SAMState": Known(at_least_float32=("cache",), takes_rounds=True, changes_updates=True),
    "ScaleByAdamState": Known(of_all=("count",)),
    "ScaleByAdanState": Known(of_all=("t",)),
    "ScaleByAdemamixState": Known(of_all=("count", "count_m2")),
    "ScaleByAmsgradState": Known(of_all=("count",)),
    "ScaleByBacktrackingLinesearchState": Known(at_next_params=("value",)),
    "ScaleByBeliefState": Known(of_all=("count",)),
    "ScaleByDistanceOverGradientsState": Known(at_least_float32=("init_params",)),
    # L-BFGS pairs a step with the change of the gradient, over all params at once: if some of them kept what they had,
    # they would have the pair of another step.
    "ScaleByLBFGSState": Known(
        at_least_float32=("params",),
        always_changes=("params", "updates", "diff_params_memory", "diff_updates_memory"),
        of_no_param=("weights_memory",),
    ),
    "ScaleByLionState": Known(of_all=("count",)),
    "ScaleByNovogradState": Known(of_all=("count",)),
    "ScaleByOptimisticGradientState": Known(of_all=("is_initial_step",)),
    "ScaleByRmsWithCountState": Known(of_all=("count",)),
    "ScaleBySM3State": Known(of_no_param=("mu",)),  # a list of arrays for each param
    "ScaleByScheduleState": Known(schedule_counts=("count",)),
    "ScaleBySimplifiedAdEMAMixState": Known(of_all=("t",)),
    "ScaleByZoomLinesearchState": Known(at_next_params=("value",)),
    "ScheduleFreeState": Known(at_least_float32=("z",), schedule_counts=("step_count",), changes_updates=True),
    "SnapshotState": Known(of_no_param=("measurement",)),
    "SplitRealAndImaginaryState": Known(changes_updates=True),
    "WeightDecaySchedule": Known(schedule_counts=("count",)),
    "WrappedScheduleState": Known(schedule_counts=("count",)),
}
_NOTHING = Known()


def declare(state_class: type[Any], known: Known) -> None:
    """Say what is known of the states of a class of treekit."""
    _KNOWN[state_class.__name__] = known


def known(state_class: type[Any] | None) -> Known:
    """Return what is known of the states of a class."""
    if state_class is None or not is_known_code(state_class):
        return _NOTHING
    return _KNOWN.get(state_class.__name__, _NOTHING)


def known_of(state: object) -> Known:
    """Return what is known of a state."""
    cls: Any = type(state)
    return known(cls)
