# Stubs of the public names of Optax 0.2.8 that treekit uses or its users are likely to reach: Optax ships no types.
# `make check` compares them with the package. A tree is Any, as no checker knows its leaves; a field `count` is Any, as
# its name is that of a method of tuples.

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from jax import Array
from jax.lax import Precision
from jax.typing import ArrayLike, DTypeLike
from optax import assignment as assignment
from optax import contrib as contrib
from optax import experimental as experimental
from optax import losses as losses
from optax import microbatching as microbatching
from optax import perturbations as perturbations
from optax import projections as projections
from optax import schedules as schedules
from optax import second_order as second_order
from optax import transforms as transforms
from optax import tree as tree
from optax import tree_utils as tree_utils
from optax.losses import convex_kl_divergence as convex_kl_divergence
from optax.losses import cosine_distance as cosine_distance
from optax.losses import cosine_similarity as cosine_similarity
from optax.losses import ctc_loss as ctc_loss
from optax.losses import ctc_loss_with_forward_probs as ctc_loss_with_forward_probs
from optax.losses import generalized_kl_divergence as generalized_kl_divergence
from optax.losses import hinge_loss as hinge_loss
from optax.losses import huber_loss as huber_loss
from optax.losses import kl_divergence as kl_divergence
from optax.losses import l2_loss as l2_loss
from optax.losses import log_cosh as log_cosh
from optax.losses import ntxent as ntxent
from optax.losses import safe_softmax_cross_entropy as safe_softmax_cross_entropy
from optax.losses import sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy
from optax.losses import sigmoid_focal_loss as sigmoid_focal_loss
from optax.losses import smooth_labels as smooth_labels
from optax.losses import softmax_cross_entropy as softmax_cross_entropy
from optax.losses import softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels
from optax.losses import squared_error as squared_error
from optax.schedules import InjectHyperparamsState as InjectHyperparamsState
from optax.schedules import InjectStatefulHyperparamsState as InjectStatefulHyperparamsState
from optax.schedules import WrappedSchedule as WrappedSchedule
from optax.schedules import constant_schedule as constant_schedule
from optax.schedules import cosine_decay_schedule as cosine_decay_schedule
from optax.schedules import cosine_onecycle_schedule as cosine_onecycle_schedule
from optax.schedules import exponential_decay as exponential_decay
from optax.schedules import inject_hyperparams as inject_hyperparams
from optax.schedules import inject_stateful_hyperparams as inject_stateful_hyperparams
from optax.schedules import join_schedules as join_schedules
from optax.schedules import linear_onecycle_schedule as linear_onecycle_schedule
from optax.schedules import linear_schedule as linear_schedule
from optax.schedules import piecewise_constant_schedule as piecewise_constant_schedule
from optax.schedules import piecewise_interpolate_schedule as piecewise_interpolate_schedule
from optax.schedules import polynomial_schedule as polynomial_schedule
from optax.schedules import sgdr_schedule as sgdr_schedule
from optax.schedules import warmup_constant_schedule as warmup_constant_schedule
from optax.schedules import warmup_cosine_decay_schedule as warmup_cosine_decay_schedule
from optax.schedules import warmup_exponential_decay_schedule as warmup_exponential_decay_schedule
from optax.transforms import AddNoiseState as AddNoiseState
from optax.transforms import ApplyIfFiniteState as ApplyIfFiniteState
from optax.transforms import ConditionallyMaskState as ConditionallyMaskState
from optax.transforms import ConditionallyTransformState as ConditionallyTransformState
from optax.transforms import EmaState as EmaState
from optax.transforms import MaskedNode as MaskedNode
from optax.transforms import MaskedState as MaskedState
from optax.transforms import MonitorState as MonitorState
from optax.transforms import MultiSteps as MultiSteps
from optax.transforms import MultiStepsState as MultiStepsState
from optax.transforms import NonNegativeParamsState as NonNegativeParamsState
from optax.transforms import PartitionState as PartitionState
from optax.transforms import ShouldSkipUpdateFunction as ShouldSkipUpdateFunction
from optax.transforms import SnapshotState as SnapshotState
from optax.transforms import TraceState as TraceState
from optax.transforms import ZeroNansState as ZeroNansState
from optax.transforms import adaptive_grad_clip as adaptive_grad_clip
from optax.transforms import add_decayed_weights as add_decayed_weights
from optax.transforms import add_noise as add_noise
from optax.transforms import apply_if_finite as apply_if_finite
from optax.transforms import chain as chain
from optax.transforms import clip as clip
from optax.transforms import clip_by_block_rms as clip_by_block_rms
from optax.transforms import clip_by_global_norm as clip_by_global_norm
from optax.transforms import conditionally_mask as conditionally_mask
from optax.transforms import conditionally_transform as conditionally_transform
from optax.transforms import ema as ema
from optax.transforms import flatten as flatten
from optax.transforms import freeze as freeze
from optax.transforms import keep_params_nonnegative as keep_params_nonnegative
from optax.transforms import masked as masked
from optax.transforms import measure_with_ema as measure_with_ema
from optax.transforms import monitor as monitor
from optax.transforms import named_chain as named_chain
from optax.transforms import partition as partition
from optax.transforms import per_example_global_norm_clip as per_example_global_norm_clip
from optax.transforms import per_example_layer_norm_clip as per_example_layer_norm_clip
from optax.transforms import selective_transform as selective_transform
from optax.transforms import skip_large_updates as skip_large_updates
from optax.transforms import skip_not_finite as skip_not_finite
from optax.transforms import snapshot as snapshot
from optax.transforms import trace as trace
from optax.transforms import zero_nans as zero_nans
from optax.tree import bias_correction as bias_correction
from optax.tree import map_params
from optax.tree import update_infinity_moment as update_infinity_moment
from optax.tree import update_moment as update_moment
from optax.tree import update_moment_per_elem_norm as update_moment_per_elem_norm

_T = TypeVar("_T")

# The base types.

Params: TypeAlias = Any
Updates: TypeAlias = Params
OptState: TypeAlias = Any
Schedule: TypeAlias = Callable[[ArrayLike], ArrayLike]
ScalarOrSchedule: TypeAlias = float | Array | Schedule
MaskOrFn: TypeAlias = Any | Callable[[Params], Any]

class TransformInitFn(Protocol):
    def __call__(self, params: Params) -> OptState: ...

class TransformUpdateFn(Protocol):
    def __call__(self, updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]: ...

class TransformUpdateExtraArgsFn(Protocol):
    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]: ...

# A named tuple in the package. Here its fields are properties, since those alone may be narrowed by a subclass.
class GradientTransformation(tuple[TransformInitFn, TransformUpdateFn]):
    def __new__(_cls, init: TransformInitFn, update: TransformUpdateFn) -> Self: ...
    @property
    def init(self) -> TransformInitFn: ...
    @property
    def update(self) -> TransformUpdateFn: ...
    def _replace(self, *, init: TransformInitFn = ..., update: TransformUpdateFn = ...) -> Self: ...

class GradientTransformationExtraArgs(GradientTransformation):
    # Any callable, since an update may demand the extra arguments that it names.
    def __new__(_cls, init: TransformInitFn, update: Callable[..., tuple[Updates, OptState]]) -> Self: ...
    @property
    def update(self) -> TransformUpdateExtraArgsFn: ...

class EmptyState(NamedTuple): ...

# The transformations.

def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-16,
    eps_root: ArrayLike = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs: ...
def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: ArrayLike = 0.9,
    eps: ArrayLike = 1e-06,
    weight_decay: ArrayLike | ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs: ...
def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: ArrayLike = 0.8,
    decay_offset: ArrayLike = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: ArrayLike | None = 1.0,
    momentum: ArrayLike | None = None,
    dtype_momentum: DTypeLike = ...,
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: ArrayLike = 1e-30,
    factored: bool = True,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs: ...
def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: ArrayLike = 0.1, eps: ArrayLike = 1e-07
) -> GradientTransformationExtraArgs: ...
def adam(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs: ...

nadam: partial[GradientTransformationExtraArgs]

def adamax(
    learning_rate: ScalarOrSchedule, b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-08
) -> GradientTransformationExtraArgs: ...
def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    weight_decay: ScalarOrSchedule = 0.0001,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs: ...
def adamw(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 0.0001,
    mask: MaskOrFn | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs: ...

nadamw: partial[GradientTransformationExtraArgs]

def adan(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.98,
    b2: ArrayLike = 0.92,
    b3: ArrayLike = 0.99,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 1e-08,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs: ...
def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformationExtraArgs: ...
def fromage(learning_rate: ScalarOrSchedule, min_norm: ArrayLike = 1e-06) -> GradientTransformationExtraArgs: ...
def lamb(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-06,
    eps_root: ArrayLike = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs: ...
def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn = True,
    trust_coefficient: ArrayLike = 0.001,
    eps: ArrayLike = 0.0,
    trust_ratio_mask: MaskOrFn = True,
    momentum: ArrayLike = 0.9,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs: ...
def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = ...,
) -> GradientTransformationExtraArgs: ...
def lion(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.99,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 0.001,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs: ...
def noisy_sgd(
    learning_rate: ScalarOrSchedule,
    eta: ArrayLike = 0.01,
    gamma: ArrayLike = 0.55,
    key: ArrayLike | None = None,
    *,
    seed: int | None = None,
) -> GradientTransformationExtraArgs: ...
def novograd(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.25,
    eps: ArrayLike = 1e-06,
    eps_root: ArrayLike = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
) -> GradientTransformationExtraArgs: ...
def optimistic_adam(
    learning_rate: ArrayLike,
    optimism: ArrayLike | None = None,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs: ...
def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: ArrayLike = 1.0,
    beta: ArrayLike = 1.0,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs: ...
def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule, alpha: ScalarOrSchedule = 1.0, beta: ScalarOrSchedule = 1.0
) -> GradientTransformationExtraArgs: ...
def polyak_sgd(
    max_learning_rate: ArrayLike = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: ArrayLike = 0.0,
    eps: ArrayLike = 0.0,
    variant: str = "sps",
) -> GradientTransformationExtraArgs: ...
def radam(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    threshold: ArrayLike = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs: ...
def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: ArrayLike = 0.9,
    eps: ArrayLike = 1e-08,
    initial_scale: ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: ArrayLike | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformationExtraArgs: ...
def rprop(
    learning_rate: ArrayLike,
    eta_minus: ArrayLike = 0.5,
    eta_plus: ArrayLike = 1.2,
    min_step_size: ArrayLike = 1e-06,
    max_step_size: ArrayLike = 50.0,
) -> GradientTransformationExtraArgs: ...
def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: ArrayLike | None = None,
    nesterov: bool = False,
    accumulator_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs: ...
def sign_sgd(learning_rate: ScalarOrSchedule) -> GradientTransformationExtraArgs: ...
def signum(
    learning_rate: ScalarOrSchedule, beta: ArrayLike = 0.9, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformationExtraArgs: ...
def sm3(learning_rate: ArrayLike, momentum: ArrayLike = 0.9) -> GradientTransformationExtraArgs: ...
def yogi(
    learning_rate: ScalarOrSchedule, b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 0.001
) -> GradientTransformationExtraArgs: ...
def identity() -> GradientTransformation: ...
def init_empty_state(params: Params) -> EmptyState: ...
def set_to_zero() -> GradientTransformation: ...
def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation: ...
def stateless_with_tree_map(f: Callable[[ArrayLike, ArrayLike | None], ArrayLike]) -> GradientTransformation: ...
def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs: ...

class FactoredState(NamedTuple):
    count: Any
    v_row: Any
    v_col: Any
    v: Any

def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: ArrayLike = 0.8,
    step_offset: ArrayLike = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: ArrayLike = 1e-30,
    decay_rate_fn: Callable[[ArrayLike, ArrayLike], ArrayLike] = ...,
) -> GradientTransformation: ...
def global_norm(updates: Any) -> Array: ...
def matrix_inverse_pth_root(
    matrix: ArrayLike,
    p: ArrayLike,
    num_iters: ArrayLike = 100,
    ridge_epsilon: ArrayLike = 1e-06,
    error_tolerance: ArrayLike = 1e-06,
    precision: Precision = ...,
) -> tuple[Array, Array]: ...
def nnls(A: Array, b: Array, iters: int, unroll: int | bool = 1, L: ArrayLike | None = None) -> Array: ...
def power_iteration(
    matrix: ArrayLike | Callable[[Any], Any],
    *,
    v0: Any | None = None,
    num_iters: ArrayLike = 100,
    error_tolerance: ArrayLike = 1e-06,
    precision: Precision = ...,
    key: Array | None = None,
) -> tuple[Array, Any]: ...
def scale_by_backtracking_linesearch(
    max_backtracking_steps: ArrayLike,
    slope_rtol: ArrayLike = 0.0001,
    decrease_factor: ArrayLike = 0.8,
    increase_factor: ArrayLike = 1.5,
    max_learning_rate: ArrayLike = 1.0,
    atol: ArrayLike = 0.0,
    rtol: ArrayLike = 0.0,
    store_grad: bool = False,
    verbose: bool = False,
) -> GradientTransformationExtraArgs: ...
def scale_by_zoom_linesearch(
    max_linesearch_steps: ArrayLike,
    max_learning_rate: ArrayLike | None = None,
    tol: ArrayLike = 0.0,
    increase_factor: ArrayLike = 2.0,
    slope_rtol: ArrayLike = 0.0001,
    curv_rtol: ArrayLike = 0.9,
    approx_dec_rtol: ArrayLike | None = 1e-06,
    stepsize_precision: ArrayLike = 1e-05,
    initial_guess_strategy: str = "keep",
    verbose: bool = False,
) -> GradientTransformationExtraArgs: ...

class _BacktrackingLinesearchInfo(NamedTuple):
    num_linesearch_steps: int | Array
    decrease_error: Array

class ScaleByBacktrackingLinesearchState(NamedTuple):
    learning_rate: Array
    value: Array
    grad: Updates | None
    info: _BacktrackingLinesearchInfo

class ScaleByZoomLinesearchState(NamedTuple):
    learning_rate: Array
    value: Array
    grad: Updates
    info: ZoomLinesearchInfo

def value_and_grad_from_state(value_fn: Callable[..., ArrayLike]) -> Callable[..., tuple[Array, Updates]]: ...

class ZoomLinesearchInfo(NamedTuple):
    num_linesearch_steps: Array
    decrease_error: Array
    curvature_error: Array

def lookahead(
    fast_optimizer: GradientTransformation, sync_period: ArrayLike, slow_step_size: ArrayLike, reset_state: bool = False
) -> GradientTransformation: ...

class LookaheadParams(NamedTuple):
    fast: Params
    slow: Params
    @classmethod
    def init_synced(cls, params: Params) -> Self: ...

class LookaheadState(NamedTuple):
    fast_state: OptState
    steps_since_sync: Array

def safe_increment(count: ArrayLike) -> Array: ...

safe_int32_increment = safe_increment

def safe_norm(
    x: ArrayLike,
    min_norm: ArrayLike,
    ord: int | float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Array: ...
def safe_root_mean_squares(x: ArrayLike, min_rms: ArrayLike) -> Array: ...
def apply_every(k: ArrayLike = 1) -> GradientTransformation: ...

class ApplyEvery(NamedTuple):
    count: Any
    grad_acc: Updates

def centralize() -> GradientTransformation: ...
def normalize_by_update_norm(scale_factor: ArrayLike = 1.0, eps: ArrayLike = 1e-06) -> GradientTransformation: ...
def scale(step_size: ArrayLike) -> GradientTransformation: ...
def scale_by_adadelta(rho: ArrayLike = 0.9, eps: ArrayLike = 1e-06) -> GradientTransformation: ...
def scale_by_adam(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation: ...
def scale_by_adamax(b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-08) -> GradientTransformation: ...
def scale_by_adan(
    b1: ArrayLike = 0.98, b2: ArrayLike = 0.92, b3: ArrayLike = 0.99, eps: ArrayLike = 1e-08, eps_root: ArrayLike = 0.0
) -> GradientTransformation: ...
def scale_by_amsgrad(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformation: ...
def scale_by_belief(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-16,
    eps_root: ArrayLike = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformation: ...
def scale_by_distance_over_gradients(
    reps_rel: ArrayLike = 1e-06, eps: ArrayLike = 1e-08, param_dtype: DTypeLike = ..., global_scale: ArrayLike = 1.0
) -> GradientTransformation: ...
def scale_by_lbfgs(memory_size: int = 10, scale_init_precond: bool = True) -> GradientTransformation: ...
def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> GradientTransformation: ...
def scale_by_lion(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.99,
    mu_dtype: DTypeLike | None = None,
    *,
    mode: Literal["hard", "smooth", "refined"] = "hard",
    smooth_beta: float = 1.0,
) -> GradientTransformation: ...
def scale_by_novograd(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.25,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    weight_decay: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> GradientTransformation: ...
def scale_by_optimistic_gradient(alpha: ArrayLike = 1.0, beta: ArrayLike = 1.0) -> GradientTransformation: ...
def scale_by_param_block_norm(min_scale: ArrayLike = 0.001) -> GradientTransformation: ...
def scale_by_param_block_rms(min_scale: ArrayLike = 0.001) -> GradientTransformation: ...
def scale_by_polyak(
    f_min: ArrayLike = 0.0, max_learning_rate: ArrayLike = 1.0, eps: ArrayLike = 0.0, variant: str = "sps"
) -> GradientTransformationExtraArgs: ...
def scale_by_radam(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    threshold: ArrayLike = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformation: ...
def scale_by_rms(
    decay: ArrayLike = 0.9,
    eps: ArrayLike = 1e-08,
    initial_scale: ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation: ...
def scale_by_rprop(
    learning_rate: ArrayLike,
    eta_minus: ArrayLike = 0.5,
    eta_plus: ArrayLike = 1.2,
    min_step_size: ArrayLike = 1e-06,
    max_step_size: ArrayLike = 50.0,
) -> GradientTransformation: ...
def scale_by_rss(initial_accumulator_value: ArrayLike = 0.1, eps: ArrayLike = 1e-07) -> GradientTransformation: ...
def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation: ...
def scale_by_sign() -> GradientTransformation: ...
def scale_by_sm3(b1: ArrayLike = 0.9, b2: ArrayLike = 1.0, eps: ArrayLike = 1e-08) -> GradientTransformation: ...
def scale_by_stddev(
    decay: ArrayLike = 0.9,
    eps: ArrayLike = 1e-08,
    initial_scale: ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation: ...
def scale_by_trust_ratio(
    min_norm: ArrayLike = 0.0, trust_coefficient: ArrayLike = 1.0, eps: ArrayLike = 0.0
) -> GradientTransformation: ...
def scale_by_yogi(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 0.001,
    eps_root: ArrayLike = 0.0,
    initial_accumulator_value: ArrayLike = 1e-06,
) -> GradientTransformation: ...

class ScaleByAdaDeltaState(NamedTuple):
    e_g: Updates
    e_x: Updates

class ScaleByAdamState(NamedTuple):
    count: Any
    mu: Updates
    nu: Updates

class ScaleByAdanState(NamedTuple):
    m: Updates
    v: Updates
    n: Updates
    g: Updates
    t: Array

class ScaleByAmsgradState(NamedTuple):
    count: Any
    mu: Updates
    nu: Updates
    nu_max: Updates

class ScaleByBeliefState(NamedTuple):
    count: Any
    mu: Updates
    nu: Updates

class ScaleByLBFGSState(NamedTuple):
    count: Any
    params: Params
    updates: Params
    diff_params_memory: Any
    diff_updates_memory: Any
    weights_memory: Array

class ScaleByLionState(NamedTuple):
    count: Any
    mu: Updates

class ScaleByNovogradState(NamedTuple):
    count: Any
    mu: Updates
    nu: Updates

class ScaleByRmsState(NamedTuple):
    nu: Updates

class ScaleByRpropState(NamedTuple):
    step_sizes: Updates
    prev_updates: Updates

class ScaleByRssState(NamedTuple):
    sum_of_squares: Updates

class ScaleByRStdDevState(NamedTuple):
    mu: Updates
    nu: Updates

class ScaleByScheduleState(NamedTuple):
    count: Any

class ScaleBySM3State(NamedTuple):
    mu: Updates
    nu: Updates

def apply_updates(params: _T, updates: Updates) -> _T: ...
def incremental_update(new_tensors: Params, old_tensors: _T, step_size: ArrayLike) -> _T: ...
def periodic_update(new_tensors: Params, old_tensors: _T, steps: ArrayLike, update_period: ArrayLike) -> _T: ...
def scale_gradient(inputs: Any, scale: ArrayLike) -> Any: ...

AdaptiveGradClipState = EmptyState
ClipByGlobalNormState = EmptyState
ClipState = EmptyState
multi_transform = partition
MultiTransformState = PartitionState
AddDecayedWeightsState = EmptyState
ScaleByTrustRatioState = EmptyState
ScaleState = EmptyState
tree_map_params = map_params

__version__: str

microbatch: Any
multi_normal: Any
