"""Which fields has a class, and what is the annotation of each, without aliases and type variables?"""

import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
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

from treekit._base.jax import untyped
from treekit._base.layouts import layout_of
from treekit._types.quoted import UnresolvedAnnotationError, explained, is_elsewhere, resolve
from treekit._types.sizes import pytree_of, pytree_parts

_union: Any = Union  # of a tuple of types, which `|` does not take
# The arguments of these are not the types of what is in the field, so they are not simplified.
_OPAQUE: tuple[Any, ...] = (Literal, Callable, type)
# Written instead of a type by mistake: `jnp.array` for `jax.Array`, `any` for `Any`, `[int]` for `list[int]`.
_NOT_TYPES: Any = (FunctionType, BuiltinFunctionType, EllipsisType, int, float, list, tuple, dict)
_SCALARS: Any = untyped.numpy.float32.__class__  # of jnp.int32 and all others too

_Known = dict[Any, Any]  # what type variables and Self stand for


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
    fields: list[Field] = []
    for owner, name, annotation in _declared(cls):
        what = f"the annotation of {cls.__qualname__}.{name}, {annotation!r},"
        fields.append(Field(name, _hint(what, annotation, owner, {**arguments.get(owner, {}), Self: cls})))
    return tuple(fields)


def _declared(cls: type[Any]) -> Iterator[tuple[type[Any], str, Any]]:
    """Yield, for each field, the class that declares it, its name and its annotation."""
    if dataclasses.is_dataclass(cls):
        for f in dataclasses.fields(cls):
            # A class shares the Field object with the base that it inherits it from, whose body has the annotation.
            owners = [base for base in cls.__mro__ if vars(base).get("__dataclass_fields__", {}).get(f.name) is f]
            yield owners[-1], f.name, f.type
    else:
        layout = layout_of(cls)
        for name in layout.names if layout else ():
            for owner in [base for base in cls.__mro__ if name in inspect.get_annotations(base)][:1]:
                yield owner, name, inspect.get_annotations(owner)[name]


def _type_arguments(cls: type[Any]) -> dict[type[Any], _Known]:
    """Map the type variables of each base of a class to types: T to `int`, in `class Ints(Box[int])`."""
    arguments: dict[type[Any], _Known] = {}  # of each base
    for base in cls.__mro__:
        known = arguments.get(base, {})
        for alias in vars(base).get("__orig_bases__", ()):
            origin = get_origin(alias)
            if isinstance(origin, type) and origin not in (Generic, Protocol):
                with explained(f"the base {alias} of {base.__qualname__}", base):
                    own = [_simplify(resolve(x, base), base, known) for x in get_args(alias)]
                arguments[origin] = dict(zip(getattr(origin, "__parameters__", ()), own, strict=False))
    return arguments


def _hint(what: str, annotation: object, owner: type[Any], known: _Known) -> Any:
    """Return an annotation that a class has for a field, resolved and simplified; `what` is its name in errors."""
    with explained(what, owner):
        hint = resolve(annotation, owner)
    if isinstance(hint, _SCALARS):
        raise UnresolvedAnnotationError(f'{what} has no instances. For an array, write Float32[Array, ""] or similar')
    if isinstance(hint, _NOT_TYPES):
        raise UnresolvedAnnotationError(f"{what} is a value of type {type(hint).__name__}, not a type")
    with explained(what, owner):
        return _simplify(hint, owner, known)


def _simplify(hint: Any, owner: type[Any], known: Mapping[Any, Any]) -> Any:
    """Replace type variables, aliases and wrappers in a type, by these rows in turn.

    | a type | becomes |
    |---|---|
    | `"Linear"`, as in `PyTree["Linear"]` | the class |
    | a type variable | what `known` says, else its bound, else `Any` |
    | `Self` | the class of the instance |
    | a `NewType`, or an alias by a `type` statement | what it is a name for |
    | `PyTree[X, "T"]` | the same, of `X` simplified |
    | a class | itself |
    | `Annotated[X, ...]`, `Final[X]` | `X` simplified |
    | a union | that of its members simplified; `Any` if one has a name that is defined in another module |
    | `tuple[*Ts]` | `tuple` |
    | `Literal[1]`, `Callable[[X], Y]`, `type[X]`, `Any` | itself, or `type` if `X` is defined in another module |
    | `list[X]` | `list` of `X` simplified |

    Args:
        hint: a type.
        owner: the class with the annotation, in which names in quotes are looked up.
        known: what type variables and `Self` stand for; a recursive alias stands for itself, so that this ends.
    """
    origin: Any = get_origin(hint)
    args = get_args(hint)
    go = functools.partial(_simplify, owner=owner, known=known)
    if isinstance(hint, str):
        return go(resolve(hint, owner))
    if isinstance(hint, TypeVar):
        bound = _union[hint.__constraints__] if hint.__constraints__ else hint.__bound__
        return go(known[hint]) if hint in known else Any if bound is None else go(resolve(bound, owner))
    if hint is Self:
        return known[Self]
    if isinstance(hint, typing.NewType):
        return go(hint.__supertype__)
    if hasattr(hint, "__value__") and not isinstance(hint, type):  # the alias of a `type` statement
        if hint in known:
            return hint
        arguments = zip(getattr(origin, "__type_params__", ()), map(go, args), strict=False)
        return _simplify(resolve(hint.__value__, owner), owner, {**known, **dict(arguments), hint: hint})
    if (parts := pytree_parts(hint)) is not None:
        leaf, structure = parts
        return pytree_of(go(leaf), structure)
    if isinstance(hint, type) and origin is None:
        return hint
    if origin in (Annotated, Final):
        return go(args[0])
    if origin in (Union, UnionType):
        return Any if is_elsewhere(hint) else _union[tuple(map(go, args))]
    if any(get_origin(x) is Unpack or getattr(x, "__unpacked__", False) for x in args):
        return origin
    if origin is None or origin in _OPAQUE or not args:
        return origin if is_elsewhere(hint) else hint
    return origin[tuple(x if x is ... else go(x) for x in args)]


def describe_hint(hint: object) -> str:
    """Write a type as in source code, without the names of modules."""
    text: str = _pretty.pformat(hint, width=sys.maxsize)
    return _PREFIXES.sub(lambda match: match[1] or "", text)


# Module names before a name, outside quotes.
_PREFIXES = re.compile(r"('[^']*')|(?:(?:\w+|<locals>)\.)+(?=\w)")
_pretty: Any = wadler_lindig  # its keyword arguments have no types
