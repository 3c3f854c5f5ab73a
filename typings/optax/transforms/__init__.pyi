# Stubs of optax.transforms.

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol

from jax import Array
from jax.typing import ArrayLike, DTypeLike
from optax import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
)

def ema(
    decay: ArrayLike, debias: bool = True, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformation: ...

class EmaState(NamedTuple):
    count: Any
    ema: Params

class MultiSteps:
    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Schedule,
        use_grad_mean: bool = True,
        should_skip_update_fn: ShouldSkipUpdateFunction | None = None,
        accumulator_dtype: DTypeLike | None = ...,
    ) -> None: ...
    @property
    def inner_opt(self) -> GradientTransformationExtraArgs: ...
    def init(self, params: Any) -> MultiStepsState: ...
    def update(
        self, updates: Updates, state: MultiStepsState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, MultiStepsState]: ...
    def has_updated(self, state: MultiStepsState | Any) -> Array: ...
    def gradient_transformation(self) -> GradientTransformation: ...

class MultiStepsState(NamedTuple):
    mini_step: Array
    gradient_step: Array
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any = ()

class ShouldSkipUpdateFunction(Protocol):
    def __call__(self, updates: Updates, gradient_step: ArrayLike, params: Params | None) -> tuple[ArrayLike, Any]: ...

def skip_large_updates(
    updates: Updates, gradient_step: ArrayLike, params: Params | None, max_squared_norm: ArrayLike
) -> tuple[Array, Any]: ...
def skip_not_finite(updates: Updates, gradient_step: ArrayLike, params: Params | None) -> tuple[Array, Any]: ...
def trace(
    decay: ArrayLike, nesterov: bool = False, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformation: ...

class TraceState(NamedTuple):
    trace: Params

def add_decayed_weights(
    weight_decay: ScalarOrSchedule = 0.0, mask: MaskOrFn | None = None
) -> GradientTransformation: ...
def add_noise(
    eta: ArrayLike, gamma: ArrayLike, key: Array | int | None = None, *, seed: int | None = None
) -> GradientTransformation: ...

class AddNoiseState(NamedTuple):
    count: Any
    rng_key: Array

def adaptive_grad_clip(
    clipping: ArrayLike, eps: ArrayLike = 0.001, axis: int | tuple[int, ...] | None = None
) -> GradientTransformation: ...
def clip(max_delta: ArrayLike) -> GradientTransformation: ...
def clip_by_block_rms(threshold: ArrayLike) -> GradientTransformation: ...
def clip_by_global_norm(max_norm: ArrayLike) -> GradientTransformation: ...
def per_example_global_norm_clip(grads: Any, l2_norm_clip: ArrayLike) -> tuple[Any, Array]: ...
def per_example_layer_norm_clip(
    grads: Any, global_l2_norm_clip: ArrayLike, uniform: bool = True
) -> tuple[Any, Any]: ...
def unitwise_clip(g_norm: ArrayLike, max_norm: ArrayLike, grad: ArrayLike, div_eps: ArrayLike = 1e-06) -> Array: ...
def unitwise_norm(x: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Array: ...
def chain(*args: GradientTransformation) -> GradientTransformationExtraArgs: ...
def named_chain(*args: tuple[str, GradientTransformation]) -> GradientTransformationExtraArgs: ...
def partition(
    transforms: Mapping[Hashable, GradientTransformation],
    param_labels: MaskOrFn,
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformationExtraArgs: ...

class PartitionState(NamedTuple):
    inner_states: Mapping[Hashable, OptState]

def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int) -> GradientTransformation: ...

class ApplyIfFiniteState(NamedTuple):
    notfinite_count: Any
    last_finite: Any
    total_notfinite: Any
    inner_state: Any

def conditionally_mask(
    inner: GradientTransformation, should_transform_fn: ConditionFn, forward_extra_args: bool = False
) -> GradientTransformationExtraArgs: ...
def conditionally_transform(
    inner: GradientTransformation, should_transform_fn: ConditionFn, forward_extra_args: bool = False
) -> GradientTransformationExtraArgs: ...

class ConditionallyMaskState(NamedTuple):
    step: Array
    inner_state: OptState

class ConditionallyTransformState(NamedTuple):
    inner_state: Any
    step: Array

class ConditionFn(Protocol):
    def __call__(self, step: ArrayLike, **extra_args: Any) -> ArrayLike: ...

def keep_params_nonnegative() -> GradientTransformation: ...

NonNegativeParamsState = EmptyState

def zero_nans() -> GradientTransformation: ...

class ZeroNansState(NamedTuple):
    found_nan: Any

def freeze(mask: Any) -> GradientTransformation: ...
def selective_transform(optimizer: GradientTransformation, *, freeze_mask: Any) -> GradientTransformation: ...
def flatten(inner: GradientTransformation) -> GradientTransformationExtraArgs: ...
def masked(
    inner: GradientTransformation, mask: MaskOrFn, *, mask_compatible_extra_args: bool = False
) -> GradientTransformationExtraArgs: ...

class MaskedNode(NamedTuple): ...

class MaskedState(NamedTuple):
    inner_state: Any

def measure_with_ema(
    measure: Callable[[Updates], Any], decay: ArrayLike, debias: bool = True, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformationExtraArgs: ...
def monitor(
    measures: dict[str, GradientTransformationExtraArgs | Callable[[Updates], Any]],
) -> GradientTransformationExtraArgs: ...

class MonitorState(NamedTuple):
    measurements: dict[str, Any]
    measure_states: tuple[OptState, ...]

def snapshot(measure_name: str, measure: Callable[[Updates], Any]) -> GradientTransformation: ...

class SnapshotState(NamedTuple):
    measurement: dict[str, Any]
