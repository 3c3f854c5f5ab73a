"""Every name of `optax.contrib`, for whole models and with dtypes preserved."""

from typing import TYPE_CHECKING, Any

import optax.contrib as _contrib

from treekit.optax._apply import schedule_free_eval_params as schedule_free_eval_params
from treekit.optax._wrap_optax import wrap_attribute as _wrap_attribute

if TYPE_CHECKING:
    from treekit.optax._names_contrib import *
else:

    def __getattr__(name: str) -> Any:
        return _wrap_attribute(_contrib, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_contrib)})
