"""`apply_if_finite`: skip updates that are not finite."""

from typing import Any

import optax

from treekit._base.jax import jnp, jtu
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.preserve_dtypes import preserve_dtypes
from treekit.optax._kernel.step_if import conditional
from treekit.optax._kernel.transformation import GradientTransformation, core_of, described


@described
def apply_if_finite(
    inner: TransformationLike, max_consecutive_errors: int
) -> GradientTransformation[optax.ApplyIfFiniteState]:
    """Skip updates that are not finite: `optax.apply_if_finite` for every model and every mix of dtypes.

    If an update contains an inf or a NaN, the inner state does not change and the updates are zero. After
    `max_consecutive_errors` such updates in a row, the next one is accepted.

    The state counts such updates in a row: `optax.tree.get(state, "notfinite_count")` reads the count, and
    `optax.tree.set(state, notfinite_count=jnp.zeros([], jnp.int32))` resets it. The total is `total_notfinite`.

    Args:
        inner: any transformation.
        max_consecutive_errors: the number of updates in a row that may be skipped.

    Returns:
        A transformation; its state is an `optax.ApplyIfFiniteState`.

    Raises:
        TypeError: `inner` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = apply_if_finite(optax.sgd(1.0), max_consecutive_errors=3)
    >>> updates, state = tx.update(jnp.array([1.0, jnp.nan]), tx.init(jnp.ones(2)))
    >>> updates, state.notfinite_count
    (Array([0., 0.], dtype=float32), Array(1, dtype=int32))
    """
    inner_init, update_if = core_of(inner).init, conditional(preserve_dtypes(inner), jnp.zeros_like)

    def init(params: Params) -> optax.ApplyIfFiniteState:
        zero = jnp.zeros([], jnp.int32)
        return optax.ApplyIfFiniteState(zero, jnp.array(True), zero, inner_init(params))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        finite = jnp.array([jnp.all(jnp.isfinite(g)) for g in jtu.tree_leaves(updates)], bool).all()
        count = jnp.where(finite, 0, optax.safe_increment(state.notfinite_count))
        total = jnp.where(finite, state.total_notfinite, optax.safe_increment(state.total_notfinite))
        accept = finite | (count > max_consecutive_errors)
        new_updates, inner_state = update_if(accept, updates, state.inner_state, params, extra)
        return new_updates, optax.ApplyIfFiniteState(count, finite, total, inner_state)

    return at_boundary(optax.GradientTransformationExtraArgs(init, update))
