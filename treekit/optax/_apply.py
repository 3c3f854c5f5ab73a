"""Params and updates put together, other params made of them, and maps over the params in a state."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast, overload

import jax
import optax

from treekit._describe import describe
from treekit._dtype import as_array, cast_like, dtype_of, has_no_update, promoted_dtype
from treekit._jax import jnp, jtu
from treekit._map import cast_tree_like, check_shapes
from treekit._predicates import is_array, is_inexact_array, is_parameter
from treekit._round import Key, bits_like, bits_of_key, is_narrow, round_by, widen
from treekit._tree import flatten_updates, is_none, path_text
from treekit._types import LeafPredicate, TransformationLike

T = TypeVar("T")
State = TypeVar("State")

_optax_tree_map_params = optax.tree_map_params


def apply_updates(params: T, updates: Any, *, key: Key | None = None) -> T:
    """Add updates to params, or to a raw model; every leaf keeps its dtype.

    A leaf whose update is None or float0 stays as it is, and so does one that cannot be a parameter: a function, a
    string, a PRNG key.

    Args:
        params: any tree.
        updates: a tree of updates, None or float0 where there is none; None above leaves is None for each.
        key: a key, another one for each step: params of less than 32 bits (bf16, f16, float8) are added to in f32 and
            rounded by `treekit.stochastic_round`, each leaf with random bits of its own, so that updates too small for
            them are not lost. By default they are rounded to nearest.

    Returns:
        A tree of the structure, shapes and dtypes of `params`.

    Raises:
        TypeError: an update is complex and its param is not; there is an update for what cannot be a parameter, such as
            a function, a PRNG key or a `jax.Ref`; or an update is not an array, as where the arguments are swapped.
            Names the key path. Or `key` is not a key.
        ValueError: an update cannot be broadcast to the shape of its param; names the key path.

    >>> import jax.numpy as jnp
    >>> apply_updates({"w": jnp.ones(2, jnp.bfloat16), "f": "relu", "n": 3}, {"w": jnp.ones(2), "f": None, "n": None})
    {'f': 'relu', 'n': 3, 'w': Array([2, 2], dtype=bfloat16)}
    """

    def apply(param: Any, update: Any, random_bits: Any) -> Any:
        if has_no_update(update) or not is_parameter(param):
            return param
        param = as_array(param)
        rounds = key is not None and is_narrow(param)
        x, dx = widen((param, update)) if rounds else (param, update)
        total = jnp.asarray(x, promoted_dtype(x, dx)) + jnp.asarray(dx, promoted_dtype(x, dx))
        if rounds and jnp.issubdtype(total.dtype, jnp.floating):
            return round_by(random_bits, total, param.dtype)
        return total

    treedef = jtu.tree_structure(params, is_leaf=is_none)
    updates = treedef.unflatten(flatten_updates(treedef, updates))
    _check_can_be_updated(params, updates)
    check_shapes(params, updates, is_leaf=is_none, broadcast=True)
    random_bits = None if key is None else bits_of_key(key)
    own_bits = params if random_bits is None else bits_like(params, random_bits, is_leaf=is_none)
    totals = jtu.tree_map(apply, params, updates, own_bits, is_leaf=is_none)
    return cast_tree_like(params, totals, is_leaf=is_none, casting="unsafe")


def _check_can_be_updated(params: Any, updates: Any) -> None:
    """Raise a TypeError where an update is not one, or is for a leaf that cannot be a parameter."""
    pairs = zip(jtu.tree_leaves(params, is_leaf=is_none), jtu.tree_leaves(updates, is_leaf=is_none), strict=True)
    for i, (param, update) in enumerate(pairs):
        if has_no_update(update) or update is param:
            continue
        if isinstance(param, jax.Ref):
            advice = "Update a reference in place, ref[...] += update; or give the arrays that they refer to"
        elif not is_parameter(update) or not (param is None or is_parameter(param)):
            advice = "apply_updates takes (params, updates); updates are arrays, and None where there is nothing to add"
        else:
            continue
        path = path_text(jtu.tree_flatten_with_path(params, is_leaf=is_none)[0][i][0])
        raise TypeError(f"at {path}: an update ({describe(update)}) for {describe(param)}. {advice}")


def incremental_update(new_tensors: T, old_tensors: T, step_size: Any) -> T:
    """A step of Polyak averaging, `step_size * new + (1 - step_size) * old`, in which the average keeps its dtypes.

    What has no average (integers, functions, strings, PRNG keys) is taken from the new tree.

    Args:
        new_tensors: the latest params, or raw model.
        old_tensors: the average so far.
        step_size: the weight of the new, a real number or array of shape ().

    Returns:
        The new average, with the structure, shapes and dtypes of `old_tensors`.

    Raises:
        ValueError: the trees differ in structure or shapes; names the key path.

    >>> import jax.numpy as jnp
    >>> incremental_update(jnp.ones(2), jnp.zeros(2, jnp.bfloat16), 0.25)
    Array([0.25, 0.25], dtype=bfloat16)
    """

    def average(new: Any, old: Any) -> Any:
        if new is None or not (is_parameter(old) and jnp.issubdtype(dtype_of(old), jnp.inexact)):
            return new
        if not is_array(old) and not is_array(new):
            return step_size * new + (1 - step_size) * old  # two Python numbers give one
        dtype = promoted_dtype(new, old)
        step = jnp.asarray(step_size, dtype)
        return cast_like(step * jnp.asarray(new, dtype) + (1 - step) * jnp.asarray(old, dtype), old)

    check_shapes(old_tensors, new_tensors, is_leaf=is_none)
    out: T = jtu.tree_map(average, new_tensors, old_tensors, is_leaf=is_none)
    return out


def periodic_update(new_tensors: Any, old_tensors: T, steps: Any, update_period: Any) -> T:
    """A copy of the params, such as a target network, that is renewed on every `update_period`-th step.

    What has no dtype (functions, strings) is taken from the new tree; a Python number that is equal in both stays one.

    Args:
        new_tensors: the latest params, or raw model.
        old_tensors: the copy so far.
        steps: the number of steps so far, an int or int array of shape ().
        update_period: after how many steps the copy is renewed, an int or int array of shape ().

    Returns:
        The new tree where `steps` is a multiple of `update_period`, else the old one; with the structure and dtypes of
        `old_tensors`.

    Raises:
        TypeError: a new leaf may not be cast to the dtype of the old one; names the key path.
        ValueError: the trees differ in structure or shapes; names the key path.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> old, new = {"w": jnp.zeros(2), "f": jax.nn.relu}, {"w": jnp.ones(2), "f": jax.nn.relu}
    >>> [periodic_update(new, old, steps, update_period=2)["w"] for steps in (1, 2)]
    [Array([0., 0.], dtype=float32), Array([1., 1.], dtype=float32)]
    """
    renew = jnp.mod(steps, update_period) == 0

    def choose(new: Any, old: Any) -> Any:
        if dtype_of(new) is None or dtype_of(old) is None:
            return new
        same_number = not is_array(new) and not is_array(old) and new == old
        return new if same_number else jnp.where(renew, new, old)

    new = cast_tree_like(old_tensors, new_tensors, is_leaf=is_none)
    check_shapes(old_tensors, new, is_leaf=is_none)
    out: T = jtu.tree_map(choose, new, old_tensors, is_leaf=is_none)
    return out


def schedule_free_eval_params(state: Any, params: T) -> T:
    """`optax.contrib.schedule_free_eval_params` of a raw model: the params to evaluate with, in their own dtypes.

    Args:
        state: the `optax.contrib.ScheduleFreeState` of `schedule_free` and its like.
        params: the params that are trained, or the raw model.

    Returns:
        A tree of the structure, shapes and dtypes of `params`; what is no floating or complex array is as it was.

    Raises:
        ValueError: `state` is no such state.

    Source: Defazio et al., The Road Less Scheduled, 2024.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = {"w": jnp.array([1.0, 2.0]), "name": "scale"}
    >>> state = optax.contrib.schedule_free_sgd(0.1).init(params)
    >>> optax.contrib.schedule_free_eval_params(state, params)
    {'name': 'scale', 'w': Array([1., 2.], dtype=float32)}
    """
    b1, z_of_params = getattr(state, "b1", None), getattr(state, "z", None)
    if b1 is None or z_of_params is None:
        raise ValueError(
            f"schedule_free_eval_params requires a ScheduleFreeState as input, found a {type(state).__name__}. In the "
            "state of a chain or a wrapper, it is the part that the transformation inside has made"
        )

    weight = 1.0 - b1

    def evaluate(param: Any, z: Any) -> Any:
        return param if z is None or not is_inexact_array(param) else (param - weight * z) / b1

    return cast_tree_like(params, jtu.tree_map(evaluate, params, z_of_params))


Initable: TypeAlias = TransformationLike | Callable[[Any], Any]


@overload
def tree_map_params(
    initable: Initable,
    f: Callable[[Any], Any],
    state: State,
    /,
    *,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: LeafPredicate | None = None,
) -> State: ...
@overload
def tree_map_params(
    initable: Initable,
    f: Callable[[Any, Any], Any],
    state: State,
    other: Any,
    /,
    *,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: LeafPredicate | None = None,
) -> State: ...
@overload
def tree_map_params(
    initable: Initable,
    f: Callable[..., Any],
    state: State,
    other: Any,
    another: Any,
    /,
    *rest: Any,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: LeafPredicate | None = None,
) -> State: ...
def tree_map_params(
    initable: Initable,
    f: Callable[..., Any],
    state: State,
    /,
    *rest: Any,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: LeafPredicate | None = None,
) -> State:
    """`optax.tree_map_params` that needs no `is_leaf` where a part of the params is masked or filtered out.

    Args:
        initable: a transformation, or its init.
        f: takes a leaf of the state that belongs to a param, and the leaves of `rest` for that param.
        state: a state of the transformation.
        *rest: trees with the structure of the params.
        transform_non_params: takes every other leaf of the state.
        is_leaf: as in `jax.tree.map`, on the params in the state. `f` is called on what it tells to be a leaf, and on
            nothing else that is left out of the state (None, MaskedNode).

    Returns:
        The state with the results in the place of its leaves.

    >>> import jax.numpy as jnp
    >>> from treekit.optax import adam, masked
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx = masked(adam(1e-3), {"w": True, "b": False})
    >>> specs = tree_map_params(tx, lambda _, name: name, tx.init(params), {"w": "W", "b": "B"})
    >>> specs.inner_state[0].mu
    {'b': MaskedNode(), 'w': 'W'}
    """

    def is_chosen(x: Any) -> bool:
        return is_leaf is not None and is_leaf(x)

    def is_left_out(x: Any) -> bool:
        return not is_chosen(x) and (x is None or isinstance(x, optax.MaskedNode))

    def f_or_left_out(x: Any, *others: Any) -> Any:
        return x if is_left_out(x) else f(x, *others)

    def stop(x: Any) -> bool:
        return is_chosen(x) or is_left_out(x)

    out: State = _optax_tree_map_params(
        cast(Any, initable),
        f_or_left_out,
        state,
        *rest,
        transform_non_params=transform_non_params,
        is_leaf=stop,
    )
    return out
