"""Find out in which codes of 8 bits an accumulator cannot be stored, by some steps of a trial."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Array

from treekit._base.jax import jnp, jtu
from treekit._base.tree import is_mapping
from treekit.optax._kernel.state_map import map_state
from treekit.optax._kernel.transformation import Core
from treekit.optax._wrappers.state_dtype import is_code, key_of

_TRIAL = ((1.0, -2.0), (-3.0, 4.0))  # params, and gradients up to a factor
_SLOPES = (1.0, 1.0, -3.0, 2.0)  # that factor: an accumulator that has a sign becomes negative somewhere


def check_signs(inner: Core, state_dtype: Any) -> None:
    """Raise a ValueError if an accumulator is to be stored in uint8 and has a sign, or in int8 and has none.

    The numbers of int8 begin at 4.7e-9, which is too large for a second moment: small ones would become zero, and
    updates huge. The trial has one small array as its params. A transformation that fails on it is not checked; then a
    negative number is stored as NaN, which is what any array of uint8 does with it.
    """
    if not (is_mapping(state_dtype) and any(map(is_code, state_dtype.values()))):
        return
    found: dict[tuple[Any, str], list[float]] = {}
    with contextlib.suppress(Exception):  # it may need other params, a loss, or anything else
        for key, field, x in _trial(inner, state_dtype):
            smallest, largest = float(x.min()), float(x.max())  # raises while tracing
            found.setdefault((key, field), []).extend((smallest, largest))
    for (key, field), numbers in found.items():
        dtype = jnp.dtype(state_dtype[key])
        if min(numbers) < 0 and dtype == jnp.uint8:
            raise ValueError(
                f"state_dtype[{key!r}] is uint8, and the accumulator {field!r} becomes negative, which uint8 cannot "
                "represent. Use jnp.int8"
            )
        if min(numbers) >= 0 and max(numbers) > 0 and dtype == jnp.int8:
            raise ValueError(
                f"state_dtype[{key!r}] is int8, and the accumulator {field!r} is never negative: its numbers below "
                "4.7e-9 would become zero, and updates huge. Use jnp.uint8"
            )


def _trial(inner: Core, state_dtype: Mapping[Any, Any]) -> Iterator[tuple[Any, str, Array]]:
    """Yield each accumulator that is to be stored in codes, in each step, with its key and its field."""
    params = jnp.array(_TRIAL)
    state = inner.init(params)
    for slope in _SLOPES:
        _, state = inner.update(slope * params, state, params)
        for entry, x in zip(map_state(state, params), jtu.tree_leaves(state), strict=True):
            key = key_of(state_dtype, entry)
            if entry.role == "moment" and key is not None and is_code(state_dtype[key]):
                yield key, entry.field, x
