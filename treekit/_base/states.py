"""Recognise the states of optimizers, without importing Optax."""

from typing import Any


def is_state(cls: Any) -> bool:
    """Whether `cls` is a class of named tuples with fields whose name ends in "State", as Optax's do."""
    return bool(getattr(cls, "_fields", ())) and cls.__name__.endswith("State")
