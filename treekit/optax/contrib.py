"""Every name of `optax.contrib`, with ours in the place of Optax's."""

from typing import Any

import optax.contrib as _contrib

from treekit.optax._lift import lifted as _lifted


def __getattr__(name: str) -> Any:
    return _lifted(_contrib, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_contrib)})
