"""The boundary of a transformation: raw models and missing gradients outside, trees of arrays inside.

Every update crosses it once, at the outermost transformation. Inside, transformations without a boundary, called
cores, are composed."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import (
    as_array,
    cast_like,
    dtype_of,
    has_no_update,
    issubdtype,
    promoted_dtype,
    shape_of,
)
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import (
    has_gradient,
    is_array_without_gradient,
    is_inexact_array,
    is_inexact_parameter,
    is_parameter,
    is_truly_callable,
)
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, PyTree, PyTreeDef, TransformationLike, Updates
from treekit._mismatch import flatten_updates
from treekit._trainable import declared_frozen
from treekit.optax._explain import explain_init, explain_update, gradient_of_integers
from treekit.optax._preserve import keep_state, preserve_dtypes
from treekit.optax._state_map import is_params_placeholder, is_placeholder, leaves_by_param, map_state
from treekit.optax._transformation import (
    Apply,
    Core,
    DeclaringCore,
    GradientTransformation,
    core_of,
    is_ours,
    showing,
    without_multi_steps,
)


def normalize(tx: TransformationLike) -> GradientTransformation[Any]:
    """Return a transformation that accepts raw models and preserves dtypes; one of treekit's is returned unchanged."""
    tx = without_multi_steps(tx)
    if is_ours(tx) and tx.core is not None:
        return tx
    return at_boundary(core_of(tx))


def at_boundary(core: Core) -> GradientTransformation[Any]:
    """Wrap a core so that it sees only the leaves that can be parameters, and dtypes are preserved.

    `init` and `update` close over transformations only, so that Equinox's `closure_to_pytree`, which Optimistix applies
    to optimizers, finds the arrays among their hyperparameters. It follows every path to a function, so here, as in
    every core, `init` closes over the inner `init` alone: else their number would double with each wrapper.
    """
    inner = preserve_dtypes(core)
    inner_init = inner.init

    def init(params: Params) -> Any:
        if is_params_placeholder(params):  # a placeholder for any params
            return inner_init(params)
        if params is not None and jtu.all_leaves([params]) and not is_parameter(params):
            advice = "an instance of this class" if isinstance(params, type) else "a pytree with arrays"
            raise TypeError(
                f"init takes the params, or a model, and received {describe_value(params)}, which has no parameters. "
                f"Pass {advice}; a class of your own must be registered, with treekit.node or treekit.register_node"
            )
        crossing = Crossing(None, params)
        inside_params = crossing.enter_params()
        with showing(crossing.originals, params, crossing.frozen):
            try:
                return inner_init(inside_params)
            except Exception as error:
                explain_init(error, inside_params)
                raise

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        def update_inside(updates: Updates, params: Params, extra: dict[str, Any]) -> Any:
            return inner.update(updates, state, params, **extra)

        crossing = Crossing(updates, params, state)
        new_updates, new_state = crossing.run(update_inside, inner, extra)
        new_state, accumulated = crossing.hold_missing(state, new_state)
        return crossing.leave(new_updates, accumulated), new_state

    init.__qualname__, update.__qualname__ = "init", "update"  # which Python's errors of missing arguments show
    return GradientTransformation(init, update, core)


def whole_step(
    tx: GradientTransformation[Any],
    grads: Updates,
    state: OptState,
    params: Params,
    extra: dict[str, Any],
    apply: Apply,
) -> tuple[Any, Any]:
    """Take a whole step; that of `MultiSteps` itself, if it is outermost and no param has to be converted."""
    core = core_of(tx)
    step = core.step if isinstance(core, DeclaringCore) else None
    if step is None or not (crossing := Crossing(grads, params, state)).is_plain:
        updates, state = tx.update(grads, state, params, **extra)
        return apply(params, updates), state

    def apply_inside(inside_params: Params, updates: Updates) -> Any:
        return crossing.enter(apply(crossing.restore(inside_params, params), crossing.leave(updates, {})))

    def step_inside(grads: Updates, params: Params, extra: dict[str, Any]) -> Any:
        new_params, new_state = step(grads, state, params, extra, apply_inside)
        return new_params, keep_state(state, params, new_state)

    new_params, new_state = crossing.run(step_inside, preserve_dtypes(core), extra)
    return crossing.restore(new_params, params), new_state


class Crossing:
    """The trees of one update, in the user's form and in the form that cores see.

    A parameter may have no update: Equinox's gradient of a Python float is None, and JAX's of an int array is float0.
    The core, which has state for it, sees a zero, and the user gets None. Cores see an integer parameter as a
    floating-point one, since optimizers compute with those.

    Args:
        updates: the user's updates; in `init`, where nothing has a gradient yet, None.
        params: the user's params, or None.
        state: the state, which shows for which params it was made; None if for these.

    Attributes:
        originals: maps the id of an array that cores see to the array and the user's leaf that it represents; complete
            when params and updates have been entered.
        frozen: which leaves are declared not to be trained, as `declared_frozen` returns it.

    Raises:
        TypeError: a leaf that cannot be a parameter has a gradient, or is an array of objects; the message names the
            key path.
    """

    def __init__(self, updates: Updates, params: Params, state: OptState = None) -> None:
        given = updates if params is None else params
        leaves, self._treedef = jtu.tree_flatten(given, is_leaf=is_none)
        parts = [None] * len(leaves) if updates is None else update_parts(self._treedef, updates)
        self.frozen = frozen = declared_frozen(given)
        if frozen is not None:  # what its class declares not to be trained has no state, and no update
            leaves = [None if is_frozen else x for is_frozen, x in zip(frozen, leaves, strict=True)]
            parts = [None if is_frozen else x for is_frozen, x in zip(frozen, parts, strict=True)]
        self._outside, self._state = (updates, params), state
        self._params = None if params is None else leaves
        self._updates = list(map(_none_if_missing, parts))
        self._covered = _covered_leaves(state, given, self._updates if params is None else leaves, self._updates)
        self._keep = list(map(is_parameter, self._covered))
        if not all(self._keep):
            self._check_left_out()
        self.originals: dict[int, tuple[Any, Any]] = {}

    @property
    def is_plain(self) -> bool:
        """Whether no param has to be converted.

        Those that are trained are floating-point or complex JAX arrays, and all have an update; no other is an array of
        NumPy, which `apply_updates` makes one of JAX.
        """
        trios = zip(self._keep, self._params or self._covered, self._updates, strict=True)
        return all(
            isinstance(param, untyped.Array) and is_inexact_parameter(param) and update is not None
            if keep
            else not isinstance(param, (np.ndarray, np.generic))
            for keep, param, update in trios
        )

    def run(
        self, step: Callable[[Any, Any, dict[str, Any]], tuple[Any, Any]], inner: Core, extra: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Call `step` with updates, params and extra arguments as cores see them, and explain its error by `inner`."""
        updates, params = self._outside
        inside_updates, inside_params = self._enter(self._updates, as_array), self.enter_params()
        views = view_extra_args(extra, updates, params, inside_params, self.enter, self.restore)
        with showing(self.originals, updates if params is None else params, self.frozen):
            try:
                return step(inside_updates, inside_params, views)
            except Exception as error:
                explain_update(error, inner, inside_updates, self._state, inside_params, views)
                raise

    def enter_params(self) -> Any:
        """Return the params as cores see them, or None."""
        return None if self._params is None else self._enter(self._params, _as_inexact)

    def enter(self, tree: PyTree) -> Any:
        """Return a tree like the params, with None for leaves that are not parameters and zeros for missing updates."""
        return self._enter(list(map(_none_if_missing, update_parts(self._treedef, tree))), as_array)

    def leave(self, new_updates: Updates, accumulated: Mapping[int, Any]) -> Any:
        """Return the updates in the user's form: None for leaves that had no update.

        Args:
            new_updates: the updates as a core returns them.
            accumulated: for leaves that had no update, but may have one from earlier steps, whether they do.

        Raises:
            TypeError: an array of integers had a floating-point gradient, of which a core computed an update.
        """
        news = update_parts(self._treedef, new_updates)
        for i, (new, old) in enumerate(zip(news, self._updates, strict=True)):
            if new is None or new is old:
                continue
            if old is None:
                news[i] = jnp.where(accumulated[i], new, jnp.zeros_like(new)) if i in accumulated else None
            elif has_gradient(old) and is_array_without_gradient(self._covered[i]):
                raise TypeError(gradient_of_integers(self._path(i), old, self._covered[i]))
        return self._treedef.unflatten(news)

    def hold_missing(self, state: OptState, new_state: OptState) -> tuple[Any, dict[int, Any]]:
        """Restore the moments of parameters that had no update, from the state before the step.

        Counts and estimates that parameters share advance. An accumulator of `MultiSteps` takes a zero; if it holds
        gradients of earlier steps, the parameter and its moments may change.

        Returns:
            The new state; and, for parameters without an update that have an accumulator, whether it holds anything.
        """
        missing = [keep and update is None for keep, update in zip(self._keep, self._updates, strict=True)]
        if not any(missing) or state is None:
            return new_state, {}
        covered = zip(self._covered, self._keep, strict=True)
        params = self._treedef.unflatten([x if keep else None for x, keep in covered])
        olds, treedef = jtu.tree_flatten(state)
        news = jtu.tree_leaves(new_state)
        entries = enumerate(map_state(state, params))
        found = [(n, x.param, x) for n, x in entries if x.param is not None and missing[x.param]]
        # A Python number never has a gradient. Without params, an array of shape () looks the same.
        leaves = [x if np.ndim(x) else None for x in self._covered] if self._params is None else self._params
        accumulated: dict[int, Any] = {}
        for n, i, x in found:
            if x.role == "accumulator" and has_gradient(leaves[i]):
                accumulated[i] = accumulated.get(i, False) | jnp.array(olds[n] != 0).any()
        for n, i, x in found:
            if x.role in ("moment", "params") and (x.owner, x.field) not in _OF_ONE_STEP:
                news[n] = jnp.where(accumulated[i], news[n], olds[n]) if i in accumulated else olds[n]
        return treedef.unflatten(news), accumulated

    def restore(self, inside_params: Params, params: Params) -> Any:
        """Return the user's params, with the values of `inside_params` for leaves that are trained."""

        def choose(leaf: object, new: object, update: object, old: object) -> Any:
            return old if update is None or not is_inexact_parameter(leaf) else new

        news, olds = (update_parts(self._treedef, tree) for tree in (inside_params, params))
        return self._treedef.unflatten(map(choose, self._covered, news, self._updates, olds))

    def _enter(self, parts: list[Any], as_leaf: Callable[[Any], Any]) -> Any:
        def convert(keep: bool, x: object, leaf: object) -> Any:
            if not keep:
                return None
            shown = jnp.zeros_like(_as_inexact(leaf)) if x is None else as_leaf(x)
            if x is None:  # integers of this shape, which filters by dtype leave out, since they have no gradient
                x = np.broadcast_to(0, shown.shape) if shown.ndim else 0.0
            if shown is not x:
                self.originals[id(shown)] = (shown, x)
            return shown

        return self._treedef.unflatten(map(convert, self._keep, parts, self._covered))

    def _check_left_out(self) -> None:
        params = self._covered if self._params is None else self._params
        for i, (keep, param, update) in enumerate(zip(self._keep, params, self._updates, strict=True)):
            if _is_of_objects(param):
                raise TypeError(
                    f"the params have an array of Python objects at {self._path(i)}. Give it a numeric dtype, or leave "
                    "it out: treekit.filter(params, treekit.is_inexact_array)"
                )
            if not keep and update is not None and update is not param:
                raise TypeError(
                    f"there is a gradient ({describe(update)}) at {self._path(i)}, and the params have "
                    f"{describe(param)} there, which cannot be a parameter. It would be lost: pass None instead, or "
                    "make the leaf an array and make the state again with init"
                )

    def _path(self, i: int) -> str:
        return leaf_path_text(self._treedef.unflatten(self._covered), i, is_none)


# Fields with what the last step computed, which the next one replaces.
_OF_ONE_STEP = {
    ("SAMState", "cache"),
    ("ScaleByBacktrackingLinesearchState", "grad"),
    ("ScaleByZoomLinesearchState", "grad"),
    ("ZeroNansState", "found_nan"),
}


def _none_if_missing(update: object) -> Any:
    """Return None for float0, which means the same: no update."""
    return None if has_no_update(update) else update


def _as_inexact(param: object) -> Any:
    """Return a number as an array, and an integer as an array of JAX's default float."""
    if is_inexact_array(param):
        return param  # the code below returns the same, but takes longer
    x = as_array(param)
    if issubdtype(dtype_of(x), jnp.inexact):  # dtype_of, since to NumPy and Equinox an array in bf16 is not inexact
        return x
    return cast_like(x, untyped.ShapeDtypeStruct((), promoted_dtype(x, 0.0)))


def _is_of_objects(param: object) -> bool:
    dtype: Any = getattr(param, "dtype", None)
    return isinstance(param, np.ndarray) and dtype == np.dtype(object)


def _covered_leaves(state: OptState, given: Params, leaves: list[Any], updates: list[Any]) -> list[Any]:
    """Return the leaves of the params that `init` received when it made a state, as far as the state shows.

    The state of a raw model has an entry for a Python float; the state of filtered params, like their gradients, does
    not. Trees in the state that are like the params show which of the two it is.

    Args:
        state: the state.
        given: the params, or the updates if params were not passed.
        leaves: the leaves of `given`, including None.
        updates: the update for each of them.
    """
    pairs = zip(leaves, updates, strict=True)
    if not any(update is None and (leaf is None or is_parameter(leaf)) for leaf, update in pairs):
        return leaves
    copies = [()] * len(leaves) if jtu.all_leaves([given], is_none) or state is None else _copies(state, given, leaves)
    return list(map(_covered_leaf, leaves, updates, copies))


def _copies(state: OptState, given: Params, leaves: list[Any]) -> list[tuple[Any, ...]]:
    """Return, for each leaf of the params, what the trees in the state that are like the params have for it."""
    numbered = jtu.tree_structure(given, is_leaf=is_none).unflatten(range(len(leaves)))

    columns: list[list[Any]] = []

    def is_copy(x: object) -> bool:  # called once for each node
        pairs = leaves_by_param(x, numbered)
        if pairs and all(map(has_shape_of_param, pairs)):
            columns.append([leaf for leaf, numbers in pairs for _ in numbers])
            return True
        return False

    def has_shape_of_param(pair: tuple[object, list[int]]) -> bool:
        param = leaves[pair[1][0]] if pair[1] else None
        return is_placeholder(pair[0]) or param is None or shape_of(pair[0]) == shape_of(param)

    jtu.tree_leaves(state, is_leaf=is_copy)
    return list(zip(*columns, strict=True)) if columns else [()] * len(leaves)


def _covered_leaf(leaf: object, update: object, copies: tuple[Any, ...]) -> Any:
    """Return a leaf of the params, or None if the state does not cover it.

    What has a gradient has a state: an array of integers or bools has none, unless an earlier version made one. In a
    chain, one copy may have an array where another is masked: the array decides, then None, then MaskedNode.
    """
    arrays = [copy for copy in copies if not is_placeholder(copy)]
    if arrays:
        return arrays[-1] if leaf is None else leaf
    if update is None and (any(copy is None for copy in copies) or is_array_without_gradient(leaf)):
        return None  # left out by init, or by a filter
    # The shape of a param that is masked out and was not passed is unknown, and not needed.
    return 0.0 if leaf is None and any(copy is not None for copy in copies) else leaf


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
        any_shape: whether extra arguments with the structure of params or updates are like them, whatever their shapes.
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
