"""Extra arguments of an update, as the transformation inside sees them: trees have its holes, functions fill them."""

import functools
from typing import Any

from treekit._base.dtype import has_no_update, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_parameter, is_truly_callable
from treekit._base.types import Params, PyTree, Updates
from treekit._mismatch import flatten_updates
from treekit.optax._state_map import is_hole


def view_extra_args(
    extra: dict[str, Any],
    updates: Updates,
    params: Params,
    inside_updates: Updates,
    *,
    any_shape: bool = False,
) -> dict[str, Any]:
    """Return extra arguments with the holes that the updates have inside.

    A tree like the params, or like the updates, gets the same holes. A function whose first argument is like the params
    inside receives the whole params instead, with the user's own leaves in the holes; its result gets the holes if it
    is like the params. So each level of nested wrappers fills its own holes, and the user's function sees the model.

    Args:
        extra: the arguments by name.
        updates: the updates outside.
        params: the params outside, or None.
        inside_updates: the updates inside, with None or MaskedNode for what is left out.
        any_shape: whether extra arguments with the structure of params or updates are like them, whatever their shapes.
    """
    trees = [updates] if params is None else [updates, params]
    inside_structure = jtu.tree_structure(inside_updates)
    leaves, treedef = jtu.tree_flatten(inside_updates, is_leaf=is_hole)

    def is_like(name: str, value: object) -> bool:
        return value is not None and any(_is_like(name, value, tree, any_shape) for tree in trees)

    def with_holes(tree: PyTree) -> Any:
        def inside(leaf: Any, part: object) -> Any:
            return leaf if is_hole(leaf) else jnp.zeros_like(leaf) if has_no_update(part) else part

        return treedef.unflatten(map(inside, leaves, flatten_updates(treedef, tree)))

    def filled(tree: PyTree) -> Any:
        parts = zip(leaves, treedef.flatten_up_to(tree), treedef.flatten_up_to(params), strict=True)
        return treedef.unflatten(outside if is_hole(leaf) else part for leaf, part, outside in parts)

    def view(name: str, value: Any) -> Any:
        if is_like(name, value):
            return with_holes(value)
        # A model may be callable too, and is a tree; as `value_fn` or `obj_fn`, it is meant to be called.
        is_function = is_truly_callable(value) or (callable(value) and name.endswith("_fn"))
        if params is None or not is_function or isinstance(value, type):
            return value

        @functools.wraps(value)  # line searches inspect the names of its arguments
        def whole(*args: Any, **kwargs: Any) -> Any:
            if args and jtu.tree_structure(args[0]) == inside_structure:
                args = (filled(args[0]), *args[1:])
            result = value(*args, **kwargs)
            return with_holes(result) if is_like("grad", result) else result

        return whole

    return {name: view(name, value) for name, value in extra.items()}


def _is_like(name: str, value: Any, tree: PyTree, any_shape: bool) -> bool:
    """Whether the argument `name` has the structure and the shapes of `tree`.

    By structure alone, a batch (x, y) would be like params (w, b). If the params are a number, only the argument "grad"
    is like them: any other number is a loss, a step or a rate.
    """
    if jtu.tree_structure(value) != jtu.tree_structure(tree):
        return False
    if jtu.all_leaves([value]):
        same_shape = is_parameter(value) and shape_of(value) == shape_of(tree)
        return same_shape and (shape_of(value) != () or name == "grad" or any_shape)
    pairs = zip(jtu.tree_leaves(value), jtu.tree_leaves(tree), strict=True)
    return any_shape or all(not is_parameter(a) or shape_of(a) == shape_of(b) for a, b in pairs)
