"""Every name of `optax.schedules`, with ours in the place of Optax's."""

from typing import Any

import optax.schedules as _schedules

from treekit.optax._inject import inject_hyperparams as inject_hyperparams
from treekit.optax._lift import lifted as _lifted


def __getattr__(name: str) -> Any:
    return _lifted(_schedules, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_schedules)})
