"""`node` and `field`: make a class a frozen dataclass and a pytree node, and give its fields options."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypedDict, TypeVar, Unpack, cast, dataclass_transform, overload

import jax
import numpy as np

from treekit._base.functions import holds_its_values
from treekit._base.layouts import TRAINABLE, layout_of
from treekit._base.tree import children_or_none, reachable
from treekit._node.allowed import check_fields, check_free, check_names
from treekit._node.create import node_methods
from treekit._node.creation import COPY, Creation
from treekit._node.layout import register, rollback_on_error
from treekit._node.pickling import copies_in_its_own_way
from treekit._node.replace import replace
from treekit._text.arguments import check_bool
from treekit._text.describe import describe_value

T = TypeVar("T")


class _Options(TypedDict, total=False):
    init: bool
    repr: bool
    kw_only: bool
    metadata: Mapping[str, Any] | None
    static: bool
    copy: bool
    trainable: bool


@overload
def field(
    *,
    default: object = ...,  # is converted too
    default_factory: Callable[[], object] = ...,
    converter: Callable[[Any], Any],
    **options: Unpack[_Options],
) -> Any: ...
@overload
def field(*, default: T, converter: None = None, **options: Unpack[_Options]) -> T: ...
@overload
def field(*, default_factory: Callable[[], T], converter: None = None, **options: Unpack[_Options]) -> T: ...
@overload
def field(*, converter: None = None, **options: Unpack[_Options]) -> Any: ...
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
    """Set the options of one field of a `node`: those of `dataclasses.field` but `hash` and `compare`, and four more.

    Args:
        default: this and the next five are as in `dataclasses.field`.
        default_factory: called for each instance; use it for defaults that are arrays.
        init: whether the field is an argument of the generated `__init__`.
        repr: whether `repr` shows it.
        kw_only: whether that argument is keyword-only.
        metadata: your own data; `static` and `converter` in it have the same effect as the arguments (as in JAX and
            Equinox), and `pytree_node=False`, as in Flax, makes the field static.
        static: the value is part of the structure, not a leaf. It must be hashable and contain no arrays, and `jit`
            compiles again for each value. Numbers, containers, mappings, dataclasses, ranges and slices are compared
            by exact type and part by part, mappings in order, and numbers by their `repr` too: 1 and 1.0 differ, also
            inside a tuple. Other values are compared by type and `==`, and must not change.
        converter: called once with the value of the field, or its default, after `__init__`.
        copy: False passes a container for this field to `__init__` uncopied.
        trainable: False declares a buffer, such as running statistics: every optimizer of `treekit.optax` leaves its
            arrays out, so they have no state, no update and no weight decay. `treekit.trainable` is False for them.

    Returns:
        A dataclass field.

    Raises:
        TypeError: `static` is True and `trainable` False; an option that is a bool is something else; or
            `default_factory` is not a function.

    >>> from treekit import node
    >>> @node
    ... class Scale:
    ...     factor: float = field(converter=float)
    ...     name: str = field(default="scale", static=True)
    >>> Scale(2)
    Scale(factor=2.0, name='scale')
    """
    for name, option in dict(init=init, repr=repr, static=static, copy=copy, trainable=trainable).items():
        check_bool(f"field: {name}", option)
    if default_factory is not dataclasses.MISSING and not callable(default_factory):
        raise TypeError(
            "field: default_factory must be a function, called for each instance; found "
            f"{describe_value(default_factory)}: write default_factory=lambda: ..."
        )
    given = metadata or {}
    if (static or given.get("static") or not given.get("pytree_node", True)) and not trainable:
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
        metadata={**given, **extra},
    )


@overload
def node(cls: type[T], /) -> type[T]: ...
@overload
def node(
    cls: None = None,
    /,
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = False,
    order: bool = False,
    kw_only: bool = False,
    check: bool = False,
) -> Callable[[type[T]], type[T]]: ...
# Not frozen_default=True, with which checkers forbid `self.x = ...` in `__init__` too.
@dataclass_transform(field_specifiers=(field, dataclasses.field), eq_default=False)
def node(
    cls: object = None,
    /,
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = False,
    order: bool = False,
    kw_only: bool = False,
    check: bool = False,
) -> Any:
    """Make a class a frozen dataclass that is a pytree node.

    Calling the class runs its code once: `__init__` and `__post_init__`, which may assign to `self.x`, then converters,
    then the `__check_init__` of each class that has one. Rebuilding (unflatten, copy, pickle, `replace`) runs none of
    it.

    jaxtyping's `@jaxtyped` belongs above `@node`: below, it gets a class that is not a dataclass yet, and silently
    checks nothing.

    Args:
        cls: the class, if the decorator is used without arguments.
        init: whether to generate `__init__`; one in the class body is kept either way. A class that declares no fields
            keeps the handwritten one of its base (for type checkers, say so with `init=False`).
        repr: whether to generate `__repr__`.
        eq: compare by fields instead of by identity.
        order: also generate `<` and the other comparisons; needs `eq=True`.
        kw_only: make all fields keyword-only.
        check: check the fields against their annotations, as `check_types` does, whenever an instance is created: after
            `__init__`, defaults and converters, and before `__check_init__`. Rebuilding is not checked.

    Returns:
        The class itself.

    Raises:
        TypeError: when decorating, if the class is already a node or cannot be one, or has an array without an
            annotation, which would not be a field; the class is left unchanged. When creating an instance, if a field
            is not set, an attribute is not a field, a static value is not hashable or contains an array, a subclass is
            not decorated itself, or, with `check=True`, a field does not match its annotation; the message names class
            and field.
        dataclasses.FrozenInstanceError: an attribute of a finished instance is set or deleted.

    >>> import jax
    >>> @node
    ... class Dense:
    ...     weight: jax.Array
    ...     name: str = field(static=True)
    >>> dense = Dense(jax.numpy.ones((2, 3)), "out")
    >>> dense
    Dense(weight=f32[2,3], name='out')
    >>> jax.tree.map(jax.numpy.shape, dense)
    Dense(weight=(2, 3), name='out')
    """
    for name, option in dict(init=init, repr=repr, eq=eq, order=order, kw_only=kw_only, check=check).items():
        check_bool(f"node: {name}", option)
    decorate = functools.partial(_make_node, init=init, repr=repr, eq=eq, order=order, kw_only=kw_only, check=check)
    return decorate if cls is None else decorate(cls)


def _make_node(cls: Any, *, init: bool, repr: bool, eq: bool, order: bool, kw_only: bool, check: bool) -> Any:
    check_free(cls)
    if not cls.__dictoffset__:
        raise TypeError(f"{cls.__qualname__} has __slots__ and no __dict__, which node needs; use register_node")
    own: dict[str, Any] = dict(cls.__dict__)
    check_names(cls, own.get("__annotations__", ()))  # before dataclasses generates code with them
    generated = init and "__init__" not in own
    with rollback_on_error(cls):
        dataclasses.dataclass(frozen=True, repr=False, init=generated, eq=eq, order=order, kw_only=kw_only)(cls)
        if generated and _keeps_init(cls):  # which reads the fields that `dataclass` has just found
            del cls.__init__
            generated = False
        _check_class_attributes(cls, own)
        fields = dataclasses.fields(cls)
        check_fields(cls, [f.name for f in fields], slots=False)
        if generated:
            _relax_annotations(cls.__init__, [f.name for f in fields if f.metadata.get("converter")])
        remembers = not copies_in_its_own_way(cls)
        methods = node_methods(cls, pickling=remembers)
        if "__replace__" not in own:
            methods["__replace__"] = replace
        if "__repr__" in own or not repr:
            del methods["__repr__"]
        creation = Creation.of(fields, methods["__init__"], remembers=remembers, generated=generated, checked=check)
        for name, method in methods.items():
            setattr(cls, name, method)
        register(cls, [f.name for f in fields], [f.name for f in fields if is_static(f)], creation)
    return cls


def _check_class_attributes(cls: Any, own: Mapping[str, Any]) -> None:
    """Raise a TypeError if a class has an array that is not a field, since it has no annotation."""

    def is_array(x: object) -> bool:
        return isinstance(x, (jax.Array, np.ndarray))

    def parts_of(x: object) -> list[Any]:
        return list(x.values()) if holds_its_values(x) else list(children_or_none(x) or ())

    for name, value in own.items():
        if name not in cls.__dataclass_fields__ and any(map(is_array, reachable(value, parts_of))):
            kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
            raise TypeError(
                f"{cls.__qualname__}.{name} is or contains an array, but has no annotation, so it is not a field: JAX "
                f"does not see it, and it is not trained. Annotate it, `{name}: {kind}`, with "
                f"field(default_factory=...) for a default; or `{name}: ClassVar[{kind}] = ...` for a constant"
            )


def _keeps_init(cls: type[Any]) -> bool:
    """Whether a class adds no fields and inherits a handwritten `__init__`."""
    # `dataclass` gives a class the fields that it inherits as the same objects.
    inherited = [f for base in cls.__mro__[1:] for f in vars(base).get("__dataclass_fields__", {}).values()]
    declared = [f for f in vars(cls)["__dataclass_fields__"].values() if not any(f is g for g in inherited)]
    return not declared and _is_init_by_hand(cls.__mro__[1:])


def _is_init_by_hand(bases: Sequence[type[Any]]) -> bool:
    """Whether the first `__init__` in these classes is handwritten."""
    for base in bases:
        # A protocol has one that typing generates.
        if isinstance(vars(base).get("__init__"), FunctionType) and not getattr(base, "_is_protocol", False):
            if (layout := layout_of(base)) and layout.creation:
                return not layout.creation.generated
            options: Any = vars(base).get("__dataclass_params__")
            return options is None or not options.init
    return False


def is_static(f: "dataclasses.Field[Any]") -> bool:
    """Whether a field is static, in the notation of JAX and Equinox or of Flax."""
    return bool(f.metadata.get("static")) or not f.metadata.get("pytree_node", True)


def _relax_annotations(init: object, names: Iterable[str]) -> None:
    """Annotate these arguments as `Any` for run-time checkers such as jaxtyping, since converters take any type."""
    init.__annotations__ = {**init.__annotations__, **dict.fromkeys(names, Any)}
