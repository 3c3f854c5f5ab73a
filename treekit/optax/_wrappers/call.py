"""The arguments of a factory by name; for a factory of Optax's own, converted to what Optax understands."""

import dataclasses
import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax

from treekit._base.states import is_known_code
from treekit._base.types import Params
from treekit.optax._kernel.transformation import core_of
from treekit.optax._wrappers.masks_and_labels import MaskFunction
from treekit.optax._wrappers.numbers import check_numbers
from treekit.optax._wrappers.parameters import Parameter, Role, read_signature
from treekit.optax._wrappers.specs import resolve

# Optax's factory for each of ours, as `_mirror/lookup` makes them. In a table, and not in an attribute of our function,
# which `functools.wraps` would copy to a function of the user's.
ORIGINALS: weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Call:
    """A factory and its arguments.

    Attributes:
        factory: the factory.
        name: what the user calls it.
        signature: its signature.
        parameters: what each parameter says.
        arguments: the arguments of its parameters by name.
        gathered: those that its `**kwargs` gathers. One may have the name of a parameter: `f(rate, /, **kwargs)`.
        is_of_optax: whether it is one of Optax's own factories.
    """

    factory: Callable[..., Any]
    name: str
    signature: inspect.Signature
    parameters: Mapping[str, Parameter]
    arguments: Mapping[str, Any]
    gathered: Mapping[str, Any]
    is_of_optax: bool

    def with_values(self, values: Mapping[str, Any]) -> "Call":
        """Return a call with other values for some arguments: of its parameters, or gathered under other names."""
        names = self.signature.parameters
        own = {name: x for name, x in values.items() if name in names}
        others = {name: x for name, x in values.items() if name not in names}
        return dataclasses.replace(self, arguments={**self.arguments, **own}, gathered={**self.gathered, **others})

    def make(self) -> Any:
        """Call the factory."""
        given = OrderedDict(
            (name, self.arguments[name]) for name in self.signature.parameters if name in self.arguments
        )
        bound = inspect.BoundArguments(self.signature, given)
        return self.factory(*bound.args, **bound.kwargs, **self.gathered)


def bind(
    factory: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_of_optax: bool
) -> Call:
    """Return a call of a factory with these arguments; raise its own error if it does not take them."""
    signature, parameters = read_signature(factory)
    try:
        bound: Any = signature.bind(*args, **kwargs)
    except TypeError:
        factory(*args, **kwargs)  # its own error names it
        raise
    arguments, gathered = dict[str, Any](bound.arguments), dict[str, Any]()
    for x in signature.parameters.values():
        if x.kind is inspect.Parameter.VAR_KEYWORD:
            gathered = arguments.pop(x.name, {})
    return Call(factory, name, signature, parameters, arguments, gathered, is_of_optax)


def bind_original(factory: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call of a factory; for one of `treekit.optax`, a call of Optax's own, without a boundary around it.

    `inject_hyperparams`, which calls the factory inside of its boundary, asks for it.
    """
    name = getattr(factory, "__name__", str(factory))
    try:
        original = ORIGINALS.get(factory)
    except TypeError:  # it cannot be a key
        original = None
    call = bind(original or factory, name, args, kwargs, is_of_optax=original is not None)
    if call.is_of_optax or is_known_code(factory):
        check_numbers(call.arguments, call.parameters, call.name, schedules=True)
    return call


def converted(call: Call) -> Call:
    """Return a call of one of Optax's own factories with arguments that Optax understands.

    A transformation of treekit becomes its core, and a mask a function, which Optax calls.

    Raises:
        ValueError: a chain has no links.
        TypeError: an argument that must be a transformation is something else.
    """
    arguments: dict[str, Any] = {}
    for key, parameter in call.signature.parameters.items():
        role = call.parameters[key].role
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            several = call.arguments.get(key, ())
            if role == "transformation" and not several:
                raise ValueError(f"{call.name} takes at least one transformation, and received none")
            pairs = enumerate(several)
            arguments[key] = tuple(_convert(x, role, key, f"{key}[{i}] of {call.name}") for i, x in pairs)
        elif key in call.arguments:
            arguments[key] = _convert(call.arguments[key], role, key, f"{key} of {call.name}")
    return dataclasses.replace(call, arguments=arguments)


def _convert(x: Any, role: Role, key: str, where: str) -> Any:
    """Return an argument as Optax understands it; labels, numbers and most functions are so already."""
    if role == "named":  # named_chain(("clip", tx))
        return x[0], core_of(x[1], where)
    if role == "transformation" or isinstance(x, (optax.GradientTransformation, optax.MultiSteps)):
        return core_of(x, where)
    if role == "mask" and x is not None:  # adamw(mask=mask)
        return MaskFunction(x, key)
    # muon(muon_weight_dimension_numbers=function or tree). By name, since Optax annotates a function of the updates,
    # such as `measure` of snapshot, in the same way.
    if role == "params" and key.endswith("dimension_numbers") and not _is_dimension_numbers(x):
        return functools.partial(_resolve, x, key)
    return x


def _resolve(spec: object, name: str, params: Params) -> Any:
    """Resolve an argument that Optax calls with the params, such as dimension numbers."""
    return resolve(spec, params, _is_dimension_numbers, name).prefix


def _is_dimension_numbers(x: object) -> bool:
    """Whether `x` is a leaf of a tree of dimension numbers, or of the labels of one; None is."""
    return x is None or isinstance(x, str) or type(x).__name__.endswith("DimensionNumbers")
