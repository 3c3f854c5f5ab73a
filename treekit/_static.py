"""Static values: what may be one, and how they compare: type-exactly."""

import dataclasses
import types
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

# What is hashable and holds no array by its type alone; the rest has to be looked into.
_PLAIN = frozenset(
    {str, int, bool, float, complex, bytes, types.NoneType, types.FunctionType, types.BuiltinFunctionType}
)


def exact(value: Any) -> Hashable:
    """A key that is equal for values of the same type that are the same, and for no others.

    Python has 1 == 1.0 == True, 0.0 == -0.0 and nan != nan, and so have the containers of these.
    """
    kind = _type(value)
    if kind is float or kind is complex:
        return kind, repr(value)
    if tuple in kind.__mro__:
        return kind, tuple(map(exact, value))
    if frozenset in kind.__mro__:
        return kind, frozenset(map(exact, value))
    if np.generic in kind.__mro__:
        return kind, value.dtype, value.tobytes()
    if dataclasses.is_dataclass(kind):
        compared = [f.name for f in dataclasses.fields(kind) if f.compare] if kind.__eq__ is not object.__eq__ else []
        return kind, value, tuple(exact(getattr(value, name)) for name in compared)
    return kind, value


def interchangeable(value: Any) -> bool:
    """Whether nothing tells this value from one of an equal key, so that either can stand for both."""
    kind = _type(value)
    return kind in _PLAIN or (kind in (tuple, frozenset) and all(map(interchangeable, value)))


def _type(x: object) -> type[Any]:
    return type(x)


def check_static(cls: type[Any], name: str, value: Any) -> None:
    """Raise a TypeError unless a value can be static: hashable, and holding no array."""
    if type(value) in _PLAIN:
        return
    try:
        hash(value)
    except Exception as error:  # whatever a user's own __hash__ raises
        raise TypeError(_misfit(cls, name, value, "is not hashable")) from error
    if any(isinstance(x, (jax.Array, np.ndarray)) for x in jax.tree.leaves(value)):
        raise TypeError(_misfit(cls, name, value, "holds an array"))


def _misfit(cls: type[Any], name: str, value: Any, why: str) -> str:
    return (
        f"{cls.__qualname__}.{name} is static, and its value, of type {type(value).__qualname__}, {why}. Static values "
        "are compared whenever JAX compares structures: give a hashable one (a tuple for a list, a frozenset for a "
        "set), or make the field a data field (no static=True; in data_fields)"
    )
