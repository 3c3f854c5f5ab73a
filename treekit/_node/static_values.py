"""Static values: what may be one, and how they compare: type-exactly."""

import contextlib
import dataclasses
import functools
import inspect
import numbers
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._jax import untyped

# What is hashable and holds no array by its type alone; the rest has to be looked into.
_PLAIN = frozenset(
    {str, int, bool, float, complex, bytes, types.NoneType, types.FunctionType, types.BuiltinFunctionType}
)
_SLICES: Any = (range, slice)
_TEXTS: Any = (str, bytes, bytearray, memoryview)  # sequences whose items are like themselves, or plain ints
# The types whose instances consist of nothing but their parts.
_BY_PARTS: Any = (tuple, frozenset, list, set, dict, Mapping, *_SLICES, inspect.Signature, inspect.Parameter)
_EQ_BY_PARTS = frozenset(cls.__eq__ for cls in _BY_PARTS)


def exact_key(value: Any) -> Hashable:
    """A key that is equal for values of the same type that are the same, and for no others.

    In Python 1 == 1.0 == True, 0.0 == -0.0 and nan != nan, also inside containers, and a frozen mapping may equal a
    dict. Here a number is compared by its type, value and `repr`. A sequence, set, mapping, dataclass, range, slice or
    signature is compared by its type and part by part, and by its `__eq__` too if its class defines one. Anything else
    is compared by its type and its `__eq__`, which by default is identity.
    """
    kind = _type(value)
    if kind is float or kind is complex:
        return kind, repr(value)
    if kind in _PLAIN:
        return kind, value
    if kind is tuple:
        return kind, tuple(map(exact_key, value))
    if np.generic in kind.__mro__:
        return kind, value.dtype, value.tobytes()
    if isinstance(value, numbers.Number):
        return kind, *_number_key(value)
    eq: Any = kind.__eq__
    parts = None if eq is object.__eq__ else _parts_of(value)
    if parts is None:
        return kind, value
    # Parts need not be hashable where the whole has a `__hash__` of its own. Its `__eq__` is trusted then as well.
    if eq in _EQ_BY_PARTS or _has_generated_eq(kind):
        with contextlib.suppress(TypeError):
            key = kind, parts.collect(map(exact_key, parts.items))
            hash(key)
            return key
    return kind, value, parts.collect(map(_key_or_type, parts.items))


def _number_key(value: Any) -> tuple[Any, str]:
    """The value and the `repr` of a number: Decimal("1.0") == Decimal("1.00"), and they behave differently."""
    written: Any = _type(value).__repr__
    says_no_more = written in (object.__repr__, int.__repr__)  # nothing but an address; and very large ints have none
    return value if value == value else None, "" if says_no_more else repr(value)


class _Parts(NamedTuple):
    """What decides whether a value equals another one of its type."""

    items: Sequence[Any]
    collect: Callable[[Iterable[Hashable]], Hashable] = tuple  # frozenset where their order does not count


def _parts_of(value: Any) -> _Parts | None:
    if isinstance(value, _SLICES):
        return _Parts((value.start, value.stop, value.step))
    if isinstance(value, inspect.Signature):
        return _Parts((*value.parameters.values(), value.return_annotation))
    if isinstance(value, inspect.Parameter):
        return _Parts((value.name, value.kind, value.default, value.annotation))
    if isinstance(value, Mapping):
        return _Parts([*value.items()], frozenset)
    if isinstance(value, Set):
        return _Parts([*value], frozenset)
    if dataclasses.is_dataclass(_type(value)):
        return _Parts([getattr(value, f.name) for f in dataclasses.fields(value) if f.compare])
    if isinstance(value, Sequence) and not isinstance(value, _TEXTS):
        return _Parts([*value])
    return None


def _has_generated_eq(cls: Any) -> bool:
    """Whether a class is a dataclass whose `__eq__` does what `dataclasses` generates for its fields."""
    if not dataclasses.is_dataclass(cls):
        return False
    names = tuple(f.name for f in dataclasses.fields(cls) if f.compare)
    return _code_of(cls.__eq__) == _code_of_generated_eq(names)


@functools.lru_cache
def _code_of_generated_eq(names: tuple[str, ...]) -> object:
    return _code_of(dataclasses.make_dataclass("Reference", names).__eq__)


def _code_of(function: Any) -> object:
    code = getattr(function, "__code__", None)
    return code and (code.co_code, code.co_names, code.co_consts)


def _key_or_type(field: Any) -> object:
    """The type alone of what is not hashable: a dataclass may be, by a `__hash__` of its own, as nnx.GraphDef is."""
    try:
        key = exact_key(field)
        hash(key)
    except TypeError:
        return _type(field)
    return key


def is_plain_value(value: Any) -> bool:
    """Whether nothing tells this value from one of an equal key, so that either can stand for both."""
    kind = _type(value)
    return kind in _PLAIN or (kind in (tuple, frozenset) and all(map(is_plain_value, value)))


def _type(x: object) -> type[Any]:
    return type(x)


def check_static(cls: type[Any], name: str, value: Any) -> None:
    """Raise a TypeError unless a value can be static: hashable, and holding no array."""
    if type(value) in _PLAIN:
        return
    try:
        hash(value)
    except Exception as error:  # whatever a user's own __hash__ raises
        raise TypeError(_static_value_error(cls, name, value, "is not hashable")) from error
    if holds_array([value, *captured_objects(value)]):
        raise TypeError(_static_value_error(cls, name, value, "holds an array"))


def holds_array(tree: Any) -> bool:
    return any(isinstance(x, (jax.Array, np.ndarray)) for x in jax.tree.leaves(tree))


def captured_objects(f: Any) -> list[Any]:
    """What a function carries along where JAX does not see it: a method its instance, a partial its arguments.

    A wrapper, such as what `jax.jit` and `jax.vmap` return, carries what it wraps.
    """
    return reachable(f, _parts)[1:]


def _parts(f: Any) -> list[Any]:
    if isinstance(f, types.MethodType):
        return [f.__self__]
    if isinstance(f, functools.partial):
        return [f.func, *f.args, *f.keywords.values()]
    return [f.__wrapped__] if isinstance(f, FUNCTIONS) and hasattr(f, "__wrapped__") else []


def reachable(x: Any, parts_of: Callable[[Any], list[Any]]) -> list[Any]:
    """An object, and what is reached from it by way of parts: each once, even where they lead back to it."""
    found: dict[int, Any] = {}
    pending = [x]
    while pending:
        part = pending.pop()
        if id(part) not in found:
            found[id(part)] = part
            pending += parts_of(part)
    return list(found.values())


FUNCTIONS: Any = (types.MethodType, functools.partial, types.FunctionType, type(untyped.jit(exact_key)))


def _static_value_error(cls: type[Any], name: str, value: Any, why: str) -> str:
    return (
        f"{cls.__qualname__}.{name} is static, and its value, of type {type(value).__qualname__}, {why}. Static values "
        "are compared whenever JAX compares structures: give a hashable one (a tuple for a list, a frozenset for a "
        "set), or make the field a data field (no static=True; in data_fields)"
    )
