"""Optax's functions on trees, such as `optax.tree.norm`, for trees with leaves that are not numbers."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import optax

from treekit._base.dtype import as_array, resolve_array
from treekit._base.jax import jtu
from treekit._base.predicates import is_inexact_parameter, is_parameter
from treekit._base.tree import fill_none, is_none
from treekit._base.types import PyTree
from treekit._trained.declared import declared_frozen
from treekit.optax._wrappers.releases import existing

# The functions of Optax that reduce a tree to numbers, for which what a class declares frozen does not count.
_REDUCTIONS: tuple[Callable[..., Any], ...] = (
    optax.global_norm,
    optax.per_example_global_norm_clip,
    optax.per_example_layer_norm_clip,
    *existing(optax.tree, *"max min norm size sum vdot".split()),
)

_OTHERS = """
    add add_scale allclose batch_shape bias_correction cast cast_like clip conj div dtype full_like mul ones_like
    random_like real scale sub update_infinity_moment update_moment update_moment_per_elem_norm where zeros_like
"""

# Those that compute with all leaves of their arguments; what else is in optax.tree takes states and keys.
ON_TREES = (*_REDUCTIONS, *existing(optax.tree, *_OTHERS.split()))


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
        is_counted = is_inexact_parameter if _draws_normal(f, bound.arguments) else is_parameter

        def split(tree: PyTree) -> _Split:
            leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_none)
            frozen = [False] * len(leaves) if counts_frozen else declared_frozen(tree, is_none)
            counted = [is_counted(x) and not is_frozen for x, is_frozen in zip(leaves, frozen, strict=True)]
            pairs = list(zip(leaves, counted, strict=True))
            return _Split(
                treedef.unflatten(as_leaf(x) if counts else None for x, counts in pairs),
                treedef.unflatten(None if counts else x for x, counts in pairs),
            )

        # Other arguments are leaves, such as a dtype, a decay or a sampler.
        trees = {name: x for name, x in bound.arguments.items() if name != "shape" and not jtu.all_leaves([x])}
        splits = {name: split(tree) for name, tree in trees.items()}
        bound.arguments.update({name: x.counted for name, x in splits.items()})
        return _with_others(f(*bound.args, **bound.kwargs), splits.values())

    return wrapped


class _Split(NamedTuple):
    """A tree in two: the leaves that count, and the others, each with None for the rest."""

    counted: PyTree
    others: PyTree


def _draws_normal(f: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether `f` is `random_like`, and draws numbers from a normal distribution."""
    sampler = given.get("sampler", jax.random.normal)
    return f is optax.tree.random_like and given.get("dtype") is None and sampler is jax.random.normal


def _with_others(result: Any, splits: Iterable[_Split]) -> Any:
    """Return a result with the leaves that did not count, from the first tree whose structure it has."""
    structure = jtu.tree_structure(result)
    like = next((x for x in splits if jtu.tree_structure(x.counted) == structure), None)
    return result if like is None else fill_none(result, like.others)
