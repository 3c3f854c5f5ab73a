"""What not every release of Optax has. No other file knows that a name may be missing.

What a release does not have is absent there, and is not copied.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import optax

if TYPE_CHECKING:
    MonitorState: TypeAlias = optax.MonitorState
else:  # in a release without it, it is in annotations only
    MonitorState = getattr(optax, "MonitorState", Any)


def existing(module: ModuleType, *names: str) -> list[Any]:
    """Return those of these attributes of `optax`, or of one of its submodules, that this release has."""
    return [getattr(module, name) for name in names if hasattr(module, name)]
