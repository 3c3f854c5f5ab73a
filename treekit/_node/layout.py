"""Flatten and rebuild the instances of every class that treekit registers.

None of the class's own code runs here, and leaves are not inspected: instances are created by `object.__new__`, and
attributes are set without `__setattr__`.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from treekit._base.jax import jtu
from treekit._base.layouts import LAYOUT, layout_of
from treekit._node.checks import already_a_node, registering
from treekit._node.codegen import STATIC, generate_flatten, generate_rebuild
from treekit._node.intern import Interned, StaticFields

COPY = "treekit.copy"  # the key in a field's metadata
_DEEPCOPY = "__deepcopy__"


@dataclasses.dataclass(frozen=True)
class Creation:
    """How instances of a class made by `@node` are created, apart from running `__init__`."""

    defaults: Mapping[str, Any]
    converters: Mapping[str, Callable[[Any], Any]]
    uncopied: frozenset[int | str]  # arguments that are not copied, by position and by name
    remembers: bool  # whether instances may cache their `StaticFields`; not if the class pickles their __dict__ itself
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


class Layout:
    """The fields of a class, and the functions that flatten and rebuild its instances.

    Attributes:
        cls: the class.
        names: the names of its fields, in order.
        meta: the static fields.
        data: the other fields, which are children.
        creation: how instances of a class made by `@node` are created; None for `register_node`.
        remembers: whether instances cache their static part, which only frozen ones can.
        intern: from the values of the static fields to their `StaticFields`.
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
        self.intern = Interned(cls, self.names, self.meta, remembers=self.remembers).get
        self.flatten, self.flatten_with_keys = generate_flatten(self)
        self.rebuild = generate_rebuild(self)

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

    def check_fields_are_set(self, x: object, error: AttributeError) -> None:
        """Raise a TypeError if an instance could not be flattened because a field is not set."""
        for field in self.names:
            if not hasattr(x, field):
                name = self.cls.__qualname__
                raise TypeError(
                    f"{name}.{field} is not set, so this {name} cannot be flattened. Set every field when creating it, "
                    "if only to None"
                ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        # The layout of a class pickled by value is registered again in the process that loads it.
        return register, (self.cls, self.names, self.meta, self.creation)


def register(cls: type[Any], names: Sequence[str], meta: Collection[str], creation: Creation | None) -> Layout:
    """Register a class as a pytree node, unless treekit has, and return its layout. Use it in `rollback_on_error`."""
    with registering:
        known: Layout | None = layout_of(cls)
        if known:
            return known
        layout = Layout(cls, names, meta, creation)
        if creation is None and not _copies_in_its_own_way(cls):
            setattr(cls, _DEEPCOPY, deepcopy_node)
        setattr(cls, LAYOUT, layout)
        # Instances cache their static part; in the class, one whose values are not identical to those of any instance.
        setattr(cls, STATIC, SimpleNamespace(values=(object(),) * len(layout.meta)))
        try:
            jtu.register_pytree_with_keys(cls, layout.flatten_with_keys, layout.rebuild, layout.flatten)
        except ValueError as error:
            raise already_a_node(cls, "JAX") from error
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
