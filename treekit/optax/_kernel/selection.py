"""Run a transformation on some of the leaves.

`apply_to_selection` does this for all wrappers; `filtered` and the others in `masking.py` only choose the leaves and
the placeholder for the other leaves.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from treekit._base.callable import is_truly_callable
from treekit._base.dtype import shape_of
from treekit._base.jax import jtu
from treekit._base.predicates import is_parameter
from treekit._base.types import OptState, Params, PyTree, PyTreeDef, Updates
from treekit._mismatch import flatten_updates
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import Core, DeclaringCore, freezes


@dataclasses.dataclass(frozen=True)
class LeafSelection:
    """A selection of leaves or subtrees of a tree.

    Attributes:
        prefix_treedef: a prefix of the structure of the tree, whose leaves are selected or not.
        keep: one bool for each leaf of `prefix_treedef`.
        placeholder: the placeholder for unselected leaves.
        pass_through: whether updates of unselected leaves are returned unchanged, as in `masked`; else they are None,
            which freezes the leaves.
    """

    prefix_treedef: Any
    keep: tuple[bool, ...]
    placeholder: Any
    pass_through: bool

    def parts(self, tree: PyTree) -> list[Any]:
        """Return the leaf or subtree of `tree` at each leaf of `prefix_treedef`."""
        return update_parts(self.prefix_treedef, tree)

    def inside(self, tree: PyTree) -> Any:
        """Return a tree like the params as the inner transformation sees it."""
        return self.inside_of(self.parts(tree))

    def inside_of(self, parts: list[Any]) -> Any:
        """Do what `inside` does, for a tree with these parts."""
        pairs = zip(self.keep, parts, strict=True)
        return self.prefix_treedef.unflatten([x if keep else self.placeholder for keep, x in pairs])

    def outside(self, new: Updates, old_parts: list[Any]) -> Any:
        """Return the updates, given those of the inner transformation and the parts of those it was called with."""
        triples = zip(self.keep, self.parts(new), old_parts, strict=True)
        return self.prefix_treedef.unflatten([x if k else y if self.pass_through else None for k, x, y in triples])

    def restore(self, inside_params: Params, params: Params) -> Any:
        """Undo `inside` for params: restore the whole params, with new values for selected leaves."""
        triples = zip(self.keep, self.parts(inside_params), self.parts(params), strict=True)
        return self.prefix_treedef.unflatten([x if keep else y for keep, x, y in triples])


def update_parts(prefix_treedef: PyTreeDef, tree: PyTree) -> list[Any]:
    """Flatten updates, or a tree like them, up to a structure of params.

    Raises:
        ValueError: they differ in structure; the message names the first key path.
    """
    try:
        return flatten_updates(prefix_treedef, tree)
    except ValueError as error:
        raise ValueError(
            f"{error}. update takes (updates, state, params), in this order, and updates have the structure of the "
            "params"
        ) from None


def apply_to_selection(
    inner: Core,
    choose: Callable[[Any], LeafSelection],
    *,
    any_shape: bool = False,
    wrap: Callable[[Any], Any] = lambda state: state,
    unwrap: Callable[[Any], Any] = lambda state: state,
) -> Core:
    """Run a core on the leaves that `choose` selects.

    The same leaves are selected from params, updates and extra arguments that are like them. A function among the extra
    arguments is called with the whole params when the core calls it with selected ones.

    Args:
        inner: the core.
        choose: maps the params, or the updates if params were not passed, to a selection.
        any_shape: whether extra arguments with the structure of params or updates are like them, whatever their shapes.
        wrap: maps the inner state to the state.
        unwrap: maps the state to the inner state.
    """
    inner_init, inner_update = inner

    def init(params: Params) -> Any:
        if is_params_placeholder(params):  # a placeholder for any params
            return wrap(inner_init(params))
        return wrap(inner_init(choose(params).inside(params)))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        selection = choose(updates if params is None else params)
        inside, restore = selection.inside, selection.restore
        inside_params = None if params is None else inside(params)
        views = view_extra_args(extra, updates, params, inside_params, inside, restore, any_shape=any_shape)
        parts = selection.parts(updates)
        new_updates, new_state = inner_update(selection.inside_of(parts), unwrap(state), inside_params, **views)
        return selection.outside(new_updates, parts), wrap(new_state)

    def freezes_all(params: Params) -> bool:
        selection = choose(params)
        rest_is_frozen = all(selection.keep) or not selection.pass_through
        return rest_is_frozen and (not any(selection.keep) or freezes(inner, selection.inside(params)))

    return DeclaringCore(init, update, freezes=freezes_all)


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
        # A model may be callable too, and is a tree; as `value_fn` or `obj_fn`, it is meant to be called.
        is_function = is_truly_callable(value) or (callable(value) and name.endswith("_fn"))
        if params is None or not is_function or isinstance(value, type):
            return value

        @functools.wraps(value)  # line searches inspect the names of its arguments
        def whole(*args: Any, **kwargs: Any) -> Any:
            if args and _is_like("grad", args[0], inside_params, any_shape=False):
                args = (restore(args[0], params), *args[1:])
            result = value(*args, **kwargs)
            return inside(result) if is_like("grad", result) else result

        return whole

    return {name: view(name, value) for name, value in extra.items()}


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


def is_spec_leaf(x: object) -> bool:
    """Whether `x` is a leaf of a mask, a label tree or a tree of dimension numbers; None is."""
    return x is None or isinstance(x, (bool, np.bool_, str)) or type(x).__name__.endswith("DimensionNumbers")
