"""When are two values the same? A key that is equal for equal values of the same type, and for no others."""

import collections
import dataclasses
import functools
import numbers
import types
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    Set,
)
from typing import Any, NamedTuple

import numpy as np

# Types whose values are always hashable and contain no arrays; values of other types are inspected.
PLAIN = frozenset(
    {str, int, bool, float, complex, bytes, types.NoneType, types.FunctionType, types.BuiltinFunctionType}
)
_SLICES: Any = (range, slice)
_TEXTS: Any = (str, collections.UserString, bytes, bytearray, memoryview)  # sequences of strings or ints
# Types whose instances are equal if their parts are.
_BY_PARTS: Any = (tuple, frozenset, list, set, dict, collections.OrderedDict, Mapping, *_SLICES)
_MUTABLE: Any = (MutableMapping, MutableSequence, MutableSet)
_EQ_BY_PARTS = frozenset(cls.__eq__ for cls in _BY_PARTS)


def exact_key(value: Any) -> Hashable:
    """Return a key that is equal for equal values of the same type, and for no others.

    In Python 1 == 1.0 == True, 0.0 == -0.0 and nan != nan, also inside containers; a frozen mapping may equal a dict,
    and does not depend on the order of its items. Here the key is the type and the following, by the first row that
    holds:

    | | value | key |
    |---|---|---|
    | 1 | a float or complex number | its `repr` |
    | 2 | of another type in `PLAIN`, such as an int or a function | itself |
    | 3 | a tuple | the keys of its items |
    | 4 | a number of NumPy | its dtype and its bytes |
    | 5 | any other number | itself and its `repr` |
    | 6 | without parts | itself: its `__eq__` decides, which by default is identity |
    | 7 | equal by its parts, which have a hash: a frozenset, a range, a partial, most dataclasses | their keys |
    | 8 | with any other parts: an `__eq__` of its class, or a part without a hash | itself and their keys |

    The parts are those of `parts_of`. A value that `can_change` has another key afterwards.
    """
    kind = _type(value)
    if kind is float or kind is complex:  # 1
        return kind, repr(value)
    if kind in PLAIN:  # 2
        return kind, value
    if kind is tuple:  # 3
        return kind, tuple(map(exact_key, value))
    if np.generic in kind.__mro__:  # 4
        return kind, value.dtype, value.tobytes()
    if isinstance(value, numbers.Number):  # 5
        return kind, *_number_key(value)
    parts = parts_of(value)
    if parts is None:  # 6
        return kind, value
    if is_equal_by_parts(kind):
        key = kind, parts.collect(map(exact_key, parts.items))
        if _is_hashable(key):  # 7
            return key
    return kind, value, parts.collect(map(_key_or_type, parts.items))  # 8


class Parts(NamedTuple):
    """The parts of a value that decide whether it equals another one of its type."""

    items: Sequence[Any]
    collect: Callable[[Iterable[Hashable]], Hashable] = tuple  # frozenset if their order does not matter


def parts_of(value: Any) -> Parts | None:
    """Return the parts of a sequence, set, mapping, dataclass, range, slice or partial; None for any other value."""
    if _type(value) is functools.partial:  # whose `__eq__` is identity, and which may have parts that can change
        parts = (value.func, value.args, *value.keywords.items())
        return Parts(parts) if _is_hashable(parts) else None
    eq: Any = _type(value).__eq__
    if eq is object.__eq__:
        return None
    if isinstance(value, _SLICES):
        return Parts((value.start, value.stop, value.step))
    if isinstance(value, Mapping):
        return Parts([*value.items()])
    if isinstance(value, Set):
        return Parts([*value], frozenset)
    if dataclasses.is_dataclass(_type(value)):
        return Parts([getattr(value, f.name) for f in dataclasses.fields(value) if f.compare])
    if isinstance(value, Sequence) and not isinstance(value, _TEXTS):
        return Parts([*value])
    return None


def is_equal_by_parts(cls: Any) -> bool:
    """Whether instances of a class that has parts are equal if these are: it has no `__eq__` of its own."""
    return cls.__eq__ in _EQ_BY_PARTS or cls is functools.partial or _has_generated_eq(cls)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except Exception:  # whatever a user's own __hash__ raises
        return False
    return True


def _number_key(value: object) -> tuple[Any, str]:
    """Return value and `repr` of a number: Decimal("1.0") == Decimal("1.00"), although they behave differently."""
    written: Any = _type(value).__repr__
    says_no_more = written in (object.__repr__, int.__repr__)  # an address only; and the repr of huge ints raises
    is_nan = value != value
    return None if is_nan else value, "" if says_no_more else repr(value)


def _has_generated_eq(cls: Any) -> bool:
    """Whether a class is a dataclass with the `__eq__` that `dataclasses` generates.

    It is known by its code: if cloudpickle sends a class by value, as Ray and joblib do, it replaces the function in
    the class by another one, of another file.
    """
    if not dataclasses.is_dataclass(cls):
        return False
    return _code_of(cls.__eq__) == _generated_eq(tuple(f.name for f in dataclasses.fields(cls) if f.compare))


@functools.cache
def _generated_eq(names: tuple[str, ...]) -> Hashable:
    """Return the code of the `__eq__` that a dataclass with these fields gets."""
    return _code_of(dataclasses.make_dataclass("_", names).__eq__)


def _code_of(function: Any) -> Hashable:
    code = getattr(function, "__code__", None)  # not of a function of C
    return code and (code.co_code, code.co_names, code.co_varnames)


def _key_or_type(field: object) -> object:
    """Return the key of a field, or only its type if it is not hashable, as in nnx.GraphDef with its own `__hash__`."""
    try:
        key = exact_key(field)
        hash(key)
    except TypeError:
        return _type(field)
    return key


def is_plain_value(value: Any) -> bool:
    """Whether a value is indistinguishable from every other value with an equal key, so that they can be shared."""
    kind = _type(value)
    return kind in PLAIN or (kind in (tuple, frozenset) and all(map(is_plain_value, value)))


def can_change(value: Any) -> bool:
    """Whether a hashable value has parts that may change: those of a dict, list or set, or of a dataclass not frozen.

    Unhashable parts do not count, since such a value has a `__hash__` of its own, which is trusted.
    """
    kind: Any = _type(value)
    parts = None if kind in PLAIN or kind.__hash__ is None else parts_of(value)
    return parts is not None and (_is_mutable(kind) or any(map(can_change, parts.items)))


def _is_mutable(cls: type[Any]) -> bool:
    options: Any = getattr(cls, "__dataclass_params__", None)
    return issubclass(cls, _MUTABLE) or (options is not None and not options.frozen)


def _type(x: object) -> type[Any]:  # to type checkers, `type(x)` is partially unknown
    return type(x)
