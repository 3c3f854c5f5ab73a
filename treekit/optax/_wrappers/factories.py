"""What do the parameters of a factory say, and how are its arguments converted to what Optax understands?"""

import contextlib
import functools
import inspect
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, UnionType
from typing import Any, NamedTuple

import jax
import optax

from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._base.types import OptState, Params, Updates
from treekit._select.spec import resolve_spec
from treekit.optax._kernel.preserve import keep_updates
from treekit.optax._kernel.transformation import Core, core_of, own_core
from treekit.optax._wrappers.specs import MaskFunction


class Parameter(NamedTuple):
    """What a parameter of a factory says of its arguments, by its name, annotation and default.

    Attributes:
        default: its default, or `inspect.Parameter.empty`.
        role: what it is, by its name or its annotation: a "mask"; "labels"; "params" for another tree, or function, of
            the params; a "transformation", or a "named" one; a "schedule" or a number. "" if these do not say it.
        is_int: whether its annotation is an int, or int | None, such as that of the memory size of lbfgs.
        keeps_ints: whether an int stays an integer as a hyperparameter: a seed, an interval.
        is_numeric: whether its annotation has numbers, and no function but a schedule.
    """

    default: Any
    role: str
    is_int: bool
    keeps_ints: bool
    is_numeric: bool

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> "Parameter":
        """Return what a parameter says."""
        default, annotation = parameter.default, parameter.annotation
        is_union = typing.get_origin(annotation) in (typing.Union, UnionType)
        types = typing.get_args(annotation) if is_union else (annotation,)
        role = _role(parameter, types)
        is_int = int in types and all(x in (int, type(None)) for x in types)
        is_count = type(default) is int and role != "schedule" and jax.Array in types
        is_drawn = parameter.name.endswith(("key", "seed"))
        keeps_ints = is_drawn or is_count or (int in types and float not in types)
        has_function = role != "schedule" and any(typing.get_origin(x) is Callable for x in types)
        return cls(default, role, is_int, keeps_ints, bool({int, float, jax.Array} & {*types}) and not has_function)


def _role(parameter: inspect.Parameter, types: tuple[Any, ...]) -> str:
    if parameter.annotation is optax.GradientTransformation:
        return "transformation"
    if parameter.annotation == tuple[str, optax.GradientTransformation]:
        return "named"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return ""
    if parameter.name.endswith(("mask", "labels")):
        return "mask" if parameter.name.endswith("mask") else "labels"
    for takes in (typing.get_args(x)[0] for x in types if typing.get_origin(x) is Callable):
        if takes == [optax.Params] or (takes is not ... and len(takes) == 1 and (Any in types or object in types)):
            return "params"
    return "schedule" if optax.Schedule in types else ""


Signature = tuple[inspect.Signature, Mapping[str, Parameter]]


def read_signature(factory: Callable[..., Any]) -> Signature:
    """Return a factory's signature, and what each of its parameters says; both are read once for each function."""
    function = inspect.unwrap(factory, stop=lambda f: hasattr(f, "__signature__"))
    with contextlib.suppress(KeyError, TypeError):  # it is new, or cannot be a key
        return _READ[function]
    try:
        signature = inspect.signature(factory, eval_str=True)
    except Exception:  # a quoted annotation that only type checkers know does not say anything
        signature = inspect.signature(factory)
    read = signature, {name: Parameter.of(x) for name, x in signature.parameters.items()}
    with contextlib.suppress(TypeError):
        _READ[function] = read
    return read


_READ: weakref.WeakKeyDictionary[Callable[..., Any], Signature] = weakref.WeakKeyDictionary()


class Call:
    """The arguments of a factory.

    Attributes:
        name: the name of the factory.
        signature: its signature.
        parameters: what each parameter says.
        arguments: the arguments by name.
        gathered: those that its `**kwargs` gathers.
    """

    def __init__(self, factory: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._factory, self.name = factory, name
        self.signature, self.parameters = read_signature(factory)
        try:
            bound: Any = self.signature.bind(*args, **kwargs)
        except TypeError:
            factory(*args, **kwargs)  # its own error names it
            raise
        self.arguments: dict[str, Any] = bound.arguments
        parameters = self.signature.parameters.values()
        several = next((x.name for x in parameters if x.kind is inspect.Parameter.VAR_KEYWORD), "")
        self.gathered: dict[str, Any] = self.arguments.pop(several, {})

    def make(self, others: Mapping[str, Any]) -> Any:
        """Call the factory, with other arguments for some, which may be among those that `**kwargs` gathers."""
        given, names = {**self.arguments, **others}, self.signature.parameters
        bound = inspect.BoundArguments(self.signature, OrderedDict((x, given[x]) for x in names if x in given))
        rest = {name: x if name in names else others.get(name, x) for name, x in self.gathered.items()}
        return self._factory(*bound.args, **bound.kwargs, **rest)


class OptaxCall(Call):
    """A call of one of Optax's own factories, with arguments that these do not understand.

    A transformation of treekit becomes its core, and a mask a function, which Optax calls.

    Raises:
        TypeError: an argument that must be a transformation is something else.
    """

    def __init__(self, factory: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__(factory, name, args, kwargs)
        for key, parameter in self.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL and self.parameters[key].role and not args:
                raise TypeError(f"{name} takes at least one transformation, and received none")
        for key in self.arguments:
            x: Any = self.arguments[key]
            role, is_tree = self.parameters[key].role, not jtu.all_leaves([x])
            if self.signature.parameters[key].kind is inspect.Parameter.VAR_POSITIONAL:
                self.arguments[key] = tuple(_link(each, role, f"{key}[{i}] of {name}") for i, each in enumerate(x))
            elif role == "mask" and x is not None:
                self.arguments[key] = MaskFunction(x, key)
            elif role == "params" and callable(x) and is_tree:
                self.arguments[key] = functools.partial(_call_or_resolve, x, key)
            else:
                self.arguments[key] = _link(x, role, f"{key} of {name}")

    def check_numbers(self, *, schedules: bool) -> None:
        """Raise a TypeError if an argument is a string or a function, and its parameter takes numbers only.

        Args:
            schedules: whether any number may be a schedule, as in `inject_hyperparams`.
        """
        for key, x in self.arguments.items():
            may_be_schedule = schedules or self.parameters[key].role == "schedule"
            wrong: Any = str if may_be_schedule else (str, FunctionType)
            if self.parameters[key].is_numeric and isinstance(x, wrong):
                kind = "a number or a schedule" if may_be_schedule else "a number"
                raise TypeError(f"{key} of {self.name} must be {kind}, found {describe_value(x)}")


# Optax's factory for each of ours. By the function itself: a user's decorator copies names and attributes.
ORIGINALS: weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any]] = weakref.WeakKeyDictionary()


def call_of(factory: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call: of Optax's own factory for one of `treekit.optax`, and of any other with unchanged arguments."""
    name: str = getattr(factory, "__name__", str(factory))
    try:
        original = ORIGINALS.get(factory)
    except TypeError:  # it cannot be a key
        original = None
    if original is None:
        return Call(factory, name, args, kwargs)
    call = OptaxCall(original, name, args, kwargs)
    call.check_numbers(schedules=True)
    return call


def _call_or_resolve(argument: Any, name: str, *args: Any) -> Any:
    """Resolve an argument that is called with the params, such as dimension numbers; call other functions."""
    return argument(*args) if len(args) != 1 else resolve_spec(argument, args[0], is_spec_leaf=_is_leaf, name=name)


def _is_leaf(x: object) -> bool:
    """Whether `x` is a leaf of a tree of labels or of dimension numbers; None is."""
    return x is None or isinstance(x, str) or type(x).__name__.endswith("DimensionNumbers")


def _link(x: Any, role: str, where: str) -> Any:
    """Return an argument for one of Optax's own functions: for a transformation, such as a link of a chain, its core.

    The updates of treekit's own keep their dtypes here too: the next link may not accept those of an injected rate,
    which is f32 at least.
    """
    if role == "named":
        return x[0], _link(x[1], "transformation", where)
    if role != "transformation" and not isinstance(x, (optax.GradientTransformation, optax.MultiSteps)):
        return x
    core = core_of(x, where)
    if own_core(x) is None:
        return core
    inner_update = core.update

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        news, state = inner_update(updates, state, params, **extra)
        return keep_updates(updates, params, news), state

    return Core(core.init, update)
