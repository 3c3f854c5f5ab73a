"""The names of `optax.contrib`, for type checkers. Made by `make stubs`."""

from typing import Final

import optax.contrib as _optax
from optax.contrib import COCOBState as COCOBState
from optax.contrib import DAdaptAdamWState as DAdaptAdamWState
from optax.contrib import DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState
from optax.contrib import DoGState as DoGState
from optax.contrib import DoWGState as DoWGState
from optax.contrib import GaLoreDimensionNumbers as GaLoreDimensionNumbers
from optax.contrib import GaLoreState as GaLoreState
from optax.contrib import HutchinsonState as HutchinsonState
from optax.contrib import MadgradState as MadgradState
from optax.contrib import MechanicState as MechanicState
from optax.contrib import MomoAdamState as MomoAdamState
from optax.contrib import MomoState as MomoState
from optax.contrib import MuonDimensionNumbers as MuonDimensionNumbers
from optax.contrib import MuonState as MuonState
from optax.contrib import NormalizeState as NormalizeState
from optax.contrib import ProdigyState as ProdigyState
from optax.contrib import ReduceLROnPlateauState as ReduceLROnPlateauState
from optax.contrib import SAMState as SAMState
from optax.contrib import ScaleByAdemamixState as ScaleByAdemamixState
from optax.contrib import ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState
from optax.contrib import ScheduleFreeState as ScheduleFreeState
from optax.contrib import SophiaState as SophiaState
from optax.contrib import SplitRealAndImaginaryState as SplitRealAndImaginaryState

from treekit.optax._names import factories as _ours
from treekit.optax._wrappers.schedule_free import schedule_free_eval_params as schedule_free_eval_params

acprop: Final = _ours.chained(_optax.acprop)
ademamix: Final = _ours.chained(_optax.ademamix)
adopt: Final = _ours.chained(_optax.adopt)
cocob: Final = _ours.chained(_optax.cocob)
dadapt_adamw: Final = _ours.any_state(_optax.dadapt_adamw)
differentially_private_aggregate: Final = _ours.any_state(_optax.differentially_private_aggregate)
dog: Final = _ours.chained(_optax.dog)
dowg: Final = _ours.chained(_optax.dowg)
dpsgd: Final = _ours.any_state(_optax.dpsgd)
galore: Final = _ours.chained(_optax.galore)
hutchinson_estimator_diag_hessian: Final = _ours.any_state(_optax.hutchinson_estimator_diag_hessian)
madgrad: Final = _ours.chained(_optax.madgrad)
mechanize: Final = _ours.any_state(_optax.mechanize)
momo: Final = _ours.any_state(_optax.momo)
momo_adam: Final = _ours.any_state(_optax.momo_adam)
muon: Final = _ours.any_state(_optax.muon)
normalize: Final = _ours.any_state(_optax.normalize)
prodigy: Final = _ours.any_state(_optax.prodigy)
reduce_on_plateau: Final = _ours.any_state(_optax.reduce_on_plateau)
sam: Final = _ours.any_state(_optax.sam)
scale_by_acprop: Final = _ours.any_state(_optax.scale_by_acprop)
scale_by_ademamix: Final = _ours.any_state(_optax.scale_by_ademamix)
scale_by_adopt: Final = _ours.any_state(_optax.scale_by_adopt)
scale_by_cocob: Final = _ours.any_state(_optax.scale_by_cocob)
scale_by_galore: Final = _ours.any_state(_optax.scale_by_galore)
scale_by_madgrad: Final = _ours.any_state(_optax.scale_by_madgrad)
scale_by_muon: Final = _ours.any_state(_optax.scale_by_muon)
scale_by_simplified_ademamix: Final = _ours.any_state(_optax.scale_by_simplified_ademamix)
schedule_free: Final = _ours.any_state(_optax.schedule_free)
schedule_free_adamw: Final = _ours.any_state(_optax.schedule_free_adamw)
schedule_free_sgd: Final = _ours.any_state(_optax.schedule_free_sgd)
simplified_ademamix: Final = _ours.chained(_optax.simplified_ademamix)
sophia: Final = _ours.chained(_optax.sophia)
split_real_and_imaginary: Final = _ours.any_state(_optax.split_real_and_imaginary)
