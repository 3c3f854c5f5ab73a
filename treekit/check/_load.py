"""Load the tree, the optimizer and the loss that the arguments of the command name."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from treekit._base.describe import describe_error
from treekit._base.jax import jtu
from treekit._base.predicates import is_array

Progress = Callable[[str], None]


class UsageError(Exception):
    """The command cannot do what the user asked for; it prints only the message."""


def load_tree(name: str, progress: Progress) -> Any:
    """Return the pytree of this name, or the one that the class or function of this name returns."""
    tree = _call_if_function(name, _load(name, progress), progress)
    if tree is None:
        raise UsageError(f"{name} is None, or returns None: there is nothing to check")
    if jtu.all_leaves([tree]) and not is_array(tree):
        raise UsageError(
            f"{name} is not a pytree but a leaf of type {type(tree).__qualname__}; to make its class a pytree, use "
            "treekit.node or treekit.register_node"
        )
    return tree


def load_optimizer(name: str, progress: Progress) -> Any:
    """Return the gradient transformation of this name, or the one that the function of this name returns."""
    found = _load(name, progress)
    tx = found if _is_transformation(found) else _call_if_function(name, found, progress)
    if not _is_transformation(tx):
        raise UsageError(f"{name} is not a gradient transformation: {type(tx).__qualname__} has no init and update")
    return tx


def load_loss(name: str, progress: Progress) -> Callable[[Any], Any]:
    """Return the function of this name."""
    found = _load(name, progress)
    if not callable(found):
        raise UsageError(f"{name} is not a function of the model, but of type {type(found).__qualname__}")
    loss: Callable[[Any], Any] = found
    return loss


def _is_transformation(x: object) -> bool:
    return not isinstance(x, type) and callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def _load(name: str, progress: Progress) -> Any:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise UsageError(f"{name!r} does not have the form module:name, such as package.models:model")
    if os.sep in module or module.endswith(".py"):
        raise UsageError(f"{module} is a file; name the module as an import does, such as package.models:model")
    progress(f"importing {module}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's module may raise anything, exit, or skip itself as pytest modules do
        raise UsageError(f"importing {module} fails: {describe_error(error)}") from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except Exception as error:
            raise UsageError(f"{module} has no {path}: {describe_error(error)}") from None
    return found


def _call_if_function(name: str, x: object, progress: Progress) -> Any:
    """Call `x` if it is a class or a function; return a node itself, even if it is callable."""
    if not (callable(x) and jtu.all_leaves([x])):
        return x
    progress(f"calling {name}")
    try:
        return x()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{name} cannot be called without arguments: {describe_error(error)}") from None
