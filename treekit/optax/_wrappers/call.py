"""A call of a factory: its arguments by name, and, for one of Optax's own, converted to what Optax understands."""

import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._select.spec import resolve_spec
from treekit.optax._wrappers.chain import link
from treekit.optax._wrappers.parameters import read_signature
from treekit.optax._wrappers.specs import MaskFunction


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
                self.arguments[key] = tuple(link(each, role, f"{key}[{i}] of {name}") for i, each in enumerate(x))
            elif role == "mask" and x is not None:
                self.arguments[key] = MaskFunction(x, key)
            elif role == "params" and callable(x) and is_tree:
                self.arguments[key] = functools.partial(_call_or_resolve, x, key)
            else:
                self.arguments[key] = link(x, role, f"{key} of {name}")

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
