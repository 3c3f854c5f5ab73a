"""`apply_gradients`: take a whole step of an optimizer in one call."""

from typing import Any, TypeVar

import optax

from treekit._base.dtype import has_no_update
from treekit._base.jax import jtu
from treekit._base.predicates import has_gradient
from treekit._base.tree import is_none
from treekit._base.types import Params, Updates
from treekit._map import check_shapes
from treekit._mismatch import flatten_updates, updates_mismatch
from treekit._round import Key
from treekit.optax._functions.apply import apply_updates
from treekit.optax._kernel.boundary import normalize, whole_step
from treekit.optax._kernel.transformation import core_of, freezes
from treekit.optax._kernel.types import State, TransformationOf

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

    The result is that of `optimizer.update` and `treekit.optax.apply_updates`. If the optimizer is a `MultiSteps`, the
    steps that only accumulate do not touch the params, so they move less memory.

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
        TypeError: `params` is None; or the optimizer is `lookahead`.
        ValueError: `grads` do not have the structure or the shapes of `params`; the message names the first key path.
            Or no leaf has a gradient, and the optimizer would train some.
        ValueError, TypeError: the optimizer fails, and `state` is not a state of this optimizer for these params; the
            message names the key path.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params, grads = {"w": jnp.ones(2), "name": "scale"}, {"w": jnp.ones(2), "name": None}
    >>> optimizer = optax.sgd(0.5)
    >>> state = optimizer.init(params)
    >>> params, state = optax.apply_gradients(optimizer, grads, state, params)
    >>> params
    {'name': 'scale', 'w': Array([0.5, 0.5], dtype=float32)}
    """
    if isinstance(params, optax.LookaheadParams) or isinstance(state, optax.LookaheadState):
        raise TypeError(
            "apply_gradients does not take a step of optax.lookahead, whose params are a pair, fast and slow: call "
            "optimizer.update with the pair, and optax.apply_updates"
        )

    def apply(params: Params, updates: Updates) -> Any:
        return apply_updates(params, updates, key=key)

    tx = normalize(optimizer)
    parts = _check_grads(grads, params)
    if all(map(has_no_update, parts)) and any(map(has_gradient, jtu.tree_leaves(params))):
        if not freezes(core_of(tx), params):
            raise ValueError(
                "grads has no gradient: each leaf is None or float0, so nothing would be trained. If you have "
                "partitioned the model, pass the gradients of the part that is trained. To freeze all of it, use "
                "treekit.optax.filtered(optimizer, False)"
            )
    return whole_step(tx, grads, state, params, extra_args, apply)


def _check_grads(grads: Updates, params: Params) -> list[Any]:
    """Return the gradient of each leaf, None included; raise unless they fit the params."""
    if params is None:
        raise TypeError("apply_gradients takes (optimizer, grads, state, params), and params is None")
    treedef = jtu.tree_structure(params, is_leaf=is_none)
    try:
        parts = flatten_updates(treedef, grads, "grads")  # a None in place of a subtree becomes one None per param
    except ValueError as error:
        raise _wrong_grads(updates_mismatch(treedef, grads, "grads") or error) from None
    try:
        check_shapes(params, treedef.unflatten(parts), is_leaf=is_none)
    except ValueError as error:
        raise _wrong_grads(error) from None
    return parts


def _wrong_grads(found: object) -> ValueError:
    return ValueError(
        f"grads do not fit params: {found}. apply_gradients takes (optimizer, grads, state, params), in this order, "
        "and gradients have the structure and the shapes of the params"
    )
