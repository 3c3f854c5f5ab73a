"""Extra arguments of an update: trees get the holes that the params have inside, and functions have theirs filled."""

import functools
from typing import Any

from treekit._base.dtype import has_no_update, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_parameter, is_truly_callable
from treekit._base.types import Params, PyTree, Updates
from treekit._compare.prefix import flatten_updates
from treekit.optax._kernel.state_map import is_hole


def view_extra_args(extra: dict[str, Any], updates: Updates, params: Params, inside_updates: Updates) -> dict[str, Any]:
    """Return extra arguments as a core sees them.

    A tree like the params, or like the updates, gets the same holes as these. A function receives the user's own params
    where it is called with the params inside: their holes are filled, also those that wrappers inside have made.

    Args:
        extra: the arguments by name.
        updates: the updates outside.
        params: the params outside, or None.
        inside_updates: the updates inside, with None or MaskedNode for what is left out.
    """
    trees = [updates] if params is None else [updates, params]

    def view(name: str, value: Any) -> Any:
        if any(is_like(name, value, tree) for tree in trees):
            return _with_holes(inside_updates, value)
        # A model may be callable too, and is a tree; as `value_fn` or `obj_fn`, it is meant to be called.
        is_function = is_truly_callable(value) or (callable(value) and name.endswith("_fn"))
        return _filling(value, params) if is_function and params is not None and not isinstance(value, type) else value

    return {name: view(name, value) for name, value in extra.items()}


def _with_holes(inside: PyTree, tree: PyTree) -> Any:
    """Return a tree with the holes of one inside, and a zero for a missing gradient."""
    leaves, treedef = jtu.tree_flatten(inside, is_leaf=is_hole)
    pairs = zip(leaves, flatten_updates(treedef, tree), strict=True)
    return treedef.unflatten(
        x if is_hole(x) else jnp.zeros_like(x) if has_no_update(part) else part for x, part in pairs
    )


def _filling(function: Any, params: Params) -> Any:
    """Wrap a function of the params, which is called with holes where wrappers inside leave params out."""

    @functools.wraps(function)  # line searches inspect the names of its arguments
    def whole(*args: Any, **kwargs: Any) -> Any:
        inside = args[0] if args else None
        leaves, treedef = jtu.tree_flatten(inside, is_leaf=is_hole)
        if inside is None or not any(map(is_hole, leaves)):
            return function(*args, **kwargs)
        try:
            parts = treedef.flatten_up_to(params)
        except ValueError:  # it is another tree
            return function(*args, **kwargs)
        filled = treedef.unflatten(part if is_hole(x) else x for x, part in zip(leaves, parts, strict=True))
        result = function(filled, *args[1:], **kwargs)
        return _with_holes(inside, result) if is_like("grad", result, params) else result

    return whole


def is_like(name: str, value: Any, tree: PyTree, any_shape: bool = False) -> bool:
    """Whether the argument `name` has the structure of `tree`, and its shapes, unless these do not matter.

    By structure alone, a batch (x, y) would be like params (w, b). If the params are a number, only the argument "grad"
    is like them: any other number is a loss, a step or a rate.
    """
    if value is None or jtu.tree_structure(value) != jtu.tree_structure(tree):
        return False
    if any_shape:
        return True
    if jtu.all_leaves([value]):
        return is_parameter(value) and shape_of(value) == shape_of(tree) and (shape_of(value) != () or name == "grad")
    pairs = zip(jtu.tree_leaves(value), jtu.tree_leaves(tree), strict=True)
    return all(not is_parameter(a) or shape_of(a) == shape_of(b) for a, b in pairs)
