"""Copies of the containers among a call's arguments, so that creation neither mutates nor aliases the caller's."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

# Exact types: a subclass may hold more than its items, and is passed as it is. Namedtuples are taken in below.
_MAPPINGS: frozenset[type[Any]] = frozenset({dict, OrderedDict, defaultdict})
_MUTABLE: frozenset[type[Any]] = _MAPPINGS | {list, deque, set}


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

    Args:
        x: any object.
        memo: the copies made so far, by the id of what they are copies of.
    """
    kind = _type(x)
    if kind not in _MUTABLE and not issubclass(kind, tuple):
        return x
    if id(x) in memo:
        return memo[id(x)]
    if kind not in _MUTABLE:
        return _copy_tuple(x, memo)
    # A mutable container goes into the memo before its items are looked at: it may hold itself.
    memo[id(x)] = new = _empty_like(x)
    if kind is set:
        new.update(x)
    elif kind in _MAPPINGS:
        new.update({key: copy_containers(value, memo) for key, value in x.items()})
    else:
        new.extend([copy_containers(value, memo) for value in x])
    return new


def _empty_like(x: Any) -> Any:
    if isinstance(x, defaultdict):
        return defaultdict[Any, Any](x.default_factory)
    return deque[Any](maxlen=x.maxlen) if isinstance(x, deque) else _type(x)()


def _copy_tuple(x: Any, memo: dict[int, Any]) -> Any:
    if _type(x) is not tuple and (not hasattr(x, "_make") or hasattr(x, "__dict__")):  # no namedtuple, or one with more
        return x
    items = [copy_containers(value, memo) for value in x]
    if id(x) not in memo:  # else one of the items led back here, and made it
        same = all(a is b for a, b in zip(items, x, strict=True))
        memo[id(x)] = x if same else x._make(items) if hasattr(x, "_make") else tuple(items)
    return memo[id(x)]


def _type(x: object) -> type[Any]:
    return type(x)
