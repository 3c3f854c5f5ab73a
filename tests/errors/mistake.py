"""What a table of errors is made of."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A call that is wrong, the kind of its error, and the fact that its message must name.

    The fact is a key path, an argument, a class or a value: what stays when somebody words the message better.
    """

    call: Callable[[], object]
    kind: type[Exception]
    fact: str
    needs: tuple[str, ...] = ()  # what not every release has, as in tests/releases.py


def unchecked(function: Any) -> Any:
    """A function of treekit as users have it: without the checks of beartype, which come first in tests."""
    return inspect.unwrap(function)
