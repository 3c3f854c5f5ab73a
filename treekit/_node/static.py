"""Static values: check them, compare them with their types, and share equal ones in treedefs.

    instances and treedefs -> their StaticFields -> its Key, and the first StaticFields of an equal Key
    Interned - - weakly - -> every Key and StaticFields

So what is not used any more is freed: `Interned` keeps nothing alive, and no static value, which may refer to an
instance.
"""

import threading
import weakref
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from treekit._base.functions import captured_objects
from treekit._base.layouts import LAYOUT
from treekit._base.types import PyTree
from treekit._compare.exact import PLAIN, can_change, exact_key, is_plain_value


def check_static(cls: type[Any], name: str, value: object) -> None:
    """Raise a TypeError unless a value can be static, that is, is hashable and contains no arrays."""
    if type(value) in PLAIN:
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

    __slots__ = ("_alive", "cls", "meta", "owner", "template", "values")

    cls: type[Any]
    meta: tuple[str, ...]
    values: tuple[Any, ...]
    owner: type[Any] | None  # the class, whose instances need not read their values again; None if a value can change
    template: dict[str, Any]  # the __dict__ of such an instance without its children; copying it is fastest
    _alive: tuple[Any, ...]  # its key and the first one, never read: while it exists, equal values find the first

    def __new__(
        cls,
        node_class: type[Any],
        meta: tuple[str, ...],
        values: tuple[Any, ...],
        blank: dict[str, Any],
        key: "Key",
        first: "StaticFields | None",
        *,
        lasting: bool,
    ) -> "StaticFields":
        # A set that is made of the first one has its marker too, so they are equal.
        members = (object(),) if first is None else first
        self = super().__new__(cls, members)
        self.cls = node_class
        self.meta = meta
        self.values = values
        self.owner = node_class if lasting else None
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
        self._first_of_key: weakref.WeakKeyDictionary[Key, weakref.ref[StaticFields]] = weakref.WeakKeyDictionary()
        self._by_ids: weakref.WeakValueDictionary[Hashable, StaticFields] = weakref.WeakValueDictionary()  # of values
        self._lock = threading.RLock()  # reentrant, since a user's `__eq__` may call this again

    def get(self, values: tuple[Any, ...]) -> StaticFields:
        """Return the `StaticFields` of these values.

        The same objects have one, and so have equal values that are indistinguishable, such as strings. Any others,
        such as callables, have one each, and those of equal values are equal. A value that can change is looked up by
        what it is now.

        Raises:
            TypeError: a value is not hashable or contains an array; the message names the class and the field.
        """
        # 1. The one of the same objects. While it exists, they are alive, so no other objects have their ids.
        ids = tuple(map(id, values))
        static = self._by_ids.get(ids)
        if static is not None:
            return static
        with self._lock:
            # 2. The first one of equal values: if they are indistinguishable, or the same objects, which can change.
            key, first = self._find(values)
            if first is not None and (ids == tuple(map(id, first.values)) or all(map(is_plain_value, values))):
                return first
            # 3. A new one, which equals the first one of equal values.
            self._check(values)
            lasting = not any(map(can_change, values))
            static = StaticFields(self._cls, self._meta, values, self._blank, key, first, lasting=lasting)
            if lasting:
                self._by_ids[ids] = static
            if first is None:
                # The key of one that is being freed may still be there, and would take this entry with it.
                self._first_of_key.pop(key, None)
                self._first_of_key[key] = weakref.ref(static)
            return static

    def _find(self, values: tuple[Any, ...]) -> tuple[Key, StaticFields | None]:
        """Return the key of these values and the first `StaticFields` of an equal key; calls the values' `__eq__`."""
        try:
            key = Key(values)
            first = self._first_of_key.get(key)
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
