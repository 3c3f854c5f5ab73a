"""The names of `optax`, for type checkers. Made by `make stubs`."""

from typing import Final

import optax as _optax
from optax import AdaptiveGradClipState as AdaptiveGradClipState
from optax import AddDecayedWeightsState as AddDecayedWeightsState
from optax import AddNoiseState as AddNoiseState
from optax import ApplyEvery as ApplyEvery
from optax import ApplyIfFiniteState as ApplyIfFiniteState
from optax import ClipByGlobalNormState as ClipByGlobalNormState
from optax import ClipState as ClipState
from optax import ConditionallyMaskState as ConditionallyMaskState
from optax import ConditionallyTransformState as ConditionallyTransformState
from optax import EmaState as EmaState
from optax import EmptyState as EmptyState
from optax import FactoredState as FactoredState
from optax import LookaheadParams as LookaheadParams
from optax import LookaheadState as LookaheadState
from optax import MaskedNode as MaskedNode
from optax import MaskedState as MaskedState
from optax import MaskOrFn as MaskOrFn
from optax import MonitorState as MonitorState
from optax import MultiStepsState as MultiStepsState
from optax import MultiTransformState as MultiTransformState
from optax import NonNegativeParamsState as NonNegativeParamsState
from optax import PartitionState as PartitionState
from optax import ScalarOrSchedule as ScalarOrSchedule
from optax import ScaleByAdaDeltaState as ScaleByAdaDeltaState
from optax import ScaleByAdamState as ScaleByAdamState
from optax import ScaleByAdanState as ScaleByAdanState
from optax import ScaleByAmsgradState as ScaleByAmsgradState
from optax import ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState
from optax import ScaleByBeliefState as ScaleByBeliefState
from optax import ScaleByLBFGSState as ScaleByLBFGSState
from optax import ScaleByLionState as ScaleByLionState
from optax import ScaleByNovogradState as ScaleByNovogradState
from optax import ScaleByRmsState as ScaleByRmsState
from optax import ScaleByRpropState as ScaleByRpropState
from optax import ScaleByRssState as ScaleByRssState
from optax import ScaleByRStdDevState as ScaleByRStdDevState
from optax import ScaleByScheduleState as ScaleByScheduleState
from optax import ScaleBySM3State as ScaleBySM3State
from optax import ScaleByTrustRatioState as ScaleByTrustRatioState
from optax import ScaleByZoomLinesearchState as ScaleByZoomLinesearchState
from optax import ScaleState as ScaleState
from optax import ShouldSkipUpdateFunction as ShouldSkipUpdateFunction
from optax import SnapshotState as SnapshotState
from optax import TraceState as TraceState
from optax import TransformInitFn as TransformInitFn
from optax import TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn
from optax import TransformUpdateFn as TransformUpdateFn
from optax import ZeroNansState as ZeroNansState
from optax import ZoomLinesearchInfo as ZoomLinesearchInfo
from optax import bias_correction as bias_correction
from optax import convex_kl_divergence as convex_kl_divergence
from optax import cosine_distance as cosine_distance
from optax import cosine_similarity as cosine_similarity
from optax import ctc_loss as ctc_loss
from optax import ctc_loss_with_forward_probs as ctc_loss_with_forward_probs
from optax import generalized_kl_divergence as generalized_kl_divergence
from optax import global_norm as global_norm
from optax import hinge_loss as hinge_loss
from optax import huber_loss as huber_loss
from optax import init_empty_state as init_empty_state
from optax import kl_divergence as kl_divergence
from optax import l2_loss as l2_loss
from optax import log_cosh as log_cosh
from optax import matrix_inverse_pth_root as matrix_inverse_pth_root
from optax import measure_with_ema as measure_with_ema
from optax import microbatch as microbatch
from optax import multi_normal as multi_normal
from optax import nnls as nnls
from optax import ntxent as ntxent
from optax import per_example_global_norm_clip as per_example_global_norm_clip
from optax import per_example_layer_norm_clip as per_example_layer_norm_clip
from optax import power_iteration as power_iteration
from optax import safe_increment as safe_increment
from optax import safe_int32_increment as safe_int32_increment
from optax import safe_norm as safe_norm
from optax import safe_root_mean_squares as safe_root_mean_squares
from optax import safe_softmax_cross_entropy as safe_softmax_cross_entropy
from optax import scale_gradient as scale_gradient
from optax import sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy
from optax import sigmoid_focal_loss as sigmoid_focal_loss
from optax import skip_large_updates as skip_large_updates
from optax import skip_not_finite as skip_not_finite
from optax import smooth_labels as smooth_labels
from optax import softmax_cross_entropy as softmax_cross_entropy
from optax import softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels
from optax import squared_error as squared_error
from optax import update_infinity_moment as update_infinity_moment
from optax import update_moment as update_moment
from optax import update_moment_per_elem_norm as update_moment_per_elem_norm
from optax.schedules import InjectHyperparamsState as InjectHyperparamsState
from optax.schedules import InjectStatefulHyperparamsState as InjectStatefulHyperparamsState
from optax.schedules import Schedule as Schedule
from optax.schedules import WrappedSchedule as WrappedSchedule
from optax.schedules import constant_schedule as constant_schedule
from optax.schedules import cosine_decay_schedule as cosine_decay_schedule
from optax.schedules import cosine_onecycle_schedule as cosine_onecycle_schedule
from optax.schedules import exponential_decay as exponential_decay
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

from treekit._base.types import OptState as OptState
from treekit._base.types import Params as Params
from treekit._base.types import Updates as Updates
from treekit.optax import assignment as assignment
from treekit.optax import contrib as contrib
from treekit.optax import experimental as experimental
from treekit.optax import losses as losses
from treekit.optax import microbatching as microbatching
from treekit.optax import perturbations as perturbations
from treekit.optax import projections as projections
from treekit.optax import schedules as schedules
from treekit.optax import second_order as second_order
from treekit.optax import transforms as transforms
from treekit.optax import tree as tree
from treekit.optax import tree_utils as tree_utils
from treekit.optax._kernel.transformation import GradientTransformation as GradientTransformation
from treekit.optax._names import factories as _ours
from treekit.optax._wrappers import inject as _inject
from treekit.optax._wrappers import select as _select
from treekit.optax._wrappers.apply import apply_updates as apply_updates
from treekit.optax._wrappers.conditional import apply_if_finite as apply_if_finite
from treekit.optax._wrappers.conditional import conditionally_mask as conditionally_mask
from treekit.optax._wrappers.conditional import conditionally_transform as conditionally_transform
from treekit.optax._wrappers.inject import inject_hyperparams as inject_hyperparams
from treekit.optax._wrappers.lbfgs import lbfgs as lbfgs
from treekit.optax._wrappers.lbfgs import value_and_grad_from_state as value_and_grad_from_state
from treekit.optax._wrappers.lookahead import lookahead as lookahead
from treekit.optax._wrappers.map_params import tree_map_params as tree_map_params
from treekit.optax._wrappers.monitor import monitor as monitor
from treekit.optax._wrappers.multi_steps import MultiSteps as MultiSteps
from treekit.optax._wrappers.select import freeze as freeze
from treekit.optax._wrappers.select import masked as masked
from treekit.optax._wrappers.select import partition as partition
from treekit.optax._wrappers.select import selective_transform as selective_transform
from treekit.optax._wrappers.select import set_to_zero as set_to_zero
from treekit.optax._wrappers.update import incremental_update as incremental_update
from treekit.optax._wrappers.update import periodic_update as periodic_update

GradientTransformationExtraArgs = GradientTransformation  # ours takes extra arguments
adabelief: Final = _ours.chained(_optax.adabelief)
adadelta: Final = _ours.chained(_optax.adadelta)
adafactor: Final = _ours.chained(_optax.adafactor)
adagrad: Final = _ours.chained(_optax.adagrad)
adam: Final = _ours.adam_like(_optax.adam)
adamax: Final = _ours.chained(_optax.adamax)
adamaxw: Final = _ours.chained(_optax.adamaxw)
adamw: Final = _ours.adamw_like(_optax.adamw)
adan: Final = _ours.chained(_optax.adan)
adaptive_grad_clip: Final = _ours.any_state(_optax.adaptive_grad_clip)
add_decayed_weights: Final = _ours.any_state(_optax.add_decayed_weights)
add_noise: Final = _ours.any_state(_optax.add_noise)
amsgrad: Final = _ours.chained(_optax.amsgrad)
apply_every: Final = _ours.any_state(_optax.apply_every)
centralize: Final = _ours.any_state(_optax.centralize)
chain: Final = _ours.chain_like(_optax.chain)
clip: Final = _ours.any_state(_optax.clip)
clip_by_block_rms: Final = _ours.any_state(_optax.clip_by_block_rms)
clip_by_global_norm: Final = _ours.any_state(_optax.clip_by_global_norm)
ema: Final = _ours.any_state(_optax.ema)
flatten: Final = _ours.any_state(_optax.flatten)
fromage: Final = _ours.chained(_optax.fromage)
identity: Final = _ours.any_state(_optax.identity)
inject_stateful_hyperparams: Final = _inject.inject_hyperparams
keep_params_nonnegative: Final = _ours.any_state(_optax.keep_params_nonnegative)
lamb: Final = _ours.chained(_optax.lamb)
lars: Final = _ours.chained(_optax.lars)
lion: Final = _ours.chained(_optax.lion)
multi_transform: Final = _select.partition
nadam: Final = _ours.chained(_optax.nadam)
nadamw: Final = _ours.chained(_optax.nadamw)
named_chain: Final = _ours.named_chain_like(_optax.named_chain)
noisy_sgd: Final = _ours.chained(_optax.noisy_sgd)
normalize_by_update_norm: Final = _ours.any_state(_optax.normalize_by_update_norm)
novograd: Final = _ours.chained(_optax.novograd)
optimistic_adam: Final = _ours.chained(_optax.optimistic_adam)
optimistic_adam_v2: Final = _ours.chained(_optax.optimistic_adam_v2)
optimistic_gradient_descent: Final = _ours.chained(_optax.optimistic_gradient_descent)
polyak_sgd: Final = _ours.chained(_optax.polyak_sgd)
radam: Final = _ours.chained(_optax.radam)
rmsprop: Final = _ours.chained(_optax.rmsprop)
rprop: Final = _ours.chained(_optax.rprop)
scale: Final = _ours.any_state(_optax.scale)
scale_by_adadelta: Final = _ours.any_state(_optax.scale_by_adadelta)
scale_by_adam: Final = _ours.any_state(_optax.scale_by_adam)
scale_by_adamax: Final = _ours.any_state(_optax.scale_by_adamax)
scale_by_adan: Final = _ours.any_state(_optax.scale_by_adan)
scale_by_amsgrad: Final = _ours.any_state(_optax.scale_by_amsgrad)
scale_by_backtracking_linesearch: Final = _ours.any_state(_optax.scale_by_backtracking_linesearch)
scale_by_belief: Final = _ours.any_state(_optax.scale_by_belief)
scale_by_distance_over_gradients: Final = _ours.any_state(_optax.scale_by_distance_over_gradients)
scale_by_factored_rms: Final = _ours.any_state(_optax.scale_by_factored_rms)
scale_by_lbfgs: Final = _ours.any_state(_optax.scale_by_lbfgs)
scale_by_learning_rate: Final = _ours.any_state(_optax.scale_by_learning_rate)
scale_by_lion: Final = _ours.any_state(_optax.scale_by_lion)
scale_by_novograd: Final = _ours.any_state(_optax.scale_by_novograd)
scale_by_optimistic_gradient: Final = _ours.any_state(_optax.scale_by_optimistic_gradient)
scale_by_param_block_norm: Final = _ours.any_state(_optax.scale_by_param_block_norm)
scale_by_param_block_rms: Final = _ours.any_state(_optax.scale_by_param_block_rms)
scale_by_polyak: Final = _ours.any_state(_optax.scale_by_polyak)
scale_by_radam: Final = _ours.any_state(_optax.scale_by_radam)
scale_by_rms: Final = _ours.any_state(_optax.scale_by_rms)
scale_by_rprop: Final = _ours.any_state(_optax.scale_by_rprop)
scale_by_rss: Final = _ours.any_state(_optax.scale_by_rss)
scale_by_schedule: Final = _ours.any_state(_optax.scale_by_schedule)
scale_by_sign: Final = _ours.any_state(_optax.scale_by_sign)
scale_by_sm3: Final = _ours.any_state(_optax.scale_by_sm3)
scale_by_stddev: Final = _ours.any_state(_optax.scale_by_stddev)
scale_by_trust_ratio: Final = _ours.any_state(_optax.scale_by_trust_ratio)
scale_by_yogi: Final = _ours.any_state(_optax.scale_by_yogi)
scale_by_zoom_linesearch: Final = _ours.any_state(_optax.scale_by_zoom_linesearch)
sgd: Final = _ours.sgd_like(_optax.sgd)
sign_sgd: Final = _ours.chained(_optax.sign_sgd)
signum: Final = _ours.chained(_optax.signum)
sm3: Final = _ours.chained(_optax.sm3)
snapshot: Final = _ours.any_state(_optax.snapshot)
stateless: Final = _ours.any_state(_optax.stateless)
stateless_with_tree_map: Final = _ours.any_state(_optax.stateless_with_tree_map)
trace: Final = _ours.any_state(_optax.trace)
with_extra_args_support: Final = _ours.any_state(_optax.with_extra_args_support)
yogi: Final = _ours.chained(_optax.yogi)
zero_nans: Final = _ours.any_state(_optax.zero_nans)
