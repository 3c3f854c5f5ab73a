"""Set a context variable while something runs."""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def setting(variable: ContextVar[T], value: T) -> Generator[T]:
    """Set a context variable, and yield its value; afterwards it has its old one again."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
