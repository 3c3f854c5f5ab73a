"""What does a parameter of a factory say of its arguments? Its name, its annotation and its default decide."""

import contextlib
import inspect
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, NamedTuple

import jax
import optax

Role = Literal["", "mask", "labels", "params", "transformation", "named", "schedule", "function"]


class Parameter(NamedTuple):
    """What a parameter of a factory says of its arguments, by its name, annotation and default.

    Attributes:
        default: its default, or `inspect.Parameter.empty`.
        role: what it is, by its name or its annotation: a "mask"; "labels"; "params" for another tree, or function, of
            the params; a "transformation", or a "named" one; a "schedule" or a number; another "function". "" if these
            do not say it.
        is_int: whether its annotation is an int, or int | None, such as that of the memory size of lbfgs.
        keeps_ints: whether an int stays an integer as a hyperparameter: a seed, an interval.
        is_numeric: whether its annotation has numbers, and no function but a schedule.
    """

    default: Any
    role: Role
    is_int: bool
    keeps_ints: bool
    is_numeric: bool

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> "Parameter":
        """Return what a parameter says."""
        default, annotation = parameter.default, parameter.annotation
        is_union = typing.get_origin(annotation) in (typing.Union, UnionType)
        types = typing.get_args(annotation) if is_union else (annotation,)
        functions = [x for x in types if x is Callable or typing.get_origin(x) is Callable]
        role = _role(parameter, types, functions)
        is_int = int in types and all(x in (int, type(None)) for x in types)
        is_count = type(default) is int and role != "schedule" and jax.Array in types
        is_drawn = parameter.name.endswith(("key", "seed"))
        keeps_ints = is_drawn or is_count or (int in types and float not in types)
        is_numeric = bool({int, float, jax.Array} & {*types}) and (role == "schedule" or not functions)
        return cls(default, role, is_int, keeps_ints, is_numeric)


def _role(parameter: inspect.Parameter, types: tuple[Any, ...], functions: list[Any]) -> Role:
    if parameter.annotation is optax.GradientTransformation:
        return "transformation"
    if parameter.annotation == tuple[str, optax.GradientTransformation]:
        return "named"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return ""
    if parameter.name.endswith(("mask", "labels")):
        return "mask" if parameter.name.endswith("mask") else "labels"
    # For each function, its list of types; that of Callable[..., T] is not a list, and Callable alone has none.
    arguments: list[list[Any]] = [x for each in functions for x in typing.get_args(each)[:1] if type(x) is list]
    if [optax.Params] in arguments or ((Any in types or object in types) and any(len(x) == 1 for x in arguments)):
        return "params"
    if optax.Schedule in types:
        return "schedule"
    return "function" if functions else ""


Signature = tuple[inspect.Signature, Mapping[str, Parameter]]


def read_signature(factory: Callable[..., Any]) -> Signature:
    """Return a factory's signature, and what each of its parameters says; both are read once for each function."""
    function = inspect.unwrap(factory, stop=lambda f: hasattr(f, "__signature__"))
    with contextlib.suppress(KeyError, TypeError):  # it is new, or cannot be a key
        return _READ[function]
    try:
        signature = inspect.signature(factory, eval_str=True)
    except Exception:  # a quoted annotation that only type checkers know does not say anything; the others do
        signature = inspect.signature(factory)
        names = getattr(function, "__globals__", {})
        known = [x.replace(annotation=_evaluated(x.annotation, names)) for x in signature.parameters.values()]
        signature = signature.replace(parameters=known)
    read = signature, {name: Parameter.of(x) for name, x in signature.parameters.items()}
    with contextlib.suppress(TypeError):
        _READ[function] = read
    return read


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """Return what a quoted annotation says, or the quotation if its names are not defined; others unchanged."""
    holder = types.SimpleNamespace(__annotations__={"x": annotation})
    with contextlib.suppress(Exception):
        return typing.get_type_hints(holder, names, include_extras=True)["x"]
    return annotation


_READ: weakref.WeakKeyDictionary[Callable[..., Any], Signature] = weakref.WeakKeyDictionary()
