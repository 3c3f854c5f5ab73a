"""apply_if_finite: skip the updates that are not finite."""

from typing import Any

import optax

from treekit._dtype import strong
from treekit._jax import jnp, jtu, lax, untyped
from treekit.optax._select import hold
from treekit.optax._step_if import zeros


def apply_if_finite(
    inner: optax.GradientTransformation, max_consecutive_errors: int
) -> optax.GradientTransformationExtraArgs:
    """`optax.apply_if_finite` for every mix of dtypes and every model.

    Where an update holds an inf or a NaN, the inner state stays and the updates are zero; after more than
    `max_consecutive_errors` such updates in a row the next one is accepted as it is.

    The count of such updates in a row is in the state: `optax.tree.get(state, "notfinite_count")` reads it, and
    `optax.tree.set(state, notfinite_count=jnp.zeros([], jnp.int32))` resets it. The total is `total_notfinite`.

    Args:
        inner: any transformation.
        max_consecutive_errors: how many updates in a row may be skipped.

    Returns:
        A transformation; its state is an `optax.ApplyIfFiniteState`.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = apply_if_finite(optax.sgd(1.0), max_consecutive_errors=3)
    >>> updates, state = tx.update(jnp.array([1.0, jnp.nan]), tx.init(jnp.ones(2)))
    >>> updates, state.notfinite_count
    (Array([0., 0.], dtype=float32), Array(1, dtype=int32))
    """
    inner = hold(inner)

    def init(params: Any) -> optax.ApplyIfFiniteState:
        zero = jnp.zeros([], jnp.int32)
        return optax.ApplyIfFiniteState(zero, jnp.array(True), zero, inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        finite = jnp.array([jnp.all(jnp.isfinite(g)) for g in jtu.tree_leaves(updates)], bool).all()
        count = jnp.where(finite, 0, optax.safe_increment(state.notfinite_count))
        inner_state = jtu.tree_map(strong, state.inner_state)

        def run(inner_state: Any) -> tuple[Any, Any]:
            return inner.update(updates, inner_state, params, **extra)

        step = untyped.jit(run)  # traced once, for the dtypes of the updates, and not again for the cond

        def skip(inner_state: Any) -> tuple[Any, Any]:
            return zeros(step.eval_shape(inner_state)[0]), inner_state

        accept = finite | (count > max_consecutive_errors)
        new_updates, new_inner_state = lax.cond(accept, step, skip, inner_state)
        total = jnp.where(finite, state.total_notfinite, optax.safe_increment(state.total_notfinite))
        return new_updates, optax.ApplyIfFiniteState(count, finite, total, new_inner_state)

    return hold(optax.GradientTransformationExtraArgs(init, update))
