"""`in_nnx`: an optimizer for `flax.nnx.Optimizer`, which rounds params of less than 32 bits stochastically."""

from typing import Any

import optax

from treekit._arrays.round import Key
from treekit._base.dtype import has_no_update
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_narrow
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._compare.prefix import flatten_updates
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.check_params import check_has_params
from treekit.optax._wrappers.apply import apply_updates


def in_nnx(optimizer: TransformationLike) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer for loops that add updates to params as Optax does, such as `flax.nnx.Optimizer`.

    Optax's `apply_updates` rounds to nearest, so small updates to params of less than 32 bits are lost, and it does not
    accept None. The update of a param of less than 32 bits is here the difference of the new param and the old one, in
    f32, which Optax adds exactly; other updates are those of `optimizer`, with zeros for None.

    Args:
        optimizer: a transformation, or a `MultiSteps`. Use it outermost.

    Returns:
        A transformation of Optax with the state of `optimizer`. Its `update` takes `key`, a PRNG key, and rounds as
        `training.apply_gradients(..., key=key)` does; use another one for each step. Without it, params are rounded to
        nearest.

    Raises:
        ValueError: raised by `update` without the params.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import optax as plain
    >>> from treekit import optax, training
    >>> params = {"w": jnp.ones(1000, jnp.bfloat16)}
    >>> tx = training.in_nnx(optax.sgd(1e-4))
    >>> updates, _ = tx.update(params, tx.init(params), params, key=jax.random.key(0))
    >>> bool((plain.apply_updates(params, updates)["w"] != 1).any())
    True
    """
    tx = at_boundary(optimizer)

    def update(
        updates: Updates, state: OptState, params: Params = None, *, key: Key | None = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        check_has_params(params)
        updates, new_state = tx.update(updates, state, params, **extra_args)
        new = jtu.tree_leaves(apply_updates(params, updates, key=key), is_leaf=is_none)
        olds, treedef = jtu.tree_flatten(params, is_leaf=is_none)

        def added(x: Any, new: Any, old: Any) -> Any:
            if old is None or not (has_no_update(x) or is_narrow(old)):
                return x
            return jnp.zeros_like(old) if has_no_update(x) else jnp.float32(new) - jnp.float32(old)

        return treedef.unflatten(map(added, flatten_updates(treedef, updates), new, olds)), new_state

    return optax.GradientTransformationExtraArgs(tx.init, update)
