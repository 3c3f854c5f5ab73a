# Stubs of optax.contrib.

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

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
    Updates,
)

_T = TypeVar("_T")

def acprop(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-16,
    eps_root: ArrayLike = 1e-16,
    weight_decay: ArrayLike = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation: ...
def scale_by_acprop(
    b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-16, eps_root: ArrayLike = 1e-16
) -> GradientTransformation: ...
def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ArrayLike = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation: ...
def scale_by_ademamix(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 6.0,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> GradientTransformation: ...
def scale_by_simplified_ademamix(
    b1: ArrayLike = 0.99,
    b2: ArrayLike = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
) -> GradientTransformation: ...

class ScaleByAdemamixState(NamedTuple):
    count: Any
    count_m2: Array
    m1: Updates
    m2: Updates
    nu: Updates

class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    t: Array
    m: Updates
    n: Updates

def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.99,
    b2: ArrayLike = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: ArrayLike = 1e-08,
    eps_root: ArrayLike = 0.0,
    weight_decay: ArrayLike = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation: ...
def adopt(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.9999,
    eps: ArrayLike = 1e-06,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Array] = ...,
) -> GradientTransformationExtraArgs: ...
def scale_by_adopt(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.9999,
    eps: ArrayLike = 1e-06,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Array] = ...,
) -> GradientTransformation: ...
def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: ArrayLike = 100.0,
    eps: ArrayLike = 1e-08,
    weight_decay: ArrayLike = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation: ...

class COCOBState(NamedTuple):
    init_particles: Updates
    cumulative_gradients: Updates
    scale: Updates
    subgradients: Updates
    reward: Updates

def scale_by_cocob(alpha: ArrayLike = 100.0, eps: ArrayLike = 1e-08) -> GradientTransformation: ...
def split_real_and_imaginary(inner: GradientTransformation) -> GradientTransformation: ...

class SplitRealAndImaginaryState(NamedTuple):
    inner_state: OptState

def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[ArrayLike, ArrayLike] = (0.9, 0.999),
    eps: ArrayLike = 1e-08,
    estim_lr0: ArrayLike = 1e-06,
    weight_decay: ArrayLike = 0.0,
) -> GradientTransformationExtraArgs: ...

class DAdaptAdamWState(NamedTuple):
    exp_avg: Updates
    exp_avg_sq: Updates
    grad_sum: Updates
    estim_lr: Array
    numerator_weighted: Array
    count: Any

def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: tuple[Literal["distance", "learning_rate", "heuristic"], ArrayLike] = ("heuristic", 1e-06),
    eps: ArrayLike = 1e-08,
    weight_decay: ArrayLike | None = None,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs: ...

class DoGState(NamedTuple):
    is_init_step: Array
    init_params: Any
    max_dist: Array
    sum_sq_norm_grads: Array

def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: ArrayLike | None = None,
    eps: ArrayLike = 0.0001,
    weight_decay: ArrayLike | None = None,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs: ...

class DoWGState(NamedTuple):
    init_params: Any
    weighted_sq_norm_grads: Array
    estim_sq_dist: Array

def galore(
    learning_rate: ScalarOrSchedule,
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_decay: ArrayLike = 0.0,
    mask: MaskOrFn | None = None,
    weight_dimension_numbers: _GaLoreDimNumsOrFn | None = None,
) -> GradientTransformation: ...

class GaLoreDimensionNumbers(NamedTuple):
    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1

_GaLoreDimNumsOrFn: TypeAlias = GaLoreDimensionNumbers | Params | Callable[[Params], Params | None]

class GaLoreState(NamedTuple):
    count: Any
    base_optimizer_state: OptState
    projector: Updates

def scale_by_galore(
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_dimension_numbers: _GaLoreDimNumsOrFn | None = None,
) -> GradientTransformation: ...
def madgrad(
    learning_rate: ScalarOrSchedule, momentum: float = 0.9, weight_decay: float = 0.0, eps: float = 1e-06
) -> GradientTransformation: ...

class MadgradState(NamedTuple):
    count: Any
    grad_sum_sq: Updates
    s: Updates
    x0: Params

def scale_by_madgrad(
    learning_rate: ScalarOrSchedule, momentum: float = 0.9, eps: float = 1e-06
) -> GradientTransformation: ...

class MechanicState(NamedTuple):
    base_optimizer_state: OptState
    count: Any
    r: Array
    m: Array
    v: Array
    s: Array
    x0: Updates

def mechanize(
    base_optimizer: GradientTransformation,
    weight_decay: ArrayLike = 0.01,
    eps: ArrayLike = 1e-08,
    s_init: ArrayLike = 1e-06,
    num_betas: int = 6,
) -> GradientTransformationExtraArgs: ...
def momo(
    learning_rate: ScalarOrSchedule = 1.0,
    beta: ArrayLike = 0.9,
    lower_bound: ArrayLike = 0.0,
    weight_decay: ArrayLike = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformationExtraArgs: ...
def momo_adam(
    learning_rate: ScalarOrSchedule = 0.01,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    lower_bound: ArrayLike = 0.0,
    weight_decay: ArrayLike = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformationExtraArgs: ...

class MomoAdamState(NamedTuple):
    exp_avg: Updates
    exp_avg_sq: Updates
    barf: Array
    gamma: Array
    lb: Array
    count: Any

class MomoState(NamedTuple):
    exp_avg: Updates
    barf: Array
    gamma: Array
    lb: Array
    count: Any

def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: tuple[ArrayLike, ArrayLike, ArrayLike] | tuple[tuple[ArrayLike, ArrayLike, ArrayLike], ...] | str = ...,
    ns_steps: ArrayLike = 5,
    beta: ArrayLike = 0.95,
    eps: ArrayLike = 1e-08,
    weight_decay: ArrayLike = 0.0,
    weight_decay_mask: MaskOrFn | None = None,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Literal["frobenius", "spectral", "aol", "schatten"] = "frobenius",
    adam_b1: ArrayLike = 0.9,
    adam_b2: ArrayLike = 0.999,
    adam_eps_root: ArrayLike = 0.0,
    adam_weight_decay: ArrayLike = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: _MuonDimNumsOrFn | None = None,
    consistent_rms: ArrayLike | None = None,
) -> GradientTransformation: ...

class MuonDimensionNumbers(NamedTuple):
    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1

_MuonDimNumsOrFn: TypeAlias = MuonDimensionNumbers | Params | Callable[[Params], Params | None]

class MuonState(NamedTuple):
    count: Any
    mu: Updates
    ns_coeffs: Array

def scale_by_muon(
    ns_coeffs: tuple[ArrayLike, ArrayLike, ArrayLike] | tuple[tuple[ArrayLike, ArrayLike, ArrayLike], ...] = ...,
    ns_steps: ArrayLike = 5,
    beta: ArrayLike = 0.95,
    eps: ArrayLike = 1e-08,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Literal["frobenius", "spectral", "aol", "schatten"] = "frobenius",
    weight_dimension_numbers: _MuonDimNumsOrFn | None = None,
) -> GradientTransformation: ...
def differentially_private_aggregate(
    l2_norm_clip: ArrayLike, noise_multiplier: ArrayLike, key: Array | int | None = None, *, seed: int | None = None
) -> GradientTransformation: ...

class DifferentiallyPrivateAggregateState(NamedTuple):
    rng_key: Array

def dpsgd(
    learning_rate: ScalarOrSchedule,
    l2_norm_clip: ArrayLike,
    noise_multiplier: ArrayLike,
    seed: int,
    momentum: ArrayLike | None = None,
    nesterov: bool = False,
) -> GradientTransformation: ...
def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[ArrayLike, ArrayLike] = (0.9, 0.999),
    beta3: ArrayLike | None = None,
    eps: ArrayLike = 1e-08,
    estim_lr0: ArrayLike = 1e-06,
    estim_lr_coef: ArrayLike = 1.0,
    weight_decay: ArrayLike = 0.0,
    safeguard_warmup: bool = False,
) -> GradientTransformationExtraArgs: ...

class ProdigyState(NamedTuple):
    exp_avg: Updates
    exp_avg_sq: Updates
    grad_sum: Updates
    params0: Updates
    estim_lr: Array
    numerator_weighted: Array
    count: Any

def reduce_on_plateau(
    factor: float = 0.1,
    patience: ArrayLike = 10,
    rtol: float = 0.0001,
    atol: float = 0.0,
    cooldown: ArrayLike = 0,
    accumulation_size: ArrayLike = 1,
    min_scale: ArrayLike = 0.0,
) -> GradientTransformationExtraArgs: ...

class ReduceLROnPlateauState(NamedTuple):
    scale: Array
    best_value: Array
    plateau_count: Array
    cooldown_count: Array
    count: Any
    avg_value: Array

def normalize() -> GradientTransformation: ...

NormalizeState = EmptyState

def sam(
    optimizer: GradientTransformation,
    adv_optimizer: GradientTransformation,
    sync_period: int = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> GradientTransformationExtraArgs: ...

class SAMState(NamedTuple):
    steps_since_sync: Array
    opt_state: OptState
    adv_state: OptState
    cache: Params | None

def schedule_free(
    base_optimizer: GradientTransformation,
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    weight_lr_power: ArrayLike = 2.0,
    state_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs: ...
def schedule_free_adamw(
    learning_rate: ArrayLike = 0.0025,
    warmup_steps: int | None = None,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-08,
    weight_decay: ArrayLike = 0.0,
    weight_lr_power: ArrayLike = 2.0,
    state_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs: ...
def schedule_free_eval_params(state: OptState, params: _T) -> _T: ...
def schedule_free_sgd(
    learning_rate: ArrayLike = 1.0,
    warmup_steps: int | None = None,
    b1: ArrayLike = 0.9,
    weight_decay: ArrayLike | None = None,
    weight_lr_power: ArrayLike = 2.0,
    state_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs: ...

class ScheduleFreeState(NamedTuple):
    b1: Array
    weight_sum: Array
    step_count: Array
    max_lr: Array
    base_optimizer_state: OptState
    z: Params

def hutchinson_estimator_diag_hessian(random_seed: Array | None = None) -> GradientTransformationExtraArgs: ...

class HutchinsonState(NamedTuple):
    key: Array

def sophia(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.965,
    b2: ArrayLike = 0.99,
    eps: ArrayLike = 1e-08,
    weight_decay: ArrayLike = 0.0001,
    weight_decay_mask: MaskOrFn | None = None,
    gamma: ArrayLike = 0.01,
    clip_threshold: ArrayLike | None = 1.0,
    update_interval: ArrayLike = 10,
    hessian_diagonal_fn: GradientTransformation = ...,
    mu_dtype: DTypeLike | None = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: ArrayLike = 0,
) -> GradientTransformationExtraArgs: ...

class SophiaState(NamedTuple):
    count: Any
    mu: Updates
    nu: Updates
    hessian_fn_state: Any
