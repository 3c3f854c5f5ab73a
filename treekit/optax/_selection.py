"""The first kernel: run a transformation over some of the leaves.

`apply_to_selection` is the kernel. `filtered`, and the masks of `_masking.py`, only choose the leaves, and the
placeholder for the others.
"""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

from treekit._diff import tree_diff
from treekit._jax import jtu
from treekit._predicates import is_parameter
from treekit._tree import flatten_updates
from treekit.optax._transformation import Apply, Core, SteppingCore, own_step

# What is a function whatever it is called; other callables, such as a model, are one only under a name in _fn.
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)


@dataclasses.dataclass(frozen=True)
class LeafSelection:
    """Some of the leaves or subtrees of a tree.

    Attributes:
        prefix_treedef: the structure whose leaves are selected or not; the tree it is for may go on below them.
        keep: one bool for each leaf of `prefix_treedef`.
        placeholder: what stands for one that is not selected.
        pass_through: whether the update of one that is not selected comes out as it went in, as in masked; else None
            comes out, which freezes it.
    """

    prefix_treedef: Any
    keep: tuple[bool, ...]
    placeholder: Any
    pass_through: bool

    def parts(self, tree: Any) -> list[Any]:
        """The leaf or subtree of `tree` at each leaf of `prefix_treedef`."""
        return update_parts(self.prefix_treedef, tree)

    def inside(self, tree: Any) -> Any:
        """A tree like the params as the inner transformation sees it."""
        return self.inside_of(self.parts(tree))

    def inside_of(self, parts: list[Any]) -> Any:
        """`inside` of a tree that has these parts."""
        pairs = zip(self.keep, parts, strict=True)
        return self.prefix_treedef.unflatten([x if keep else self.placeholder for keep, x in pairs])

    def outside(self, new: Any, old_parts: list[Any]) -> Any:
        """The updates that come out, where a tree of `old_parts` came in."""
        triples = zip(self.keep, self.parts(new), old_parts, strict=True)
        return self.prefix_treedef.unflatten([x if k else y if self.pass_through else None for k, x, y in triples])

    def only(self, updates: Any, params: Any, *, selected: bool) -> Any:
        """The updates of what is selected, or of what is not, and None for the other params."""
        triples = zip(self.keep, self.parts(updates), self.parts(params), strict=True)
        return self.prefix_treedef.unflatten([x if k == selected else jtu.tree_map(_none, p) for k, x, p in triples])

    def restore(self, inside_params: Any, params: Any) -> Any:
        """The whole params, where the inner transformation has made others of those it sees."""
        triples = zip(self.keep, self.parts(inside_params), self.parts(params), strict=True)
        return self.prefix_treedef.unflatten([x if keep else y for keep, x, y in triples])


def _none(_: Any) -> None:
    return None


def update_parts(prefix_treedef: Any, tree: Any) -> list[Any]:
    """What updates, or a tree like them, have at each leaf of a structure of params.

    Raises:
        ValueError: the two differ in structure; names the first key path.
    """
    try:
        return flatten_updates(prefix_treedef, tree)
    except ValueError:
        params = prefix_treedef.unflatten([0] * prefix_treedef.num_leaves)
        if isinstance(params, optax.LookaheadParams):
            raise ValueError(
                "the params are the pair of optax.lookahead, which cannot be wrapped: use it as it is, outermost"
            ) from None
        raise ValueError(
            f"the updates do not fit the params: {updates_mismatch(prefix_treedef, tree)}. update takes (updates, "
            "state, params), in this order, and updates have the structure of the params"
        ) from None


def updates_mismatch(treedef: Any, tree: Any, name: str = "updates") -> str:
    """Where updates, or a tree like them, first differ in structure from params; None does not differ from anything."""
    params = treedef.unflatten([_LEAF] * treedef.num_leaves)
    differences = tree_diff(params, jtu.tree_map(lambda _: _LEAF, tree))
    first = next((each for each in differences if each.right != "None"), differences[0])
    return f"at {first.path or 'the root'}, the params have {first.left}, and the {name} {first.right}"


class _Leaf:
    """What any leaf is, where structure alone counts."""


_LEAF = _Leaf()


def apply_to_selection(
    inner: Core,
    choose: Callable[[Any], LeafSelection],
    *,
    any_shape: bool = False,
    wrap: Callable[[Any], Any] = lambda state: state,
    unwrap: Callable[[Any], Any] = lambda state: state,
) -> Core:
    """Run a core over the leaves that `choose` selects.

    Params, updates and extra arguments like either are selected alike, and a function among the extra arguments sees
    the whole params where the core calls it with selected ones.

    Args:
        inner: the core.
        choose: maps the params, or the updates where no params are given, to a selection.
        any_shape: whether an extra argument with the structure of params or updates is like them, whatever its shapes.
        wrap: makes the state from the inner one.
        unwrap: gets the inner state back.
    """

    def init(params: Any) -> Any:
        if is_params_placeholder(params):  # it stands for whatever the params are
            return wrap(inner.init(params))
        return wrap(inner.init(choose(params).inside(params)))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        selection = choose(updates if params is None else params)
        inside_params = None if params is None else selection.inside(params)
        views = view_extra_args(
            extra, updates, params, inside_params, selection.inside, selection.restore, any_shape=any_shape
        )
        parts = selection.parts(updates)
        new_updates, new_state = inner.update(selection.inside_of(parts), unwrap(state), inside_params, **views)
        return selection.outside(new_updates, parts), wrap(new_state)

    inner_step = own_step(inner)
    if inner_step is None:
        return optax.GradientTransformationExtraArgs(init, update)

    def step(updates: Any, state: Any, params: Any, extra: dict[str, Any], apply: Apply) -> tuple[Any, Any]:
        selection = choose(params)
        inside_params = selection.inside(params)

        def apply_inside(inside_params: Any, new_updates: Any) -> Any:
            whole = selection.restore(inside_params, params)
            return selection.inside(apply(whole, selection.only(new_updates, params, selected=True)))

        views = view_extra_args(
            extra, updates, params, inside_params, selection.inside, selection.restore, any_shape=any_shape
        )
        inside_updates = selection.inside(updates)
        new_params, new_state = inner_step(inside_updates, unwrap(state), inside_params, views, apply_inside)
        rest = apply(params, selection.only(updates, params, selected=False)) if selection.pass_through else params
        return selection.restore(new_params, rest), wrap(new_state)

    return SteppingCore(init, update, step)


def view_extra_args(
    extra: dict[str, Any],
    updates: Any,
    params: Any,
    inside_params: Any,
    inside: Callable[[Any], Any],
    restore: Callable[[Any, Any], Any],
    *,
    any_shape: bool = False,
) -> dict[str, Any]:
    """Extra arguments as an inner transformation is to see them.

    Args:
        extra: the arguments by name.
        updates: the updates outside.
        params: the params outside, or None.
        inside_params: the params inside, or None.
        inside: maps a tree like the params to what the inner transformation sees of it.
        restore: takes params from inside, and those outside, to whole params.
        any_shape: as in `apply_to_selection`.
    """

    def is_like(name: str, value: Any) -> bool:
        trees = [updates] if params is None else [updates, params]
        return any(_is_like(name, value, tree, any_shape=any_shape) for tree in trees)

    def view(name: str, value: Any) -> Any:
        if is_like(name, value):
            return inside(value)
        if params is None or not _is_function(name, value):
            return value

        @functools.wraps(value)  # line searches look up the names of its arguments
        def whole(*args: Any, **kwargs: Any) -> Any:
            if args and jtu.tree_structure(args[0]) == jtu.tree_structure(inside_params):
                args = (restore(args[0], params), *args[1:])
            result = value(*args, **kwargs)
            return inside(result) if is_like("grad", result) else result

        return whole

    return {name: view(name, value) for name, value in extra.items()}


def _is_function(name: str, value: Any) -> bool:
    """Whether an extra argument is a function of the params: by its type, or by its name, as value_fn and obj_fn."""
    return isinstance(value, _FUNCTIONS) or (callable(value) and name.endswith("_fn"))


def _is_like(name: str, value: Any, tree: Any, *, any_shape: bool) -> bool:
    """Whether the argument `name` has the structure of `tree`, and its shapes.

    By structure alone, a batch (x, y) would be like params (w, b). A number is like params that are a number under the
    name "grad" only, by which Optax hands over gradients: any other is a loss, a step or a rate.
    """
    if jtu.tree_structure(value) != jtu.tree_structure(tree):
        return False
    if jtu.all_leaves([value]):
        same_shape = is_parameter(value) and np.shape(value) == np.shape(tree)
        return same_shape and (np.shape(value) != () or name == "grad" or any_shape)
    pairs = zip(jtu.tree_leaves(value), jtu.tree_leaves(tree), strict=True)
    return any_shape or all(not is_parameter(a) or np.shape(a) == np.shape(b) for a, b in pairs)


def is_spec_leaf(x: Any) -> bool:
    """What the masks, labels and dimension numbers of Optax are made of; None among them."""
    return x is None or isinstance(x, (bool, np.bool_, str)) or type(x).__name__.endswith("DimensionNumbers")


def is_params_placeholder(params: Any) -> bool:
    """Whether these are what `optax.tree_map_params` hands to init to learn where in a state the params are."""
    return type(params) is type(_PLACEHOLDER[0])


_PLACEHOLDER: list[Any] = []
optax.tree_map_params(_PLACEHOLDER.append, jtu.tree_leaves, None)
