"""Modules with the names of Optax's modules, and no other: `treekit.optax`, and each of its submodules."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import optax

from treekit._missing import no_attribute
from treekit.optax._mirror.lookup import wrap

_FOLDER = Path(__file__).parent.parent


class Names(NamedTuple):
    """What Python asks of a module for its names."""

    get: Callable[[str], Any]
    dir: Callable[[], list[str]]
    public: list[str]


def names_of(theirs: ModuleType) -> Names:
    """Return the names of the module of treekit that stands for one of Optax's."""
    module = f"treekit.{theirs.__name__}"

    def get(name: str) -> Any:
        try:
            value: Any = getattr(theirs, name)
        except AttributeError:
            raise no_attribute(module, name) from None
        return sys.modules[f"treekit.optax.{name}"] if _is_submodule(value, name) else wrap(value, name, module)

    return Names(get, lambda: dir(theirs), [name for name in dir(theirs) if not name.startswith("_")])


def _is_submodule(value: object, name: str) -> bool:
    """Whether a name of `optax` is one of its submodules; these have none."""
    return isinstance(value, ModuleType) and value.__name__ == f"optax.{name}"


def add_submodules() -> None:
    """Add a module for each submodule of Optax to `sys.modules`, where Python looks for `treekit.optax.contrib` first.

    They are made of what Optax has, since a later release may have others. The folders here only have their stubs.
    """
    modules: Any = sys.modules
    for name, theirs in vars(optax).items():
        if _is_submodule(theirs, name):
            path = f"treekit.optax.{name}"
            # A package without a path: an import of what is private in it must not run Optax's file a second time.
            ours = module_from_spec(ModuleSpec(path, None, is_package=True))
            get, dir_, public = names_of(theirs)
            vars(ours).update(__doc__=theirs.__doc__, __getattr__=get, __dir__=dir_, __all__=public)
            modules.setdefault(path, ours)  # on reload, they stay
    # A folder of stubs without such a module would be imported as a package without names. With None, importing fails.
    for folder in _FOLDER.glob("[a-z]*/"):
        modules.setdefault(f"treekit.optax.{folder.name}", None)
