"""A whole step: the updates of an optimizer, added to the params."""

from typing import Any, TypeVar

import optax

from treekit._diff import TreeDiff, tree_diff
from treekit._dtype import is_absent
from treekit._filter import flatten_updates, is_inexact_array, is_parameter
from treekit._jax import jtu, untyped
from treekit._map import check_shapes
from treekit.optax._apply import apply_updates
from treekit.optax._multi_steps import MultiSteps
from treekit.optax._select import Selection, Step, hold, whole_step

T = TypeVar("T")


def apply_gradients(
    optimizer: optax.GradientTransformation | MultiSteps | optax.MultiSteps,
    grads: Any,
    state: Any,
    params: T,
    *,
    key: Any = None,
    **extra_args: Any,
) -> tuple[T, Any]:
    """One whole step of an optimizer: the new params, or raw model, and the new state.

    Computes what `optimizer.update` and `treekit.optax.apply_updates` compute. A step of `MultiSteps` that only
    accumulates, and one that `apply_if_finite` skips, leave the params untouched, and so move less memory.

    Args:
        optimizer: a transformation, or a `MultiSteps`.
        grads: the gradients; None or float0 where there is none.
        state: the state of the optimizer, made by its `init`.
        params: any tree.
        key: as in `apply_updates`: rounds params of less than 32 bits stochastically. Another one for each step.
        **extra_args: for the optimizer, such as `value`.

    Returns:
        The params, with their structure, shapes and dtypes; and the state.

    Raises:
        ValueError: `grads` do not have the structure or the shapes of `params`, or `state` is not one that `optimizer`
            makes for these params; names the argument and the key path.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params, grads = {"w": jnp.ones(2), "name": "scale"}, {"w": jnp.ones(2), "name": None}
    >>> optimizer = optax.sgd(0.5)
    >>> state = optimizer.init(params)
    >>> params, state = optax.apply_gradients(optimizer, grads, state, params)
    >>> params
    {'name': 'scale', 'w': Array([0.5, 0.5], dtype=float32)}
    """
    if isinstance(optimizer, (MultiSteps, optax.MultiSteps)):
        optimizer = optimizer.gradient_transformation()
    tx = hold(optimizer)
    _check_grads(grads, params)
    try:
        return _step(tx, grads, state, params, key, extra_args)
    except Exception as error:
        wrong = _what_is_wrong(tx, state, params)
        if wrong is None:
            raise
        raise ValueError(wrong) from error


def _step(tx: Any, grads: Any, state: Any, params: Any, key: Any, extra: Any) -> tuple[Any, Any]:
    leaves, outline = jtu.tree_flatten(params)
    keep = tuple(map(is_parameter, leaves))
    selection = Selection(outline, keep, None, passes=False)
    pairs = zip(leaves, selection.parts(grads), keep, strict=True)
    if not all(not keep or (is_inexact_array(param) and not is_absent(grad)) for param, grad, keep in pairs):
        updates, state = tx.update(grads, state, params, **extra)
        return apply_updates(params, updates, key=key), state
    step = Step(selection, grads, params, params)

    def whole(inside: Any) -> Any:
        return selection.map(_choose, inside, params)

    def apply(inside: Any, updates: Any) -> Any:
        return step.inside(apply_updates(whole(inside), updates, key=key))

    views = {name: step.view(name, value) for name, value in extra.items()}
    inside, state = whole_step(tx)(step.inside(grads), state, step.inside_params, views, apply)
    return whole(inside), state


def _choose(keep: bool, new: Any, old: Any) -> Any:
    return new if keep else old


def _check_grads(grads: Any, params: Any) -> None:
    outline = jtu.tree_structure(params)
    try:
        check_shapes(params, outline.unflatten(flatten_updates(outline, grads)))
    except ValueError as error:
        raise ValueError(
            f"grads: {str(error).replace('the updates', 'grads').replace('the tree of params', 'params')}\n{_ORDER}, "
            "and gradients have the structure and the shapes of the params"
        ) from None


_ORDER = "apply_gradients takes (optimizer, grads, state, params), in this order"


def _what_is_wrong(tx: Any, state: Any, params: Any) -> str | None:
    """How a state differs from what `tx` makes for these params, dtypes apart; None where it does not."""
    try:
        made, given = (untyped.eval_shape(make) for make in (lambda: tx.init(params), lambda: state))
    except Exception:  # tx does not take these params, so the state is not to blame
        return None
    wrong = TreeDiff(
        d for d in tree_diff(given, made, values=False) if d.kind not in ("dtype", "weak type", "sharding")
    )
    if not wrong:
        return None
    return f"state is not one that this optimizer makes for these params. {_ORDER}.\ngiven | made by init:\n{wrong}"
