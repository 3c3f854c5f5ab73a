"""May a class be a node, and may these attributes be its fields?"""

import inspect
import keyword
import types
from collections.abc import Collection, Iterable
from typing import Any

from treekit._base.jax import jtu
from treekit._base.layouts import LAYOUT


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
        is_in_slots = is_slot(cls, name)
        if hasattr(type(attribute), "__set__") and not is_in_slots:
            raise TypeError(
                f"{where} is of type {type(attribute).__name__}; name the attribute that it stores its value in"
            )
        if is_in_slots and not slots:
            raise TypeError(f"{where} is one of its __slots__, and node stores fields in a __dict__; use register_node")
        if not (is_in_slots or cls.__dictoffset__):
            raise TypeError(f"{where} is not one of its __slots__, and its instances have no __dict__")


def is_slot(cls: type[Any], name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), types.MemberDescriptorType)


def undeclared(cls: type[Any], names: Collection[str], attributes: Iterable[str]) -> list[str]:
    """Return the attributes that are not fields, apart from what Python stores on instances.

    A `functools.cached_property` stores its value under its own name, and `A[int](...)` stores `__orig_class__`.
    """

    def is_stored_by_python(name: str) -> bool:
        attribute: object = inspect.getattr_static(cls, name, None)
        return name == "__orig_class__" or hasattr(type(attribute), "__set_name__")

    return [name for name in attributes if name not in names and not is_stored_by_python(name)]
