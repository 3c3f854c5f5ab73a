"""Every name of `optax.transforms`, for whole models and with dtypes preserved."""

from typing import TYPE_CHECKING

from treekit.optax._monitor import monitor as monitor
from treekit.optax._wrappers.apply_if_finite import apply_if_finite as apply_if_finite
from treekit.optax._wrappers.conditionally import conditionally_mask as conditionally_mask
from treekit.optax._wrappers.conditionally import conditionally_transform as conditionally_transform
from treekit.optax._wrappers.masking import freeze as freeze
from treekit.optax._wrappers.masking import masked as masked
from treekit.optax._wrappers.masking import partition as partition
from treekit.optax._wrappers.masking import selective_transform as selective_transform
from treekit.optax._wrappers.multi_steps import MultiSteps as MultiSteps

if TYPE_CHECKING:
    from treekit.optax._lookup.names_transforms import *
else:
    import optax.transforms as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
