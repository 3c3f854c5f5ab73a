"""What a class must be to become a node, and leaving it as it was if it cannot."""

import contextlib
import inspect
import keyword
import threading
import types
from collections.abc import Collection, Generator, Iterable
from typing import Any

from treekit._jax import jtu
from treekit._node.intern import LAYOUT

registering = threading.RLock()


@contextlib.contextmanager
def rollback_on_error(cls: type[Any]) -> Generator[None]:
    """Leave a class as it was where making it a node fails; one thread at a time."""
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


def check_free(cls: Any) -> None:
    """Raise a TypeError unless a class can be made a node: no node yet, and made by `object.__new__`."""
    if not inspect.isclass(cls):
        raise TypeError(f"a node is made of a class, found {cls!r}")
    if LAYOUT in vars(cls):
        raise already_a_node(cls, "treekit")
    if inspect.isabstract(cls):
        return  # it has no instances to ask
    try:
        blank = object.__new__(cls)
    except TypeError as error:
        raise TypeError(
            f"{cls.__qualname__} cannot be a node: it extends a class written in C, which has to make its instances "
            f"itself ({error}). Hold such an object in a field instead"
        ) from error
    if not jtu.all_leaves([blank]):  # which runs no flatten function
        raise already_a_node(cls, "JAX")


def already_a_node(cls: type[Any], by: str) -> TypeError:
    return TypeError(
        f"{cls.__qualname__} is a pytree node already, registered with {by}. A class can be registered only once; take "
        "the other registration (or the base class that does it) away"
    )


def check_names(cls: type[Any], names: Iterable[object]) -> None:
    """Raises a TypeError for a name that no attribute can have: the names are written into code."""
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise TypeError(f"field {name!r} of {cls.__qualname__} is no attribute name")


def check_fields(cls: type[Any], names: Collection[str], *, slots: bool) -> None:
    """Raise a TypeError unless every field can be read and set with no code of the class running.

    Args:
        cls: the class.
        names: its fields.
        slots: whether a field may be one of the class's `__slots__`.
    """
    check_names(cls, names)
    for name in names:
        where = f"field {name!r} of {cls.__qualname__}"
        attribute: object = inspect.getattr_static(cls, name, None)
        if hasattr(type(attribute), "__set__") and not isinstance(attribute, types.MemberDescriptorType):
            raise TypeError(f"{where} is a {type(attribute).__name__}; name the attribute that it stores its value in")
        if isinstance(attribute, types.MemberDescriptorType) and not slots:
            raise TypeError(f"{where} is one of its __slots__, and node keeps fields in a __dict__; use register_node")
        if not cls.__dictoffset__ and not isinstance(attribute, types.MemberDescriptorType):
            raise TypeError(f"{where} is none of its __slots__, and its instances have no __dict__")
