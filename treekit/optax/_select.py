"""The first kernel: run a transformation over some of the leaves.

`select` is the kernel. `filtered`, and the masks of `_masking.py`, only say which leaves, and what stands for the rest.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

from treekit._callable import is_truly_callable
from treekit._dtype import as_array, cast_like, dtype_of, has_dtype, is_absent, wider
from treekit._filter import filter, flatten_updates, is_inexact_array, is_parameter
from treekit._jax import jnp, jtu, untyped
from treekit.optax._preserve import preserve

WholeStep = Callable[[Any, Any, Any, Any, Callable[[Any, Any], Any]], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some of the leaves or subtrees of a tree.

    Attributes:
        outline: the structure whose leaves are selected or not; the tree it is for may go on below them.
        keep: one bool for each leaf of the outline.
        hole: what stands for one that is not selected.
        passes: whether the update of one that is not selected passes through, as masked has it; else it becomes a hole,
            and what is selected is completed: a parameter without an update gets one.
    """

    outline: Any
    keep: tuple[bool, ...]
    hole: Any
    passes: bool

    def parts(self, tree: Any) -> list[Any]:
        """The leaf or subtree of `tree` at each leaf of the outline."""
        try:
            return flatten_updates(self.outline, tree)
        except ValueError as error:
            raise ValueError(
                f"{error}\nUpdates must have the structure of the params, and update takes (updates, state, params), "
                "in this order. A transformation whose params are of another kind, such as optax.lookahead, cannot be "
                "wrapped; use it as it is, outermost"
            ) from None

    def map(self, f: Callable[..., Any], *trees: Any) -> Any:
        """`f(keep, *parts)` at each leaf of the outline."""
        return self.outline.unflatten(map(f, self.keep, *map(self.parts, trees)))


def select(
    tx: optax.GradientTransformation,
    choose: Callable[[Any], Selection],
    *,
    leafwise: bool = False,
    any_shape: bool = False,
    wrap: Callable[[Any], Any] = lambda state: state,
    unwrap: Callable[[Any], Any] = lambda state: state,
) -> "Held":
    """Run `tx` over the leaves that `choose` selects.

    Params, updates and extra arguments like either are selected alike, and a function among the extra arguments sees
    the whole params where `tx` calls it with selected ones.

    Args:
        tx: any transformation.
        choose: maps the params, or the updates where no params are given, to a selection.
        leafwise: whether it selects leaves, so that the state may tell which.
        any_shape: whether an extra argument with the structure of params or updates is like them, whatever its shapes.
        wrap: makes the state from the inner one.
        unwrap: gets the inner state back.
    """
    inner = optax.with_extra_args_support(tx)

    def init(params: Any) -> Any:
        if is_params_placeholder(params):  # it stands for whatever the params are
            return wrap(inner.init(params))
        return wrap(inner.init(Step(choose(params), params, params, params).inside_params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        given = updates if params is None else params
        copy = _params_in_state(inner, unwrap(state), updates, given) if leafwise else None
        selection = choose(given) if copy is None else _leaves_of(copy)
        step = Step(selection, updates, params, given if copy is None else copy, any_shape)
        views = {name: step.view(name, value) for name, value in extra.items()}
        new_updates, new_state = inner.update(step.inside(updates), unwrap(state), step.inside_params, **views)
        return step.outside(new_updates), wrap(new_state)

    return held(init, update)


def _as_inexact(param: Any) -> Any:
    """A number as an array, an integer as one of JAX's default float; anything else, such as a subtree, as it is."""
    if not is_parameter(param) or (has_dtype(param) and jnp.issubdtype(dtype_of(param), jnp.inexact)):
        return param  # dtype_of, since a NumPy array in bf16 is no inexact one to NumPy, nor to Equinox
    return cast_like(param, untyped.ShapeDtypeStruct((), wider(param, 0.0)))


def _params_in_state(tx: optax.GradientTransformation, state: Any, updates: Any, given: Any) -> Any:
    """A copy of the params in the state, if there is one and it may tell more than the params given; or None.

    A Python float has a place in the state of a raw model, and none in gradients or in filtered params.
    """
    if all(x is not None for x in jtu.tree_leaves(updates, is_leaf=lambda x: x is None)):
        return None
    found: list[Any] = []
    try:
        optax.tree_map_params(tx, found.append, state, is_leaf=lambda _: True)
    except Exception:  # tx takes no placeholder for params
        return None
    fitting = (copy for copy in found if _fits(copy, updates, given))
    return max(fitting, key=lambda copy: len(jtu.tree_leaves(copy)), default=None)


def _fits(copy: Any, updates: Any, given: Any) -> bool:
    """Whether updates and params have the structure and the shapes of a copy of the params, but for what is None."""
    leaves, outline = _flatten_with_none(copy)
    try:
        parts = zip(leaves, outline.flatten_up_to(updates), outline.flatten_up_to(given), strict=True)
    except ValueError:
        return False

    def fits(leaf: Any, update: Any, param: Any) -> bool:
        if leaf is None:  # what the state has no place for has no update, as in a raw model whose init was filtered
            return update is None
        return all(x is None or np.shape(x) == np.shape(leaf) for x in (update, param))

    return all(itertools.starmap(fits, parts))


def _flatten_with_none(tree: Any) -> tuple[list[Any], Any]:
    return jtu.tree_flatten(tree, is_leaf=lambda x: x is None)


class Step:
    """One update, seen from outside and from inside the selection.

    A selected parameter may have no update: Equinox's gradient of a Python float is None, and JAX's of an int array is
    float0. The inner transformation, which holds state for it, sees a zero, and None comes out. An integer parameter is
    shown as a floating one, since that is what optimizers compute with.
    """

    def __init__(self, selection: Selection, updates: Any, params: Any, known: Any, any_shape: bool = False) -> None:
        self.selection = selection
        self.updates = updates
        self.params = params
        self._known = known  # has the shape of every selected leaf
        self._any_shape = any_shape
        self.inside_params = None if params is None else self.inside(params, as_leaf=_as_inexact)

    def inside(self, tree: Any, as_leaf: Callable[[Any], Any] = as_array) -> Any:
        """A tree like the params, with holes for the leaves that are not selected, and zeros for missing updates."""

        def enter(keep: bool, x: Any, param: Any) -> Any:
            if not keep:
                return self.selection.hole
            if self.selection.passes:
                return x
            return jnp.zeros_like(_as_inexact(param)) if is_absent(x) and is_parameter(param) else as_leaf(x)

        return self.selection.map(enter, tree, self._known)

    def outside(self, new_updates: Any) -> Any:
        """The updates that come out."""

        def leave(keep: bool, new: Any, old: Any) -> Any:
            if is_absent(old):
                return None
            return new if keep or not self.selection.passes else old

        return self.selection.map(leave, new_updates, self.updates)

    def view(self, name: str, value: Any) -> Any:
        """An extra argument as the inner transformation is to see it.

        A tree that can be called is a function by its name only, as Optax has value_fn, obj_fn and grad_fn: it may be a
        loss, or a model to compare with.
        """
        if self._like_params(value):
            return self.inside(value)
        if self.params is None or not (is_truly_callable(value) or (callable(value) and name.endswith("_fn"))):
            return value

        @functools.wraps(value)  # line searches look up the names of its arguments
        def whole(*args: Any, **kwargs: Any) -> Any:
            if args and _is_like(args[0], self.inside_params, any_shape=True):
                args = (self._restore(args[0]), *args[1:])
            result = value(*args, **kwargs)
            return self.inside(result) if self._like_params(result) else result

        return whole

    def _restore(self, params: Any) -> Any:
        """Params as the user knows them: what is not selected, has no update or is an integer is as it was given."""

        def restore(keep: bool, new: Any, update: Any, old: Any) -> Any:
            if not keep:
                return old
            return new if self.selection.passes or not (is_absent(update) or _as_inexact(old) is not old) else old

        return self.selection.map(restore, params, self.updates, self.params)

    def _like_params(self, value: Any) -> bool:
        trees = [self.updates] if self.params is None else [self.updates, self.params]
        return any(_is_like(value, tree, self._any_shape) for tree in trees)


def _is_like(value: Any, tree: Any, any_shape: bool) -> bool:
    """Whether `value` has the structure of `tree`, and its shapes.

    By structure alone, a batch (x, y) would be like params (w, b); and any number would be like a bare array.
    """
    if jtu.tree_structure(value) != jtu.tree_structure(tree):
        return False
    if jtu.all_leaves([value]):
        return is_parameter(value) and np.shape(value) == np.shape(tree)
    pairs = zip(jtu.tree_leaves(value), jtu.tree_leaves(tree), strict=True)
    return any_shape or all(not is_parameter(a) or np.shape(a) == np.shape(b) for a, b in pairs)


def select_leaves(tx: optax.GradientTransformation, filter_spec: Any = is_parameter) -> "Held":
    """`select` for leaves that can be parameters and satisfy `filter_spec`: None for holes, in the state of `tx`."""

    def choose(tree: Any) -> Selection:
        leaves, outline = jtu.tree_flatten(tree)
        if filter_spec is not is_parameter:
            leaves = outline.flatten_up_to(filter(tree, _none_as_false(filter_spec)))
        return Selection(outline, tuple(map(is_parameter, leaves)), None, passes=False)

    return select(tx, choose, leafwise=True)


def _leaves_of(copy: Any) -> Selection:
    leaves, outline = _flatten_with_none(copy)
    return Selection(outline, tuple(leaf is not None for leaf in leaves), None, passes=False)


def _none_as_false(filter_spec: Any) -> Any:
    """A spec made from a filtered model, which has None where that has no leaf, as one for the raw model."""

    def as_false(x: Any) -> Any:
        return False if x is None else x

    return jtu.tree_map(as_false, filter_spec, is_leaf=lambda x: x is None)


class Held(optax.GradientTransformationExtraArgs):
    """A transformation that takes raw models and keeps dtypes already. Only `hold` looks at this.

    Attributes:
        whole_step: a whole step of arrays, `whole_step(updates, state, params, extra, apply)`, where `apply(params,
            updates)` adds them; returns new params and a new state. None where it is `update`, then `apply`.
    """

    whole_step: WholeStep | None = None


def held(init: Callable[..., Any], update: Callable[..., Any]) -> Held:
    """The two as partials, which Equinox's `closure_to_pytree` leaves whole.

    Optimistix takes optimizers that way: of plain functions it would make trees, and of those that they close over,
    such as a predicate, which is then no function any more.
    """
    return Held(functools.partial(init), functools.partial(update))


def whole_step(tx: optax.GradientTransformationExtraArgs) -> WholeStep:
    """How `tx` does a whole step of arrays; see `Held`."""

    def step(updates: Any, state: Any, params: Any, extra: Any, apply: Any) -> tuple[Any, Any]:
        updates, state = tx.update(updates, state, params, **extra)
        return apply(params, updates), state

    return (tx.whole_step if isinstance(tx, Held) else None) or step


def hold(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The two kernels composed, as everything reached through treekit.optax is.

    `tx` on raw models, over all leaves that can be parameters: arrays of numbers, and Python numbers.
    """
    return tx if isinstance(tx, Held) else filtered(tx, is_parameter)


def hold_whole(tx: optax.GradientTransformation, step: WholeStep) -> optax.GradientTransformationExtraArgs:
    """`hold` for a transformation that has a whole step of its own."""
    held_tx = Held(*hold(tx))
    held_tx.whole_step = step
    return held_tx


def filtered(
    inner: optax.GradientTransformation, filter_spec: Any = is_inexact_array
) -> optax.GradientTransformationExtraArgs:
    """Run a transformation over some of the leaves of a raw model; the others are frozen.

    The other leaves (functions, strings, integers, …) are None in the state and in the updates that come out, so
    `treekit.optax.apply_updates` and `equinox.apply_updates` leave them as they are.

    Args:
        inner: any transformation.
        filter_spec: a predicate on leaves, or a prefix tree of the params whose leaves are bools or predicates. By
            default every floating or complex array.

    Returns:
        A transformation on the raw model; its state is that of `inner`.

    Raises:
        ValueError: `filter_spec` does not fit the params; names the key path. Raised by `init` and `update`.

    >>> import jax
    >>> import equinox as eqx
    >>> import optax
    >>> model = eqx.nn.MLP(2, 1, 8, depth=1, key=jax.random.key(0))
    >>> tx = filtered(optax.adam(1e-3))  # plain Optax's adam, on a model with its activation function
    >>> state = tx.init(model)
    """

    return select_leaves(preserve(inner), filter_spec)


def is_spec_leaf(x: Any) -> bool:
    """What the masks, labels and dimension numbers of Optax are made of; None among them."""
    return x is None or isinstance(x, (bool, np.bool_, str)) or type(x).__name__.endswith("DimensionNumbers")


def is_params_placeholder(params: Any) -> bool:
    """Whether these are what `optax.tree_map_params` hands to init to learn where in a state the params are."""
    return type(params) is type(_PLACEHOLDER[0])


_PLACEHOLDER: list[Any] = []
optax.tree_map_params(_PLACEHOLDER.append, jtu.tree_leaves, None)
