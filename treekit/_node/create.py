"""Create instances of a class made by `@node`: run its own code once, check the fields, and freeze the instance."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import wadler_lindig

from treekit._base.layouts import layout_of
from treekit._node.allowed import undeclared
from treekit._node.captured import check_captured
from treekit._node.copy_arguments import copy_arguments
from treekit._node.creation import Creation
from treekit._node.layout import Layout
from treekit._node.pickling import PICKLING
from treekit._node.static import STATIC
from treekit._text.describe import describe_function
from treekit._types.fields import check_created

_pretty: Any = wadler_lindig  # its keyword arguments have no types
# The ids of the instances whose __init__ is running. Only these can be assigned to, in this thread and in others.
_building: set[int] = set()


def _is_building(x: object) -> bool:
    return id(x) in _building


def node_methods(cls: type[Any], *, pickling: bool) -> dict[str, Any]:
    """Return the methods that make a frozen dataclass a node; with `pickling`, also those that copy and pickle it."""
    methods: dict[str, Any] = {
        "__init__": _creating(cls),
        "__setattr__": _set_attribute,
        "__delattr__": _delete_attribute,
        "__repr__": _represent,
    }
    return methods | PICKLING if pickling else methods


# Executed with the globals of the class's own `__init__`, in which jaxtyping and others resolve annotations that are
# strings: a function that is defined here has the globals of this module.
_INIT_SOURCE = """
def make(create, cls, init):
    def __init__(self, /, *args, **kwargs):
        create(cls, init, self, args, kwargs)

    return __init__
"""


def _creating(cls: type[Any]) -> Callable[..., None]:
    """Return the `__init__` of a node class: its own, wrapped in the steps of creation."""
    init: Callable[..., None] = cls.__init__
    scope: dict[str, Any] = {}
    exec(_INIT_SOURCE, getattr(init, "__globals__", {}), scope)
    out: Callable[..., None] = functools.wraps(init)(scope["make"](_create, cls, init))
    out.__doc__ = init.__doc__ or _inherited_doc(cls)
    return out


def _inherited_doc(cls: type[Any]) -> str | None:
    """Return the docstring of the first base's `__init__` that has one."""
    inits: list[Any] = [vars(base).get("__init__") for base in cls.__mro__[1:-1]]  # without `object`
    return next((init.__doc__ for init in inits if init is not None and init.__doc__), None)


def _create(
    cls: type[Any], init: Callable[..., None], self: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Do what a call of the `__init__` of a class means for an instance: the first of these rows.

    | the instance | what happens |
    |---|---|
    | is being created: a subclass calls `super().__init__` | its code runs; the subclass does the rest |
    | is finished, or of a subclass that is not a node itself | an error |
    | is new, of a class that IPython's %autoreload has replaced | it is created as one of the new class |
    | is new | its code runs, and it is finished |

    It is finished if it has all of its fields: a `__new__` may have set some attributes.
    """
    layout: Layout | None = layout_of(cls)  # None if the class is not one of `@node` any more
    if _is_building(self):
        init(self, *args, **kwargs)
    elif layout is None or layout.creation is None or type(self) is not cls or _has_fields(self, layout):
        raise _frozen(self, "initialized again")
    elif layout.cls is not cls:
        # %autoreload has executed the class again, put the attributes of the new one into the old one, and made the
        # instances of the old one those of the new one. So a reference to the old class creates those of the new one.
        object.__setattr__(self, "__class__", layout.cls)
        layout.cls.__init__(self, *args, **kwargs)
    else:
        _create_new(layout, layout.creation, init, self, args, kwargs)


def _has_fields(self: object, layout: Layout) -> bool:
    return bool(vars(self)) and not _missing(self, layout)


def _missing(self: object, layout: Layout) -> list[str]:
    return [name for name in layout.names if name not in vars(self)]


def _create_new(
    layout: Layout,
    creation: Creation,
    init: Callable[..., None],
    self: object,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    copied_args, copied_kwargs = copy_arguments(args, kwargs, creation.uncopied)
    copied_kwargs.pop(STATIC, None)  # which cls(**vars(other)) passes, as what is cached on `other`
    _building.add(id(self))
    try:
        init(self, *copied_args, **copied_kwargs)
    finally:
        _building.discard(id(self))
    vars(self).pop(STATIC, None)  # which is cached already if `__init__` has flattened the instance
    _finish(self, layout, creation)
    if creation.checked:
        check_created(self)
    for base in layout.cls.__mro__:  # as in Equinox, that of each base runs: none of them overrides another
        if "__check_init__" in vars(base):
            vars(base)["__check_init__"](self)


def _finish(self: object, layout: Layout, creation: Creation) -> None:
    """Set defaults, apply converters, and check that the fields are those declared and allowed."""
    attributes = vars(self)
    for name, default in creation.defaults.items():
        attributes.setdefault(name, default)
    for name, convert in creation.converters.items():
        if name in attributes:
            try:
                attributes[name] = convert(attributes[name])
            except Exception as error:
                error.add_note(f"This happened in the converter of {layout.cls.__qualname__}.{name}")
                raise
    _check_attributes(self, layout)
    check_captured(self, _is_building)
    layout.freeze_attributes(self)


def _check_attributes(self: object, layout: Layout) -> None:
    """Raise a TypeError unless the attributes of an instance are exactly the fields."""
    cls, names, attributes = layout.cls, layout.names, vars(self)
    if missing := _missing(self, layout):
        raise TypeError(f"creating {cls.__qualname__} left {', '.join(missing)} unset. Set every field (None will do)")
    extra = undeclared(cls, names, attributes) if len(attributes) > len(names) else ()
    for name in extra:
        value: object = attributes[name]
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__name__
        raise TypeError(
            f"creating {cls.__qualname__} set {name}, which is not a field, so it would be lost when JAX rebuilds the "
            f"instance. Declare it in the class body: `{name}: {kind}`, with field(static=True) if it is part of the "
            "structure"
        )
    for name in layout.slots:
        if _is_set(self, name):
            base = next(base for base in cls.__mro__ if name in vars(base))
            raise TypeError(
                f"creating {cls.__qualname__} set {name}, which is in the __slots__ of {base.__qualname__} and not a "
                "field, so it would be lost when JAX rebuilds the instance. Take it out of the __slots__ and declare "
                f"it in the class body of {cls.__qualname__}; or use register_node, whose classes may have slots"
            )


def _is_set(self: object, slot: str) -> bool:
    try:
        object.__getattribute__(self, slot)  # not a `__getattr__` of the class
    except AttributeError:
        return False
    return True


def _frozen(self: object, done: str) -> TypeError | dataclasses.FrozenInstanceError:
    cls = type(self)
    layout: Layout | None = layout_of(cls)
    if layout is None:
        return TypeError(f"{cls.__qualname__} extends a node but is not a node itself: decorate it with @node too")
    if missing := _missing(self, layout):
        return dataclasses.FrozenInstanceError(
            f"a {cls.__qualname__} cannot be {done}. This one has no {missing[0]}, so the __init__ that @node prepared "
            "has not created it. Set attributes in __init__, and not in __new__. If __init__ was replaced, as by "
            "IPython's %autoreload when you edit it, define the class again: reload its module, or restart"
        )
    return dataclasses.FrozenInstanceError(
        f"{cls.__qualname__} is finished once it is created, and cannot be {done}; make another one with "
        "treekit.replace or treekit.tree_at"
    )


def _set_attribute(self: object, name: str, value: object) -> None:
    # `A[int](...)` sets `__orig_class__` on the new instance. It is not a field, and a rebuilt node does not have it.
    if not _is_building(self) and name != "__orig_class__":
        raise _frozen(self, f"changed: {name} was set")
    object.__setattr__(self, name, value)


def _delete_attribute(self: object, name: str) -> None:
    if not _is_building(self):
        raise _frozen(self, f"changed: {name} was deleted")
    object.__delattr__(self, name)


def _represent(self: object) -> str:
    text: str = _pretty.pformat(self, custom=_represent_leaf, hide_defaults=False)
    return text


def _represent_leaf(x: object) -> wadler_lindig.AbstractDoc | None:
    if isinstance(x, jax.Array):
        return wadler_lindig.array_summary(x.shape, str(x.dtype), None)
    name = describe_function(x)
    return wadler_lindig.TextDoc(name) if name else None
