"""Create instances of a class made by `@node`: run its own code once, check the fields, and freeze the instance."""

import dataclasses
import functools
import itertools
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import wadler_lindig

from treekit._base.describe import describe_function
from treekit._base.jax import jtu
from treekit._base.layouts import layout_of
from treekit._node.layout import Creation, Layout, deepcopy_node, undeclared
from treekit._node.static import FUNCTIONS, STATIC, captured_objects, holds_array, reachable
from treekit._types.fields import check_created

T = TypeVar("T")

_pretty: Any = wadler_lindig  # its keyword arguments have no types
# The ids of the instances whose __init__ is running. Only these can be assigned to, in this thread and in others.
_building: set[int] = set()


def node_methods(cls: type[Any]) -> dict[str, Any]:
    """Return the methods that make a frozen dataclass a node."""
    methods: dict[str, Any] = {
        "__init__": _creating(cls),
        "__setattr__": _set_attribute,
        "__delattr__": _delete_attribute,
        "__repr__": _represent,
    }
    # A class with its own way of pickling keeps it.
    for name in ("__getstate__", "__reduce_ex__", *_PICKLING):
        if getattr(cls, name, None) not in (getattr(object, name, None), _PICKLING.get(name)):
            return methods
    return methods | _PICKLING


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
    # With the globals of the class's `__init__`, in which jaxtyping and others resolve annotations that are strings.
    exec(_INIT_SOURCE, getattr(init, "__globals__", {}), scope)
    out: Callable[..., None] = functools.wraps(init)(scope["make"](_create, cls, init))
    out.__doc__ = init.__doc__ or _inherited_doc(cls)
    return out


def _inherited_doc(cls: type[Any]) -> str | None:
    """Return the docstring of the first base's `__init__` that has one."""
    inits: list[Any] = [vars(base).get("__init__") for base in cls.__mro__[1:-1]]  # without `object`
    return next((init.__doc__ for init in inits if init is not None and init.__doc__), None)


def relax_annotations(init: object, names: Iterable[str]) -> None:
    """Annotate these arguments as `Any` for run-time checkers such as jaxtyping, since converters take any type."""
    init.__annotations__ = {**init.__annotations__, **dict.fromkeys(names, Any)}


def _create(
    cls: type[Any], init: Callable[..., None], self: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    if id(self) in _building:  # called by a subclass through super(), which does the rest
        init(self, *args, **kwargs)
        return
    layout = layout_of(cls)
    if type(self) is not cls or layout is None or layout.creation is None or vars(self):
        raise _frozen(self, "initialized again")
    copied_args, copied_kwargs = copy_arguments(args, kwargs, layout.creation.uncopied)
    copied_kwargs.pop(STATIC, None)  # present in cls(**vars(other))
    _building.add(id(self))
    try:
        init(self, *copied_args, **copied_kwargs)
    finally:
        _building.discard(id(self))
    _finish(self, layout, layout.creation)
    if layout.creation.checked:
        check_created(self)
    for base in cls.__mro__ if hasattr(cls, "__check_init__") else ():
        if "__check_init__" in vars(base):
            vars(base)["__check_init__"](self)


def _finish(self: object, layout: Layout, creation: Creation) -> None:
    """Set defaults, apply converters, and check that the fields are those declared and allowed."""
    attributes = vars(self)
    attributes.pop(STATIC, None)  # cached if the instance was flattened in its `__init__`
    for name, default in creation.defaults.items():
        attributes.setdefault(name, default)
    for name, convert in creation.converters.items():
        if name in attributes:
            try:
                attributes[name] = convert(attributes[name])
            except Exception as error:
                error.add_note(f"This happened in the converter of {layout.cls.__qualname__}.{name}")
                raise
    _check_attributes(layout.cls, layout.names, attributes)
    for name, value in attributes.items():
        if type(value) in _MAY_CARRY:
            _check_captured(self, name, value)
    layout.freeze_attributes(self)


_CONTAINERS: dict[type[Any], Any] = {list: iter, tuple: iter, dict: operator.methodcaller("values")}
_MAY_CARRY = frozenset({*FUNCTIONS, *_CONTAINERS})


def _items(x: object) -> list[Any]:
    """Return the items of a container that may be, or contain, functions."""
    items_of = _CONTAINERS.get(type(x))
    return [item for item in items_of(x) if type(item) in _MAY_CARRY] if items_of else []


def _check_captured(self: object, name: str, value: object) -> None:
    """Raise a TypeError if a function in an attribute captures this node, or another one with arrays."""
    for x in itertools.chain.from_iterable(map(captured_objects, reachable(value, _items))):
        if x is self or id(x) in _building:
            owner = "itself" if x is self else f"the {type(x).__qualname__} that is being created"
            raise TypeError(
                f"creating {type(self).__qualname__} stored a method of {owner}, or a function of one, in {name}: it "
                "belongs to that instance, and would still read its values after JAX has rebuilt it with others. Store "
                f"a function, or make {name} a method that calls it"
            )
        if not jtu.all_leaves([x]) and type(x) not in _CONTAINERS and holds_array(x):
            raise TypeError(
                f"creating {type(self).__qualname__} stored a function in {name} that captures a "
                f"{type(x).__qualname__}, whose arrays JAX does not see there: they would get no gradient, and jit "
                f"would compile them as constants. Store the {type(x).__qualname__}, and call it in a method"
            )


def _check_attributes(cls: type[Any], names: tuple[str, ...], attributes: Mapping[str, Any]) -> None:
    """Raise a TypeError unless the attributes of an instance are exactly the fields."""
    if missing := [name for name in names if name not in attributes]:
        raise TypeError(f"creating {cls.__qualname__} left {', '.join(missing)} unset. Set every field (None will do)")
    for name in undeclared(cls, names, attributes) if len(attributes) > len(names) else ():
        value: object = attributes[name]
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__name__
        raise TypeError(
            f"creating {cls.__qualname__} set {name}, which is not a field, so it would be lost when JAX rebuilds the "
            f"instance. Declare it in the class body: `{name}: {kind}`, with field(static=True) if it is part of the "
            "structure"
        )


def _frozen(self: object, done: str) -> TypeError | dataclasses.FrozenInstanceError:
    cls = type(self)
    if layout_of(cls) is None:
        return TypeError(f"{cls.__qualname__} extends a node but is not a node itself: decorate it with @node too")
    return dataclasses.FrozenInstanceError(
        f"{cls.__qualname__} is finished once it is created, and cannot be {done}; make another one with "
        "treekit.replace or treekit.tree_at"
    )


def _set_attribute(self: object, name: str, value: object) -> None:
    # `A[int](...)` sets `__orig_class__` on the new instance. It is not a field, and a rebuilt node does not have it.
    if id(self) not in _building and name != "__orig_class__":
        raise _frozen(self, f"changed: {name} was set")
    object.__setattr__(self, name, value)


def _delete_attribute(self: object, name: str) -> None:
    if id(self) not in _building:
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


def _blank(cls: type[T]) -> T:
    return object.__new__(cls)


def _fields_of(self: object) -> dict[str, Any]:
    """Return the attributes that are fields, without values that were cached on the instance."""
    layout = layout_of(type(self))
    names = layout.names if layout else ()
    return {name: value for name, value in vars(self).items() if name in names}


def _reduce(self: object) -> tuple[Any, ...]:
    return _blank, (type(self),), _fields_of(self)


def _set_state(self: object, state: Mapping[str, Any]) -> None:
    vars(self).update(state)


# Since __setstate__ and __deepcopy__ are defined, a user's __getattr__ is never called for them.
_PICKLING = {"__reduce__": _reduce, "__setstate__": _set_state, "__deepcopy__": deepcopy_node}


# Exact types: a subclass may have more than its items, so it is passed on uncopied.
_MAPPINGS: frozenset[type[Any]] = frozenset({dict, OrderedDict, defaultdict})
_MUTABLE: frozenset[type[Any]] = _MAPPINGS | {list, deque, set}
_TUPLE: Any = tuple  # typed Any, so that checkers do not infer a tuple of unknown types


def copy_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], keep: frozenset[int | str] = frozenset()
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with containers copied, except those whose position or name is in `keep`."""
    memo: dict[int, Any] = {}  # one for all arguments, so that objects that they share stay shared
    return (
        [x if i in keep else copy_containers(x, memo) for i, x in enumerate(args)],
        {k: x if k in keep else copy_containers(x, memo) for k, x in kwargs.items()},
    )


def copy_containers(x: object, memo: dict[int, Any]) -> Any:
    """Copy the containers in `x`, preserving types, sharing and cycles; everything else is not copied.

    This is a loop, since containers may be nested more deeply than Python's recursion limit.

    Args:
        x: any object.
        memo: the copies made so far, by the id of the original.
    """
    if not _is_container(x):
        return x
    pending: list[Any] = [x]
    unfinished: set[int] = set()  # the ids of containers with items that are not copied yet
    while pending:
        container = pending.pop()
        place = id(container)
        if place in memo and place not in unfinished:
            continue
        inner = _containers_in(container)
        missing = [item for item in inner if id(item) not in memo]
        if type(container) in _MUTABLE and place not in memo:
            memo[place] = container.copy()  # before its items are copied, since it may contain itself
        if missing:
            unfinished.add(place)
            pending += [container, *missing]  # it comes up again after its items have been copied
            continue
        unfinished.discard(place)
        if type(container) not in _MUTABLE:
            memo[place] = _copy_tuple(container, memo)
        elif inner:
            _replace_items(memo[place], memo)
    return memo[id(x)]


def _is_container(x: object) -> bool:
    return type(x) in _MUTABLE or isinstance(x, _TUPLE)


def _containers_in(container: Any) -> list[Any]:
    """Return the containers among the items of a container. Those of a set are hashable, so not mutable."""
    items = container.values() if type(container) in _MAPPINGS else container if type(container) is not set else ()
    # `_is_container` inlined, since this runs for each leaf.
    return [x for x in items if type(x) in _MUTABLE or isinstance(x, _TUPLE)]


def _replace_items(new: Any, memo: dict[int, Any]) -> None:
    for key, item in [*(new.items() if type(new) in _MAPPINGS else enumerate(new))]:
        if id(item) in memo:
            new[key] = memo[id(item)]


def _copy_tuple(x: Any, memo: dict[int, Any]) -> Any:
    if type(x) is not _TUPLE and (not hasattr(x, "_make") or hasattr(x, "__dict__")):  # named tuples only
        return x
    items = [memo.get(id(item), item) for item in x]
    if all(a is b for a, b in zip(items, x, strict=True)):
        return x
    return x._make(items) if hasattr(x, "_make") else tuple(items)
