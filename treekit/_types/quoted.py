"""What does a name in quotes mean? An annotation may be a string, and have strings in it: `list["Linear"]`.

A name is looked up in its class and in the module of that. An alias from another module may have names of that module
in quotes, as Optax's `ArrayTree` has its own: they mean nothing in the user's module, and become `_ELSEWHERE`, with
which a value is not compared. Any other name that is not found is an error.
"""

import builtins
import contextlib
import re
import sys
import typing
from collections.abc import Generator
from typing import Annotated, Any, get_args

from jaxtyping import AnnotationError

_ELSEWHERE: Any = Annotated[Any, "defined in another module"]


class UnresolvedAnnotationError(AnnotationError, TypeError):
    """An annotation cannot be resolved. It is an AnnotationError, which jaxtyping's decorator re-raises unchanged."""


@contextlib.contextmanager
def explained(what: str, owner: type[Any]) -> Generator[None]:
    """Turn any error inside into one that says what could not be resolved, and what to do."""
    try:
        yield
    except Exception as error:
        raise UnresolvedAnnotationError(
            f"{what} cannot be resolved: {error}. Define the names in it at the top level of {owner.__module__}, or "
            "import them there: a class that is local to a function, or imported only under TYPE_CHECKING, cannot be "
            "found while the program runs"
        ) from error


def resolve(annotation: object, owner: type[Any]) -> Any:
    """Resolve an annotation, and the strings in it, with the names that are visible in its class.

    `optax.ArrayTree` is `Union[..., Iterable["ArrayTree"]]`. For `params: optax.ArrayTree`, in a module that has no
    "ArrayTree", that name is not found at first. Optax has it, with an alias that contains it in quotes, so it becomes
    `_ELSEWHERE`, and the annotation is resolved once more.

    Raises:
        NameError: a name is not found.
    """
    module = sys.modules.get(owner.__module__)
    parameters = {p.__name__: p for p in getattr(owner, "__type_params__", ())}
    # Unlike in Python, built-ins come before the class's body: `list` is the built-in, even next to a method `list`.
    names = {owner.__name__: owner, **vars(owner), **vars(builtins), **parameters, **(vars(module) if module else {})}
    holder = type("Holder", (), {"__annotations__": {"x": annotation}})
    while True:
        try:
            # A copy, as typing would cache what a quoted name in a shared alias is for the same dict.
            return typing.get_type_hints(holder, names, dict(names), include_extras=True)["x"]
        except NameError as error:
            name = str(error.name)
            is_users_own = isinstance(annotation, str) and re.search(rf"(?<![.\w]){name}\b", annotation)
            if is_users_own or name in names or not _is_in_an_alias(name):
                raise
            names[name] = _ELSEWHERE


def is_elsewhere(hint: object) -> bool:
    """Whether a resolved annotation has a name that is defined in another module."""
    return hint == _ELSEWHERE or any(map(is_elsewhere, get_args(hint)))


def _is_in_an_alias(name: str) -> bool:
    """Whether a loaded module defines this name, and has an alias that contains it in quotes."""
    modules = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]  # some may be None
    aliases = [alias for names in modules if name in names for alias in list(names.values())]
    return any(_has_in_quotes(part, name) for alias in aliases for part in get_args(alias))


def _has_in_quotes(hint: object, name: str) -> bool:
    quoted = hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else hint
    if isinstance(quoted, str):
        return quoted == name
    return any(_has_in_quotes(part, name) for part in get_args(hint))
