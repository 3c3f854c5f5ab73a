"""Writes the lists of Optax's names that type checkers read, from Optax itself: `python -m tests.optax_names`.

Each is Optax's own, or one of ours under Optax's name, or a factory with Optax's parameters and our result.
"""

import inspect
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax

import treekit.optax
from treekit.optax._lookup.wrap_optax import NOT_WRAPPED, REPLACEMENTS

FOLDER = Path(treekit.optax.__file__).parent
OURS = ("", "contrib", "schedules", "transforms")  # modules of ours, which have names of their own as well
# Optax's other modules: of each the file is made whole.
THEIRS = tuple(name for name, x in vars(optax).items() if isinstance(x, types.ModuleType) and not name.startswith("_"))
THEIRS = tuple(sorted(name for name in THEIRS if name not in OURS and getattr(optax, name).__name__ == f"optax.{name}"))
MODULES = (*OURS, *THEIRS)
# Optax's types have no room for a model of any class, so in annotations these names mean ours.
TYPES = {
    "GradientTransformation": "treekit.optax._kernel.transformation",
    "OptState": "treekit._base.types",
    "Params": "treekit._base.types",
    "Updates": "treekit._base.types",
}
KNOWN = {name: f"{name}_like" for name in ("adam", "adamw", "chain", "named_chain", "sgd")}


def file(module: str) -> Path:
    """Where the list of a module is."""
    return FOLDER / (f"{module}.py" if module in THEIRS else f"_lookup/names{module and '_' + module}.py")


def text(module: str) -> str:
    """What is in the file of a module."""
    names = lists(module)
    if module not in THEIRS:
        path = f"optax.{module}" if module else "optax"
        header = f'"""The names of `{path}` that are not ours, for type checkers. Made by tests/optax_names.py."""'
        return f"{header}\n\n{names}"
    return f'''"""Every name of `optax.{module}`, for whole models. Made by tests/optax_names.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
{textwrap.indent(names, "    ")}
else:
    import optax.{module} as _theirs

    from treekit.optax._lookup.wrap_optax import attributes_of as _attributes_of

    __getattr__, __dir__, __all__ = _attributes_of(_theirs)
'''


def lists(module: str) -> str:
    """The list of the names of one of Optax's modules, but for those that our module of that name has itself."""
    theirs = getattr(optax, module) if module else optax
    ours = vars(getattr(treekit.optax, module) if module else treekit.optax) if module in OURS else {}
    path = f"optax.{module}" if module else "optax"
    imports: list[str] = []
    assigned: list[str] = []
    for name in (name for name in dir(theirs) if not name.startswith("_") and name not in ours):
        value = getattr(theirs, name)
        if isinstance(value, types.ModuleType) and not value.__name__.startswith("optax."):
            continue
        if module == "" and name in TYPES:
            imports.append(f"from {TYPES[name]} import {name} as {name}")
            continue
        if value is optax.GradientTransformationExtraArgs:
            assigned.append(f"{name} = GradientTransformation  # ours takes extra arguments")
            continue
        replacement = next((new for old, new in REPLACEMENTS if old is value), None)
        if replacement is not None:
            package, _, file_name = replacement.__module__.rpartition(".")
            alias = "_" + file_name.lstrip("_")
            imports.append(f"from {package} import {file_name} as {alias}")
            assigned.append(f"{name}: Final = {alias}.{replacement.__name__}")
        elif (wrapper := _wrapper(name, value)) is not None:
            imports += [f"import {path} as _optax", "from treekit.optax._lookup import factory_types as _ours"]
            assigned.append(f"{name}: Final = _ours.{wrapper}(_optax.{name})")
        else:
            # Optax's `__init__` assigns some of these to variables, which mypy does not take for types.
            is_schedule = getattr(optax.schedules, name, None) is value
            imports.append(f"from {'optax.schedules' if is_schedule else path} import {name} as {name}")
    lines = ["from typing import Final", ""] if assigned else []
    for ours_too in (False, True):
        lines += [*sorted({line for line in imports if ("treekit" in line) is ours_too}), ""]
    lines += assigned
    return "\n".join(lines).rstrip() + "\n"


def _wrapper(name: str, value: Any) -> str | None:
    """The function of treekit/optax/_factory_types.py for a factory; None for what is not one, or is not wrapped."""
    is_function = isinstance(value, types.FunctionType) or hasattr(value, "func")
    if not is_function or any(value is known for known in NOT_WRAPPED):
        return None
    if name in KNOWN:
        return KNOWN[name]
    signature = inspect.signature(value)
    returned = signature.return_annotation
    is_factory = isinstance(returned, type) and issubclass(returned, optax.GradientTransformation)
    if not is_factory and returned is not inspect.Signature.empty:
        return None
    required = [p for p in signature.parameters.values() if p.default is p.empty and "VAR" not in p.kind.name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state: Any = value(*[1e-3] * len(required)).init({"w": jnp.ones((2, 2))})
    except Exception:  # it takes something else than numbers
        return "any_state" if is_factory else None
    return "chained" if type(state) is tuple else "any_state"


if __name__ == "__main__":
    for module in MODULES:
        file(module).write_text(text(module))  # then `ruff check --fix` and `ruff format`
