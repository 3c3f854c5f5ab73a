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

    This is a loop, since containers may be nested more deeply than Python's recursion limit. A mutable container is in
    the memo before its items are copied, so a cycle, which goes through one, ends there: as that of `a = []` and
    `t = (a,)` after `a.append(t)`. A tuple is in the memo only after its items.

    Args:
        x: any object.
        memo: the copies made so far, by the id of the original.
    """
    if not _is_container(x):
        return x
    pending: list[Any] = [x]
    unfinished: set[int] = set()  # the ids of containers with items that are not copied yet
    while pending:
        container = pending.pop()
        key = id(container)
        if key in memo and key not in unfinished:
            continue
        inner = _containers_in(container)
        missing = [item for item in inner if id(item) not in memo]
        if type(container) in _MUTABLE and key not in memo:
            memo[key] = container.copy()
        if missing:
            unfinished.add(key)
            pending += [container, *missing]  # it comes up again after its items have been copied
            continue
        unfinished.discard(key)
        if type(container) not in _MUTABLE:
            memo[key] = _copy_tuple(container, memo)
        elif inner:
            _replace_items(memo[key], memo)
    return memo[id(x)]


def _is_container(x: object) -> bool:
    return type(x) in _MUTABLE or isinstance(x, _TUPLE)


def _containers_in(container: Any) -> list[Any]:
    """Return the containers among the items of a container. Those of a set are hashable, so not mutable."""
    items = container.values() if type(container) in _MAPPINGS else container if type(container) is not set else ()
    # `_is_container` inlined, since this runs for each leaf.
    return [x for x in items if type(x) in _MUTABLE or isinstance(x, _TUPLE)]


def _replace_items(new: Any, memo: dict[int, Any]) -> None:
    for key, item in [*(new.items() if type(new) in _MAPPINGS else enumerate(new))]:
        if id(item) in memo:
            new[key] = memo[id(item)]


def _copy_tuple(x: Any, memo: dict[int, Any]) -> Any:
    # One with a `__dict__` may have more than its items.
    is_plain_named_tuple = hasattr(x, "_make") and not hasattr(x, "__dict__")
    if type(x) is not _TUPLE and not is_plain_named_tuple:
        return x
    items = [memo.get(id(item), item) for item in x]
    if all(a is b for a, b in zip(items, x, strict=True)):
        return x
    return x._make(items) if hasattr(x, "_make") else tuple(items)
