# Stubs of optax.schedules.

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax.typing import ArrayLike, DTypeLike
from optax import GradientTransformation, GradientTransformationExtraArgs, OptState
from optax import Schedule as Schedule

@runtime_checkable
class StatefulSchedule(Protocol):
    def init(self) -> Any: ...
    def update(self, state: Any, **extra_args: Any) -> Any: ...
    def __call__(self, state: Any, **extra_args: Any) -> ArrayLike: ...

def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
) -> Callable[..., GradientTransformationExtraArgs]: ...
def inject_stateful_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
) -> Callable[..., GradientTransformationExtraArgs]: ...

class InjectHyperparamsState(NamedTuple):
    count: Any
    hyperparams: dict[str, Any]
    inner_state: OptState

class InjectStatefulHyperparamsState(NamedTuple):
    count: Any
    hyperparams: dict[str, Any]
    hyperparams_states: dict[str, Any]
    inner_state: OptState

class _WrappedScheduleState(NamedTuple):
    count: Any

class WrappedSchedule:
    schedule_fn: Schedule
    def __init__(self, schedule_fn: Schedule) -> None: ...
    def init(self) -> _WrappedScheduleState: ...
    def update(self, state: _WrappedScheduleState, **extra_args: Any) -> _WrappedScheduleState: ...
    def __call__(self, state: _WrappedScheduleState, **extra_args: Any) -> ArrayLike: ...

def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule: ...
def constant_schedule(value: ArrayLike) -> Schedule: ...
def cosine_decay_schedule(
    init_value: ArrayLike, decay_steps: int, alpha: ArrayLike = 0.0, exponent: ArrayLike = 1.0
) -> Schedule: ...
def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: ArrayLike,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 10000.0,
) -> Schedule: ...
def exponential_decay(
    init_value: ArrayLike,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: ArrayLike | None = None,
) -> Schedule: ...
def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: ArrayLike,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 10000.0,
) -> Schedule: ...
def linear_schedule(
    init_value: ArrayLike, end_value: ArrayLike, transition_steps: int, transition_begin: int = 0
) -> Schedule: ...
def piecewise_constant_schedule(
    init_value: ArrayLike, boundaries_and_scales: dict[int, float] | None = None
) -> Schedule: ...
def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: ArrayLike, boundaries_and_scales: dict[int, float] | None = None
) -> Schedule: ...
def polynomial_schedule(
    init_value: ArrayLike, end_value: ArrayLike, power: ArrayLike, transition_steps: int, transition_begin: int = 0
) -> Schedule: ...
def sgdr_schedule(cosine_kwargs: Iterable[dict[str, ArrayLike]]) -> Schedule: ...
def warmup_constant_schedule(init_value: ArrayLike, peak_value: ArrayLike, warmup_steps: int) -> Schedule: ...
def warmup_cosine_decay_schedule(
    init_value: ArrayLike,
    peak_value: ArrayLike,
    warmup_steps: int,
    decay_steps: int,
    end_value: ArrayLike = 0.0,
    exponent: ArrayLike = 1.0,
) -> Schedule: ...
def warmup_exponential_decay_schedule(
    init_value: ArrayLike,
    peak_value: ArrayLike,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: ArrayLike,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: ArrayLike | None = None,
) -> Schedule: ...
