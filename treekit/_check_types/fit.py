"""An `isinstance` for annotations: containers and their items, unions, and jaxtyping's types, which bind sizes."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from treekit._base.jax import jtu
from treekit._base.key_path import path_name
from treekit._check_types.jaxtyping_internals import Memo, bind, is_jaxtyping, pytree_parts


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
        members = get_args(args[0]) if args and get_origin(args[0]) in (Union, UnionType) else args
        right = isinstance(x, type) and any(_is_subclass(x, get_origin(each) or each) for each in members or [object])
        return memo if right else None
    if isinstance(origin or hint, type):
        return _fit_items(x, hint, memo) if _is_instance(x, origin or hint) else None
    return fit(x, hint.__value__, memo) if hasattr(hint, "__value__") else memo


def _is_subclass(x: type[Any], hint: Any) -> bool:
    try:
        return not isinstance(hint, type) or hint is Any or issubclass(x, hint)
    except TypeError:  # as in _is_instance
        return True


def _is_instance(x: object, cls: Any) -> bool:
    try:
        return isinstance(x, cls)
    except TypeError:  # isinstance does not work with a TypedDict, or a protocol that is not runtime_checkable
        return True


def _fit_items(x: object, hint: object, memo: Memo) -> Memo | None:
    """Do the same as `fit` for the items of a built-in container."""
    items = _items(x, hint)
    after = None if items is None else memo
    for _, item, item_hint in items or ():
        after = after and fit(item, item_hint, after)
    return after


def _items(x: Any, hint: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the items of a container, each with its key path and its hint; None for a tuple of another length."""
    origin, args = get_origin(hint), get_args(hint)
    if not args or origin.__module__ not in ("builtins", "collections", "collections.abc"):
        return []
    if origin is tuple:
        hints = args[:1] * len(x) if args[1:] == (...,) else args
        if len(x) != len(hints):
            return None
        return [(f".{i}", *pair) for i, pair in enumerate(zip(x, hints, strict=True))]
    if issubclass(origin, Mapping) and len(args) == 2:
        pairs = [[(f", key {key!r}", key, args[0]), (f".{key}", value, args[1])] for key, value in x.items()]
        return list(itertools.chain.from_iterable(pairs))
    if issubclass(origin, Iterable) and hasattr(x, "__len__"):  # not an iterator, which would be consumed
        is_indexed = issubclass(type(x), Sequence)  # a set is not
        return [(f".{i}" if is_indexed else ", an item", item, args[0]) for i, item in enumerate(x)]
    return []


def first_misfit(x: object, hint: object, shown: object, memo: Memo) -> tuple[str, object, object, Memo]:
    """Find the first part of a container that does not fit.

    Args:
        x: a value that does not fit `hint`.
        hint: its annotation.
        shown: its annotation, for messages.
        memo: the sizes bound before it.

    Returns:
        The key path of the part in `x`, the part, its annotation for messages, and the sizes bound before it.
    """
    hint, shown = _container(x, hint), _container(x, shown)
    bound = memo
    for (path, part, part_hint), (_, _, part_shown) in zip(_parts(x, hint, memo), _parts(x, shown, memo), strict=False):
        after = fit(part, part_hint, bound)
        if after is None:
            below, innermost, innermost_shown, bound = first_misfit(part, part_hint, part_shown, bound)
            return path + below, innermost, innermost_shown, bound
        bound = after
    return "", x, shown, memo


def _container(x: object, hint: object) -> Any:
    """Return the one container in a union that `x` is an instance of; `hint` itself if there is not exactly one."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    fitting = [each for each in members if get_args(each) and _is_instance(x, get_origin(each))]
    return fitting[0] if len(fitting) == 1 else hint


def _parts(x: object, hint: object, memo: Memo) -> list[tuple[str, Any, Any]]:
    """Return the items of a container, or the leaves of a `PyTree[...]`, each with its key path and its hint."""
    if get_args(hint):
        return (_is_instance(x, get_origin(hint)) and _items(x, hint)) or []
    leaf_type, structure = pytree_parts(hint) or (None, None)
    if leaf_type is None or structure is not None:  # with a structure, the shape of a leaf may depend on its place
        return []
    leaves = jtu.tree_flatten_with_path(x, is_leaf=lambda part: fit(part, leaf_type, memo) is not None)[0]
    return [(f".{path_name(path)}", leaf, leaf_type) for path, leaf in leaves if path]
