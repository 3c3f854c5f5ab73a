"""Copy and pickle instances without running their code."""

import copy
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from treekit._base.layouts import layout_of

T = TypeVar("T")

DEEPCOPY = "__deepcopy__"


def pickling_methods(cls: type[Any]) -> dict[str, Any]:
    """Return the methods by which nodes of a class are copied and pickled; none if it has its own way of pickling."""
    for name in ("__getstate__", "__reduce_ex__", *_PICKLING):
        if getattr(cls, name, None) not in (getattr(object, name, None), _PICKLING.get(name)):
            return {}
    return _PICKLING


def copies_in_its_own_way(cls: type[Any]) -> bool:
    """Whether a class defines how its instances are copied or pickled."""
    names = (DEEPCOPY, "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__")
    return any(getattr(cls, name, None) is not getattr(object, name, None) for name in names)


def _blank(cls: type[T]) -> T:
    return object.__new__(cls)


def _fields_of(self: object) -> dict[str, Any]:
    """Return the attributes that are fields, without values that were cached on the instance."""
    layout = layout_of(type(self))
    names = layout.names if layout else ()
    return {name: value for name, value in vars(self).items() if name in names}


def _reduce(self: object) -> tuple[Any, ...]:
    return _blank, (type(self),), _fields_of(self)


def _set_state(self: object, state: Mapping[str, Any]) -> None:
    vars(self).update(state)


def deepcopy_node(self: object, memo: dict[int, Any]) -> object:
    """Copy a node as its `__deepcopy__`: static values are shared, since a copy, as of a callable, may not be equal.

    Values cached on a frozen instance are not copied; a mutable instance keeps all of its attributes.
    """
    layout = layout_of(type(self))
    shared = layout.meta if layout else ()
    memo[id(self)] = new = object.__new__(type(self))
    for name, value in attributes_of(self).items():
        if layout is None or layout.creation is None or name in layout.names:
            object.__setattr__(new, name, value if name in shared else copy.deepcopy(value, memo))
    return new


def attributes_of(x: object) -> dict[str, Any]:
    """Return the attributes of an instance, from its `__dict__` and its `__slots__`."""
    state = object.__getstate__(x)
    in_dict, in_slots = cast(tuple[Any, Any], state if isinstance(state, tuple) else (state, None))
    return {**(in_dict or {}), **(in_slots or {})}


# Since __setstate__ and __deepcopy__ are defined, a user's __getattr__ is never called for them.
_PICKLING = {"__reduce__": _reduce, "__setstate__": _set_state, DEEPCOPY: deepcopy_node}
