"""Sort the arguments of a factory into hyperparameters, schedules and static arguments."""

import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
import optax

from treekit._base.callable import is_truly_callable
from treekit._base.describe import describe, describe_error, describe_value
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_array, is_parameter, is_real_number
from treekit._base.types import OptState, Params
from treekit._filter import TreeSpec, filter
from treekit._resolve_spec import match_spec, resolve_shown
from treekit.optax._kernel.crossing import original
from treekit.optax._kernel.resolve_masks import as_arrays
from treekit.optax._kernel.selection import is_spec_leaf
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.types import TransformationLike


class Scheduled(NamedTuple):
    """An argument that is a schedule.

    Attributes:
        schedule: the argument, as a stateful schedule.
        first: its value at count 0 if that is known, else None.
    """

    schedule: Any
    first: Any


@dataclasses.dataclass(frozen=True, eq=False)  # compared by identity, since bound arguments are not hashable
class Arguments:
    """The arguments of a factory, some of which are hyperparameters.

    Attributes:
        factory: the factory.
        signature: its signature.
        bound: its arguments.
        static: the names of parameters that are always static.
        required: the names of parameters that must not be static.
    """

    factory: Callable[..., TransformationLike]
    signature: inspect.Signature
    bound: inspect.BoundArguments
    static: Collection[str]
    required: Collection[str]
    _scheduled: set[str] = dataclasses.field(default_factory=set[str])  # found so far, for `_as_schedule`

    def sort(self, params: Params) -> tuple[dict[str, Scheduled], dict[str, Any]]:
        """Return the arguments that are schedules, and those that are numbers."""
        params = params if is_params_placeholder(params) else jtu.tree_map(original, params)
        numbers: dict[str, Any] = {}
        schedules: dict[str, Scheduled] = {}
        for name, value in self.bound.arguments.items():
            if name in self.static:
                continue
            parameter = self.signature.parameters[name]
            if _is_number(value) and (name in self.required or not _is_setting(value, parameter)):
                numbers[name] = value
            elif callable(value) and (found := self._as_schedule(value, parameter, params)):
                schedules[name] = found
            elif name in self.required:
                raise TypeError(
                    f"inject_hyperparams(..., only=...) names {name!r}, which is neither a number nor a schedule: "
                    f"{describe_value(value)}"
                )
        return schedules, numbers

    def _as_schedule(self, value: object, parameter: inspect.Parameter, params: Params) -> Scheduled | None:
        if is_params_placeholder(params) and parameter.name in self._scheduled:
            return Scheduled(_stateful(value), 0.0)  # as in the state, whose structure tree_map_params needs
        found = _as_schedule(value, parameter, params)
        if found:
            self._scheduled.add(parameter.name)
        return found

    def schedules_of(self, state: OptState) -> dict[str, Any]:
        """Return the schedules that a state was made with."""
        if unknown := sorted(state.hyperparams.keys() - self.signature.parameters.keys()):
            raise TypeError(
                f"the state's hyperparams have {', '.join(unknown)}, which is not an argument of the function that was "
                f"injected; its arguments are {', '.join(self.signature.parameters)}"
            )
        for name in state.hyperparams:
            value = self.bound.arguments[name]
            if callable(value) != (name in state.hyperparams_states):
                was, now = ("a number", "a schedule") if callable(value) else ("a schedule", "a number")
                raise TypeError(
                    f"the state was made with {was} for {name!r}, and the optimizer now has {now}: "
                    f"{describe_value(value)}. Make the state with init, or pass the argument that it was made with"
                )
        return {name: _stateful(self.bound.arguments[name]) for name in state.hyperparams_states}

    def may_be_float(self, name: str, value: object) -> bool:
        """Whether a hyperparameter is a float, or an int for a parameter that may be a float: weight_decay=0."""
        parameter = self.signature.parameters[name]
        kinds = (parameter.annotation, *get_args(parameter.annotation))
        takes_floats = isinstance(parameter.default, float) or float in kinds or "float" in kinds
        dtype = dtype_of(value)
        return issubdtype(dtype, jnp.floating) or (issubdtype(dtype, jnp.integer) and takes_floats)

    def make(self, hyperparams: dict[str, Any]) -> TransformationLike:
        """Make the transformation with these hyperparameters."""
        call = inspect.BoundArguments(self.signature, OrderedDict({**self.bound.arguments, **hyperparams}))
        return self.factory(*call.args, **call.kwargs)


def _is_number(value: object) -> bool:
    return (is_array(value) or isinstance(value, (int, float, complex))) and not isinstance(value, (bool, np.bool_))


def _is_setting(value: object, parameter: inspect.Parameter) -> bool:
    """Whether a number must stay a Python int, such as the memory size of lbfgs."""
    return type(value) is int and (type(parameter.default) is int or parameter.annotation in (int, "int"))


def _as_schedule(value: object, parameter: inspect.Parameter, params: Params) -> Scheduled | None:
    """Return a callable argument as a schedule; None if it is static."""
    if isinstance(value, (type, TreeSpec)) or value is parameter.default or _fits(value, params):
        return None
    if isinstance(value, optax.schedules.StatefulSchedule):
        return Scheduled(value, None)
    answer, error = _value_at_zero(value)
    first = answer if is_real_number(answer) else None
    surely = isinstance(first, jax.Array) or parameter.annotation == optax.ScalarOrSchedule
    if first is not None and (surely or not _maps_params(value, params)):
        return Scheduled(_stateful(value), first)
    if first is not None or is_params_placeholder(params) or _maps_params(value, params):
        return None
    raise TypeError(
        f"inject_hyperparams cannot decide what the argument {parameter.name!r} is: {value!r} neither maps a "
        "step count to one real number, as a schedule does, nor fits the params, as a mask does. "
        + _answered(answer, error)
        + f"To pass it on unchanged, name it: static_args={parameter.name!r}"
    ) from error


def _answered(answer: object, error: Exception | None) -> str:
    if error:
        return f"Called with a count, it raised {describe_error(error)}. "
    if answer is _NOT_ASKED:
        return ""
    what = describe(answer) if is_array(answer) else describe_value(answer)
    return f"Called with a count, it returned {what}, but a schedule returns a real number of shape (). "


def _fits(value: object, params: Params) -> bool:
    """Whether `value` is a tree that fits the params, rather than a function."""
    try:
        match_spec(value, filter(params, is_parameter), is_spec_leaf=is_spec_leaf, name="spec")
    except ValueError:
        return False
    return not jtu.all_leaves([value]) and not any(map(is_array, jtu.tree_leaves(value)))


def _maps_params(value: object, params: Params) -> bool:
    """Whether `value` maps the params to a tree that fits them, such as a mask."""
    try:
        spec = resolve_shown(value, params, as_arrays, is_spec_leaf=is_spec_leaf, name="spec")
    except Exception:  # a schedule that is called with params may raise anything
        return False
    return not is_real_number(spec) and not any(map(is_array, jtu.tree_leaves(spec)))


def _value_at_zero(value: Any) -> tuple[Any, Exception | None]:
    """Return what `value` maps a step count to, unless it is not called; and the error that it raised."""
    if not is_truly_callable(value) and not any(map(_is_numeric_leaf, jtu.tree_leaves(value))):
        return _NOT_ASKED, None  # a callable mask or label tree, for other params
    # The count is concrete, since a schedule may branch on it, and needs no transfer, which users may forbid.
    try:
        with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
            return value(jnp.zeros([], jnp.int32)), None
    except Exception as error:  # a mask function that is called with a count may raise anything
        return None, error


_NOT_ASKED = object()


def _is_numeric_leaf(leaf: object) -> bool:
    return dtype_of(leaf) is not None and not is_spec_leaf(leaf)


def _stateful(schedule: Any) -> Any:
    stateful = isinstance(schedule, optax.schedules.StatefulSchedule)
    return schedule if stateful else optax.schedules.WrappedSchedule(schedule)
