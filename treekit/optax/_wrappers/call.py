"""The arguments of a factory by name; for a factory of Optax's own, converted to what Optax understands."""

import dataclasses
import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import optax

from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._select.spec import resolve_spec
from treekit.optax._kernel.preserve import preserving_updates
from treekit.optax._kernel.transformation import Core, core_of, own_core
from treekit.optax._wrappers.parameters import Parameter, read_signature
from treekit.optax._wrappers.specs import MaskFunction
from treekit.optax._wrappers.traced import named_schedule

# Optax's factory for each of ours. By the function itself: a user's decorator copies names and attributes.
ORIGINALS: weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Call:
    """A factory and its arguments.

    Attributes:
        factory: the factory.
        name: what the user calls it.
        signature: its signature.
        parameters: what each parameter says.
        arguments: the arguments by name.
        gathered: those that its `**kwargs` gathers.
    """

    factory: Callable[..., Any]
    name: str
    signature: inspect.Signature
    parameters: Mapping[str, Parameter]
    arguments: Mapping[str, Any]
    gathered: Mapping[str, Any]

    def make(self, others: Mapping[str, Any]) -> Any:
        """Call the factory, with other arguments for some, which may be among those that `**kwargs` gathers."""
        given, names = {**self.arguments, **others}, self.signature.parameters
        bound = inspect.BoundArguments(self.signature, OrderedDict((x, given[x]) for x in names if x in given))
        rest = {name: x if name in names else others.get(name, x) for name, x in self.gathered.items()}
        return self.factory(*bound.args, **bound.kwargs, **rest)


def bind(factory: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call of a factory with these arguments; raise its own error if it does not take them."""
    signature, parameters = read_signature(factory)
    try:
        bound: Any = signature.bind(*args, **kwargs)
    except TypeError:
        factory(*args, **kwargs)  # its own error names it
        raise
    arguments: dict[str, Any] = bound.arguments
    of_keywords = (x.name for x in signature.parameters.values() if x.kind is inspect.Parameter.VAR_KEYWORD)
    gathered: dict[str, Any] = arguments.pop(next(of_keywords, ""), {})
    return Call(factory, name, signature, parameters, arguments, gathered)


def call_of(factory: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, bool]:
    """Return a call that is to be injected, and whether it is one of Optax's own factory.

    In place of a factory of `treekit.optax`, its core is called by Optax's own.
    """
    try:
        original = ORIGINALS.get(factory)
    except TypeError:  # it cannot be a key
        original = None
    call = bind(original or factory, getattr(factory, "__name__", str(factory)), args, kwargs)
    if original:
        check_numbers(call, schedules=True)
    return call, original is not None


def check_numbers(call: Call, *, schedules: bool) -> None:
    """Raise a TypeError if an argument is a string or a function, and its parameter takes numbers only.

    Args:
        call: a call of one of Optax's own factories.
        schedules: whether any number may be a schedule, as in `inject_hyperparams`.
    """
    for key, x in call.arguments.items():
        may_be_schedule = schedules or call.parameters[key].role == "schedule"
        wrong: Any = str if may_be_schedule else (str, FunctionType)
        if call.parameters[key].is_numeric and isinstance(x, wrong):
            kind = "a number or a schedule" if may_be_schedule else "a number"
            raise TypeError(f"{key} of {call.name} must be {kind}, found {describe_value(x)}")


def converted(call: Call) -> Call:
    """Return a call of one of Optax's own factories with arguments that Optax understands.

    A transformation of treekit becomes its core, and a mask a function, which Optax calls.

    Raises:
        ValueError: a chain has no links.
        TypeError: an argument that must be a transformation is something else.
    """
    arguments: dict[str, Any] = {}
    for key, parameter in call.signature.parameters.items():
        role, where = call.parameters[key].role, f"{key} of {call.name}"
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            if key in call.arguments:
                arguments[key] = _convert(call.arguments[key], role, key, where)
            continue
        several = call.arguments.get(key, ())
        if role == "transformation" and not several:
            raise ValueError(f"{call.name} takes at least one transformation, and received none")
        arguments[key] = tuple(_convert(x, role, key, f"{key}[{i}] of {call.name}") for i, x in enumerate(several))
    return dataclasses.replace(call, arguments=arguments)


def _convert(x: Any, role: str, key: str, where: str) -> Any:
    if role == "named":
        return x[0], _link(x[1], where)
    if role == "transformation" or isinstance(x, (optax.GradientTransformation, optax.MultiSteps)):
        return _link(x, where)
    if role == "mask" and x is not None:
        return MaskFunction(x, key)
    if role == "schedule" and callable(x) and not isinstance(x, optax.schedules.StatefulSchedule):
        return named_schedule(x, where)
    if role == "params" and callable(x) and not jtu.all_leaves([x]):  # a tree that can be called
        return functools.partial(_call_or_resolve, x, key)
    return x


def _link(tx: object, where: str) -> Core:
    """Return the core of a link of a chain, or of another transformation that one of Optax's factories runs inside."""
    core = core_of(tx, where)
    return core if own_core(tx) is None else preserving_updates(core)


def _call_or_resolve(argument: Any, name: str, *args: Any) -> Any:
    """Resolve an argument that is called with the params, such as dimension numbers; call other functions."""
    return argument(*args) if len(args) != 1 else resolve_spec(argument, args[0], is_spec_leaf=_is_leaf, name=name)


def _is_leaf(x: object) -> bool:
    """Whether `x` is a leaf of a tree of labels or of dimension numbers; None is."""
    return x is None or isinstance(x, str) or type(x).__name__.endswith("DimensionNumbers")
