"""Which rows of `param_groups` decide about a leaf? `param_groups` notes it, and `summary` reads it.

`summary` receives an optimizer, and cannot reach the table inside: this context variable lets it collect the names.
"""

import contextlib
from contextvars import ContextVar
from typing import Any

from treekit._base.context import setting

_NAMES: ContextVar[dict[str, list[str]] | None] = ContextVar("names", default=None)


def names_of_rows() -> contextlib.AbstractContextManager[Any]:
    """Return a context: in it, a dict gets the names of the rows that decide about each leaf."""
    return setting(_NAMES, {})


def noted_names() -> dict[str, list[str]] | None:
    """Return that dict; None if nobody reads it."""
    return _NAMES.get()
