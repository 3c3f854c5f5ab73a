"""Static values: what may be one, and how they compare: type-exactly."""

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from treekit._jax import untyped

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
        return kind, value, tuple(_exact_or_type(getattr(value, name)) for name in compared)
    return kind, value


def _exact_or_type(field: Any) -> object:
    """The type alone of what is not hashable: a dataclass may be, by a `__hash__` of its own, as nnx.GraphDef is."""
    try:
        key = exact(field)
        hash(key)
    except TypeError:
        return _type(field)
    return key


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
    if holds_array([value, *carried(value)]):
        raise TypeError(_misfit(cls, name, value, "holds an array"))


def holds_array(tree: Any) -> bool:
    return any(isinstance(x, (jax.Array, np.ndarray)) for x in jax.tree.leaves(tree))


def carried(f: Any) -> list[Any]:
    """What a function carries along where JAX does not see it: a method its instance, a partial its arguments.

    A wrapper, such as what `jax.jit` and `jax.vmap` return, carries what it wraps.
    """
    return reached(f, _parts)[1:]


def _parts(f: Any) -> list[Any]:
    if isinstance(f, types.MethodType):
        return [f.__self__]
    if isinstance(f, functools.partial):
        return [f.func, *f.args, *f.keywords.values()]
    return [f.__wrapped__] if isinstance(f, FUNCTIONS) and hasattr(f, "__wrapped__") else []


def reached(x: Any, parts_of: Callable[[Any], list[Any]]) -> list[Any]:
    """An object, and what is reached from it by way of parts: each once, even where they lead back to it."""
    found: dict[int, Any] = {}
    pending = [x]
    while pending:
        part = pending.pop()
        if id(part) not in found:
            found[id(part)] = part
            pending += parts_of(part)
    return list(found.values())


FUNCTIONS: Any = (types.MethodType, functools.partial, types.FunctionType, type(untyped.jit(exact)))


def _misfit(cls: type[Any], name: str, value: Any, why: str) -> str:
    return (
        f"{cls.__qualname__}.{name} is static, and its value, of type {type(value).__qualname__}, {why}. Static values "
        "are compared whenever JAX compares structures: give a hashable one (a tuple for a list, a frozenset for a "
        "set), or make the field a data field (no static=True; in data_fields)"
    )
