"""Is an argument of a factory a number, a schedule, or static?

Its type, and the name, annotation and default of its parameter decide (`classify`). Nothing is called to find out.
"""

import inspect
from typing import Any, Literal, NamedTuple

import numpy as np
from optax.schedules import StatefulSchedule

from treekit._base.dtype import dtype_of
from treekit._base.predicates import is_array, is_truly_callable
from treekit._select.tree_spec import TreeSpec
from treekit._text.describe import describe_value
from treekit.optax._wrappers.call import Call
from treekit.optax._wrappers.parameters import Parameter

Kind = Literal["static", "number", "schedule", "undecided"]


def classify(value: object, parameter: Parameter) -> Kind:
    """Return whether an argument is passed on unchanged, a number or an array, or a schedule.

    Its type decides, and what its parameter says: the first of the rules that `inject_hyperparams` lists.
    """
    if value is None or isinstance(value, (bool, np.bool_, str, type)):  # rule 2
        return "static"
    if parameter.role in ("mask", "labels", "params"):  # rule 3
        return "static"
    if is_number_or_array(value):  # rule 4
        return "static" if parameter.takes_only_ints and isinstance(value, (int, np.integer)) else "number"
    if isinstance(value, StatefulSchedule):  # rule 5
        return "schedule"
    if value is parameter.default or isinstance(value, TreeSpec):  # rule 6
        return "static"
    if parameter.role == "schedule" and callable(value):  # rule 7
        return "schedule"
    if not is_truly_callable(value):  # rule 8
        return "static"
    return "undecided" if parameter.role == "function" else "schedule"  # rules 9 and 10


def is_number_or_array(value: object) -> bool:
    """Whether an argument is a number or an array, also one of keys; bools are not numbers, arrays of them are."""
    if isinstance(value, (int, float, complex)):
        return not isinstance(value, bool)
    return is_array(value) and not isinstance(value, np.bool_) and dtype_of(value) is not None


class Given(NamedTuple):
    """An argument, and what its parameter says."""

    value: Any
    parameter: Parameter


def named_arguments(call: Call, static: set[str], only: set[str] | None) -> dict[str, Given]:
    """Return the arguments of a call by name, with defaults, and with those that `**kwargs` gathers."""
    arguments: dict[str, Given] = {}
    for name, x in call.signature.parameters.items():
        value = call.arguments.get(name, x.default)
        if value is inspect.Parameter.empty:
            continue
        if x.kind is inspect.Parameter.VAR_POSITIONAL and value and only is None and name not in static:
            raise TypeError(
                f"inject_hyperparams stores arguments by name, and *{name} of {call.name} gathers them without names. "
                f"Inject a function that names them; or, to pass them on unchanged, write static_args={name!r}"
            )
        arguments[name] = Given(value, call.parameters[name])
    keywords = [x for x in call.signature.parameters.values() if x.kind is inspect.Parameter.VAR_KEYWORD]
    for name, value in call.gathered.items():
        if name not in arguments:  # one that shares the name of a positional-only parameter is static
            keyword = keywords[0].replace(name=name, kind=inspect.Parameter.KEYWORD_ONLY)
            arguments[name] = Given(value, Parameter.of(keyword))
    return arguments


def kinds_of(
    factory_name: str, arguments: dict[str, Given], static: set[str], only: set[str] | None
) -> dict[str, Kind]:
    """Return what each argument is, by name, as `static_args` and `only` say, or else as `classify` does."""

    def kind_of(name: str, x: Given) -> Kind:
        if name in static or (only is not None and name not in only):  # rule 1
            return "static"
        if only is not None:  # it names this one
            return "number" if is_number_or_array(x.value) else "schedule"
        kind = classify(x.value, x.parameter)
        if kind == "undecided":
            raise TypeError(
                f"the argument {name!r} of {factory_name} is {describe_value(x.value)}, and its annotation, a "
                "Callable, does not say whether it is a schedule. To pass it on unchanged, name it: "
                f"static_args={name!r}. If it is a schedule, list it with the other hyperparameters in `only`, or "
                "annotate it as optax.Schedule"
            )
        return kind

    return {name: kind_of(name, x) for name, x in arguments.items()}
