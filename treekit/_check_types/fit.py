"""An `isinstance` for annotations: containers and their items, unions, and jaxtyping's types, which bind sizes."""

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from treekit._check_types.jaxtyping_internals import Memo, bind, is_jaxtyping


def fit(x: Any, hint: Any, memo: Memo) -> Memo | None:
    """Return the memo extended by the sizes that `x` binds as an instance of `hint`; None if it is not an instance."""
    if hint is Any or hint is object:
        return memo
    if is_jaxtyping(hint):
        return bind(x, hint, memo)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((after for each in args if (after := fit(x, each, memo)) is not None), None)
    if origin is tuple and not args:  # tuple[()]
        return memo if isinstance(x, tuple) and not x else None
    if origin is Literal:
        return memo if any(type(x) is type(value) and x == value for value in args) else None
    if origin is type:
        right = isinstance(x, type) and all(
            issubclass(x, each) for each in args if isinstance(each, type) and each is not Any
        )
        return memo if right else None
    if isinstance(origin or hint, type):
        return _fit_items(x, origin, args, memo) if _is_instance(x, origin or hint) else None
    return fit(x, hint.__value__, memo) if hasattr(hint, "__value__") else memo


def _is_instance(x: object, cls: Any) -> bool:
    try:
        return isinstance(x, cls)
    except TypeError:  # isinstance does not work with a TypedDict, or a protocol that is not runtime_checkable
        return True


def _fit_items(x: Any, origin: Any, args: tuple[Any, ...], memo: Memo) -> Memo | None:
    """Do the same as `fit` for the items of a built-in container."""
    if not args or origin.__module__ not in ("builtins", "collections", "collections.abc"):
        return memo
    if origin is tuple:
        hints = args[:1] * len(x) if args[1:] == (...,) else args
        if len(x) != len(hints):
            return None
        pairs: list[tuple[Any, Any]] = list(zip(x, hints, strict=True))
    elif issubclass(origin, Mapping) and len(args) == 2:
        pairs = [pair for key, value in x.items() for pair in ((key, args[0]), (value, args[1]))]
    elif issubclass(origin, Iterable) and hasattr(x, "__len__"):  # not an iterator, which would be consumed
        pairs = [(item, args[0]) for item in x]
    else:
        pairs = []
    after: Memo | None = memo
    for item, hint in pairs:
        after = after and fit(item, hint, after)
    return after
