"""Apply updates, and map over the params in a state."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import optax

from treekit._arrays.map import dtype_preserving_tree_map
from treekit._arrays.round import Key, bits_like, bits_of_key, round_by, widen
from treekit._arrays.shapes import check_shapes
from treekit._base.dtype import (
    as_array,
    cast_like,
    dtype_of,
    has_no_update,
    is_weak,
    issubdtype,
    promoted_dtype,
    resolve_array,
    weakened,
)
from treekit._base.jax import is_ref, jnp, jtu
from treekit._base.predicates import is_narrow, is_parameter
from treekit._base.tree import is_none
from treekit._base.types import LeafPredicate, Params, PyTree, TransformationLike, Updates
from treekit._compare.prefix import flatten_updates
from treekit._names.key_path import leaf_path_text
from treekit._text.describe import describe

T = TypeVar("T")
MappedState = TypeVar("MappedState")

_optax_tree_map_params = optax.tree_map_params


def apply_updates(params: T, updates: Updates, *, key: Key | None = None) -> T:
    """Add updates to params, or to a raw model, preserving the dtype of every leaf.

    Leaves whose update is None or float0 are not changed, and neither are leaves that cannot be parameters: functions,
    strings, PRNG keys.

    Args:
        params: any tree.
        updates: a tree of updates, with None or float0 for leaves without one. A None in place of a subtree counts for
            all of its leaves.
        key: a PRNG key; use another one for each step. Updates to params of less than 32 bits (bf16, f16, float8) are
            then added in f32, and the result is rounded by `training.stochastic_round`, with different random bits for
            each leaf, so that small updates are not lost. By default params are rounded to nearest.

    Returns:
        A tree of the structure, shapes and dtypes of `params`; weakly typed params remain so.

    Raises:
        TypeError: an update is complex and its param is not; there is an update for a leaf that cannot be a parameter,
            such as a function, a PRNG key or a `jax.Ref`; an update is not an array, as when the arguments are
            swapped; or `key` is not a key. The message names the key path.
        ValueError: an update cannot be broadcast to the shape of its param; the message names the key path.

    >>> import jax.numpy as jnp
    >>> apply_updates({"w": jnp.ones(2, jnp.bfloat16), "f": "relu", "n": 3}, {"w": jnp.ones(2), "f": None, "n": None})
    {'f': 'relu', 'n': 3, 'w': Array([2, 2], dtype=bfloat16)}
    """

    def apply(param: Any, update: Any, random_bits: Any) -> Any:
        if has_no_update(update) or not is_parameter(param):
            return param
        array, update = as_array(param), resolve_array(update)
        rounds = key is not None and is_narrow(array)
        # To nearest too: after MultiSteps, XLA then moves fewer bytes (tests/accelerators).
        x, dx = widen((array, update)) if is_narrow(array) else (array, update)
        total = jnp.asarray(x, promoted_dtype(x, dx)) + jnp.asarray(dx, promoted_dtype(x, dx))
        if rounds and issubdtype(total.dtype, jnp.floating):
            return round_by(random_bits, total, array.dtype)
        if is_weak(array) and total.dtype == array.dtype == dtype_of(0.0):  # so that a jitted step is traced once
            total = weakened(total)
        # What has `__jax_array__` may not have a dtype, to which the map below casts.
        return cast_like(total, array, "unsafe") if dtype_of(param) is None else total

    treedef = jtu.tree_structure(params, is_leaf=is_none)
    parts = flatten_updates(treedef, updates)
    _check_can_be_updated(params, parts)
    updates = treedef.unflatten(parts)
    check_shapes(params, updates, is_leaf=is_none, broadcast=True)
    random_bits = None if key is None else bits_of_key(key)
    own_bits = params if random_bits is None else bits_like(params, random_bits, is_leaf=is_none)
    return dtype_preserving_tree_map(apply, params, updates, own_bits, is_leaf=is_none, casting="unsafe")


def _check_can_be_updated(params: Params, updates: list[Any]) -> None:
    """Raise a TypeError if an update is not an array, or is for a leaf that cannot be a parameter."""
    pairs = zip(jtu.tree_leaves(params, is_leaf=is_none), updates, strict=True)
    for i, (param, update) in enumerate(pairs):
        if has_no_update(update) or update is param:
            continue
        if is_ref(param):
            advice = "Update a reference in place, ref[...] += update; or pass the arrays that references refer to"
        elif not is_parameter(update) or not (param is None or is_parameter(param)):
            advice = "apply_updates takes (params, updates); updates are arrays, or None for leaves without an update"
        else:
            continue
        path = leaf_path_text(params, i, is_none)
        raise TypeError(f"at {path}: an update ({describe(update)}) for {describe(param)}. {advice}")


Initable: TypeAlias = TransformationLike | Callable[[Any], Any]


def tree_map_params(
    initable: Initable,
    f: Callable[..., Any],
    state: MappedState,
    /,
    *rest: PyTree,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: LeafPredicate | None = None,
) -> MappedState:
    """Map a function over the params in a state: `optax.tree_map_params`, without `is_leaf` for masked params.

    Args:
        initable: a transformation, or its init.
        f: called with a leaf of the state that belongs to a param, and the leaves of `rest` for that param.
        state: a state of the transformation.
        *rest: trees with the structure of the params.
        transform_non_params: called with every other leaf of the state.
        is_leaf: as in `jax.tree.map`, for the params in the state. Placeholders in the state (None, MaskedNode) are
            skipped, unless `is_leaf` selects them.

    Returns:
        The state with its leaves replaced by the results.

    >>> import jax.numpy as jnp
    >>> from treekit.optax import adam, masked
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx = masked(adam(1e-3), {"w": True, "b": False})
    >>> specs = tree_map_params(tx, lambda _, name: name, tx.init(params), {"w": "W", "b": "B"})
    >>> specs.inner_state[0].mu
    {'b': MaskedNode(), 'w': 'W'}
    """

    def is_chosen(x: object) -> bool:
        return is_leaf is not None and is_leaf(x)

    def is_left_out(x: object) -> bool:
        return not is_chosen(x) and (x is None or isinstance(x, optax.MaskedNode))

    def f_or_left_out(x: object, *others: object) -> Any:
        return x if is_left_out(x) else f(x, *others)

    def stop(x: object) -> bool:
        return is_chosen(x) or is_left_out(x)

    def transform_each(x: object) -> Any:  # a measurement of a monitor may be a tree
        return x if transform_non_params is None else jtu.tree_map(transform_non_params, x, is_leaf=is_chosen)

    out: MappedState = _optax_tree_map_params(
        cast(Any, initable),
        f_or_left_out,
        state,
        *rest,
        transform_non_params=transform_each,
        is_leaf=stop,
    )
    return out
