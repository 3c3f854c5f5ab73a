"""Find out whether an accumulator becomes negative, which codes of uint8 cannot represent, by some steps of a trial."""

import contextlib
from collections.abc import Mapping
from typing import Any

from treekit._base.jax import jnp, jtu
from treekit._base.tree import is_mapping
from treekit.optax._kernel.state_map import map_state
from treekit.optax._kernel.transformation import Core
from treekit.optax._wrappers.state_dtype import is_of_uint8

_SLOPES = (1.0, -3.0, 2.0, -0.5)  # of some steps of a trial: an accumulator that has a sign becomes negative


def check_signs(inner: Core, state_dtype: Any) -> None:
    """Raise a ValueError if an accumulator becomes negative in some trial steps, and is to be stored in uint8.

    The trial has one small array as its params. A transformation that fails on it is not checked; then a negative
    number is stored as NaN, which is what any array of uint8 does with it.
    """
    if not (is_mapping(state_dtype) and any(map(is_of_uint8, state_dtype.values()))):
        return
    for key in _negative(inner, state_dtype):
        raise ValueError(
            f"state_dtype[{key!r}] is uint8, and this accumulator becomes negative, which uint8 cannot represent. Use "
            "jnp.int8"
        )


def _negative(inner: Core, state_dtype: Mapping[Any, Any]) -> list[Any]:
    with contextlib.suppress(Exception):  # it may need other params, a loss, or anything else
        params = jnp.ones((2, 2))
        state = inner.init(params)
        for slope in _SLOPES:
            _, state = inner.update(jnp.full_like(params, slope), state, params)
            for entry, x in zip(map_state(state, params), jtu.tree_leaves(state), strict=True):
                if entry.field in state_dtype and is_of_uint8(state_dtype[entry.field]) and (x < 0).any():
                    return [entry.field]
    return []
