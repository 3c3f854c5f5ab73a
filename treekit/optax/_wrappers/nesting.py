"""Refuse a `dtype_preserving` inside another, if both would decide in which dtype one state is stored."""

import contextlib
import contextvars
from collections.abc import Generator
from typing import Any, NamedTuple

import optax

from treekit._base.describe import describe_value
from treekit._base.jax import jnp
from treekit._base.tree import is_mapping
from treekit._base.types import OptState, Params, Updates
from treekit.optax._kernel.state_map import params_placeholder
from treekit.optax._kernel.transformation import Core


class _Stored(NamedTuple):
    """The arguments of a `dtype_preserving` that decide how state is stored."""

    state_dtype: Any
    rounding: str

    def __str__(self) -> str:
        return f"state_dtype={describe_value(self.state_dtype)}, rounding={self.rounding!r}"


# Those of the innermost `dtype_preserving` whose inner transformation is being called.
_OUTER: contextvars.ContextVar[_Stored | None] = contextvars.ContextVar("_OUTER", default=None)


class _NestedError(TypeError):
    pass


def is_nested() -> bool:
    """Whether this is called inside another `dtype_preserving`, which then widens and rounds the state."""
    return _OUTER.get() is not None


def refuse_nested(inner: Core, state_dtype: Any, rounding: str) -> Core:
    """Return the core that a `dtype_preserving` with these arguments calls.

    Its init raises inside another `dtype_preserving` that stores the same state in another dtype.

    Raises:
        TypeError: there is such a transformation in `inner`. To find it, its init is called with a placeholder for the
            params; if it does not accept that, it raises when it is called with params.
    """
    own = _Stored(state_dtype, rounding)
    if own == (None, "nearest"):
        return inner
    inner_init, inner_update = inner

    def init(params: Params) -> Any:
        _check(_OUTER.get(), own)
        with _inside(own):
            return inner_init(params)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        with _inside(own):
            new_updates, new_state = inner_update(updates, state, params, **extra)
        return new_updates, new_state

    try:
        init(params_placeholder())
    except _NestedError:
        raise
    except Exception:  # an init that computes with the params may raise anything
        pass
    return optax.GradientTransformationExtraArgs(init, update)


@contextlib.contextmanager
def _inside(own: _Stored) -> Generator[None]:
    token = _OUTER.set(own)
    try:
        yield
    finally:
        _OUTER.reset(token)


def _check(outer: _Stored | None, own: _Stored) -> None:
    if outer is not None and not _agree(outer.state_dtype, own.state_dtype):
        raise _NestedError(
            f"dtype_preserving({own}) is inside dtype_preserving({outer}), and both would decide in which dtype one "
            "state is stored. Give state_dtype to one of them: to the outer one, which may name each accumulator; or "
            "to several that are side by side in a chain or a partition"
        )


def _agree(outer: Any, inner: Any) -> bool:
    if inner is None:
        return True
    if is_mapping(inner) or is_mapping(outer):
        return False
    return bool(jnp.finfo(inner).bits >= 32 if outer is None else jnp.dtype(outer) == jnp.dtype(inner))
