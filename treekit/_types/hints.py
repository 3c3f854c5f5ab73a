"""Annotations of fields, with the strings in them resolved."""

import builtins
import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Generator, Iterator, Mapping
from types import BuiltinFunctionType, EllipsisType, FunctionType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
)

import wadler_lindig
from jaxtyping import AnnotationError, Bool, Integer, Num, Real

from treekit._base.jax import untyped
from treekit._base.layouts import layout_of
from treekit._types.sizes import pytree_of, pytree_parts

# What type checkers accept for each kind of number, and the arrays of shape () that jit turns such numbers into.
NUMBERS: dict[Any, tuple[Any, ...]] = {
    bool: (bool, Bool[Any, ""]),
    int: (int, Bool[Any, ""], Integer[Any, ""]),
    float: (int, float, Bool[Any, ""], Real[Any, ""]),
    complex: (int, float, complex, Bool[Any, ""], Num[Any, ""]),
}
_union: Any = Union  # of a tuple of types, which `|` does not take
# The arguments of these are not the types of what is in the field, so they are not simplified.
_OPAQUE: tuple[Any, ...] = (Literal, Callable, type)
# Written instead of a type by mistake: `jnp.array` for `jax.Array`, `any` for `Any`, `[int]` for `list[int]`.
_NOT_TYPES: Any = (FunctionType, BuiltinFunctionType, EllipsisType, int, float, list, tuple, dict)
_SCALARS: Any = untyped.numpy.float32.__class__  # of jnp.int32 and all others too
# Module names before a name, outside quotes.
_PREFIXES = re.compile(r"('[^']*')|(?:(?:\w+|<locals>)\.)+(?=\w)")

_Arguments = dict[Any, Any]  # from type variables, and from Self, to types

_pretty: Any = wadler_lindig  # its keyword arguments have no types


class UnresolvedAnnotationError(AnnotationError, TypeError):
    """An annotation cannot be resolved. It is an AnnotationError, which jaxtyping's decorator re-raises unchanged."""


class Field(NamedTuple):
    """A field of a class, with its resolved annotation.

    Attributes:
        name: the name of the field.
        hint: its annotation, without type variables, aliases and wrappers such as Final.
    """

    name: str
    hint: Any


def has_fields(x: object) -> bool:
    """Whether `x` is an instance of a dataclass or of a class that treekit registered."""
    cls: type[Any] = type(x)
    return dataclasses.is_dataclass(cls) or layout_of(cls) is not None


def fields_of(x: object) -> tuple[Field, ...]:
    """Return the annotated fields of `x`: () if its class is neither a dataclass nor registered by treekit.

    Raises:
        UnresolvedAnnotationError: an annotation is a string that cannot be resolved; the message names class and field.
    """
    cls: Any = type(x)
    return _fields(cls)


@functools.cache  # this keeps the class alive, as JAX does with the class of every node
def _fields(cls: type[Any]) -> tuple[Field, ...]:
    arguments = _type_arguments(cls)
    return tuple(_field(cls, owner, name, hint, arguments) for owner, name, hint in _declared(cls))


def _declared(cls: type[Any]) -> Iterator[tuple[type[Any], str, Any]]:
    """Yield, for each field, the class that declares it, its name and its annotation."""
    if dataclasses.is_dataclass(cls):
        for f in dataclasses.fields(cls):  # a class shares the Field object with the base that it inherits it from
            owners = [base for base in cls.__mro__ if vars(base).get("__dataclass_fields__", {}).get(f.name) is f]
            yield owners[-1], f.name, f.type
    else:
        layout = layout_of(cls)
        for name in layout.names if layout else ():
            for owner in [base for base in cls.__mro__ if name in inspect.get_annotations(base)][:1]:
                yield owner, name, inspect.get_annotations(owner)[name]


def _field(
    cls: type[Any], owner: type[Any], name: str, annotation: object, arguments: Mapping[type[Any], _Arguments]
) -> Field:
    known: _Arguments = {**arguments.get(owner, {}), Self: cls}
    what = f"the annotation of {cls.__qualname__}.{name}, {annotation!r},"
    with _explained(what, owner):
        hint = _resolve(annotation, owner)
    if isinstance(hint, _SCALARS):
        raise UnresolvedAnnotationError(f'{what} has no instances. For an array, write Float32[Array, ""] or similar')
    if isinstance(hint, _NOT_TYPES):
        raise UnresolvedAnnotationError(f"{what} is a value of type {type(hint).__name__}, not a type")
    with _explained(what, owner):
        return Field(name, _simplify(hint, owner, known))


@contextlib.contextmanager
def _explained(what: str, owner: type[Any]) -> Generator[None]:
    """Turn any error inside into one that says what could not be resolved, and what to do."""
    try:
        yield
    except Exception as error:
        raise UnresolvedAnnotationError(
            f"{what} cannot be resolved: {error}. Define the names in it at the top level of {owner.__module__}, or "
            "import them there: a class that is local to a function, or imported only under TYPE_CHECKING, cannot be "
            "found while the program runs"
        ) from error


def describe_hint(hint: object) -> str:
    """Write a type as in source code, without the names of modules."""
    text: str = _pretty.pformat(hint, width=sys.maxsize)
    return _PREFIXES.sub(lambda match: match[1] or "", text)


def _resolve(annotation: object, owner: type[Any]) -> Any:
    """Resolve an annotation, and the strings in it, with the names that are visible in its class."""
    module = sys.modules.get(owner.__module__)
    parameters = {p.__name__: p for p in getattr(owner, "__type_params__", ())}
    # Unlike in Python, built-ins come before the class's body: `list` is the built-in, even next to a method `list`.
    names = {owner.__name__: owner, **vars(owner), **vars(builtins), **parameters, **(vars(module) if module else {})}
    holder = type("Holder", (), {"__annotations__": {"x": annotation}})
    while True:
        try:
            # A copy, as typing would cache what a quoted name in a shared alias is for the same dict.
            return typing.get_type_hints(holder, names, dict(names), include_extras=True)["x"]
        except NameError as error:
            name = str(error.name)
            is_users = isinstance(annotation, str) and re.search(rf"(?<![.\w]){name}\b", annotation)
            if is_users or name in names or not _is_inside_alias(name):
                raise
            names[name] = _ELSEWHERE


# Stands for a name inside an alias of another module. A union that contains it is not checked.
_ELSEWHERE: Any = Annotated[Any, "defined in another module"]


def _is_inside_alias(name: str) -> bool:
    """Whether a loaded module defines this name and an alias that contains it in quotes, as Optax does `ArrayTree`.

    Python looks it up in the user's module, where it is not defined.
    """
    modules = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]  # some may be None
    return any(_mentions(alias, name) for names in modules if name in names for alias in list(names.values()))


def _mentions(alias: object, name: str) -> bool:
    return any(_is_quoted(each, name) or _mentions(each, name) for each in get_args(alias))


def _is_quoted(hint: object, name: str) -> bool:
    quoted = hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else hint
    return isinstance(quoted, str) and quoted == name


def _mentions_elsewhere(hint: object) -> bool:
    return hint == _ELSEWHERE or any(map(_mentions_elsewhere, get_args(hint)))


def _type_arguments(cls: type[Any]) -> dict[type[Any], _Arguments]:
    """Map the type variables of each base of a class to types: T to `int`, in `class Ints(Box[int])`."""
    arguments: dict[type[Any], _Arguments] = {}  # of each base
    for base in cls.__mro__:
        known = arguments.get(base, {})
        for alias in vars(base).get("__orig_bases__", ()):
            origin = get_origin(alias)
            if isinstance(origin, type) and origin not in (Generic, Protocol):
                with _explained(f"the base {alias} of {base.__qualname__}", base):
                    own = [_simplify(_resolve(x, base), base, known) for x in get_args(alias)]
                arguments[origin] = dict(zip(getattr(origin, "__parameters__", ()), own, strict=False))
    return arguments


def _simplify(hint: Any, owner: type[Any], known: Mapping[Any, Any]) -> Any:
    """Replace type variables, aliases and wrappers such as Final."""
    origin: Any = get_origin(hint)
    args = get_args(hint)
    go = functools.partial(_simplify, owner=owner, known=known)
    if isinstance(hint, str):  # in PyTree["Linear"]
        return go(_resolve(hint, owner))
    if isinstance(hint, TypeVar):
        bound = _union[hint.__constraints__] if hint.__constraints__ else hint.__bound__
        return go(known[hint]) if hint in known else Any if bound is None else go(_resolve(bound, owner))
    if hint is Self:
        return known[Self]
    if isinstance(hint, typing.NewType):
        return go(hint.__supertype__)
    if hasattr(hint, "__value__") and not isinstance(hint, type):  # a `type` statement's alias, maybe recursive
        if hint in known:
            return hint
        arguments = zip(getattr(origin, "__type_params__", ()), map(go, args), strict=False)
        return _simplify(_resolve(hint.__value__, owner), owner, {**known, **dict(arguments), hint: hint})
    if (parts := pytree_parts(hint)) is not None:
        leaf, structure = parts
        return pytree_of(go(leaf), structure)
    if isinstance(hint, type) and origin is None:
        return hint
    if origin in (Annotated, Final):
        return go(args[0])
    if origin in (Union, UnionType):
        return Any if _mentions_elsewhere(hint) else _union[tuple(map(go, args))]
    if any(get_origin(x) is Unpack or getattr(x, "__unpacked__", False) for x in args):
        return origin  # for tuple[*Ts], just tuple
    if origin is None or origin in _OPAQUE or not args:
        return origin if _mentions_elsewhere(hint) else hint
    return origin[tuple(x if x is ... else go(x) for x in args)]
