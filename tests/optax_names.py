"""Writes the stubs of `treekit.optax` from Optax itself: `make stubs`.

A name is Optax's own, or one of ours under Optax's name, or a factory with Optax's parameters and our result.
"""

import inspect
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax

import treekit.optax
from treekit.optax._mirror.ours import OURS

FOLDER = Path(treekit.optax.__file__).parent


SUBMODULES = (x.__name__.removeprefix("optax.") for _, x in inspect.getmembers(optax, inspect.ismodule))
MODULES = ("", *(name for name in SUBMODULES if hasattr(optax, name) and not name.startswith("_")))
# Optax's types have no room for a model of any class, so in annotations these names mean ours.
TYPES = {
    "GradientTransformation": "treekit.optax._kernel.transformation",
    "OptState": "treekit._base.types",
    "Params": "treekit._base.types",
    "Updates": "treekit._base.types",
}
KNOWN = {name: f"{name}_like" for name in ("adam", "adamw", "chain", "named_chain", "sgd")}


def file(module: str) -> Path:
    """Each has a folder, as in Optax: pyright would miss the source of a file `losses.pyi`."""
    return FOLDER / (module or "_names") / "__init__.pyi"


def text(module: str) -> str:
    """The stub of a module, as ruff formats it."""
    path = f"optax.{module}" if module else "optax"
    made = f'"""The names of `{path}`, for type checkers. Made by `make stubs`."""\n\n{_names(module, path)}'
    for command in (["check", "--fix", "--quiet", "--select", "I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(file(module)), "-"]
        made = subprocess.run(ruff, input=made, capture_output=True, text=True, check=True).stdout
    return made


def _names(module: str, path: str) -> str:
    theirs = getattr(optax, module) if module else optax
    imports = [] if module else [f"from treekit.optax import {name} as {name}" for name in MODULES if name]
    assigned: list[str] = []
    for name in (name for name in dir(theirs) if not name.startswith("_")):
        value = getattr(theirs, name)
        if isinstance(value, types.ModuleType) and (name in MODULES or not value.__name__.startswith("optax.")):
            continue
        replacement = next((ours for theirs, ours in OURS.items() if theirs is value and ours is not value), None)
        if module == "" and name in TYPES:
            imports.append(f"from {TYPES[name]} import {name} as {name}")
        elif value is optax.GradientTransformationExtraArgs:
            assigned.append(f"{name} = GradientTransformation  # ours takes extra arguments")
        elif replacement is not None and replacement.__name__ == name:
            imports.append(f"from {replacement.__module__} import {name} as {name}")
        elif replacement is not None:
            package, _, file_name = replacement.__module__.rpartition(".")
            alias = "_" + file_name.lstrip("_")
            imports.append(f"from {package} import {file_name} as {alias}")
            assigned.append(f"{name}: Final = {alias}.{replacement.__name__}")
        elif (wrapper := _wrapper(name, value)) is not None:
            imports += [f"import {path} as _optax", "from treekit.optax._names import factories as _ours"]
            assigned.append(f"{name}: Final = _ours.{wrapper}(_optax.{name})")
        else:
            # Optax's `__init__` assigns some of these to variables, which mypy does not take for types.
            is_schedule = getattr(optax.schedules, name, None) is value
            imports.append(f"from {'optax.schedules' if is_schedule else path} import {name} as {name}")
    if any(": Final" in line for line in assigned):
        imports.append("from typing import Final")
    return "\n".join([*sorted(set(imports)), "", *assigned]) + "\n"


def _wrapper(name: str, value: Any) -> str | None:
    """The function of treekit/optax/_names/factories.pyi for a factory; None for others, and if it is not wrapped."""
    is_function = isinstance(value, types.FunctionType) or hasattr(value, "func")
    if not is_function or value is OURS.get(value):
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
        file(module).parent.mkdir(exist_ok=True)
        file(module).write_text(text(module))
