"""Every name of `optax.contrib`, with ours in the place of Optax's."""

from typing import TYPE_CHECKING, Any

import optax.contrib as _contrib

from treekit.optax._apply import schedule_free_eval_params as schedule_free_eval_params
from treekit.optax._wrap import wrap_attribute as _wrap_attribute

if TYPE_CHECKING:
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
    from optax.contrib import acprop as acprop
    from optax.contrib import ademamix as ademamix
    from optax.contrib import adopt as adopt
    from optax.contrib import cocob as cocob
    from optax.contrib import dadapt_adamw as dadapt_adamw
    from optax.contrib import differentially_private_aggregate as differentially_private_aggregate
    from optax.contrib import dog as dog
    from optax.contrib import dowg as dowg
    from optax.contrib import dpsgd as dpsgd
    from optax.contrib import galore as galore
    from optax.contrib import hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian
    from optax.contrib import madgrad as madgrad
    from optax.contrib import mechanize as mechanize
    from optax.contrib import momo as momo
    from optax.contrib import momo_adam as momo_adam
    from optax.contrib import muon as muon
    from optax.contrib import normalize as normalize
    from optax.contrib import prodigy as prodigy
    from optax.contrib import reduce_on_plateau as reduce_on_plateau
    from optax.contrib import sam as sam
    from optax.contrib import scale_by_acprop as scale_by_acprop
    from optax.contrib import scale_by_ademamix as scale_by_ademamix
    from optax.contrib import scale_by_adopt as scale_by_adopt
    from optax.contrib import scale_by_cocob as scale_by_cocob
    from optax.contrib import scale_by_galore as scale_by_galore
    from optax.contrib import scale_by_madgrad as scale_by_madgrad
    from optax.contrib import scale_by_muon as scale_by_muon
    from optax.contrib import scale_by_simplified_ademamix as scale_by_simplified_ademamix
    from optax.contrib import schedule_free as schedule_free
    from optax.contrib import schedule_free_adamw as schedule_free_adamw
    from optax.contrib import schedule_free_sgd as schedule_free_sgd
    from optax.contrib import simplified_ademamix as simplified_ademamix
    from optax.contrib import sophia as sophia
    from optax.contrib import split_real_and_imaginary as split_real_and_imaginary


def __getattr__(name: str) -> Any:
    return _wrap_attribute(_contrib, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_contrib)})
