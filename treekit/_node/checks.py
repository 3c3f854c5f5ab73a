"""Check that a class can become a node, and leave it unchanged if it cannot."""

import contextlib
import inspect
import keyword
import threading
import types
from collections.abc import Collection, Generator, Iterable
from typing import Any

from treekit._base.describe import with_article
from treekit._base.jax import jtu
from treekit._base.layouts import LAYOUT

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


def check_free(cls: object) -> None:
    """Raise a TypeError unless a class can become a node: it is not one yet, and `object.__new__` can create it."""
    if not inspect.isclass(cls):
        raise TypeError(f"only a class can become a node, found {cls!r}")
    if LAYOUT in vars(cls):
        raise already_a_node(cls, "treekit")
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
        raise already_a_node(cls, "JAX")


def already_a_node(cls: type[Any], by: str) -> TypeError:
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
            raise TypeError(
                f"{where} is {with_article(type(attribute).__name__)}; name the attribute that it stores its value in"
            )
        if isinstance(attribute, types.MemberDescriptorType) and not slots:
            raise TypeError(f"{where} is one of its __slots__, and node stores fields in a __dict__; use register_node")
        if not cls.__dictoffset__ and not isinstance(attribute, types.MemberDescriptorType):
            raise TypeError(f"{where} is not one of its __slots__, and its instances have no __dict__")
