"""What a parameter of a factory says of its arguments, by its name, annotation and default."""

import inspect
import re
from typing import Any, NamedTuple, get_args

import jax
import optax


class Slot(NamedTuple):
    """What a parameter of a factory says of its arguments.

    Attributes:
        name: its name.
        default: its default, or `inspect.Parameter.empty`.
        types: the names of its types.
        role: what it is, by its name or its annotation: a "mask"; "labels"; a "transformation", several or "named"
            ones; a "schedule" or a number; a "number" or an array. "" if these do not say it.
        only_ints: whether a number must be an integer: a seed, a size, an interval.
        is_setting: whether an int must stay a Python int, such as the memory size of lbfgs; a seed may be an array.
    """

    name: str
    default: Any
    types: frozenset[str]
    role: str
    only_ints: bool
    is_setting: bool

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> "Slot":
        """Return what a parameter says."""
        types, is_int = _types(parameter.annotation), type(parameter.default) is int
        is_integer = is_int or ("int" in types and "float" not in types)
        return cls(
            parameter.name,
            parameter.default,
            types,
            _role(parameter, types),
            only_ints=is_integer or parameter.name.endswith(("key", "seed")),
            is_setting=is_int or (is_integer and not types & {"Array", "ArrayLike"}),
        )


def _role(parameter: inspect.Parameter, types: frozenset[str]) -> str:
    name, annotation = parameter.name, parameter.annotation
    if name.endswith(("mask", "labels")):
        return "mask" if name.endswith("mask") else "labels"
    if annotation is optax.GradientTransformation:
        return "transformations" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "transformation"
    if annotation == tuple[str, optax.GradientTransformation]:
        return "named transformations"
    if types & {"Schedule", "ScalarOrSchedule"}:
        return "schedule"
    return "number" if annotation in _NUMBERS else ""


_NUMBERS = (int, "int", float, "float", jax.typing.ArrayLike, "ArrayLike", "jax.typing.ArrayLike")
_TYPES: dict[str, Any] = {
    "Array": jax.Array,
    "ArrayLike": jax.typing.ArrayLike,
    "ScalarOrSchedule": optax.ScalarOrSchedule,
    "Schedule": optax.Schedule,
    "float": float,
    "int": int,
    "str": str,
}


def _types(annotation: Any) -> frozenset[str]:
    """Return the names of a type, or of those in a union; a quoted annotation is read word by word."""
    if isinstance(annotation, str):
        return frozenset(re.findall(r"\w+", annotation))
    members = (annotation, *get_args(annotation))
    return frozenset(name for name, each in _TYPES.items() if any(member == each for member in members))


def slots_of(signature: inspect.Signature) -> dict[str, Slot]:
    """Return what each parameter of a factory says."""
    return {name: Slot.of(parameter) for name, parameter in signature.parameters.items()}
