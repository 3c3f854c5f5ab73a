"""Every name of `optax.transforms`, with ours in the place of Optax's."""

from typing import TYPE_CHECKING, Any

import optax.transforms as _transforms

from treekit.optax._apply_if_finite import apply_if_finite as apply_if_finite
from treekit.optax._conditionally import conditionally_mask as conditionally_mask
from treekit.optax._conditionally import conditionally_transform as conditionally_transform
from treekit.optax._masking import freeze as freeze
from treekit.optax._masking import masked as masked
from treekit.optax._masking import partition as partition
from treekit.optax._masking import selective_transform as selective_transform
from treekit.optax._monitor import monitor as monitor
from treekit.optax._multi_steps import MultiSteps as MultiSteps
from treekit.optax._wrap import wrap_attribute as _wrap_attribute

if TYPE_CHECKING:
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
    from optax.transforms import adaptive_grad_clip as adaptive_grad_clip
    from optax.transforms import add_decayed_weights as add_decayed_weights
    from optax.transforms import add_noise as add_noise
    from optax.transforms import chain as chain
    from optax.transforms import clip as clip
    from optax.transforms import clip_by_block_rms as clip_by_block_rms
    from optax.transforms import clip_by_global_norm as clip_by_global_norm
    from optax.transforms import ema as ema
    from optax.transforms import flatten as flatten
    from optax.transforms import keep_params_nonnegative as keep_params_nonnegative
    from optax.transforms import measure_with_ema as measure_with_ema
    from optax.transforms import named_chain as named_chain
    from optax.transforms import per_example_global_norm_clip as per_example_global_norm_clip
    from optax.transforms import per_example_layer_norm_clip as per_example_layer_norm_clip
    from optax.transforms import skip_large_updates as skip_large_updates
    from optax.transforms import skip_not_finite as skip_not_finite
    from optax.transforms import snapshot as snapshot
    from optax.transforms import trace as trace
    from optax.transforms import unitwise_clip as unitwise_clip
    from optax.transforms import unitwise_norm as unitwise_norm
    from optax.transforms import zero_nans as zero_nans


def __getattr__(name: str) -> Any:
    return _wrap_attribute(_transforms, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_transforms)})
