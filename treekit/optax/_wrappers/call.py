"""The arguments of a factory by name; for a factory of Optax's own, converted to what Optax understands."""

import dataclasses
import functools
import inspect
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optax

from treekit._base.dtype import dtype_of, issubdtype, stands_for_array
from treekit._base.flax import values_of_variables
from treekit._base.jax import jnp, jtu
from treekit._base.states import is_known_code
from treekit._base.types import Params
from treekit._select.tree_spec import TreeSpec
from treekit._text.describe import describe_value
from treekit.optax._kernel.transformation import core_of
from treekit.optax._wrappers.masks_and_labels import MaskFunction, resolve
from treekit.optax._wrappers.parameters import Parameter, Role, read_signature

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

    def make(self, values: Mapping[str, Any] | None = None) -> Any:
        """Call the factory, with other values for some arguments: of its parameters, or gathered under other names."""
        names, values = self.signature.parameters, values or {}
        given = {**self.arguments, **{name: x for name, x in values.items() if name in names}}
        gathered = {**self.gathered, **{name: x for name, x in values.items() if name not in names}}
        bound = inspect.BoundArguments(self.signature, OrderedDict((x, given[x]) for x in names if x in given))
        return self.factory(*bound.args, **bound.kwargs, **gathered)


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
        check_numbers(call, schedules=True)
    return call


def check_numbers(call: Call, *, schedules: bool) -> None:
    """Raise a TypeError if an argument is not a number, and its parameter takes numbers only.

    Args:
        call: a call of one of Optax's own factories, or of one that treekit has instead.
        schedules: whether any number may be a schedule, as in `inject_hyperparams`.
    """
    for key, given in call.arguments.items():
        x, parameter = values_of_variables(given), call.parameters[key]
        may_be_schedule = schedules or parameter.role == "schedule"
        is_right = (
            (_is_number(x) and (not parameter.takes_only_ints or _is_int(x)))
            or (x is None and parameter.may_be_none)
            or (may_be_schedule and callable(x) and not isinstance(x, TreeSpec))
        )
        if parameter.is_numeric and not is_right:
            kind = "an int" if parameter.takes_only_ints else "a number"
            kind += " or a schedule" * may_be_schedule
            raise TypeError(f"{key} of {call.name} must be {kind}, found {describe_value(x)}{_advice(call, x)}")


def check_numbers_of(factory: Callable[..., Any], *args: object) -> None:
    """Check the numbers among the arguments of a function of treekit that stands for one of Optax's."""
    check_numbers(bind(factory, factory.__name__, args, {}, is_of_optax=False), schedules=False)


def _is_number(x: object) -> bool:
    """Whether `x` is a number or an array, or stands for one; a bool of Python and NaN are not."""
    is_nan = isinstance(x, float) and x != x
    return not is_nan and not isinstance(x, (bool, np.bool_)) and (dtype_of(x) is not None or stands_for_array(x))


def _is_int(x: object) -> bool:
    """Whether `x` is an integer, or a float that may stand for one: 1e3, or infinity."""
    return issubdtype(dtype_of(x), jnp.integer) or (isinstance(x, float) and (x.is_integer() or math.isinf(x)))


def _advice(call: Call, x: Any) -> str:
    """Say what may be meant by an argument that is given for a number."""
    if isinstance(x, optax.GradientTransformation):
        return ". To run one transformation after another, write optax.chain(first, second)"
    masks = [name for name, each in call.parameters.items() if each.role == "mask"]
    leaves = jtu.tree_leaves(x)
    if masks and (callable(x) or (leaves and all(isinstance(leaf, bool) for leaf in leaves))) and x is not True:
        return f". If it is a mask, pass it by name: {call.name}(..., {masks[0]}=mask)"
    if leaves and not jtu.all_leaves([x]):
        return ". For another number for some of the params, use treekit.training.param_groups"
    return ""


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
    return resolve(spec, params, _is_dimension_numbers, name).spec


def _is_dimension_numbers(x: object) -> bool:
    """Whether `x` is a leaf of a tree of dimension numbers, or of the labels of one; None is."""
    return x is None or isinstance(x, str) or type(x).__name__.endswith("DimensionNumbers")
