"""Copy the containers among the arguments of a function, so that the caller's are neither changed nor shared."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

# Exact types: a subclass may have more than its items, so it is passed on uncopied.
_MAPPINGS: frozenset[type[Any]] = frozenset({dict, OrderedDict, defaultdict})
_MUTABLE: frozenset[type[Any]] = _MAPPINGS | {list, deque, set}
_TUPLE: Any = tuple  # typed Any, so that checkers do not infer a tuple of unknown types


def copy_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], uncopied: frozenset[int | str] = frozenset()
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with containers copied, except those whose position or name is in `uncopied`."""
    memo: dict[int, Any] = {}  # one for all arguments, so that objects that they share stay shared
    return (
        [x if i in uncopied else _copy_containers(x, memo) for i, x in enumerate(args)],
        {k: x if k in uncopied else _copy_containers(x, memo) for k, x in kwargs.items()},
    )


def _copy_containers(x: object, memo: dict[int, Any]) -> Any:
    """Copy the containers in `x`, preserving types, sharing and cycles; everything else is not copied.

    Args:
        x: any object.
        memo: the copies made so far, by the id of the original.
    """
    if id(x) in memo:
        return memo[id(x)]
    if type(x) in _MUTABLE:
        return _copy_mutable(x, memo)
    if isinstance(x, _TUPLE):
        return memo.setdefault(id(x), _copy_tuple(x, memo))  # it is there already if one of its items contains it
    return x


def _copy_mutable(x: Any, memo: dict[int, Any]) -> Any:
    memo[id(x)] = new = x.copy()  # before its items are copied, so that a cycle, which goes through one, ends here
    if type(x) is set:  # whose items are hashable, so not mutable
        return new
    items = new.items() if type(x) in _MAPPINGS else enumerate(new)
    for key, item in [pair for pair in items if type(pair[1]) in _MUTABLE or isinstance(pair[1], _TUPLE)]:
        new[key] = _copy_containers(item, memo)
    return new


def _copy_tuple(x: Any, memo: dict[int, Any]) -> Any:
    # One with a `__dict__` may have more than its items.
    is_plain_named_tuple = hasattr(x, "_make") and not hasattr(x, "__dict__")
    if type(x) is not _TUPLE and not is_plain_named_tuple:
        return x
    items = [_copy_containers(item, memo) for item in x]
    if all(a is b for a, b in zip(items, x, strict=True)):
        return x
    return x._make(items) if is_plain_named_tuple else tuple(items)
