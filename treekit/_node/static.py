"""Static values: check them, compare them with their types, and share equal ones in treedefs."""

import contextlib
import dataclasses
import functools
import numbers
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.jax import untyped
from treekit._base.layouts import LAYOUT
from treekit._base.types import PyTree

# Types whose values are always hashable and contain no arrays; values of other types are inspected.
_PLAIN = frozenset(
    {str, int, bool, float, complex, bytes, types.NoneType, types.FunctionType, types.BuiltinFunctionType}
)
_SLICES: Any = (range, slice)
_TEXTS: Any = (str, bytes, bytearray, memoryview)  # sequences whose items are strings or ints
# Types whose instances are equal if their parts are.
_BY_PARTS: Any = (tuple, frozenset, list, set, dict, Mapping, *_SLICES)
_EQ_BY_PARTS = frozenset(cls.__eq__ for cls in _BY_PARTS)


def exact_key(value: Any) -> Hashable:
    """Return a key that is equal for equal values of the same type, and for no others.

    In Python 1 == 1.0 == True, 0.0 == -0.0 and nan != nan, also inside containers, and a frozen mapping may equal a
    dict. Here a number is compared by its type, value and `repr`. A sequence, set, mapping, dataclass, range or slice
    is compared by its type and part by part, and by its `__eq__` too if its class defines one. Anything else is
    compared by its type and its `__eq__`, which by default is identity.
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
    # If the class defines its own `__hash__`, parts need not be hashable. Then its `__eq__` is trusted too.
    if eq in _EQ_BY_PARTS or _has_generated_eq(kind):
        with contextlib.suppress(TypeError):
            key = kind, parts.collect(map(exact_key, parts.items))
            hash(key)
            return key
    return kind, value, parts.collect(map(_key_or_type, parts.items))


def _number_key(value: object) -> tuple[Any, str]:
    """Return value and `repr` of a number: Decimal("1.0") == Decimal("1.00"), although they behave differently."""
    written: Any = _type(value).__repr__
    says_no_more = written in (object.__repr__, int.__repr__)  # an address only; and the repr of huge ints raises
    return value if value == value else None, "" if says_no_more else repr(value)


class _Parts(NamedTuple):
    """The parts of a value that decide whether it equals another one of its type."""

    items: Sequence[Any]
    collect: Callable[[Iterable[Hashable]], Hashable] = tuple  # frozenset if their order does not matter


def _parts_of(value: Any) -> _Parts | None:
    if isinstance(value, _SLICES):
        return _Parts((value.start, value.stop, value.step))
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
    """Whether a class is a dataclass with the `__eq__` that `dataclasses` generates, from a string."""
    code = getattr(cls.__eq__, "__code__", None)
    return dataclasses.is_dataclass(cls) and code is not None and code.co_filename == "<string>"


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
    return kind in _PLAIN or (kind in (tuple, frozenset) and all(map(is_plain_value, value)))


def _type(x: object) -> type[Any]:
    return type(x)


def check_static(cls: type[Any], name: str, value: object) -> None:
    """Raise a TypeError unless a value can be static, that is, is hashable and contains no arrays."""
    if type(value) in _PLAIN:
        return
    try:
        hash(value)
    except Exception as error:  # whatever a user's own __hash__ raises
        why = "holds an array" if isinstance(value, _TUPLE) and holds_array(value) else "is not hashable"
        raise TypeError(_static_value_error(cls, name, value, why)) from error
    if holds_array([value, *captured_objects(value)]):
        raise TypeError(_static_value_error(cls, name, value, "holds an array"))


_TUPLE: Any = tuple  # which is hashable if its items are


def holds_array(tree: PyTree) -> bool:
    return any(isinstance(x, (jax.Array, np.ndarray)) for x in jax.tree.leaves(tree))


def captured_objects(f: object) -> list[Any]:
    """Return the objects that a callable captures, which JAX does not see: a method's instance, a partial's arguments.

    The wrappers that `jax.jit` and `jax.vmap` return capture the function that they wrap.
    """
    return reachable(f, _parts)[1:]


def _parts(f: Any) -> list[Any]:
    if isinstance(f, types.MethodType):
        return [f.__self__]
    if isinstance(f, functools.partial):
        return [f.func, *f.args, *f.keywords.values()]
    return [f.__wrapped__] if isinstance(f, FUNCTIONS) and hasattr(f, "__wrapped__") else []


def reachable(x: object, parts_of: Callable[[Any], list[Any]]) -> list[Any]:
    """Return an object and everything reachable through `parts_of`, each once, even if there are cycles."""
    parts: dict[int, Any] = {}  # by id
    pending = [x]
    while pending:
        part = pending.pop()
        if id(part) not in parts:
            parts[id(part)] = part
            pending += parts_of(part)
    return list(parts.values())


FUNCTIONS: Any = (types.MethodType, functools.partial, types.FunctionType, type(untyped.jit(exact_key)))


def _static_value_error(cls: type[Any], name: str, value: object, why: str) -> str:
    return (
        f"{cls.__qualname__}.{name} is static, and its value, of type {type(value).__qualname__}, {why}. Static values "
        "are compared whenever JAX compares structures: pass a hashable one (a tuple for a list, a frozenset for a "
        "set, a treekit.HashableArray for an array), or make the field a data field (without static=True; in "
        "data_fields)"
    )


class StaticFields(frozenset[object]):
    """The static part of instances, as stored in a treedef.

    `Interned` creates one for all instances with the same values, and stores the first one of equal values. So
    comparing the treedefs of two trees is nearly always an identity check for each node, and neither comparing nor
    hashing them calls a user's `__eq__` or `__hash__`.

    It is a set of one marker, which equal ones share, so that C code compares it. JAX compares treedefs while it
    searches its caches of compiled functions. Python code there may let another thread change the cache, which crashes
    the process.
    """

    __slots__ = ("_alive", "cls", "meta", "template", "values")

    cls: type[Any]
    meta: tuple[str, ...]
    values: tuple[Any, ...]
    template: dict[str, Any]  # the __dict__ of such an instance without its children; copying it is fastest
    _alive: tuple[Any, ...]  # never read: while this exists, the first one and its key do, so that equal values find it

    def __new__(
        cls,
        node_class: type[Any],
        meta: tuple[str, ...],
        values: tuple[Any, ...],
        blank: dict[str, Any],
        key: "Key",
        first: "StaticFields | None",
    ) -> "StaticFields":
        marker = (object(),) if first is None else first
        self = super().__new__(cls, marker)
        self.cls = node_class
        self.meta = meta
        self.values = values
        self.template = blank | dict(zip(meta, values, strict=True))
        self._alive = (key, first)
        return self

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in zip(self.meta, self.values, strict=True))

    def __deepcopy__(self, memo: dict[int, Any]) -> "StaticFields":
        return self  # static values are shared, since a copy, as of a callable, may not be equal

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.cls, self.values)


def _unpickle(cls: type[Any], values: tuple[Any, ...]) -> StaticFields:
    static: StaticFields = vars(cls)[LAYOUT].intern(values)
    return static


class Key:
    """Hash key of a `StaticFields`; only that object references it, so cycles can be freed."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = tuple(map(exact_key, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)


class Interned:
    """The `StaticFields` of one class that are in use.

    Args:
        cls: the class.
        names: the names of its fields.
        meta: the static fields.
        remembers: whether instances cache their `StaticFields`.
    """

    def __init__(self, cls: type[Any], names: tuple[str, ...], meta: tuple[str, ...], *, remembers: bool) -> None:
        self._cls = cls
        self._meta = meta
        self._blank: dict[str, Any] = dict.fromkeys((*names, STATIC) if remembers else names)
        # The first one of each key, and every one by the ids of its values. A strong reference to a key would keep its
        # values alive, which may refer to an instance.
        self._first: weakref.WeakKeyDictionary[Key, weakref.ref[StaticFields]] = weakref.WeakKeyDictionary()
        self._same: weakref.WeakValueDictionary[Hashable, StaticFields] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()  # reentrant, since a user's `__eq__` may call this again

    def get(self, values: tuple[Any, ...]) -> StaticFields:
        """Return the `StaticFields` of these values: the same one each time if equal values are indistinguishable.

        Raises:
            TypeError: a value is not hashable or contains an array; the message names the class and the field.
        """
        ids = tuple(map(id, values))
        static = self._same.get(ids)  # while it exists, its values are alive, so no other objects have their ids
        if static is not None:
            return static
        with self._lock:
            key, first = self._find(values)
            if first is not None and all(map(is_plain_value, values)):
                return first
            self._check(values)
            static = StaticFields(self._cls, self._meta, values, self._blank, key, first)
            self._same[ids] = static
            if first is None:
                # The key of one that is being freed may still be there, and would take this entry with it.
                self._first.pop(key, None)
                self._first[key] = weakref.ref(static)
            return static

    def _find(self, values: tuple[Any, ...]) -> tuple[Key, StaticFields | None]:
        """Return the key of these values and the first `StaticFields` of an equal key; calls the values' `__eq__`."""
        try:
            key = Key(values)
            first = self._first.get(key)
        except Exception as error:
            what = f"comparing static values of {self._cls.__qualname__} ({', '.join(self._meta)})"
            if isinstance(error, RecursionError):  # a value is nested too deeply, or its `__hash__` calls itself
                error.add_note(f"This happened in {what}")
                raise
            self._check(values)
            raise TypeError(f"{what} raised {error!r}") from error
        return key, first() if first else None

    def _check(self, values: tuple[Any, ...]) -> None:
        for name, value in zip(self._meta, values, strict=True):
            check_static(self._cls, name, value)


STATIC = "__treekit_static__"  # the key in an instance's __dict__ under which its static part is cached
