"""What does a parameter of a factory say of its arguments? Its name, its annotation and its default decide."""

import contextlib
import inspect
import typing
import weakref
from collections.abc import Callable, Mapping
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple

import jax
import optax
from jax.typing import ArrayLike

# What an argument is:
# - "mask", "labels": by the name of its parameter, which ends so
# - "params": another tree, or function, of the params, such as the dimension numbers of muon
# - "transformation": a link of a chain; "named": one of a named chain, a pair of its name and the transformation
# - "schedule": a schedule or a number
# - "function": another function, such as clip_value_fn of adopt
# - "": its parameter does not say it
Role = Literal["", "mask", "labels", "params", "transformation", "named", "schedule", "function"]


class Parameter(NamedTuple):
    """What a parameter of a factory says of its arguments.

    Attributes:
        default: its default, or `inspect.Parameter.empty`.
        role: what its arguments are.
        takes_only_ints: whether its annotation is an int, or int | None, as that of memory_size of lbfgs.
        keeps_ints: whether an int is stored as an integer, and not as a float.
        is_numeric: whether it takes numbers only, and perhaps None or a schedule.
        may_be_none: whether None is among them.
    """

    default: Any
    role: Role
    takes_only_ints: bool
    keeps_ints: bool
    is_numeric: bool
    may_be_none: bool

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> "Parameter":
        """Return what a parameter says."""
        members = _members(parameter.annotation)
        role = _role(parameter, members)
        return cls(
            default=parameter.default,
            role=role,
            takes_only_ints=int in members and {*members} <= {int, type(None)},
            keeps_ints=_keeps_ints(parameter, role, members),
            is_numeric=_is_numeric(parameter, members),
            may_be_none=parameter.default is None or type(None) in members,
        )


def _keeps_ints(parameter: inspect.Parameter, role: Role, members: tuple[Any, ...]) -> bool:
    """Whether an int is stored as an integer, and not as a float: if one of these rows holds.

    | the parameter | such as |
    |---|---|
    | has a name that ends in key or seed | the seed of `add_noise` |
    | is annotated as an int, and not as a float | memory_size of `lbfgs` |
    | is annotated as an array, and is an int by default, but is not a rate | the cooldown of `reduce_on_plateau` |
    """
    is_key_or_seed = parameter.name.endswith(("key", "seed"))
    is_int = int in members and float not in members
    is_count = jax.Array in members and type(parameter.default) is int and role != "schedule"
    return is_key_or_seed or is_int or is_count


def _is_numeric(parameter: inspect.Parameter, members: tuple[Any, ...]) -> bool:
    """Whether a parameter takes numbers only, and perhaps None or a schedule.

    Its annotation says it, or, without one, its default. A bool alone is an option, and not a number.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return type(parameter.default) in (int, float)
    types = {*members} - {type(None), optax.Schedule}
    return types <= _NUMBERS and not types <= {bool}


_NUMBERS = {*typing.get_args(ArrayLike), type(None)}


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the only one; of `Annotated`, what it is about."""
    if typing.get_origin(annotation) is Annotated:
        return _members(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        return tuple(member for each in typing.get_args(annotation) for member in _members(each))
    return (annotation,)


def _role(parameter: inspect.Parameter, members: tuple[Any, ...]) -> Role:
    # Of `*args` too, whose annotation is that of one item.
    if parameter.annotation is optax.GradientTransformation:
        return "transformation"
    if parameter.annotation == tuple[str, optax.GradientTransformation]:
        return "named"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return ""
    if parameter.name.endswith("mask"):
        return "mask"
    if parameter.name.endswith("labels"):
        return "labels"
    if _takes_params(members):
        return "params"
    if optax.Schedule in members:
        return "schedule"
    return "function" if any(map(_is_function, members)) else ""


def _takes_params(members: tuple[Any, ...]) -> bool:
    """Whether a function among the members of an annotation takes the params.

    It says so, as `Callable[[optax.Params], MuonDimensionNumbers]`; or it takes one argument, and may also be a tree of
    any type, as `Callable[[Any], Any] | float | object`, the rates of scale_by_tree.
    """
    arguments: list[Any] = [x for each in members if _is_function(each) for x in typing.get_args(each)[:1]]
    lists: list[list[Any]] = [x for x in arguments if type(x) is list]  # of Callable[..., T], it is ...
    may_be_tree = Any in members or object in members
    return [optax.Params] in lists or (may_be_tree and any(len(x) == 1 for x in lists))


def _is_function(member: Any) -> bool:
    """Whether a member of an annotation is a Callable, or a protocol with `__call__`."""
    if member is Callable or typing.get_origin(member) is Callable:
        return True
    return getattr(member, "_is_protocol", False) and "__call__" in vars(member)


Signature = tuple[inspect.Signature, Mapping[str, Parameter]]
_READ: weakref.WeakKeyDictionary[Callable[..., Any], Signature] = weakref.WeakKeyDictionary()


def read_signature(factory: Callable[..., Any]) -> Signature:
    """Return a factory's signature, and what each of its parameters says; both are read once for each function."""
    with contextlib.suppress(KeyError, TypeError):  # it is new, or cannot be a key
        return _READ[factory]
    try:
        signature = inspect.signature(factory, eval_str=True)
    except Exception:  # one of the quoted annotations cannot be evaluated: each is evaluated alone
        signature = inspect.signature(factory)
        function = inspect.unwrap(factory, stop=lambda f: hasattr(f, "__signature__"))  # whose annotations these are
        names = getattr(function, "__globals__", {})
        known = [x.replace(annotation=_evaluated(x.annotation, names)) for x in signature.parameters.values()]
        signature = signature.replace(parameters=known)
    read = signature, {name: Parameter.of(x) for name, x in signature.parameters.items()}
    with contextlib.suppress(TypeError):
        _READ[factory] = read
    return read


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """Return what a quoted annotation says, or the quotation if its names are not defined; others unchanged."""
    holder = SimpleNamespace(__annotations__={"x": annotation})
    with contextlib.suppress(Exception):
        return typing.get_type_hints(holder, names, include_extras=True)["x"]
    return annotation
