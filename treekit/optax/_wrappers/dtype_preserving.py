"""`dtype_preserving`: preserve the dtypes of any transformation."""

from treekit._base.types import TransformationLike
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.transformation import GradientTransformation, S


def dtype_preserving(inner: GradientTransformation[S] | TransformationLike) -> GradientTransformation[S]:
    """Preserve dtypes, weak types and structure of a transformation's state, whatever the dtypes of the gradients.

    `init` makes weak types strong. `update` returns every leaf of the state in the dtype that it had before, and every
    update in the wider of its gradient's and its param's dtype. So scan and cond accept the state, and jit traces once.
    To choose these dtypes, use `treekit.training.store_state`.

    Args:
        inner: any transformation.

    Returns:
        A transformation with the state of `inner`.

    Raises:
        TypeError: `inner` is not a transformation. Or, raised by `update`, it changes the structure of the state or of
            the updates; the message lists the differences.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = dtype_preserving(optax.radam(1e-3))
    >>> params = jnp.ones(2, jnp.bfloat16)
    >>> state = tx.init(params)
    >>> _, new_state = tx.update(jnp.ones(2, jnp.float32), state, params)
    >>> state[0].nu.dtype, new_state[0].nu.dtype
    (dtype(bfloat16), dtype(bfloat16))
    """
    return at_boundary(inner)
