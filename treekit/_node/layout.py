"""The layout of a class that treekit registers: its fields, and how its instances are flattened and rebuilt."""

import contextlib
import threading
from collections.abc import Collection, Generator, Sequence
from types import SimpleNamespace
from typing import Any

from treekit._base.jax import jtu
from treekit._base.layouts import LAYOUT, layout_of
from treekit._node.allowed import already_a_node, is_slot, undeclared
from treekit._node.creation import Creation
from treekit._node.generate import generate_flatten, generate_rebuild
from treekit._node.pickling import attributes_of, copies_in_its_own_way, deepcopy_node
from treekit._node.static import STATIC, Interned, StaticFields


class Layout:
    """The fields of a class, and the functions that flatten and rebuild its instances.

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
        flatten: from an instance to (children, static).
        flatten_with_keys: from an instance to (pairs of key path entry and child, static).
        rebuild: from (static, children) to an instance.
    """

    def __init__(
        self,
        cls: type[Any],
        names: Sequence[str],
        meta: Collection[str],
        creation: Creation | None,
        dropped: Collection[str] = (),
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

    def check_attributes_are_fields(self, x: object) -> None:
        """Raise a TypeError if an instance has an attribute that rebuilding it would lose."""
        for name in undeclared(self.cls, (*self.names, *self.dropped), attributes_of(x)):
            raise TypeError(
                f"{self.cls.__qualname__}.{name} is neither in data_fields nor in meta_fields of register_node, so it "
                "would be lost when JAX rebuilds the instance. Name it in one of them; or in drop_fields, if it may be "
                "lost"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # The layout of a class pickled by value is registered again in the process that loads it.
        return register, (self.cls, self.names, self.meta, self.creation, self.dropped)


def register(
    cls: type[Any],
    names: Sequence[str],
    meta: Collection[str],
    creation: Creation | None,
    dropped: Collection[str] = (),
) -> Layout:
    """Register a class as a pytree node, unless treekit has, and return its layout. Use it in `rollback_on_error`."""
    with registering:
        known: Layout | None = layout_of(cls)
        if known:
            return known
        layout = Layout(cls, names, meta, creation, dropped)
        if creation is None and not copies_in_its_own_way(cls):
            cls.__deepcopy__ = deepcopy_node
        setattr(cls, LAYOUT, layout)
        # What `flatten` reads from an instance that has cached nothing yet. Its owner is not `cls`, so it is not used.
        setattr(cls, STATIC, SimpleNamespace(owner=None, values=()))
        try:
            jtu.register_pytree_with_keys(cls, layout.flatten_with_keys, layout.rebuild, layout.flatten)
        except ValueError as error:
            raise already_a_node(cls, "JAX") from error
        return layout


registering = threading.RLock()


@contextlib.contextmanager
def rollback_on_error(cls: type[Any]) -> Generator[None]:
    """Undo all changes to a class if making it a node fails; only one thread runs this at a time."""
    with registering:
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
