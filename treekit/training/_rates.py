"""`scale_by_tree`: multiply the update of each leaf by its own rate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from treekit._arrays.shapes import can_be_broadcast
from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_array, is_real_number
from treekit._base.types import OptState, Params, PyTree, Updates
from treekit._compare.prefix import FittedPrefix
from treekit._names.key_path import flatten_with_path, path_text
from treekit._text.describe import describe, describe_value
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.known_states import Known, declare
from treekit.optax._kernel.transformation import Core, GradientTransformation
from treekit.optax._wrappers.specs import resolve

# A prefix tree of the params, of any class, hence `object`: its leaves are numbers, arrays or schedules. Or a function
# that returns one; the annotation tells inject_hyperparams that this is not a schedule.
Rates = Callable[[Any], Any] | float | object


class ScaleByTreeState(NamedTuple):
    """The state of `scale_by_tree`.

    Attributes:
        rate_count: the number of updates; an int32 of shape (). Not `count`, which is a name in adam's state:
            `optax.tree.get(state, "count")` finds only one.
    """

    rate_count: Any


declare(ScaleByTreeState, Known(schedule_counts=("rate_count",)))


def scale_by_tree(rates: Rates) -> GradientTransformation[ScaleByTreeState]:
    """Multiply the update of each leaf by its own rate: smaller steps for the body than for the head.

    Args:
        rates: a prefix tree of the params whose leaves are numbers, arrays or schedules, or a function from the params
            to one. A value applies to the whole subtree below it, and with None that subtree's updates are not changed.
            An array must broadcast to the shape of each param below it, as NumPy does: of shape (layers, 1, 1), it is a
            rate for each layer of a stack of matrices; of shape (rows, 1), for each row of an embedding. Leaves
            of the model that cannot be parameters may be None. A function is called with the params: give rates by
            name with `treekit.path_labels({"**.bias": 0.5}, default=1.0)`, and use `optax.scale_by_schedule` for one
            schedule for all leaves.

    Returns:
        A transformation; its state is a `ScaleByTreeState` with the number of updates, with which schedules are called.
        Rates do not reverse the sign: put it after an optimizer, or before `optax.scale_by_learning_rate`.

    Raises:
        ValueError: the rates do not fit the params, or an array does not broadcast to its param; the message names the
            key path.
        TypeError: a rate is neither a real number, an array of them nor a schedule that returns one number; the message
            names its key path. Both are raised by `init` and `update`.

    >>> import jax.numpy as jnp
    >>> from treekit import optax, training
    >>> params = {"body": {"w": jnp.ones(2), "b": jnp.ones(2)}, "head": jnp.ones(2)}
    >>> rates = {"body": 0.125, "head": lambda count: 0.5**count}
    >>> optimizer = optax.chain(optax.sgd(1.0), training.scale_by_tree(rates))
    >>> updates, state = optimizer.update(params, optimizer.init(params), params)
    >>> updates["body"]["w"], updates["head"]
    (Array([-0.125, -0.125], dtype=float32), Array([-1., -1.], dtype=float32))
    >>> new_rows = training.scale_by_tree(jnp.array([[0.0], [0.0], [1.0]]))  # of an embedding of three words
    >>> new_rows.update(jnp.ones((3, 2)), new_rows.init(jnp.ones((3, 2))))[0].tolist()
    [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    """

    def init(params: Params) -> Any:
        if jtu.tree_leaves(params):
            _resolve(rates, params)
        return ScaleByTreeState(jnp.zeros([], jnp.int32))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        fitted, at = _resolve(rates, updates if params is None else params)
        rates_of_parts = [rate if jtu.tree_leaves(part) else None for rate, part in fitted.pairs]
        parts = fitted.treedef.flatten_up_to(updates)
        scaled = [_scaled(*x, state.rate_count) for x in zip(at, rates_of_parts, parts, strict=True)]
        return fitted.treedef.unflatten(scaled), ScaleByTreeState(optax.safe_increment(state.rate_count))

    return at_boundary(Core(init, update))


def _resolve(rates: PyTree, params: Params) -> tuple[FittedPrefix, list[str]]:
    """Fit the rates to the params; return the key path of each rate too."""
    fitted = resolve(rates, params, _is_rate, "rates")
    paths = [path_text(path, "rates") for path, _ in flatten_with_path(fitted.prefix, _is_rate)[0]]
    for at, (rate, part) in zip(paths, fitted.pairs, strict=True):
        if jtu.tree_leaves(part) and not (_is_rate(rate) or callable(rate)):
            raise TypeError(f"{at} must be a real number, an array of them or a schedule, found {describe_value(rate)}")
        for x in jtu.tree_leaves(part) if shape_of(rate) else ():
            if not can_be_broadcast(shape_of(rate), shape_of(x)):
                raise ValueError(
                    f"{at} is {describe(rate)}, which does not broadcast to the param, {describe(x)}. Give it as many "
                    "axes, of size 1 or of the size that the param has: rates of shape (3, 1) for the rows of f32[3,4]"
                )
    return fitted, paths


def _is_rate(x: Any) -> bool:
    """Whether `x` is a real number, an array of them, or None, which does not change the updates."""
    return x is None or is_real_number(x) or (is_array(x) and issubdtype(dtype_of(x), jnp.floating))


def _scaled(at: str, rate: Any, updates: Updates, count: object) -> Any:
    """Multiply a part of the updates by its rate, which has this key path; None does not change them."""
    if rate is None:
        return updates
    if callable(rate):
        rate = rate(count)
        if not is_real_number(rate):
            raise TypeError(f"the schedule {at} must return a real number of shape (), found {describe_value(rate)}")

    def scale(update: Any) -> Any:
        whole = issubdtype(update.dtype, jnp.integer)  # an integer update times a rate is not an integer
        factor = rate if whole else jnp.asarray(rate, update.dtype)
        return (jnp.broadcast_to(factor, update.shape) if shape_of(rate) else factor) * update

    return jtu.tree_map(scale, updates)
