"""Extra arguments of an update, as a core sees them.

A tree like the params gets the holes that the params have inside. A function of the params is wrapped: before each
call, the holes in its first argument are filled with the user's own leaves; a gradient that it returns gets the holes.
"""

import functools
from collections.abc import Mapping
from typing import Any

from treekit._base.dtype import has_no_update, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_parameter, is_truly_callable
from treekit._base.types import Params, PyTree, Updates
from treekit._compare.prefix import flatten_up_to, flatten_updates
from treekit.optax._kernel.holes import is_hole


def view_extra_args(extra: dict[str, Any], updates: Updates, params: Params, inside_updates: Updates) -> dict[str, Any]:
    """Return extra arguments as a core sees them.

    Args:
        extra: the arguments by name.
        updates: the updates outside.
        params: the params outside, or None.
        inside_updates: the updates inside, with None or MaskedNode for what is left out.
    """
    likes = args_like(extra, *([updates] if params is None else [updates, params]))

    def view(name: str, value: Any) -> Any:
        if name in likes:
            return _with_holes(inside_updates, value)
        if params is not None and _is_function(name, value):
            return _with_holes_filled(value, params)
        return value

    return {name: view(name, value) for name, value in extra.items()}


def _is_function(name: str, value: object) -> bool:
    """Whether an extra argument is a function, and not a class.

    A model may be callable too, and is a tree; as `value_fn` or `obj_fn`, it is meant to be called.
    """
    if isinstance(value, type):
        return False
    return is_truly_callable(value) or (callable(value) and name.endswith("_fn"))


def _with_holes(inside: PyTree, tree: PyTree) -> Any:
    """Return a tree with the holes of one inside, and a zero for a missing gradient."""

    def leaf(x: Any, given: Any) -> Any:
        if is_hole(x):
            return x
        return jnp.zeros_like(x) if has_no_update(given) else given

    leaves, treedef = jtu.tree_flatten(inside, is_leaf=is_hole)
    return treedef.unflatten(map(leaf, leaves, flatten_updates(treedef, tree)))


def _with_holes_filled(function: Any, params: Params) -> Any:
    """Wrap a function of the params, so that the holes in its first argument are filled with leaves of these params."""

    @functools.wraps(function)  # line searches inspect the names of its arguments
    def whole(*args: Any, **kwargs: Any) -> Any:
        inside = args[0] if args else None
        leaves, treedef = jtu.tree_flatten(inside, is_leaf=is_hole)
        if inside is None or not any(map(is_hole, leaves)):
            return function(*args, **kwargs)
        try:
            outside = flatten_up_to(treedef, params)
        except ValueError:  # it is called with something else than params
            return function(*args, **kwargs)
        filled = treedef.unflatten(y if is_hole(x) else x for x, y in zip(leaves, outside, strict=True))
        result = function(filled, *args[1:], **kwargs)
        is_gradient = _is_like(result, params, may_be_number=True)
        return _with_holes(inside, result) if is_gradient else result

    return whole


def args_like(extra: Mapping[str, Any], *trees: PyTree, any_shape: bool = False) -> dict[str, Any]:
    """Return the extra arguments that are like one of these trees, of params or updates.

    A number is like params that are a number if it is called `grad`; any other is such as a loss.
    """
    return {
        name: x
        for name, x in extra.items()
        if any(_is_like(x, tree, may_be_number=name == "grad", any_shape=any_shape) for tree in trees)
    }


def _is_like(value: Any, tree: PyTree, *, may_be_number: bool, any_shape: bool = False) -> bool:
    """Whether a value has the structure of a tree of params or updates, and their shapes.

    By structure alone, a batch (x, y) would be like params (w, b).

    Args:
        value: any value.
        tree: the params or updates.
        may_be_number: whether a number is like params that are a number. A gradient is; a loss or a rate is not.
        any_shape: whether shapes do not matter.
    """
    if value is None or jtu.tree_structure(value) != jtu.tree_structure(tree):
        return False
    if any_shape:
        return True
    if jtu.all_leaves([value]):
        return is_parameter(value) and shape_of(value) == shape_of(tree) and (may_be_number or shape_of(value) != ())
    pairs = zip(jtu.tree_leaves(value), jtu.tree_leaves(tree), strict=True)
    return all(not is_parameter(a) or shape_of(a) == shape_of(b) for a, b in pairs)
