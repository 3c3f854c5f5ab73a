"""The fields of a class that treekit registers: which are static, and do its instances have them all, and no others?"""

from collections.abc import Collection, Sequence
from typing import Any

from treekit._node.allowed import is_slot, undeclared
from treekit._node.creation import Creation
from treekit._node.pickling import attributes_of
from treekit._node.static import STATIC, Interned, StaticFields


class FieldNames:
    """The fields of a class.

    Attributes:
        cls: the class.
        names: the names of its fields, in order.
        meta: the static fields.
        data: the other fields, which are children.
        dropped: attributes that are not fields, and that an instance may have.
        slots: the `__slots__` of the class and its bases.
        creation: how instances of a class made by `@node` are created; None for `register_node`.
        remembers: whether instances cache their static part, which only frozen ones can.
        intern: from the values of the static fields to their `StaticFields`.
    """

    def __init__(
        self,
        cls: type[Any],
        names: Sequence[str],
        meta: Collection[str],
        creation: Creation | None,
        dropped: Collection[str],
    ) -> None:
        self.cls = cls
        self.names = tuple(names)
        self.meta = tuple(name for name in names if name in meta)
        self.data = tuple(name for name in names if name not in meta)
        self.dropped = tuple(dropped)
        self.slots = frozenset(name for base in cls.__mro__ for name in vars(base) if is_slot(cls, name))
        self.creation = creation
        self.remembers = creation is not None and creation.remembers and bool(meta)
        self.intern = Interned(cls, self.names, self.meta, remembers=self.remembers).get

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

    def check_attributes_are_fields(self, x: object) -> None:
        """Raise a TypeError if an instance has an attribute that rebuilding it would lose."""
        for name in undeclared(self.cls, (*self.names, *self.dropped), attributes_of(x)):
            raise TypeError(
                f"{self.cls.__qualname__}.{name} is neither in data_fields nor in meta_fields of register_node, so it "
                "would be lost when JAX rebuilds the instance. Name it in one of them; or in drop_fields, if it may be "
                "lost"
            )
