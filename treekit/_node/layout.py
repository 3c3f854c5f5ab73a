"""The layout of a class that treekit registers: how its instances are flattened and rebuilt, and its registration."""

import contextlib
import threading
from collections.abc import Collection, Generator, Sequence
from types import SimpleNamespace
from typing import Any

from treekit._base.jax import jtu
from treekit._base.layouts import LAYOUT, layout_of
from treekit._node.allowed import already_a_node
from treekit._node.creation import Creation
from treekit._node.field_names import FieldNames
from treekit._node.generate import generate_flatten, generate_rebuild
from treekit._node.pickling import copies_in_its_own_way, deepcopy_node
from treekit._node.static import STATIC


class Layout(FieldNames):
    """The fields of a class, and the functions that flatten and rebuild its instances.

    Attributes:
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
        super().__init__(cls, names, meta, creation, dropped)
        self.flatten, self.flatten_with_keys = generate_flatten(self)
        self.rebuild = generate_rebuild(self)

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
