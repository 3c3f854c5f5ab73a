"""Optax's functions on trees, such as `optax.tree.norm`, for trees with leaves that are not numbers."""

import functools
import inspect
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import optax

from treekit._base.dtype import as_array, resolve_array
from treekit._base.jax import jtu
from treekit._base.predicates import is_inexact_parameter, is_parameter
from treekit._base.tree import fill_none, is_none
from treekit._trained.declared import declared_frozen
from treekit.optax._wrappers.releases import existing

_OF_TREE = """
    add add_scale allclose batch_shape bias_correction cast cast_like clip conj div dtype full_like max min mul norm
    ones_like random_like real scale size sub sum update_infinity_moment update_moment update_moment_per_elem_norm vdot
    where zeros_like
"""

# The functions of Optax that compute with all leaves of their arguments; the others of optax.tree take states and keys.
ON_TREES: tuple[Callable[..., Any], ...] = (
    optax.global_norm,
    optax.per_example_global_norm_clip,
    optax.per_example_layer_norm_clip,
    *existing(optax.tree, *_OF_TREE.split()),
)

# Of these, those that reduce a tree to numbers, for which what a class declares frozen does not count.
_REDUCTIONS: tuple[Callable[..., Any], ...] = (
    optax.global_norm,
    optax.per_example_global_norm_clip,
    optax.per_example_layer_norm_clip,
    *existing(optax.tree, *"max min norm size sum vdot".split()),
)


def is_on_trees(x: object) -> bool:
    """Whether `x` is one of these functions, or a partial of one, such as `optax.tree_utils.tree_l1_norm`."""
    function = _without_partial(x)
    return any(function is known for known in ON_TREES)


def _without_partial(x: object) -> object:
    return x.func if isinstance(x, functools.partial) else x


def apply_to_parameters(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Apply one of these functions to the leaves that can be parameters; other leaves do not count and do not change.

    In a norm, a sum or another reduction, fields that their class declares not to be trained do not count either.
    Python numbers stay such, as in Optax, except in `cast` and `random_like`, which Optax has for arrays only.

    A result that consists of a tree and something else, such as the number of clipped examples, has None for them.
    `random_like` draws normal numbers by default, so integers and bools do not change either.

    Args:
        f: the function.
        name: its name there.
    """

    signature = inspect.signature(f)
    counts_frozen = _without_partial(f) not in _REDUCTIONS
    as_leaf = as_array if f in (optax.tree.cast, optax.tree.random_like) else resolve_array

    @functools.wraps(f)
    def wrapped(*args: object, **kwargs: object) -> Any:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        samples_normal = given.get("dtype") is None and given.get("sampler", jax.random.normal) is jax.random.normal
        draws_normal = f is optax.tree.random_like and samples_normal
        is_counted = is_inexact_parameter if draws_normal else is_parameter
        # For each tree, its structure without the leaves left out, and those leaves.
        left_out: list[tuple[Any, Any]] = []

        def parameters(x: object) -> Any:
            if jtu.all_leaves([x]):  # an array, or another argument: a dtype, a decay, a sampler
                return x
            leaves, treedef = jtu.tree_flatten(x, is_leaf=is_none)
            frozen = itertools.repeat(False) if counts_frozen else declared_frozen(x, is_none)
            counted = [is_counted(leaf) and not out for leaf, out in zip(leaves, frozen, strict=False)]
            kept = treedef.unflatten(
                as_leaf(leaf) if is_in else None for leaf, is_in in zip(leaves, counted, strict=True)
            )
            others = treedef.unflatten(None if is_in else leaf for leaf, is_in in zip(leaves, counted, strict=True))
            left_out.append((jtu.tree_structure(kept), others))
            return kept

        bound.arguments = OrderedDict((name, x if name == "shape" else parameters(x)) for name, x in given.items())
        result: Any = f(*bound.args, **bound.kwargs)
        structure = jtu.tree_structure(result)
        return next(
            (fill_none(result, others) for kept, others in left_out if kept == structure),
            result,
        )

    return wrapped
