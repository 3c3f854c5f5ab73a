"""Show extra arguments of an update to a transformation that sees other params than the caller."""

import functools
import types
from collections.abc import Callable
from typing import Any

from treekit._base.dtype import shape_of
from treekit._base.jax import jtu
from treekit._base.predicates import is_parameter
from treekit._base.types import Params, PyTree, Updates

# Extra arguments of these types are functions; other callables, such as a model, only if their name ends in _fn.
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)


def view_extra_args(
    extra: dict[str, Any],
    updates: Updates,
    params: Params,
    inside_params: Params,
    inside: Callable[[Any], Any],
    restore: Callable[[Any, Any], Any],
    *,
    any_shape: bool = False,
) -> dict[str, Any]:
    """Convert extra arguments to the form that an inner transformation sees.

    Args:
        extra: the arguments by name.
        updates: the updates outside.
        params: the params outside, or None.
        inside_params: the params inside, or None.
        inside: maps a tree like the params to the form that the inner transformation sees.
        restore: maps params inside and params outside to whole params.
        any_shape: as in `apply_to_selection`.
    """

    def is_like(name: str, value: object) -> bool:
        trees = [updates] if params is None else [updates, params]
        return any(_is_like(name, value, tree, any_shape=any_shape) for tree in trees)

    def view(name: str, value: Any) -> Any:
        if is_like(name, value):
            return inside(value)
        if params is None or not _is_function(name, value):
            return value

        @functools.wraps(value)  # line searches inspect the names of its arguments
        def whole(*args: Any, **kwargs: Any) -> Any:
            if args and jtu.tree_structure(args[0]) == jtu.tree_structure(inside_params):
                args = (restore(args[0], params), *args[1:])
            result = value(*args, **kwargs)
            return inside(result) if is_like("grad", result) else result

        return whole

    return {name: view(name, value) for name, value in extra.items()}


def _is_function(name: str, value: object) -> bool:
    """Whether an extra argument is a function of the params, by its type or by a name such as value_fn or obj_fn."""
    return isinstance(value, _FUNCTIONS) or (callable(value) and name.endswith("_fn"))


def _is_like(name: str, value: Any, tree: PyTree, *, any_shape: bool) -> bool:
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
