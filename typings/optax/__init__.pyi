# What treekit and its tests subclass, construct or return of Optax 0.2.8, which ships no types. Any other name is Any.
# A tree is Any, as no checker knows its leaves; a field `count` is Any, as its name is that of a method of tuples.

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

from jax import Array
from jax.typing import ArrayLike
from optax import schedules as schedules
from optax import transforms as transforms

Params: TypeAlias = Any
Schedule: TypeAlias = Callable[[ArrayLike], ArrayLike]
ScalarOrSchedule: TypeAlias = float | Array | Schedule
_Init: TypeAlias = Callable[..., Any]
_Update: TypeAlias = Callable[..., tuple[Any, Any]]

# A named tuple in the package. Here its fields are properties, since those alone may be narrowed by a subclass.
class GradientTransformation(tuple[_Init, _Update]):
    def __new__(_cls, init: _Init, update: _Update) -> Self: ...
    @property
    def init(self) -> _Init: ...
    @property
    def update(self) -> _Update: ...
    def _replace(self, *, init: _Init = ..., update: _Update = ...) -> Self: ...

class GradientTransformationExtraArgs(GradientTransformation): ...

class MultiSteps:
    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Schedule,
        use_grad_mean: bool = True,
        should_skip_update_fn: Callable[..., Any] | None = None,
        accumulator_dtype: Any = ...,
    ) -> None: ...
    @property
    def inner_opt(self) -> GradientTransformationExtraArgs: ...
    def init(self, params: Any) -> MultiStepsState: ...
    def update(
        self, updates: Any, state: MultiStepsState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MultiStepsState]: ...
    def has_updated(self, state: MultiStepsState | Any) -> Array: ...
    def gradient_transformation(self) -> GradientTransformation: ...

class EmptyState(NamedTuple): ...
class MaskedNode(NamedTuple): ...

class MaskedState(NamedTuple):
    inner_state: Any

class PartitionState(NamedTuple):
    inner_states: Any

class ApplyIfFiniteState(NamedTuple):
    notfinite_count: Any
    last_finite: Any
    total_notfinite: Any
    inner_state: Any

class ConditionallyMaskState(NamedTuple):
    step: Array
    inner_state: Any

class ConditionallyTransformState(NamedTuple):
    inner_state: Any
    step: Array

class MultiStepsState(NamedTuple):
    mini_step: Array
    gradient_step: Array
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any = ()

class InjectStatefulHyperparamsState(NamedTuple):
    count: Any
    hyperparams: dict[str, Any]
    hyperparams_states: dict[str, Any]
    inner_state: Any

def chain(*args: GradientTransformation) -> GradientTransformationExtraArgs: ...
def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs: ...
def __getattr__(name: str) -> Any: ...
