"""Sort the arguments of a factory into hyperparameters, schedules and static arguments."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from treekit._base.describe import describe_value
from treekit._base.dtype import dtype_of, has_dtype, is_weak, issubdtype
from treekit._base.jax import jnp, jtu
from treekit._base.types import OptState, Params, TransformationLike
from treekit.optax._kernel.argument_kind import Kind, Scheduled, as_schedule, kind_of, stateful
from treekit.optax._kernel.slot import Slot
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import original


@dataclasses.dataclass(frozen=True, eq=False)  # compared by identity, since bound arguments are not hashable
class Arguments:
    """The arguments of a factory, some of which are hyperparameters.

    Attributes:
        factory: the factory.
        bound: its arguments, with defaults.
        static: the names of parameters that are always static.
        required: the names of parameters that must not be static; None for no such names.
    """

    factory: Callable[..., TransformationLike]
    bound: inspect.BoundArguments
    static: Collection[str]
    required: Collection[str] | None
    _scheduled: set[str] = dataclasses.field(default_factory=set[str])  # found so far, for `_as_schedule`

    def sort(self, params: Params) -> tuple[dict[str, Scheduled], dict[str, Any]]:
        """Return the arguments that are schedules, and those that are numbers."""
        params = params if is_params_placeholder(params) else jtu.tree_map(original, params)
        arguments = self._by_name
        if missing := sorted(set(self.required or ()) - arguments.keys()):  # possible only with `**kwargs`
            raise TypeError(
                f"inject_hyperparams(..., only=...) names {', '.join(missing)}, which was not passed; the arguments "
                f"are {', '.join(arguments)}"
            )
        numbers: dict[str, Any] = {}
        schedules: dict[str, Scheduled] = {}
        for name, (slot, value) in arguments.items():
            is_required = self.required is not None and name in self.required
            if name in self.static or (self.required is not None and not is_required):
                continue
            kind = kind_of(value, slot)
            if kind is Kind.NUMBER or (is_required and type(value) is int):
                numbers[name] = value
            elif kind in _MAY_BE_SCHEDULES and (found := self._as_schedule(value, slot, params)):
                schedules[name] = found
            elif is_required:
                raise TypeError(
                    f"inject_hyperparams(..., only=...) names {name!r}, which is neither a number nor a schedule: "
                    f"{describe_value(value)}"
                )
        return schedules, numbers

    def _as_schedule(self, value: object, slot: Slot, params: Params) -> Scheduled | None:
        if is_params_placeholder(params) and slot.name in self._scheduled:
            return Scheduled(stateful(value), 0.0)  # as in the state, whose structure tree_map_params needs
        found = as_schedule(value, slot, params)
        if found:
            self._scheduled.add(slot.name)
        return found

    def schedules_of(self, state: OptState) -> dict[str, Any]:
        """Return the schedules that a state was made with."""
        arguments = self._by_name
        if unknown := sorted(state.hyperparams.keys() - arguments.keys()):
            raise TypeError(
                f"the state's hyperparams have {', '.join(unknown)}, which is not an argument of the function that was "
                f"injected; its arguments are {', '.join(arguments)}"
            )
        for name in state.hyperparams:
            _, value = arguments[name]
            if callable(value) != (name in state.hyperparams_states):
                was, now = ("a number", "a schedule") if callable(value) else ("a schedule", "a number")
                raise TypeError(
                    f"the state was made with {was} for {name!r}, and the optimizer now has {now}: "
                    f"{describe_value(value)}. Make the state with init, or pass the argument that it was made with"
                )
        return {name: stateful(arguments[name][1]) for name in state.hyperparams_states}

    def stored_dtype(self, name: str, number: object, float_dtype: object) -> Any:
        """Return the dtype in which a hyperparameter is stored.

        An array that states its dtype keeps it: as the argument, as the result of a schedule, and as a float that a
        user puts into the state. Other numbers become floats, so that any real number can replace them, except where
        the parameter takes only ints.
        """
        slot, argument = self._by_name[name]
        dtype = dtype_of(number)
        is_stated = _states_dtype(number) and (
            callable(argument) or _states_dtype(argument) or not issubdtype(dtype, jnp.integer)
        )
        is_real = issubdtype(dtype, jnp.floating) or issubdtype(dtype, jnp.integer) or issubdtype(dtype, jnp.bool_)
        takes_floats = issubdtype(dtype, jnp.floating) or not slot.only_ints
        return float_dtype if is_real and takes_floats and not is_stated else dtype

    def make(self, hyperparams: dict[str, Any]) -> TransformationLike:
        """Make the transformation with these hyperparameters."""
        call = inspect.BoundArguments(self.bound.signature, self.bound.arguments.copy())
        for name, value in self.bound.arguments.items():
            if self.bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found = hyperparams.keys() & value.keys() - self.bound.arguments.keys()
                call.arguments[name] = {**value, **{key: hyperparams[key] for key in found}}
            else:
                call.arguments[name] = hyperparams.get(name, value)
        return self.factory(*call.args, **call.kwargs)

    @functools.cached_property
    def _by_name(self) -> dict[str, tuple[Slot, Any]]:
        """Return what the parameters say, and arguments, by name; those that `**kwargs` gathers have their own names.

        One that has the name of a positional-only parameter is static.
        """
        found: dict[str, tuple[Slot, Any]] = {}
        for name, value in self.bound.arguments.items():
            parameter = self.bound.signature.parameters[name]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                slots = [Slot.of(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY)) for key in value]
                found |= {slot.name: (slot, value[slot.name]) for slot in slots if slot.name not in found}
            else:
                found[name] = (Slot.of(parameter), value)
        return found


_MAY_BE_SCHEDULES = (Kind.SCHEDULE, Kind.UNDECIDED)


def _states_dtype(x: object) -> bool:
    return has_dtype(x) and not is_weak(x)
