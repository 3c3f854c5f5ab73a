"""`node`: a class decorator that makes a class a frozen dataclass and a pytree node."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, dataclass_transform, overload

from treekit._base.layouts import layout_of
from treekit._node.checks import check_fields, check_free, check_names, rollback_on_error
from treekit._node.create import node_methods, relax_annotations
from treekit._node.field import field, is_static
from treekit._node.layout import Creation, register
from treekit._node.replace import replace

T = TypeVar("T")


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
        TypeError: when decorating, if the class is already a node or cannot be one, or has `@jaxtyped` below `@node`;
            the class is left unchanged. When creating an instance, if a field is not set, an attribute is not a field,
            a static value is not hashable or contains an array, a subclass is not decorated itself, or, with
            `check=True`, a field does not match its annotation; the message names class and field.
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
        if generated and _keeps_init(cls):
            del cls.__init__
            generated = False
        fields = dataclasses.fields(cls)
        check_fields(cls, [f.name for f in fields], slots=False)
        if generated:
            relax_annotations(cls.__init__, [f.name for f in fields if f.metadata.get("converter")])
        methods = node_methods(cls)
        if "__replace__" not in own:
            methods["__replace__"] = replace
        if "__repr__" in own or not repr:
            del methods["__repr__"]
        remembers = "__reduce__" in methods
        creation = Creation.of(fields, methods["__init__"], remembers=remembers, generated=generated, checked=check)
        for name, method in methods.items():
            setattr(cls, name, method)
        register(cls, [f.name for f in fields], [f.name for f in fields if is_static(f)], creation)
    return cls


def _keeps_init(cls: type[Any]) -> bool:
    """Whether a class adds no fields and inherits a handwritten `__init__`."""
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
