"""Copy and pickle instances without running their code."""

import copy
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from treekit._base.layouts import layout_of

T = TypeVar("T")


def attributes_of(x: object) -> dict[str, Any]:
    """Return the attributes of an instance, from its `__dict__` and its `__slots__`."""
    state = object.__getstate__(x)
    in_dict, in_slots = cast(tuple[Any, Any], state if isinstance(state, tuple) else (state, None))
    return {**(in_dict or {}), **(in_slots or {})}


def _blank(cls: type[T]) -> T:
    return object.__new__(cls)


def _reduce(self: object) -> tuple[Any, ...]:
    layout = layout_of(type(self))
    names = layout.names if layout else ()  # other attributes are values that were cached on the instance
    return _blank, (type(self),), {name: value for name, value in vars(self).items() if name in names}


def _set_state(self: object, state: Mapping[str, Any]) -> None:
    vars(self).update(state)


def deepcopy_node(self: object, memo: dict[int, Any]) -> object:
    """Copy a node, as its `__deepcopy__`.

    Static values are shared: a copy of one, such as a callable, may not equal it. Values that were cached on a frozen
    instance are not copied; a mutable one, as of `register_node`, has all of its attributes copied.
    """
    layout = layout_of(type(self))
    shared = layout.meta if layout else ()
    attributes = attributes_of(self)
    if layout and layout.creation:  # it is frozen
        attributes = {name: value for name, value in attributes.items() if name in layout.names}
    memo[id(self)] = new = object.__new__(type(self))
    for name, value in attributes.items():
        object.__setattr__(new, name, value if name in shared else copy.deepcopy(value, memo))
    return new


# Since __setstate__ and __deepcopy__ are defined, a user's __getattr__ is never called for them.
PICKLING = {"__reduce__": _reduce, "__setstate__": _set_state, "__deepcopy__": deepcopy_node}


def copies_in_its_own_way(cls: type[Any]) -> bool:
    """Whether a class defines how its instances are copied or pickled, other than by these methods."""
    for name in ("__getstate__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", *PICKLING):
        of_object, ours = getattr(object, name, None), PICKLING.get(name)
        if getattr(cls, name, None) not in (of_object, ours):
            return True
    return False
