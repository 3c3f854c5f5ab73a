"""Look up the user's leaves, for which masks, labels and filters are written, from the arrays that cores see."""

import contextlib
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

_Originals = Mapping[int, tuple[Any, Any]]
_originals: ContextVar[_Originals] = ContextVar("originals", default=MappingProxyType({}))


@contextlib.contextmanager
def showing(originals: _Originals) -> Generator[None]:
    token = _originals.set({**_originals.get(), **originals} if originals else _originals.get())
    try:
        yield
    finally:
        _originals.reset(token)


def original(x: object) -> Any:
    """Return the user's leaf that an array represents: a Python number, an integer array, a `jax.Ref`.

    Masks, labels and filters are written for those.
    """
    shown, leaf = _originals.get().get(id(x), (None, None))
    return leaf if shown is x and x is not None else x
