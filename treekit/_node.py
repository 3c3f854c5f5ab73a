"""Make classes pytree nodes, which are created by their own code and rebuilt without it."""

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
    """Set the options of one field of a `node`: those of `dataclasses.field`, and three more.

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
    if is_jaxtyped_below(cls):
        raise TypeError(
            f"{cls.__qualname__} has @jaxtyped below @node, where it checks nothing: the class is not a dataclass "
            "yet. Write it above @node"
        )
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
        register(cls, [f.name for f in fields], [f.name for f in fields if _is_static(f)], creation)
    return cls


def _is_static(f: "dataclasses.Field[Any]") -> bool:
    """Whether a field is static, in the notation of JAX and Equinox or of Flax."""
    return bool(f.metadata.get("static")) or not f.metadata.get("pytree_node", True)


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


def replace(node: T, /, **fields: Any) -> T:
    """Return a copy of a node with some fields replaced, without running code of the class.

    `dataclasses.replace`, in contrast, runs `__init__` and `__post_init__` again.

    Args:
        node: an instance of a class made by `node` or `register_node`.
        **fields: new values; those of static fields are checked.

    Returns:
        An instance of the same class.

    Raises:
        TypeError: the class is not a node of treekit, has no such field, or a static value is not hashable or contains
            an array.

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
        raise TypeError(f"replace takes an instance of a class made by node or register_node, not of {name}")
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
    """Make an existing class a pytree node that JAX rebuilds without running its code. Also a decorator.

    The class keeps its `__init__`, its `__setattr__` and its mutability. A rebuilt instance has only the attributes
    that the two lists name.

    Args:
        cls: any class written in Python, such as a dataclass or one with `__slots__`.
        data_fields: the attributes that are children, as in `jax.tree_util.register_dataclass`.
        meta_fields: the attributes that are static: hashable, without arrays. A dataclass needs neither list: its
            fields are data, except those with `static=True` in their metadata.

    Returns:
        The class itself.

    Raises:
        TypeError: the class is already a node or cannot be one; a name is not a valid attribute name, occurs twice or
            is a property; or a field of the dataclass is in neither list. The class is then not registered.

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
        raise TypeError(f"{cls.__qualname__}: {', '.join(twice)} occurs twice in data_fields and meta_fields")
    if missing := [f.name for f in fields if f.name not in names]:
        raise TypeError(f"{cls.__qualname__}: {', '.join(missing)} is in neither data_fields nor meta_fields")
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
        f"{cls.__qualname__}: {argument} must be a list of attribute names, found {names!r}. Pass both lists; "
        "only a dataclass needs neither"
    )


def node_factory(create: Callable[P, T], /) -> Callable[P, T]:
    """Decorate a function, or a class method, that creates a node: copy its arguments, and check its result.

    Containers among the arguments are copied first. The result is flattened, rebuilt around markers and flattened
    again, which must give the markers: then `tree_at` and all other ways of rebuilding preserve new leaves.

    Args:
        create: the function, which may return an instance of any pytree class. In a class body write `@classmethod`
            above `@node_factory`; the function receives the class even without it.

    Returns:
        A function of the same signature.

    Raises:
        TypeError: raised by the call if rebuilding the result overwrites a leaf (the message names class and key path),
            changes a static part or raises, or if the result is not a pytree node.

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
        # The copies have the types of the originals, but checkers cannot know that.
        out = cast(Callable[..., T], create)(*copied_args, **copied_kwargs)
        _check_rebuilt(out)
        return out

    outside: str = getattr(create, "__qualname__", "").rpartition(".")[0]
    return _Method(make) if outside and not outside.endswith("<locals>") else make


class _Method(Generic[P, T]):
    """A function in a class body, which receives the class with or without `@classmethod`."""

    def __init__(self, make: Callable[P, T]) -> None:
        functools.update_wrapper(self, make)
        self._make = make

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._make(*args, **kwargs)

    def __get__(self, instance: object, owner: type[Any] | None = None) -> MethodType:
        # Below @classmethod, Python up to 3.12 passes the class as `instance`.
        return MethodType(self, instance if isinstance(instance, type) else owner)


def _check_rebuilt(tree: Any) -> None:
    """Raise a TypeError unless a tree, rebuilt around other leaves, has these leaves and the same static parts."""
    name = type(tree).__qualname__
    if tree is None or jtu.all_leaves([tree]):
        raise TypeError(
            f"a node_factory returned a {name}, which is not a pytree node: use node or register_node on the class"
        )
    way_out = (
        "The class runs its own code when JAX rebuilds it. Register it with treekit.register_node instead, or move "
        "that code into this factory"
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
