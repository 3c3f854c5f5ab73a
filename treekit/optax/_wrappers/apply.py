"""`apply_updates`: add updates to params, in the dtypes of the params."""

from typing import Any, TypeVar

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
from treekit._base.types import Params, Updates
from treekit._compare.prefix import flatten_updates
from treekit._names.key_path import leaf_path_text
from treekit._text.describe import describe

T = TypeVar("T")


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
        # In f32, to round to nearest too: after MultiSteps, XLA then moves fewer bytes (tests/accelerators).
        terms = widen((array, update)) if is_narrow(array) else (array, update)
        dtype = promoted_dtype(*terms)
        total = jnp.asarray(terms[0], dtype) + jnp.asarray(terms[1], dtype)
        if key is not None and is_narrow(array) and issubdtype(total.dtype, jnp.floating):
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
    own_bits = params if key is None else bits_like(params, bits_of_key(key), is_leaf=is_none)
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
