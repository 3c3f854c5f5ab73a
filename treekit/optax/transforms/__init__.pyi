"""The names of `optax.transforms`, for type checkers. Made by `make stubs`."""

from typing import Final

import optax.transforms as _optax
from optax.transforms import AddNoiseState as AddNoiseState
from optax.transforms import ApplyIfFiniteState as ApplyIfFiniteState
from optax.transforms import ConditionallyMaskState as ConditionallyMaskState
from optax.transforms import ConditionallyTransformState as ConditionallyTransformState
from optax.transforms import ConditionFn as ConditionFn
from optax.transforms import EmaState as EmaState
from optax.transforms import MaskedNode as MaskedNode
from optax.transforms import MaskedState as MaskedState
from optax.transforms import MonitorState as MonitorState
from optax.transforms import MultiStepsState as MultiStepsState
from optax.transforms import NonNegativeParamsState as NonNegativeParamsState
from optax.transforms import PartitionState as PartitionState
from optax.transforms import ShouldSkipUpdateFunction as ShouldSkipUpdateFunction
from optax.transforms import SnapshotState as SnapshotState
from optax.transforms import TraceState as TraceState
from optax.transforms import ZeroNansState as ZeroNansState
from optax.transforms import measure_with_ema as measure_with_ema
from optax.transforms import per_example_global_norm_clip as per_example_global_norm_clip
from optax.transforms import per_example_layer_norm_clip as per_example_layer_norm_clip
from optax.transforms import skip_large_updates as skip_large_updates
from optax.transforms import skip_not_finite as skip_not_finite
from optax.transforms import unitwise_clip as unitwise_clip
from optax.transforms import unitwise_norm as unitwise_norm

from treekit.optax._names import factories as _ours
from treekit.optax._wrappers.conditional import apply_if_finite as apply_if_finite
from treekit.optax._wrappers.conditional import conditionally_mask as conditionally_mask
from treekit.optax._wrappers.conditional import conditionally_transform as conditionally_transform
from treekit.optax._wrappers.monitor import monitor as monitor
from treekit.optax._wrappers.multi_steps import MultiSteps as MultiSteps
from treekit.optax._wrappers.select import freeze as freeze
from treekit.optax._wrappers.select import masked as masked
from treekit.optax._wrappers.select import partition as partition
from treekit.optax._wrappers.select import selective_transform as selective_transform

adaptive_grad_clip: Final = _ours.any_state(_optax.adaptive_grad_clip)
add_decayed_weights: Final = _ours.any_state(_optax.add_decayed_weights)
add_noise: Final = _ours.any_state(_optax.add_noise)
chain: Final = _ours.chain_like(_optax.chain)
clip: Final = _ours.any_state(_optax.clip)
clip_by_block_rms: Final = _ours.any_state(_optax.clip_by_block_rms)
clip_by_global_norm: Final = _ours.any_state(_optax.clip_by_global_norm)
ema: Final = _ours.any_state(_optax.ema)
flatten: Final = _ours.any_state(_optax.flatten)
keep_params_nonnegative: Final = _ours.any_state(_optax.keep_params_nonnegative)
named_chain: Final = _ours.named_chain_like(_optax.named_chain)
snapshot: Final = _ours.any_state(_optax.snapshot)
trace: Final = _ours.any_state(_optax.trace)
zero_nans: Final = _ours.any_state(_optax.zero_nans)
