"""Which rows of `param_groups` decide about a leaf? `param_groups` notes it, and `summary` reads it.

`summary` has only the optimizer, with a table somewhere in it. So neither needs the other.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_NAMES: ContextVar[dict[str, list[str]] | None] = ContextVar("names", default=None)


@contextlib.contextmanager
def names_of_rows() -> Generator[dict[str, list[str]], None, None]:
    """Yield a dict that gets, while an optimizer runs, the names of the rows that decide about each leaf."""
    names: dict[str, list[str]] = {}
    token = _NAMES.set(names)
    try:
        yield names
    finally:
        _NAMES.reset(token)


def are_noted() -> dict[str, list[str]] | None:
    """Return that dict; None if nobody reads it."""
    return _NAMES.get()
