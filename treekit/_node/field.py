"""field: the options of one field of a node."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, overload

from treekit._node.layout import COPY

T = TypeVar("T")


@overload
def field(
    *,
    default: T,
    init: bool = True,
    repr: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: Callable[[Any], Any] | None = None,
    copy: bool = True,
) -> T: ...
@overload
def field(
    *,
    default_factory: Callable[[], T],
    init: bool = True,
    repr: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: Callable[[Any], Any] | None = None,
    copy: bool = True,
) -> T: ...
@overload
def field(
    *,
    init: bool = True,
    repr: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: Callable[[Any], Any] | None = None,
    copy: bool = True,
) -> Any: ...
def field(
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    init: bool = True,
    repr: bool = True,
    kw_only: Any = dataclasses.MISSING,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: Callable[[Any], Any] | None = None,
    copy: bool = True,
) -> Any:
    """Options of one field of a `node`: those of `dataclasses.field`, and three more.

    Args:
        default: as in `dataclasses.field`, like the next five.
        default_factory: called for each instance; an array as a default goes here.
        init: whether the field is an argument of the generated `__init__`.
        repr: whether `repr` shows it.
        kw_only: whether that argument is keyword-only.
        metadata: for anyone's use; `static` and `converter` in it mean what they mean here (and in JAX and Equinox),
            and `pytree_node=False` what it means in Flax: static.
        static: the value is part of the structure, not a leaf: it must be hashable and hold no array, and `jit`
            compiles a function anew for each value. Numbers, containers, mappings, dataclasses, ranges, slices and
            signatures are compared by exact type and part by part, numbers by their `repr` too: 1 and 1.0 differ, also
            inside a tuple. Other values are compared by type and `==`.
        converter: the value after `__init__` goes through it, once; a default too.
        copy: False hands a container that is given for this field to `__init__` as it is, uncopied.

    Returns:
        A dataclass field.

    >>> from treekit import node
    >>> @node
    ... class Scale:
    ...     factor: float = field(converter=float)
    ...     name: str = field(default="scale", static=True)
    >>> Scale(2)
    Scale(factor=2.0, name='scale')
    """
    extra: dict[str, Any] = {}
    if static:
        extra["static"] = True
    if converter is not None:
        extra["converter"] = converter
    if not copy:
        extra[COPY] = False
    # dataclasses.field has an overload for each default; here one call serves all.
    make = cast(Callable[..., Any], dataclasses.field)
    return make(
        default=default,
        default_factory=default_factory,
        init=init,
        repr=repr,
        kw_only=kw_only,
        metadata={**(metadata or {}), **extra},
    )


def is_static(f: "dataclasses.Field[Any]") -> bool:
    """As JAX and Equinox write it, or as Flax does: a class may be half ported."""
    return bool(f.metadata.get("static")) or not f.metadata.get("pytree_node", True)
