"""Is an argument the number that its parameter takes? Optax itself would only fail in the first update."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optax

from treekit._base.dtype import dtype_of, issubdtype, stands_for_array
from treekit._base.flax import values_of_variables
from treekit._base.jax import jnp, jtu
from treekit._select.tree_spec import TreeSpec
from treekit._text.describe import describe_value
from treekit.optax._wrappers.parameters import Parameter, read_signature


def check_numbers(
    arguments: Mapping[str, Any], parameters: Mapping[str, Parameter], factory: str, *, schedules: bool
) -> None:
    """Raise a TypeError if an argument is not a number, and its parameter takes numbers only.

    Args:
        arguments: arguments of one of Optax's own factories, or of one that treekit has instead, by name.
        parameters: what each parameter says.
        factory: the name of the factory.
        schedules: whether any number may be a schedule, as in `inject_hyperparams`.
    """
    for name, given in arguments.items():
        x, parameter = values_of_variables(given), parameters[name]
        may_be_schedule = schedules or parameter.role == "schedule"
        is_right = (
            (_is_number(x) and (not parameter.takes_only_ints or _is_int(x)))
            or (x is None and parameter.may_be_none)
            or (may_be_schedule and callable(x) and not isinstance(x, TreeSpec))
        )
        if parameter.is_numeric and not is_right:
            kind = "an int" if parameter.takes_only_ints else "a number"
            kind += " or a schedule" * may_be_schedule
            masks = [mask for mask, each in parameters.items() if each.role == "mask"]
            advice = _advice(x, factory, masks)
            raise TypeError(f"{name} of {factory} must be {kind}, found {describe_value(x)}{advice}")


def check_numbers_of(factory: Callable[..., Any], *args: object) -> None:
    """Check the numbers among the arguments of a function of treekit that stands for one of Optax's."""
    signature, parameters = read_signature(factory)
    check_numbers(signature.bind(*args).arguments, parameters, factory.__name__, schedules=False)


def _is_number(x: object) -> bool:
    """Whether `x` is a number or an array, or stands for one; a bool of Python and NaN are not."""
    is_nan = isinstance(x, float) and x != x
    return not is_nan and not isinstance(x, (bool, np.bool_)) and (dtype_of(x) is not None or stands_for_array(x))


def _is_int(x: object) -> bool:
    """Whether `x` is an integer, or a float that may stand for one: 1e3, or infinity."""
    return issubdtype(dtype_of(x), jnp.integer) or (isinstance(x, float) and (x.is_integer() or math.isinf(x)))


def _advice(x: Any, factory: str, masks: list[str]) -> str:
    """Say what may be meant by an argument that is given for a number, if the factory has these masks."""
    if isinstance(x, optax.GradientTransformation):
        return ". To run one transformation after another, write optax.chain(first, second)"
    leaves = jtu.tree_leaves(x)
    may_be_mask = callable(x) or (leaves and all(isinstance(leaf, bool) for leaf in leaves))
    if masks and may_be_mask and not isinstance(x, bool):
        return f". If it is a mask, pass it by name: {factory}(..., {masks[0]}=mask)"
    if leaves and not jtu.all_leaves([x]):
        return ". For another number for some of the params, use treekit.training.param_groups"
    return ""
