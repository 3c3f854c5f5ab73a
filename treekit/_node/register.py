"""`register_node`: make an existing class a pytree node."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, overload

from treekit._base.layouts import layout_of
from treekit._node.allowed import check_fields, check_free
from treekit._node.decorator import is_static
from treekit._node.layout import register, rollback_on_error

T = TypeVar("T")


@overload
def register_node(
    cls: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[T]: ...
@overload
def register_node(
    cls: None = None,
    *,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Callable[[type[T]], type[T]]: ...
def register_node(
    cls: type[Any] | None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Any:
    """Make an existing class a pytree node that JAX rebuilds without running its code. Also a decorator.

    The class keeps its `__init__`, its `__setattr__` and its mutability. The lists name all attributes of its
    instances, apart from what a `functools.cached_property` stores.

    Args:
        cls: any class written in Python, such as a dataclass or one with `__slots__`.
        data_fields: the attributes that are children, as in `jax.tree_util.register_dataclass`.
        meta_fields: the attributes that are static: hashable, without arrays. A dataclass needs neither list: its
            fields are data, except those with `static=True` in their metadata.
        drop_fields: the attributes that are neither, such as a cache, as in `register_dataclass`. An instance that JAX
            rebuilds has the default of such a field of a dataclass, and lacks any other such attribute.

    Returns:
        The class itself.

    Raises:
        TypeError: the class is already a node or cannot be one; a name is not a valid attribute name, occurs twice or
            is a property; or a field of the dataclass is in none of the lists. The class is then not registered.
            Flattening an instance raises one if it lacks a data or meta field, or has an attribute that is not named.

    >>> import jax
    >>> @register_node(data_fields=["table"], meta_fields=[])
    ... class Squares:
    ...     def __init__(self, n):
    ...         self.table = [i * i for i in range(n)]
    >>> jax.tree.map(lambda x: x + 1, Squares(3)).table
    [1, 2, 5]
    """
    if cls is None:
        return functools.partial(_register, data_fields=data_fields, meta_fields=meta_fields, drop_fields=drop_fields)
    return _register(cls, data_fields, meta_fields, drop_fields)


def _register(cls: type[Any], data_fields: object, meta_fields: object, drop_fields: object) -> type[Any]:
    check_free(cls)
    for base in cls.__mro__[1:]:
        if (layout := layout_of(base)) and layout.creation:
            raise TypeError(f"{cls.__qualname__} extends the node {base.__qualname__}: decorate it with @node instead")
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    dropped = _field_names(cls, "drop_fields", drop_fields)
    if data_fields is None and meta_fields is None and dataclasses.is_dataclass(cls):
        data_fields = [f.name for f in fields if not is_static(f) and f.name not in dropped]
        meta_fields = [f.name for f in fields if is_static(f) and f.name not in dropped]
    data = _field_names(cls, "data_fields", data_fields)
    meta = _field_names(cls, "meta_fields", meta_fields)
    names = [*data, *meta, *dropped]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(
            f"{cls.__qualname__}: {', '.join(twice)} occurs twice in data_fields, meta_fields and drop_fields"
        )
    if missing := [f.name for f in fields if f.name not in names]:
        raise TypeError(
            f"{cls.__qualname__}: {', '.join(missing)} is in none of data_fields, meta_fields and drop_fields"
        )
    check_fields(cls, names, slots=True)
    with rollback_on_error(cls):
        register(cls, [*data, *meta], meta, None, dropped)
    return cls


def _field_names(cls: type[Any], argument: str, names: object) -> tuple[str, ...]:
    if isinstance(names, Sequence) and not isinstance(names, str):
        given = tuple(cast(Sequence[object], names))
        if all(isinstance(name, str) for name in given):
            return cast(tuple[str, ...], given)
    raise TypeError(
        f"{cls.__qualname__}: {argument} must be a list of attribute names, found {names!r}. Pass data_fields and "
        "meta_fields; only a dataclass needs neither"
    )
