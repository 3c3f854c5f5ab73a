"""What Python says of a name that a module of treekit does not have: where it is, or what to write instead.

In a file of its own, so that what it imports is not a name of `treekit`.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

# Names of earlier versions.
_INSTEAD = {
    "dtype_preserving": "Every transformation of treekit.optax preserves dtypes; for any other, write "
    "treekit.optax.chain(tx). To store the state in another dtype: treekit.training.store_state(tx, dtype)",
    "filtered": "Write treekit.optax.selective_transform(tx, freeze_mask=mask), where True is frozen",
    "get_ema": "It has another name: treekit.training.get_params_ema",
    "is_array_like": "Equinox has it: equinox.is_array_like",
    "is_inexact_array_like": "Equinox has it: equinox.is_inexact_array_like",
    "stochastic_round": "It is in another module: treekit.training.stochastic_round",
}


def getattr_of(module: str) -> Callable[[str], NoReturn]:
    """Return the function that Python calls for a name that this module does not have."""

    def __getattr__(name: str) -> NoReturn:
        raise no_attribute(module, name)

    return __getattr__


def no_attribute(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module of treekit does not have."""
    hint = "" if name.startswith("_") else _hint(module, name)
    # Python adds the nearest name of `obj`.
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name, obj=sys.modules[module])


def _hint(module: str, name: str) -> str:
    if name in _INSTEAD:
        return f". {_INSTEAD[name]}"
    for other in ("treekit.testing", "treekit.typing"):
        importlib.import_module(other)
    if "treekit.optax" in sys.modules:  # whoever has not imported it does not mean a name of Optax
        importlib.import_module("treekit.training")
    for other in ("treekit", "treekit.training", "treekit.testing", "treekit.typing", "treekit.optax"):
        names: Any = vars(sys.modules[other]) if other in sys.modules else {}
        if other != module and name in (names.get("__all__") or names):
            return f". It is in another module: {other}.{name}"
    return ""
