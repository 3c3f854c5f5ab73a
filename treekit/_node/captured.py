"""Which instances do the functions in a new node capture? JAX does not see their arrays there."""

import operator
from collections.abc import Callable
from typing import Any

from treekit._base.functions import FUNCTIONS, captured_by
from treekit._base.jax import jtu
from treekit._base.tree import reachable
from treekit._node.static import holds_array

_CONTAINERS: dict[type[Any], Any] = {list: iter, tuple: iter, dict: operator.methodcaller("values")}
_MAY_CAPTURE = frozenset({*FUNCTIONS, *_CONTAINERS})


def check_captured(self: object, is_building: Callable[[object], bool]) -> None:
    """Raise a TypeError if a function in an attribute captures this node, or another one with arrays.

    Args:
        self: a new node.
        is_building: whether the `__init__` of a node is running, in this thread or in another.
    """
    for name, value in vars(self).items():
        if type(value) in _MAY_CAPTURE:
            for x in reachable(value, _parts)[1:]:
                _check(self, name, x, is_building)


def _parts(x: object) -> list[Any]:
    """Return what a function captures, and the items of a container that may be, or contain, functions."""
    items_of = _CONTAINERS.get(type(x))
    return captured_by(x) if items_of is None else [item for item in items_of(x) if type(item) in _MAY_CAPTURE]


def _check(self: object, name: str, x: object, is_building: Callable[[object], bool]) -> None:
    if x is self or is_building(x):
        owner = "itself" if x is self else f"the {type(x).__qualname__} that is being created"
        raise TypeError(
            f"creating {type(self).__qualname__} stored a method of {owner}, or a function of one, in {name}: it "
            "belongs to that instance, and would still read its values after JAX has rebuilt it with others. Store a "
            f"function, or make {name} a method that calls it"
        )
    is_node = type(x) not in _CONTAINERS and not jtu.all_leaves([x])
    if is_node and holds_array(x):
        raise TypeError(
            f"creating {type(self).__qualname__} stored a function in {name} that captures a {type(x).__qualname__}, "
            "whose arrays JAX does not see there: they would get no gradient, and jit would compile them as constants. "
            f"Store the {type(x).__qualname__}, and call it in a method"
        )
