"""`apply_gradients`: take a whole step of an optimizer."""

from typing import TypeVar

import optax

from treekit._arrays.round import Key
from treekit._base.dtype import has_no_update
from treekit._base.jax import jtu
from treekit._base.types import Updates
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.types import State, TransformationOf
from treekit.optax._wrappers.apply import apply_updates
from treekit.optax._wrappers.multi_steps import MultiSteps

T = TypeVar("T")


def apply_gradients(
    optimizer: TransformationOf[State],
    grads: Updates,
    state: State,
    params: T,
    *,
    key: Key | None = None,
    **extra_args: object,
) -> tuple[T, State]:
    """Take a whole step of an optimizer: return the new params, or raw model, and the new state.

    It calls `optimizer.update`, then `treekit.optax.apply_updates`, and raises if no leaf has a gradient.

    Args:
        optimizer: a transformation, or a `MultiSteps`.
        grads: the gradients; None or float0 for a leaf without one.
        state: the state of the optimizer, made by its `init`.
        params: any tree.
        key: as in `apply_updates`, to round params of less than 32 bits stochastically; use another one for each step.
        **extra_args: extra arguments of `optimizer.update`, such as `value`.

    Returns:
        The new params, with the structure, shapes and dtypes of `params`; and the new state.

    Raises:
        ValueError: `grads` do not have the structure or the shapes of `params`; the message names the first key path.
            Or no leaf has a gradient.
        ValueError, TypeError: the optimizer fails, and `state` is not a state of this optimizer for these params; the
            message names the key path.

    >>> import jax.numpy as jnp
    >>> from treekit import optax, training
    >>> params, grads = {"w": jnp.ones(2), "name": "scale"}, {"w": jnp.ones(2), "name": None}
    >>> optimizer = optax.sgd(0.5)
    >>> state = optimizer.init(params)
    >>> params, state = training.apply_gradients(optimizer, grads, state, params)
    >>> params
    {'name': 'scale', 'w': Array([0.5, 0.5], dtype=float32)}
    """
    if all(map(has_no_update, jtu.tree_leaves(grads))):
        raise ValueError(
            f"grads has no gradient for params, a {type(params).__qualname__}: each leaf is None or float0, so nothing "
            "would be trained. Pass the part of the model that is trained, and its gradients; of Flax NNX, "
            "nnx.state(model, nnx.Param) and not the GraphDef. To freeze all of it, do not call the optimizer"
        )
    is_pair = isinstance(params, optax.LookaheadParams)  # whose gradients are those of one of both
    tx = optimizer if is_pair or isinstance(optimizer, MultiSteps) else at_boundary(optimizer)
    updates, new_state = tx.update(grads, state, params, **extra_args)
    return apply_updates(params, updates, key=key), new_state
