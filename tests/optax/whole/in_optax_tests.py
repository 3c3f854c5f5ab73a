"""A pytest plugin for Optax's own test files: where they import Optax, they get treekit.optax.

Optax's tests import its private modules too, such as `optax._src.alias`, so each of its modules has a counterpart here,
with the names of `treekit.optax`. Only the imports of the test files change: Optax and treekit themselves see Optax.
"""

import builtins
import functools
import sys
from types import ModuleType
from typing import Any

from treekit.optax._mirror.modules import names_of

_import: Any = builtins.__import__


def pytest_configure() -> None:
    builtins.__import__ = _import_in_place


def _import_in_place(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    module = _import(name, globals, locals, fromlist, level)
    of_test = str((globals or {}).get("__file__", "")).endswith("_test.py")
    return _in_place_of(module) if of_test else module


def _in_place_of(value: Any) -> Any:
    """Return the counterpart of one of Optax's modules, and anything else unchanged."""
    name = value.__name__.removeprefix("treekit.") if isinstance(value, ModuleType) else ""
    return _counterpart(name) if name.partition(".")[0] == "optax" else value


@functools.cache
def _counterpart(name: str) -> ModuleType:
    theirs, ours = sys.modules[name], sys.modules.get(f"treekit.{name}")
    module = ModuleType(name, theirs.__doc__)
    get_ours = names_of(theirs).get

    def get(attribute: str) -> Any:
        if attribute.startswith("_") or name == "optax._src.test_utils":
            return _in_place_of(getattr(theirs, attribute))
        return _in_place_of(getattr(ours, attribute) if ours else get_ours(attribute))

    vars(module).update(__getattr__=get, __dir__=lambda: dir(theirs), __file__=theirs.__file__)
    return module
