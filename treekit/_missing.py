"""What Python says of a name that a module of treekit does not have: where it is, or what to write instead.

In a file of its own, so that what it imports is not a name of `treekit`.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

# Names of JAX, Equinox and Flax that people write by habit, and what treekit or those libraries have for them.
_HABITS = {
    "Module": "decorate your class with treekit.node",
    "apply_updates": "write treekit.optax.apply_updates, or treekit.training.apply_gradients for a whole step",
    "dataclass": "write treekit.node",
    "filter_grad": "write jax.grad of a function of the arrays, with treekit.partition and treekit.combine",
    "filter_jit": "write jax.jit of a function of the arrays, with treekit.partition and treekit.combine",
    "from_state_dict": "write treekit.graft(model, state_dict)",
    "is_array_like": "write equinox.is_array_like",
    "is_inexact_array_like": "write equinox.is_inexact_array_like",
    "load_state_dict": "write treekit.graft(model, state_dict)",
    "optax": "write from treekit import optax",
    "register_dataclass": "write treekit.register_node",
    "training": "write from treekit import training",
    "tree_deserialise_leaves": "load the file, and write treekit.graft",
    "tree_equal": "write not treekit.tree_diff(a, b)",
    "tree_leaves": "write jax.tree.leaves",
    "tree_map": "write jax.tree.map, or treekit.dtype_preserving_tree_map",
    "tree_serialise_leaves": "write treekit.to_state_dict, and save its arrays",
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
    if module == "treekit" and name in _HABITS:
        return f": {_HABITS[name]}"
    for other in ("treekit.testing", "treekit.typing"):  # which `import treekit` does not import
        importlib.import_module(other)
    if "treekit.optax" in sys.modules:  # if the user has not imported it, do not suggest Optax's names
        importlib.import_module("treekit.training")
    # Of Optax's submodules too: `selective_transform` is only in `transforms` before 0.2.6, and `muon` in `contrib`.
    of_optax = [x for x in sorted(sys.modules) if x.startswith("treekit.optax.") and "._" not in x]
    for other in ("treekit", "treekit.training", "treekit.testing", "treekit.typing", "treekit.optax", *of_optax):
        names: Any = vars(found) if (found := sys.modules.get(other)) else {}
        # By `__all__`: a module with a `__getattr__`, such as treekit.typing, has some names only once asked for them.
        if other != module and name in (names.get("__all__") or names):
            return f". It is in another module: {other}.{name}"
    return ""
