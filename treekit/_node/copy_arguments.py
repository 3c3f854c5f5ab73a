"""Copies of the containers among a call's arguments, so that creation neither mutates nor aliases the caller's."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

# Exact types: a subclass may be more than its items, and is passed as it is.
_MAPPINGS: frozenset[type[Any]] = frozenset({dict, OrderedDict, defaultdict})
_MUTABLE: frozenset[type[Any]] = _MAPPINGS | {list, deque, set}
_TUPLE: Any = tuple  # not narrowed to a tuple of unknown types


def copy_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], keep: frozenset[int | str] = frozenset()
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments with containers copied; those at the positions and names in `keep` as given."""
    memo: dict[int, Any] = {}  # for all arguments together: what they share stays shared
    return (
        [x if i in keep else copy_containers(x, memo) for i, x in enumerate(args)],
        {k: x if k in keep else copy_containers(x, memo) for k, x in kwargs.items()},
    )


def copy_containers(x: Any, memo: dict[int, Any]) -> Any:
    """A copy of the containers in `x`; type, sharing and cycles are kept, everything else is passed as it is.

    Containers may be nested more deeply than Python functions may call themselves, so this loops.

    Args:
        x: any object.
        memo: the copies made so far, by the id of what they are copies of.
    """
    if not _is_container(x):
        return x
    pending: list[Any] = [x]
    unfinished: set[int] = set()  # the ids of mutable containers whose copies still have the original items
    while pending:
        container = pending.pop()
        place = id(container)
        if place in memo and place not in unfinished:
            continue
        if inner := _containers_in(container, memo):
            if type(container) in _MUTABLE:
                memo[place] = container.copy()  # before its items are copied: it may contain itself
                unfinished.add(place)
            pending += [container, *inner]  # it comes up again once these are copied
        elif place in unfinished:
            unfinished.remove(place)
            _replace_items(memo[place], memo)
        else:
            memo[place] = container.copy() if type(container) in _MUTABLE else _copy_tuple(container, memo)
    return memo[id(x)]


def _is_container(x: object) -> bool:
    return type(x) in _MUTABLE or isinstance(x, _TUPLE)


def _containers_in(container: Any, memo: dict[int, Any]) -> list[Any]:
    """The items of a container that have yet to be copied. Those of a set are hashable, so contain nothing mutable."""
    items = container.values() if type(container) in _MAPPINGS else container if type(container) is not set else ()
    # Not `_is_container`: this runs for each leaf.
    return [x for x in items if (type(x) in _MUTABLE or isinstance(x, _TUPLE)) and id(x) not in memo]


def _replace_items(new: Any, memo: dict[int, Any]) -> None:
    for key, item in [*(new.items() if type(new) in _MAPPINGS else enumerate(new))]:
        if id(item) in memo:
            new[key] = memo[id(item)]


def _copy_tuple(x: Any, memo: dict[int, Any]) -> Any:
    if type(x) is not _TUPLE and (not hasattr(x, "_make") or hasattr(x, "__dict__")):  # not a namedtuple, or more
        return x
    items = [memo.get(id(item), item) for item in x]
    if all(a is b for a, b in zip(items, x, strict=True)):
        return x
    return x._make(items) if hasattr(x, "_make") else tuple(items)
