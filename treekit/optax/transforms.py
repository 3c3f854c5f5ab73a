"""Every name of `optax.transforms`, with ours in the place of Optax's."""

from typing import Any

import optax.transforms as _transforms

from treekit.optax._apply_if_finite import apply_if_finite as apply_if_finite
from treekit.optax._lift import lifted as _lifted
from treekit.optax._masking import masked as masked
from treekit.optax._masking import partition as partition
from treekit.optax._multi_steps import MultiSteps as MultiSteps


def __getattr__(name: str) -> Any:
    return _lifted(_transforms, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_transforms)})
