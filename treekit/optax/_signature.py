"""What does the signature of a factory say of its arguments? Is one of them a number, a schedule, or static?

The type of the value, and the name, annotation and default of its parameter decide. Nothing is called to find out.
"""

import contextlib
import enum
import inspect
import re
import typing
import weakref
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from optax.schedules import StatefulSchedule

from treekit._base.describe import describe, describe_error, describe_value, with_article
from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.key_path import is_variable
from treekit._base.predicates import is_array, is_real_number, is_truly_callable
from treekit._filter import TreeSpec
from treekit.optax._transformation import check_is_transformation


class Kind(enum.Enum):
    """What an argument of a factory is: passed on unchanged, a number or an array, or a schedule."""

    STATIC = "static"
    NUMBER = "number"
    SCHEDULE = "schedule"


def kind_of(value: object, says: "Parameter") -> Kind:
    """Return what an argument is, by its type and what its parameter says. The first rule that applies decides."""
    if value is None or isinstance(value, _STATIC) or says.role in ("mask", "labels", "params"):
        return Kind.STATIC
    if is_number(value):
        return Kind.STATIC if says.is_int and isinstance(value, (int, np.integer)) else Kind.NUMBER
    if isinstance(value, StatefulSchedule):
        return Kind.SCHEDULE
    if not callable(value) or value is says.default or isinstance(value, TreeSpec):
        return Kind.STATIC
    return Kind.SCHEDULE if says.role == "schedule" or is_truly_callable(value) else Kind.STATIC


_STATIC: Any = (bool, np.bool_, str, type)
_NUMBERS: Any = (int, float, complex)
PLAIN_NUMBERS: Any = (int, float, jax.Array)  # as most arguments are


def is_number(value: object) -> bool:
    """Whether an argument is a number or an array, also one of keys; bools are not numbers, arrays of them are."""
    if isinstance(value, _NUMBERS):
        return not isinstance(value, bool)
    return is_array(value) and not isinstance(value, np.bool_) and dtype_of(value) is not None


class Parameter(NamedTuple):
    """What a parameter of a factory says of its arguments, by its name, annotation and default.

    Attributes:
        default: its default, or `inspect.Parameter.empty`.
        types: the names of its types.
        role: what it is, by its name or its annotation: a "mask"; "labels"; "params" for another tree, or function, of
            the params; a "transformation", several or "named" ones; a "schedule" or a number; a "number" or an array.
            "" if these do not say it.
        is_int: whether its annotation is an int, or int | None, such as that of the memory size of lbfgs.
        keeps_ints: whether an int stays an integer as a hyperparameter: a seed, an interval.
        takes_numbers: whether any of `PLAIN_NUMBERS` is a valid argument.
    """

    default: Any
    types: frozenset[str]
    role: str
    is_int: bool
    keeps_ints: bool
    takes_numbers: bool

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> "Parameter":
        """Return what a parameter says."""
        name, default, types = parameter.name, parameter.default, _types(parameter.annotation)
        role = _role(parameter, types)
        is_int = "int" in types and types <= {"int", "None", "Optional", "Union", "typing"}
        is_count = type(default) is int and role != "schedule" and bool(types & {"Array", "ArrayLike"})
        keeps_ints = name.endswith(("key", "seed")) or is_count or ("int" in types and "float" not in types)
        return cls(default, types, role, is_int, keeps_ints, role in ("schedule", "number", ""))


def _role(parameter: inspect.Parameter, types: frozenset[str]) -> str:
    name, annotation = parameter.name, parameter.annotation
    is_several = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if annotation is optax.GradientTransformation:
        return "transformations" if is_several else "transformation"
    if annotation == tuple[str, optax.GradientTransformation]:
        return "named transformations"
    if is_several:
        return ""
    if name.endswith(("mask", "labels")):
        return "mask" if name.endswith("mask") else "labels"
    if "params" in types:
        return "params"
    if types & {"Schedule", "ScalarOrSchedule"}:
        return "schedule"
    return "number" if any(annotation == each for each in _OF_NUMBERS) else ""


_OF_NUMBERS = (int, "int", float, "float", jax.typing.ArrayLike, "ArrayLike", "jax.typing.ArrayLike")
_TYPES: dict[str, Any] = {
    "Any": Any,
    "Array": jax.Array,
    "None": type(None),
    "Schedule": optax.Schedule,
    "float": float,
    "int": int,
    "object": object,
    "str": str,
}
_FUNCTION = typing.get_origin(Callable[[], None])


def _types(annotation: Any) -> frozenset[str]:
    """Return the names of a type, or of those in a union, and "params" if it says a tree or a function of the params.

    A quoted annotation is read word by word.
    """
    if isinstance(annotation, str):
        words = frozenset(re.findall(r"\w+", annotation))
        is_of_params = words & {"Mask", "Labels"} or ("Callable" in words and words & {"ArrayTree", "Params", "PyTree"})
        return words | {"params"} if is_of_params else words
    is_union = typing.get_origin(annotation) in (typing.Union, UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    found = {next((name for name, each in _TYPES.items() if member == each), "another") for member in members}
    for member in members:
        takes = typing.get_args(member)[0] if typing.get_origin(member) is _FUNCTION else ...
        if takes == [optax.Params] or (takes is not ... and len(takes) == 1 and found & {"Any", "object"}):
            found.add("params")
    return frozenset(found)


Signature = tuple[inspect.Signature, Mapping[str, Parameter]]


def read_signature(factory: Callable[..., Any]) -> Signature:
    """Return a factory's signature, and what each of its parameters says; both are read once for each function."""
    function = inspect.unwrap(factory, stop=lambda f: hasattr(f, "__signature__"))
    try:
        return _READ[function]
    except (KeyError, TypeError):  # it is new, or cannot be a key
        signature = inspect.signature(factory)
    read = signature, {name: Parameter.of(x) for name, x in signature.parameters.items()}
    with contextlib.suppress(TypeError):
        _READ[function] = read
    return read


_READ: weakref.WeakKeyDictionary[Callable[..., Any], Signature] = weakref.WeakKeyDictionary()


def bind(
    f: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call by name, or raise the error that `f` raises for them, which names `f`."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        f(*args, **kwargs)
        raise


def check_argument(value: Any, says: Parameter, name: str, factory: str) -> None:
    """Raise a TypeError if an argument that must be a transformation, or a number or schedule, is something else."""
    if value is says.default:
        return
    where = f"{name} of {factory}"
    is_text = isinstance(value, _TEXT) and "str" not in says.types
    if says.role == "transformation":
        check_is_transformation(value, where)
    elif says.role in ("transformations", "named transformations"):
        check = _check_is_named if says.role == "named transformations" else check_is_transformation
        for i, each in enumerate(value):
            check(each, f"{name}[{i}] of {factory}")
    elif says.role == "number" and not (jtu.all_leaves([value]) or is_variable(value)):
        raise TypeError(
            f"{where} must be a number, found {with_article(type(value).__name__)}. Params and gradients are "
            "arguments of init and update"
        )
    elif says.role == "schedule" and (is_text or isinstance(value, _CONTAINERS)):
        raise TypeError(f"{where} must be a number or a schedule, found {describe_value(value)}")
    if is_text and "float" in says.types:
        raise TypeError(f"{where} must be a number, found {describe_value(value)}")


def _check_is_named(pair: Any, where: str) -> None:
    try:
        name, tx = pair
    except (TypeError, ValueError):
        name, tx = None, None
    if not isinstance(name, str):
        raise TypeError(f"{where} must be a pair (name, transformation), found {with_article(type(pair).__name__)}")
    check_is_transformation(tx, where)


_TEXT: Any = (str, bytes)
_CONTAINERS: Any = (list, tuple, Mapping)


def call_schedule(schedule: Callable[[Any], object], refuse: Callable[[str], TypeError], count: object) -> object:
    """Return the value of a schedule at a count; raise the error that `refuse` makes unless it is one real number."""
    try:
        value = schedule(count)
    except Exception as error:  # it is a model, or a function of something else
        raise refuse(f"Called with a count, it raised {describe_error(error)}") from error
    return check_value(value, refuse)


def check_value(value: object, refuse: Callable[[str], TypeError]) -> object:
    """Return the value of a schedule; raise the error that `refuse` makes unless it is one real number."""
    if not is_real_number(value):
        shown = describe(value) if is_array(value) else describe_value(value)
        raise refuse(f"Called with a count, it returned {shown}, but a schedule returns a real number of shape ()")
    return value
