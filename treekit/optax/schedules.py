"""Every name of `optax.schedules`, for whole models and with dtypes preserved."""

from typing import TYPE_CHECKING, Any

import optax.schedules as _schedules

from treekit.optax._inject import inject_hyperparams as inject_hyperparams
from treekit.optax._wrap_optax import wrap_attribute as _wrap_attribute

if TYPE_CHECKING:
    from treekit.optax._names_schedules import *
else:

    def __getattr__(name: str) -> Any:
        return _wrap_attribute(_schedules, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_schedules)})
