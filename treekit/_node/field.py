"""`field`: the options of one field of a node."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, overload

from treekit._node.layout import COPY

T = TypeVar("T")

TRAINABLE = "trainable"  # the key in a field's metadata


@overload
def field(
    *,
    default: object = ...,  # is converted too
    default_factory: Callable[[], object] = ...,
    init: bool = True,
    repr: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: Callable[[Any], Any],
    copy: bool = True,
    trainable: bool = True,
) -> Any: ...
@overload
def field(
    *,
    default: T,
    init: bool = True,
    repr: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: None = None,
    copy: bool = True,
    trainable: bool = True,
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
    converter: None = None,
    copy: bool = True,
    trainable: bool = True,
) -> T: ...
@overload
def field(
    *,
    init: bool = True,
    repr: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: None = None,
    copy: bool = True,
    trainable: bool = True,
) -> Any: ...
def field(
    *,
    default: object = dataclasses.MISSING,
    default_factory: object = dataclasses.MISSING,
    init: bool = True,
    repr: bool = True,
    kw_only: object = dataclasses.MISSING,
    metadata: Mapping[str, Any] | None = None,
    static: bool = False,
    converter: Callable[[Any], Any] | None = None,
    copy: bool = True,
    trainable: bool = True,
) -> Any:
    """Set the options of one field of a `node`: those of `dataclasses.field`, and four more.

    Args:
        default: this and the next five are as in `dataclasses.field`.
        default_factory: called for each instance; use it for defaults that are arrays.
        init: whether the field is an argument of the generated `__init__`.
        repr: whether `repr` shows it.
        kw_only: whether that argument is keyword-only.
        metadata: your own data; `static` and `converter` in it have the same effect as the arguments (as in JAX and
            Equinox), and `pytree_node=False`, as in Flax, makes the field static.
        static: the value is part of the structure, not a leaf. It must be hashable and contain no arrays, and `jit`
            compiles again for each value. Numbers, containers, mappings, dataclasses, ranges, slices and signatures
            are compared by exact type and part by part, and numbers by their `repr` too: 1 and 1.0 differ, also inside
            a tuple. Other values are compared by type and `==`.
        converter: called once with the value of the field, or its default, after `__init__`.
        copy: False passes a container for this field to `__init__` uncopied.
        trainable: False declares a buffer, such as running statistics: every optimizer of `treekit.optax` leaves its
            arrays out, so they have no state, no update and no weight decay. `treekit.trainable` is False for them.

    Returns:
        A dataclass field.

    Raises:
        TypeError: `static` is True and `trainable` False.

    >>> from treekit import node
    >>> @node
    ... class Scale:
    ...     factor: float = field(converter=float)
    ...     name: str = field(default="scale", static=True)
    >>> Scale(2)
    Scale(factor=2.0, name='scale')
    """
    if static and not trainable:
        raise TypeError("field(static=True, trainable=False): a static value is not a leaf, so it is never trained")
    extra: dict[str, Any] = {}
    if static:
        extra["static"] = True
    if converter is not None:
        extra["converter"] = converter
    if not copy:
        extra[COPY] = False
    if not trainable:
        extra[TRAINABLE] = False
    # dataclasses.field has one overload for each kind of default; this call passes all of them on.
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
    """Whether a field is static, in the notation of JAX and Equinox or of Flax."""
    return bool(f.metadata.get("static")) or not f.metadata.get("pytree_node", True)
