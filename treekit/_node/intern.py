"""The static parts of nodes in treedefs: equal values share one object, so that comparing them is fast."""

import threading
import weakref
from collections.abc import Hashable
from typing import Any

from treekit._base.layouts import LAYOUT
from treekit._node.codegen import STATIC
from treekit._node.static_values import check_static, exact_key, is_plain_value, nested_too_deeply


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
            TypeError: a value is not hashable, contains an array or is nested too deeply; the message names the class
                and the field.
        """
        ids = tuple(map(id, values))
        static = self._same.get(ids)  # while it exists, its values are alive, so no other objects have their ids
        if static is not None:
            return static
        with self._lock:
            try:
                return self._make(ids, values)
            except (RecursionError, SystemError) as error:
                if not any(isinstance(e, RecursionError) for e in (error, error.__cause__)):
                    raise
                raise nested_too_deeply(self._cls, self._too_deep(values)) from error

    def _make(self, ids: Hashable, values: tuple[Any, ...]) -> StaticFields:
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
            found = self._first.get(key)
        except RecursionError:
            raise
        except Exception as error:
            self._check(values)
            names = ", ".join(self._meta)
            raise TypeError(
                f"comparing static values of {self._cls.__qualname__} ({names}) raised {error!r}"
            ) from error
        return key, found() if found else None

    def _too_deep(self, values: tuple[Any, ...]) -> str:
        """Return the name of the first static field whose value is nested too deeply to be compared or flattened.

        If none fails alone, as some calls further down did, return the names of all.
        """
        for name, value in zip(self._meta, values, strict=True):
            try:
                hash(Key((value,)))
                check_static(self._cls, name, value)
            except (RecursionError, SystemError):  # JAX turns a RecursionError into a SystemError
                return name
        return ", ".join(self._meta)

    def _check(self, values: tuple[Any, ...]) -> None:
        for name, value in zip(self._meta, values, strict=True):
            check_static(self._cls, name, value)
