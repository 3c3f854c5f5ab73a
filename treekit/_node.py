"""node, field, register_node, node_factory, replace: creating a node apart from rebuilding it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast, dataclass_transform, overload

from treekit._copy import copy_arguments
from treekit._create import node_methods, relax_annotations
from treekit._jax import jtu
from treekit._jaxtyping import is_jaxtyped_below
from treekit._layout import (
    COPY,
    Creation,
    check_fields,
    check_free,
    check_names,
    layout_of,
    register,
    rollback_on_error,
)

T = TypeVar("T")
P = ParamSpec("P")


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
# Not frozen_default=True: checkers then forbid `self.x = ...` in `__init__` as well.
@dataclass_transform(field_specifiers=(field, dataclasses.field), eq_default=False)
def node(
    cls: Any = None,
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

    Calling the class runs its code, once: `__init__` and `__post_init__` (where `self.x = ...` works), converters, then
    `__check_init__` of each class that has one. Rebuilding (unflatten, copy, pickle, `replace`) runs none of it.

    Args:
        cls: the class, where the decorator is used without arguments.
        init: whether to generate `__init__`; one in the class body is kept either way. A class that declares no field
            keeps one that was written for its base. (Type checkers know of that where `init=False` says so.)
        repr: whether to generate `__repr__`.
        eq: compare by fields instead of by identity.
        order: generate `<` and the others too; needs `eq=True`.
        kw_only: make all fields keyword-only.
        check: compare the fields with their annotations, as `check_types` does, whenever an instance is created: after
            `__init__`, defaults and converters, and before `__check_init__`. Rebuilding checks nothing.

    Returns:
        The class itself.

    Raises:
        TypeError: while decorating, for a class that is a node already or cannot be one, or that has `@jaxtyped` below
            `@node`; it is left as it was. While creating an instance, naming class and field: a field left unset, an
            attribute that is no field, a static value that is not hashable or holds an array, a subclass not decorated
            itself, with `check=True` a field that is not what its annotation says.
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
    if is_jaxtyped_below(cls):
        raise TypeError(
            f"{cls.__qualname__} has @jaxtyped below @node, where it checks nothing: the class is not a dataclass "
            "yet. Write it above @node"
        )
    if not cls.__dictoffset__:
        raise TypeError(f"{cls.__qualname__} has __slots__ and no __dict__, which node needs; use register_node")
    own: dict[str, Any] = dict(cls.__dict__)
    check_names(cls, own.get("__annotations__", ()))  # before dataclasses writes code with them
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
        register(cls, [f.name for f in fields], [f.name for f in fields if _is_static(f)], creation)
    return cls


def _is_static(f: "dataclasses.Field[Any]") -> bool:
    """As JAX and Equinox write it, or as Flax does: a class may be half ported."""
    return bool(f.metadata.get("static")) or not f.metadata.get("pytree_node", True)


def _keeps_init(cls: type[Any]) -> bool:
    """Whether a class adds no field, and the `__init__` that it inherits was written by hand."""
    inherited = [f for base in cls.__mro__[1:] for f in vars(base).get("__dataclass_fields__", {}).values()]
    declared = [f for f in vars(cls)["__dataclass_fields__"].values() if not any(f is g for g in inherited)]
    return not declared and _is_init_by_hand(cls.__mro__[1:])


def _is_init_by_hand(bases: Sequence[type[Any]]) -> bool:
    """Whether the first `__init__` among those of some classes was."""
    for base in bases:
        # A protocol has one that typing gives it.
        if isinstance(vars(base).get("__init__"), FunctionType) and not getattr(base, "_is_protocol", False):
            if (layout := layout_of(base)) and layout.creation:
                return not layout.creation.generated
            options: Any = vars(base).get("__dataclass_params__")
            return options is None or not options.init
    return False


def replace(node: T, /, **fields: Any) -> T:
    """A node with some of its fields replaced, by reconstruction: none of the class's code runs.

    (`dataclasses.replace` is creation: it runs `__init__` and `__post_init__` again.)

    Args:
        node: an instance of a class made by `node` or `register_node`.
        **fields: new values; those of static fields are checked.

    Returns:
        An instance of the same class.

    Raises:
        TypeError: the class was not made by treekit, has no such field, or a static value is not hashable or holds an
            array.

    >>> @node
    ... class Half:
    ...     x: float
    ...     def __post_init__(self):
    ...         self.x = self.x / 2
    >>> replace(Half(3.0), x=7.0)
    Half(x=7.0)
    """
    layout = layout_of(type(node))
    if layout is None:
        name = type(node).__qualname__
        raise TypeError(f"replace takes an instance of a class made by node or register_node, and {name} is none")
    if unknown := sorted(fields.keys() - set(layout.names)):
        raise TypeError(
            f"{layout.cls.__qualname__} has no field {', '.join(unknown)}; it has {', '.join(layout.names)}"
        )
    old, static = layout.flatten(node)
    children = [fields.get(name, child) for name, child in zip(layout.data, old, strict=True)]
    if not fields.keys().isdisjoint(layout.meta):
        static = layout.intern(tuple(fields.get(n, v) for n, v in zip(layout.meta, static.values, strict=True)))
    out: T = layout.rebuild(static, children)
    return out


@overload
def register_node(
    cls: type[T], data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] | None = None
) -> type[T]: ...
@overload
def register_node(
    cls: None = None, *, data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] | None = None
) -> Callable[[type[T]], type[T]]: ...
def register_node(
    cls: type[Any] | None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
) -> Any:
    """Make an existing class a pytree node that is rebuilt without its own code running; also as a decorator.

    The class keeps its `__init__`, its `__setattr__` and its mutability. Attributes that are named in neither list are
    not kept by rebuilding.

    Args:
        cls: the class; a dataclass, one with `__slots__`, any other written in Python.
        data_fields: the attributes that are children, as in `jax.tree_util.register_dataclass`.
        meta_fields: the attributes that are static: hashable, with no array. A dataclass needs neither list: its fields
            are data, those with `static=True` in their metadata static.

    Returns:
        The class itself.

    Raises:
        TypeError: the class is a node already or cannot be one; a name is no attribute name, stands there twice, is a
            property, or a field of the dataclass stands in neither list. Nothing is registered then.

    >>> import jax
    >>> @register_node(data_fields=["table"], meta_fields=[])
    ... class Squares:
    ...     def __init__(self, n):
    ...         self.table = [i * i for i in range(n)]
    >>> jax.tree.map(lambda x: x + 1, Squares(3)).table
    [1, 2, 5]
    """
    if cls is None:
        return functools.partial(_register, data_fields=data_fields, meta_fields=meta_fields)
    return _register(cls, data_fields, meta_fields)


def _register(cls: type[Any], data_fields: object, meta_fields: object) -> type[Any]:
    for base in cls.__mro__[1:]:
        if (layout := layout_of(base)) and layout.creation:
            raise TypeError(f"{cls.__qualname__} extends the node {base.__qualname__}: decorate it with @node instead")
    check_free(cls)
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    if data_fields is None and meta_fields is None and dataclasses.is_dataclass(cls):
        data_fields = [f.name for f in fields if not _is_static(f)]
        meta_fields = [f.name for f in fields if _is_static(f)]
    data = _field_names(cls, "data_fields", data_fields)
    meta = _field_names(cls, "meta_fields", meta_fields)
    names = [*data, *meta]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"{cls.__qualname__}: {', '.join(twice)} stands twice in data_fields and meta_fields")
    if missing := [f.name for f in fields if f.name not in names]:
        raise TypeError(f"{cls.__qualname__}: {', '.join(missing)} stands in neither data_fields nor meta_fields")
    check_fields(cls, names, slots=True)
    with rollback_on_error(cls):
        register(cls, names, meta, None)
    return cls


def _field_names(cls: type[Any], argument: str, names: object) -> tuple[str, ...]:
    if isinstance(names, Sequence) and not isinstance(names, str):
        found = tuple(cast(Sequence[object], names))
        if all(isinstance(name, str) for name in found):
            return cast(tuple[str, ...], found)
    raise TypeError(
        f"{cls.__qualname__}: {argument} must be a list of attribute names, found {names!r}. Give both lists (only a "
        "dataclass needs none)"
    )


def node_factory(create: Callable[P, T], /) -> Callable[P, T]:
    """Decorate a function that creates a node, or in a class body a class method: run it once, check what it made.

    Containers among its arguments are copied first. Its result is taken apart, rebuilt around markers and taken apart
    again: what comes back must be the markers, so that `tree_at` and every other rebuilding keep what is put in.

    Args:
        create: the function; it may return an instance of any pytree class, also of one registered by hand. In a class
            body write `@classmethod` above `@node_factory`; without it, it receives the class as well.

    Returns:
        A function of the same signature.

    Raises:
        TypeError: from the call, where rebuilding overwrites a leaf (the message names class and key path), changes a
            static part or raises, or where the result is no pytree node.

    >>> @node
    ... class Table:
    ...     squares: list[int]
    ...     @classmethod
    ...     @node_factory
    ...     def up_to(cls, n: int) -> "Table":
    ...         return cls([i * i for i in range(n)])
    >>> Table.up_to(4)
    Table(squares=[0, 1, 4, 9])
    """

    @functools.wraps(create)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        copied_args, copied_kwargs = copy_arguments(args, kwargs)
        # The copies have the types of what they are copies of, which no checker can know.
        out = cast(Callable[..., T], create)(*copied_args, **copied_kwargs)
        _check_rebuilt(out)
        return out

    outside: str = getattr(create, "__qualname__", "").rpartition(".")[0]
    return _Method(make) if outside and not outside.endswith("<locals>") else make


class _Method(Generic[P, T]):
    """A function in a class body, which receives the class with `@classmethod` and without."""

    def __init__(self, make: Callable[P, T]) -> None:
        functools.update_wrapper(self, make)
        self._make = make

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._make(*args, **kwargs)

    def __get__(self, instance: object, owner: type[Any] | None = None) -> MethodType:
        # Below @classmethod, Python up to 3.12 comes here with the class for an instance.
        return MethodType(self, instance if isinstance(instance, type) else owner)


def _check_rebuilt(tree: Any) -> None:
    """Raise a TypeError unless a tree, rebuilt around any leaves, holds these leaves and the same static parts."""
    name = type(tree).__qualname__
    if tree is None or jtu.all_leaves([tree]):
        raise TypeError(
            f"a node_factory made a {name}, which is no pytree node: decorate the class with node, or register_node it"
        )
    way_out = (
        "The class runs code of its own when JAX rebuilds it. Register it with treekit.register_node instead, or move "
        "what it prepares into this factory"
    )
    before, treedef = jtu.tree_flatten_with_path(tree)
    markers = [object() for _ in before]
    try:
        after, rebuilt = jtu.tree_flatten_with_path(jtu.tree_unflatten(treedef, markers))
    except Exception as error:
        raise TypeError(
            f"rebuilding a {name} around other leaves raised {type(error).__name__}: {error}. {way_out}"
        ) from error
    leaves = {path: leaf for path, leaf in after}
    for (path, _), marker in zip(before, markers, strict=True):
        if leaves.get(path) is not marker:
            raise TypeError(f"rebuilding a {name} overwrote its leaf {jtu.keystr(path)}. {way_out}")
    if rebuilt != treedef:
        raise TypeError(
            f"rebuilding a {name} changed its static parts or structure, from {treedef} to {rebuilt}. {way_out}"
        )
