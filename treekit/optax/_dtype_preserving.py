"""dtype_preserving: the second kernel, for users' own transformations."""

from typing import Any, Literal

import optax

from treekit._jax import jnp
from treekit.optax._preserve import preserve
from treekit.optax._select import hold


def dtype_preserving(
    inner: optax.GradientTransformation, *, state_dtype: Any = None, rounding: Literal["nearest"] = "nearest"
) -> optax.GradientTransformationExtraArgs:
    """Keep the dtype, weak type and structure of a transformation's state, whatever the dtypes of the gradients.

    `init` makes weak types strong. `update` gives every leaf of the state the dtype it came in with, and every update
    the wider of its gradient's and its param's dtype; so scan and cond accept the state, and jit traces once.

    Args:
        inner: any transformation.
        state_dtype: a floating dtype in which all floating state is held and computed, whatever that of the params is.
            By default state has the dtypes that `inner.init` gives it.
        rounding: how 32-bit results become 16-bit state; "nearest" is the only way so far.

    Returns:
        A transformation; its state has the structure of that of `inner`.

    Raises:
        TypeError: `state_dtype` is no floating dtype; or, from `update`, `inner` changes the structure of the state or
            of the updates, with the difference.
        ValueError: `rounding` has another name.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = dtype_preserving(optax.radam(1e-3))
    >>> params = jnp.ones(2, jnp.bfloat16)
    >>> state = tx.init(params)
    >>> _, new_state = tx.update(jnp.ones(2, jnp.float32), state, params)
    >>> state[0].nu.dtype, new_state[0].nu.dtype
    (dtype(bfloat16), dtype(bfloat16))
    """
    if rounding != "nearest":
        raise ValueError(f"rounding must be 'nearest', found {rounding!r}")
    if state_dtype is not None and not jnp.issubdtype(state_dtype, jnp.floating):
        raise TypeError(f"state_dtype must be a floating dtype, found {state_dtype!r}")
    return hold(inner) if state_dtype is None else hold(preserve(inner, state_dtype=state_dtype))
