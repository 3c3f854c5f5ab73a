"""What an argument of a factory is: a mask, a schedule, a number, or something that is passed on unchanged.

The value's own type decides first, then what the parameter says (`slot`). Only a callable that these do not
decide is called: with a step count, and with the params.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from treekit._base.callable import is_truly_callable
from treekit._base.describe import describe, describe_error, describe_value
from treekit._base.dtype import dtype_of
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import is_variable
from treekit._base.predicates import is_array, is_parameter, is_real_number
from treekit._base.types import Params
from treekit._filter import TreeSpec, filter
from treekit._resolve_spec import match_spec, resolve_shown
from treekit.optax._kernel.resolve_masks import as_arrays
from treekit.optax._kernel.selection import is_spec_leaf
from treekit.optax._kernel.slot import Slot
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import check_is_transformation


class Kind(enum.Enum):
    """What an argument is.

    Attributes:
        STATIC: it is passed on unchanged.
        MASK: a tree of bools, or a function from the params to one.
        NUMBER: a number or an array.
        SCHEDULE: a function from a step count to a number, or a stateful schedule.
        UNDECIDED: a callable; calling it tells.
    """

    STATIC = "static"
    MASK = "mask"
    NUMBER = "number"
    SCHEDULE = "schedule"
    UNDECIDED = "undecided"


def kind_of(value: object, slot: Slot) -> Kind:
    """Return what an argument is, as far as this is known without calling it."""
    if value is None or slot.role == "labels":
        return Kind.STATIC
    if slot.role == "mask":
        return Kind.MASK
    if isinstance(value, (str, type)):
        return Kind.STATIC
    if _is_number(value):
        return Kind.STATIC if type(value) is int and slot.is_setting else Kind.NUMBER
    if isinstance(value, optax.schedules.StatefulSchedule):
        return Kind.SCHEDULE
    if not callable(value) or isinstance(value, TreeSpec) or value is slot.default:
        return Kind.STATIC
    return Kind.SCHEDULE if slot.role == "schedule" else Kind.UNDECIDED


def check_argument(value: Any, slot: Slot, factory: str) -> None:
    """Raise a TypeError if an argument that must be a transformation, or a number or schedule, is something else."""
    where = f"{slot.name} of {factory}"
    is_text = isinstance(value, _TEXT) and "str" not in slot.types
    if slot.role == "transformation":
        check_is_transformation(value, where)
    elif slot.role in _SEVERAL:
        for i, each in enumerate(value):
            _SEVERAL[slot.role](each, f"{slot.name}[{i}] of {factory}")
    elif slot.role == "number" and not (jtu.all_leaves([value]) or is_variable(value)):
        raise TypeError(
            f"{where} must be a number, found a {type(value).__name__}. Params and gradients are arguments of init and "
            "update"
        )
    elif slot.role == "schedule" and (is_text or isinstance(value, _CONTAINERS)):
        raise TypeError(f"{where} must be a number or a schedule, found {describe_value(value)}")
    elif slot.role == "schedule" and callable(value) and not jtu.all_leaves([value]):
        answer, error = _value_at_zero(value, surely=True)
        if error:  # a model, perhaps
            raise TypeError(
                f"{where} must be a number or a schedule, found a {type(value).__name__}. "
                + _answered(answer, error).rstrip()
            ) from error
    if is_text and "float" in slot.types:
        raise TypeError(f"{where} must be a number, found {describe_value(value)}")


def _check_is_named(pair: Any, where: str) -> None:
    try:
        name, tx = pair
    except (TypeError, ValueError):
        name, tx = None, None
    if not isinstance(name, str):
        raise TypeError(f"{where} must be a pair (name, transformation), found a {type(pair).__name__}")
    check_is_transformation(tx, where)


_SEVERAL: dict[str, Callable[[Any, str], None]] = {
    "transformations": check_is_transformation,
    "named transformations": _check_is_named,
}
_TEXT: Any = (str, bytes)
_CONTAINERS: Any = (list, tuple, Mapping)


def _is_number(value: object) -> bool:
    return (is_array(value) or isinstance(value, (int, float, complex))) and not isinstance(value, (bool, np.bool_))


class Scheduled(NamedTuple):
    """An argument that is a schedule.

    Attributes:
        schedule: the argument, as a stateful schedule.
        first: its value at count 0 if that is known, else None.
    """

    schedule: Any
    first: Any


def stateful(schedule: Any) -> Any:
    """Return a schedule as a stateful one."""
    is_stateful = isinstance(schedule, optax.schedules.StatefulSchedule)
    return schedule if is_stateful else optax.schedules.WrappedSchedule(schedule)


def as_schedule(value: Any, slot: Slot, params: Params) -> Scheduled | None:
    """Return an argument as a schedule, or None if it is another function, such as a mask function.

    Args:
        value: a callable that is a schedule or undecided.
        slot: what its parameter says.
        params: the params, for which it may be a tree or return one.

    Raises:
        TypeError: it is neither a schedule nor fits the params; the message names the argument.
    """
    if isinstance(value, optax.schedules.StatefulSchedule):
        return Scheduled(value, None)
    surely = kind_of(value, slot) is Kind.SCHEDULE
    if not surely and _fits(value, params):
        return None
    answer, error = _value_at_zero(value, surely)
    first = answer if is_real_number(answer) else None
    if first is not None and (surely or isinstance(first, jax.Array) or not _maps_params(value, params)):
        return Scheduled(stateful(value), first)
    if not surely and (first is not None or is_params_placeholder(params) or _maps_params(value, params)):
        return None
    raise TypeError(
        f"inject_hyperparams cannot decide what the argument {slot.name!r} is: {value!r} neither maps a "
        "step count to one real number, as a schedule does, nor fits the params, as a mask does. "
        + _answered(answer, error)
        + f"To pass it on unchanged, name it: static_args={slot.name!r}"
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


def _value_at_zero(value: Any, surely: bool) -> tuple[Any, Exception | None]:
    """Return what `value` maps a step count to, unless it is not called; and the error that it raised."""
    if not surely and not is_truly_callable(value) and not any(map(_is_numeric_leaf, jtu.tree_leaves(value))):
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
