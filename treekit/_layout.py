"""Flatten and rebuild the instances of every class that treekit registers.

None of the class's own code runs here, and leaves are not inspected: instances are created by `object.__new__`, and
attributes are set without `__setattr__`.
"""

import contextlib
import copy
import dataclasses
import inspect
import keyword
import threading
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

from treekit._codegen import STATIC, generate_flatten, generate_rebuild
from treekit._jax import jtu
from treekit._static import check_static, exact_key, is_plain_value

LAYOUT = "__treekit_layout__"  # the attribute of a class
COPY = "treekit.copy"  # the key in a field's metadata
NOT_REMEMBERED = types.SimpleNamespace(values=defaultdict[int, object](object))  # never identical to a field
_DEEPCOPY = "__deepcopy__"

_registering = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Creation:
    """How instances of a class made by `@node` are created, apart from running `__init__`."""

    defaults: Mapping[str, Any]
    converters: Mapping[str, Callable[[Any], Any]]
    uncopied: frozenset[int | str]  # arguments that are not copied, by position and by name
    remembers: bool  # whether instances may cache their `StaticFields`: not if the class pickles their __dict__ itself
    generated: bool  # whether `__init__` was generated for this class
    checked: bool  # whether the fields are compared with their annotations

    @classmethod
    def of(
        cls,
        fields: Sequence[dataclasses.Field[Any]],
        init: Callable[..., None],
        *,
        remembers: bool,
        generated: bool,
        checked: bool,
    ) -> "Creation":
        """Read this from the fields of a dataclass and its `__init__`."""
        uncopied: set[int | str] = {f.name for f in fields if not f.metadata.get(COPY, True)}
        if uncopied:
            _, *parameters = inspect.signature(init).parameters
            uncopied |= {i for i, name in enumerate(parameters) if name in uncopied}
        return cls(
            defaults={f.name: f.default for f in fields if f.default is not dataclasses.MISSING},
            converters={f.name: f.metadata["converter"] for f in fields if f.metadata.get("converter") is not None},
            uncopied=frozenset(uncopied),
            remembers=remembers,
            generated=generated,
            checked=checked,
        )


class StaticFields:
    """The static part of instances, as stored in a treedef.

    `Layout.intern` creates one for all instances with the same values, and stores the first one of equal values. So
    comparing two treedefs is nearly always an identity check for each node, and neither comparing nor hashing them
    calls a user's `__eq__` or `__hash__`.
    """

    __slots__ = ("__weakref__", "cls", "first", "key", "names", "template", "values")

    def __init__(self, layout: "Layout", values: tuple[Any, ...], key: "Key", first: "StaticFields | None") -> None:
        self.cls = layout.cls
        self.key = key
        self.names = layout.meta
        self.values = values
        self.first = first  # None for the first itself, as a reference to itself would keep it alive
        # The __dict__ of such an instance without its children. Copying it is the fastest way to create one.
        self.template: dict[str, Any] = dict.fromkeys(layout.names) | dict(zip(layout.meta, values, strict=True))
        if layout.remembers:
            self.template[STATIC] = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticFields) and (self.first or self) is (other.first or other)

    def __hash__(self) -> int:
        return object.__hash__(self.first or self)

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in zip(self.names, self.values, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return _intern, (self.cls, self.values)


class Key:
    """Hash key of a `StaticFields`; only that object references it, so cycles can be freed."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = tuple(map(exact_key, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)


def _intern(cls: type[Any], values: tuple[Any, ...]) -> StaticFields:
    layout: Layout = vars(cls)[LAYOUT]
    return layout.intern(values)


class Layout:
    """The fields of a class, and the functions that flatten and rebuild its instances.

    Attributes:
        cls: the class.
        names: the names of its fields, in order.
        meta: the static fields.
        data: the other fields, which are children.
        creation: how instances of a class made by `@node` are created; None for `register_node`.
        remembers: whether instances cache their static part, which only frozen ones can.
        flatten: from an instance to (children, static).
        flatten_with_keys: from an instance to (pairs of key path entry and child, static).
        rebuild: from (static, children) to an instance.
    """

    def __init__(self, cls: type[Any], names: Sequence[str], meta: Collection[str], creation: Creation | None) -> None:
        self.cls = cls
        self.names = tuple(names)
        self.meta = tuple(name for name in names if name in meta)
        self.data = tuple(name for name in names if name not in meta)
        self.creation = creation
        self.remembers = creation is not None and creation.remembers and bool(meta)
        # All `StaticFields` in use: the first one of each key, and every one by the ids of its values.
        self._first: weakref.WeakKeyDictionary[Key, weakref.ref[StaticFields]] = weakref.WeakKeyDictionary()
        self._same: weakref.WeakValueDictionary[Hashable, StaticFields] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()  # reentrant, since a user's `__eq__` may call this again
        self.flatten, self.flatten_with_keys = generate_flatten(self)
        self.rebuild = generate_rebuild(self)

    def intern(self, values: tuple[Any, ...]) -> StaticFields:
        """Return the `StaticFields` of these values: the same one each time if equal values are indistinguishable.

        Raises:
            TypeError: a value is not hashable or holds an array; the message names the class and the field.
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
            static = self._same[ids] = StaticFields(self, values, key, first)
            if first is None:
                self._first[key] = weakref.ref(static)
        return static

    def _find(self, values: tuple[Any, ...]) -> tuple[Key, StaticFields | None]:
        """Return the key of these values and the first `StaticFields` of an equal key; calls the values' `__eq__`."""
        try:
            key = Key(values)
            found = self._first.get(key)
        except Exception as error:
            self._check(values)
            names = ", ".join(self.meta)
            raise TypeError(f"comparing static values of {self.cls.__qualname__} ({names}) raised {error!r}") from error
        return key, found() if found else None

    def _check(self, values: tuple[Any, ...]) -> None:
        for name, value in zip(self.meta, values, strict=True):
            check_static(self.cls, name, value)

    def read_static(self, x: object) -> StaticFields:
        """Return the static part of an instance."""
        return self.intern(tuple([getattr(x, name) for name in self.meta]))

    def freeze_attributes(self, x: object) -> StaticFields:
        """Store an instance's attributes as `rebuild` does: in a new dict, with the values of its `StaticFields`."""
        static = self.read_static(x)
        attributes = {**vars(x), **dict(zip(self.meta, static.values, strict=True))}
        if self.remembers:
            attributes[STATIC] = static
        object.__setattr__(x, "__dict__", attributes)
        return static

    def missing_field_error(self, x: Any, error: AttributeError) -> Exception:
        """Return an error that says why an instance could not be flattened."""
        missing = [name for name in self.names if not hasattr(x, name)]
        if not missing:
            return error
        name = self.cls.__qualname__
        return TypeError(
            f"{name}.{missing[0]} is not set, so this {name} cannot be flattened. Set every field when creating it, "
            "if only to None"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The layout of a class pickled by value is registered again in the process that loads it.
        return register, (self.cls, self.names, self.meta, self.creation)


def layout_of(cls: type[Any]) -> Layout | None:
    """Return the layout of a class; None if only its base was registered."""
    found: Layout | None = vars(cls).get(LAYOUT)
    return found


def register(cls: type[Any], names: Sequence[str], meta: Collection[str], creation: Creation | None) -> Layout:
    """Register a class as a pytree node, unless treekit has, and return its layout. Use it in `rollback_on_error`."""
    with _registering:
        if known := layout_of(cls):
            return known
        layout = Layout(cls, names, meta, creation)
        if creation is None and not _copies_in_its_own_way(cls):
            setattr(cls, _DEEPCOPY, deepcopy_node)
        setattr(cls, LAYOUT, layout)
        setattr(cls, STATIC, NOT_REMEMBERED)  # instances cache their static part, and the class has none
        try:
            jtu.register_pytree_with_keys(cls, layout.flatten_with_keys, layout.rebuild, layout.flatten)
        except ValueError as error:
            raise _already(cls, "JAX") from error
        return layout


def _copies_in_its_own_way(cls: type[Any]) -> bool:
    """Whether a class defines how its instances are copied or pickled."""
    names = (_DEEPCOPY, "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__")
    return any(getattr(cls, name, None) is not getattr(object, name, None) for name in names)


def deepcopy_node(self: object, memo: dict[int, Any]) -> object:
    """Copy a node as its `__deepcopy__`: static values are shared, since a copy, as of a callable, may not be equal.

    Values cached on a frozen instance are not copied; a mutable instance keeps all of its attributes.
    """
    layout = layout_of(type(self))
    shared = layout.meta if layout else ()
    memo[id(self)] = new = object.__new__(type(self))
    for name, value in _attributes(self).items():
        if layout is None or layout.creation is None or name in layout.names:
            object.__setattr__(new, name, value if name in shared else copy.deepcopy(value, memo))
    return new


def _attributes(x: object) -> dict[str, Any]:
    """Return the attributes of an instance, from its `__dict__` and its `__slots__`."""
    state = object.__getstate__(x)
    in_dict, in_slots = cast(tuple[Any, Any], state if isinstance(state, tuple) else (state, None))
    return {**(in_dict or {}), **(in_slots or {})}


@contextlib.contextmanager
def rollback_on_error(cls: type[Any]) -> Generator[None]:
    """Undo all changes to a class if making it a node fails; only one thread runs this at a time."""
    with _registering:
        before = dict(vars(cls))
        try:
            yield
        except BaseException:
            for name in vars(cls).keys() - before.keys():
                type.__delattr__(cls, name)
            for name, value in before.items():
                if vars(cls).get(name) is not value:
                    type.__setattr__(cls, name, value)
            raise


def check_free(cls: Any) -> None:
    """Raise a TypeError unless a class can become a node: it is not one yet, and `object.__new__` can create it."""
    if not inspect.isclass(cls):
        raise TypeError(f"only a class can become a node, found {cls!r}")
    if LAYOUT in vars(cls):
        raise _already(cls, "treekit")
    if inspect.isabstract(cls):
        return  # an abstract class has no instances to test
    try:
        blank = object.__new__(cls)
    except TypeError as error:
        raise TypeError(
            f"{cls.__qualname__} cannot be a node: it extends a class written in C, which must create its instances "
            f"itself ({error}). Store such an object in a field instead"
        ) from error
    if not jtu.all_leaves([blank]):  # this does not call a flatten function
        raise _already(cls, "JAX")


def _already(cls: type[Any], by: str) -> TypeError:
    return TypeError(
        f"{cls.__qualname__} is a pytree node already, registered with {by}. A class can be registered only once: "
        "remove the other registration, or the base class that does it"
    )


def check_names(cls: type[Any], names: Iterable[object]) -> None:
    """Raise a TypeError for a name that cannot be an attribute, since the names are written into code."""
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise TypeError(f"field {name!r} of {cls.__qualname__} is not a valid attribute name")


def check_fields(cls: type[Any], names: Collection[str], *, slots: bool) -> None:
    """Raise a TypeError unless every field can be read and set without running code of the class.

    Args:
        cls: the class.
        names: the names of its fields.
        slots: whether a field may be one of the class's `__slots__`.
    """
    check_names(cls, names)
    for name in names:
        where = f"field {name!r} of {cls.__qualname__}"
        attribute: object = inspect.getattr_static(cls, name, None)
        if hasattr(type(attribute), "__set__") and not isinstance(attribute, types.MemberDescriptorType):
            raise TypeError(f"{where} is a {type(attribute).__name__}; name the attribute that it stores its value in")
        if isinstance(attribute, types.MemberDescriptorType) and not slots:
            raise TypeError(f"{where} is one of its __slots__, and node stores fields in a __dict__; use register_node")
        if not cls.__dictoffset__ and not isinstance(attribute, types.MemberDescriptorType):
            raise TypeError(f"{where} is not one of its __slots__, and its instances have no __dict__")
