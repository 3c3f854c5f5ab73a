"""Which objects are the states of optimizers? The names of their classes say it, so no room needs Optax to ask."""

from typing import Any

_OTHERS = ("ApplyEvery", "WeightDecaySchedule")  # Optax's, whose names do not end in "State"


def is_known_code(x: Any) -> bool:
    """Whether a class or a function is defined in Optax or treekit, so that its meaning is known."""
    return str(getattr(x, "__module__", "")).partition(".")[0] in ("optax", "treekit")


def is_state(x: object) -> bool:
    """Whether `x` is a named tuple that is called as the states of Optax, treekit and others are: `ScaleByAdamState`.

    Optax's `EmptyState`, without fields, is one.
    """
    cls: Any = type(x)
    is_called_so = cls.__name__.endswith("State") or (cls.__name__ in _OTHERS and is_known_code(cls))
    return is_called_so and hasattr(x, "_fields") and issubclass(cls, tuple)


def is_known_state(x: object) -> bool:
    """Whether `x` is a state of Optax or treekit."""
    return is_state(x) and is_known_code(type(x))
