"""The boundary of a transformation: outside raw models and missing gradients, inside trees of arrays alone.

Everything in `treekit.optax` crosses it once, at the outermost transformation; inside, cores are composed.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import numpy as np
import optax

from treekit._describe import describe
from treekit._dtype import as_array, cast_like, dtype_of, has_dtype, is_absent, wider
from treekit._filter import is_inexact_parameter, is_parameter
from treekit._jax import jnp, jtu, untyped
from treekit.optax._diagnose import diagnosing, diagnosing_init
from treekit.optax._preserve import preserve
from treekit.optax._selection import is_params_placeholder, update_parts, view_extra_args
from treekit.optax._transformation import Apply, Core, GradientTransformation, core_of, is_ours, own_step
from treekit.optax._types import TransformationLike


def normalize(tx: TransformationLike) -> GradientTransformation[Any]:
    """Any transformation as one that takes raw models and preserves dtypes; one of ours as it is."""
    if is_ours(tx) and tx.core is not None:
        return tx
    return at_boundary(core_of(tx))


def at_boundary(core: Core) -> GradientTransformation[Any]:
    """The two kernels around a core: it sees the leaves that can be parameters, and dtypes are preserved.

    `init` and `update` close over transformations alone, so that Equinox's `closure_to_pytree`, by which Optimistix
    takes optimizers, finds the arrays among their hyperparameters.
    """
    inner = preserve(core)

    def init(params: Any) -> Any:
        if is_params_placeholder(params):  # it stands for whatever the params are
            return inner.init(params)
        crossing = Crossing(params, params, params)
        inside_params = crossing.inside_params
        with _showing(crossing.originals), diagnosing_init(inner, inside_params):
            return inner.init(inside_params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        given = updates if params is None else params
        crossing = Crossing(updates, params, covered_params(state, updates, given))
        inside_updates, inside_params = crossing.inside_updates, crossing.inside_params
        views = view_extra_args(extra, updates, params, inside_params, crossing.inside, crossing.restore)
        with _showing(crossing.originals), diagnosing(inner, inside_updates, state, inside_params, views):
            new_updates, new_state = inner.update(inside_updates, state, inside_params, **views)
        return crossing.outside(new_updates), new_state

    return GradientTransformation(init, update, core)


def whole_step(
    tx: GradientTransformation[Any], grads: Any, state: Any, params: Any, extra: dict[str, Any], apply: Apply
) -> tuple[Any, Any]:
    """New params and a new state, by the core's own whole step if it has one and can do it for all of these params."""
    core = core_of(tx)
    step = own_step(core)
    crossing = None if step is None else Crossing(grads, params, params)
    if step is None or crossing is None or not crossing.is_plain:
        updates, state = tx.update(grads, state, params, **extra)
        return apply(params, updates), state

    def apply_inside(inside_params: Any, updates: Any) -> Any:
        return crossing.inside(apply(crossing.restore(inside_params, params), crossing.outside(updates)))

    inside_grads, inside_params = crossing.inside_updates, crossing.inside_params
    views = view_extra_args(extra, grads, params, inside_params, crossing.inside, crossing.restore)
    with _showing(crossing.originals), diagnosing(preserve(core), inside_grads, state, inside_params, views):
        new_params, new_state = step(inside_grads, state, inside_params, views, apply_inside)
    return crossing.restore(new_params, params), new_state


class Crossing:
    """One update, as the user knows it and as cores know it.

    A parameter may have no update: Equinox's gradient of a Python float is None, and JAX's of an int array is float0.
    The core, which has state for it, sees a zero, and None comes out. An integer parameter is shown as a floating one,
    since that is what optimizers compute with.

    Args:
        updates: the updates that the user gives; in `init`, the params.
        params: the params that the user gives, or None.
        covered: the params that the state covers: the structure, and the shapes, of all that is shown inside.

    Attributes:
        inside_params: the params as cores see them, or None.
        originals: by the id of an array that cores see: this array, and the user's own leaf that it stands for.

    Raises:
        TypeError: a leaf that cannot be a parameter has a gradient, or is an array of objects; names the key path.
    """

    def __init__(self, updates: Any, params: Any, covered: Any) -> None:
        self._leaves, self._treedef = jtu.tree_flatten(covered, is_leaf=_is_none)
        self._keep = list(map(is_parameter, self._leaves))
        self._updates = update_parts(self._treedef, updates)
        self._params = None if params is None else update_parts(self._treedef, params)
        if not all(self._keep):
            self._check_left_out(is_update=updates is not covered)
        self.originals: dict[int, tuple[Any, Any]] = {}
        self.inside_params = None if self._params is None else self._inside(self._params, _as_inexact)

    @property
    def is_plain(self) -> bool:
        """Whether each leaf that can be a parameter is a floating or complex array of JAX's, and has an update."""
        trios = zip(self._keep, self._leaves, self._updates, strict=True)
        return all(not keep or (_is_plain(leaf) and not is_absent(update)) for keep, leaf, update in trios)

    @property
    def inside_updates(self) -> Any:
        """The updates as cores see them."""
        return self._inside(self._updates, as_array)

    def inside(self, tree: Any) -> Any:
        """A tree like the params, with None for what cannot be a parameter, and zeros for missing updates."""
        return self._inside(update_parts(self._treedef, tree), as_array)

    def outside(self, new_updates: Any) -> Any:
        """The updates that come out: None where none came in."""
        pairs = zip(update_parts(self._treedef, new_updates), self._updates, strict=True)
        return self._treedef.unflatten([None if is_absent(old) else new for new, old in pairs])

    def restore(self, inside_params: Any, params: Any) -> Any:
        """The user's params, with the values of `inside_params` for those that are trained."""

        def choose(leaf: Any, new: Any, update: Any, old: Any) -> Any:
            return old if is_absent(update) or not is_inexact_parameter(leaf) else new

        news, olds = (update_parts(self._treedef, tree) for tree in (inside_params, params))
        return self._treedef.unflatten(map(choose, self._leaves, news, self._updates, olds))

    def _inside(self, parts: list[Any], as_leaf: Callable[[Any], Any]) -> Any:
        def enter(keep: bool, x: Any, leaf: Any) -> Any:
            if not keep:
                return None
            absent = is_absent(x)
            shown = jnp.zeros_like(_as_inexact(leaf)) if absent else as_leaf(x)
            if shown is not x:
                self.originals[id(shown)] = (shown, 0.0 if absent else x)
            return shown

        return self._treedef.unflatten(map(enter, self._keep, parts, self._leaves))

    def _check_left_out(self, *, is_update: bool) -> None:
        params = self._leaves if self._params is None else self._params
        for i, (keep, param, update) in enumerate(zip(self._keep, params, self._updates, strict=True)):
            if _is_of_objects(param):
                raise TypeError(
                    f"the params have an array of Python objects at {self._path(i)}. Give it a numeric dtype, or leave "
                    "it out with treekit.optax.filtered"
                )
            if is_update and not keep and not is_absent(update) and update is not param:
                why = (
                    "the state has no place for it, since this leaf was None in the params that init was given"
                    if is_parameter(param)
                    else f"the params have a {describe(param)} there, which cannot be a parameter"
                )
                raise TypeError(
                    f"there is a gradient ({describe(update)}) at {self._path(i)}, and {why}. It would be lost: give "
                    "None in its place, or make the leaf an array and the state by init"
                )

    def _path(self, i: int) -> str:
        tree = self._treedef.unflatten(self._leaves)
        return jtu.keystr(jtu.tree_flatten_with_path(tree, is_leaf=_is_none)[0][i][0]) or "the root"


def _as_inexact(param: Any) -> Any:
    """A number as an array, an integer as one of JAX's default float."""
    if has_dtype(param) and jnp.issubdtype(dtype_of(param), jnp.inexact):
        return param  # dtype_of, since a NumPy array in bf16 is not inexact to NumPy, nor to Equinox
    x = as_array(param)
    return x if jnp.issubdtype(dtype_of(x), jnp.inexact) else cast_like(x, untyped.ShapeDtypeStruct((), wider(x, 0.0)))


def _is_plain(param: Any) -> bool:
    return isinstance(param, untyped.Array) and is_inexact_parameter(param)


def _is_of_objects(param: Any) -> bool:
    dtype: Any = getattr(param, "dtype", None)
    return isinstance(param, np.ndarray) and dtype == np.dtype(object)


# ------------------------------------------------------------------------- the user's own leaves, for masks and filters

_Originals = Mapping[int, tuple[Any, Any]]
_originals: ContextVar[_Originals] = ContextVar("originals", default=MappingProxyType({}))


@contextlib.contextmanager
def _showing(originals: _Originals) -> Generator[None]:
    token = _originals.set({**_originals.get(), **originals} if originals else _originals.get())
    try:
        yield
    finally:
        _originals.reset(token)


def original(x: Any) -> Any:
    """The user's own leaf that an array stands for inside: a Python number, an integer array, a `jax.Ref`.

    Masks, labels and filters are written for these.
    """
    shown, leaf = _originals.get().get(id(x), (None, None))
    return leaf if shown is x and x is not None else x


# ------------------------------------------------------------------------------------------ which params a state covers


def covered_params(state: Any, updates: Any, given: Any) -> Any:
    """The params that `init` was given when it made a state, as far as the state tells.

    A Python float has a place in the state of a raw model, and none in gradients or in filtered params; a state that
    was made of filtered params has none for it. Trees in the state that are like the params show which it was.
    """
    if jtu.all_leaves([given]) or all(x is not None for x in jtu.tree_leaves(updates, is_leaf=_is_none)):
        return given

    def is_copy(x: Any) -> bool:
        return type(x) is type(given) and _matches(x, given)

    copies = [jtu.tree_flatten(x, is_leaf=_is_left_out) for x in jtu.tree_leaves(state, is_leaf=is_copy) if is_copy(x)]
    covered = given
    # In a chain one copy may have an array where another is masked: the array tells most, then None, then MaskedNode.
    for told in (_told_by_masked_node, _told_by_none, _told_by_array):
        for leaves, outline in copies:
            columns = [leaves, *(update_parts(outline, tree) for tree in (covered, given, updates))]
            covered = outline.unflatten(map(told, *columns))
    return covered


def _matches(copy: Any, given: Any) -> bool:
    """Whether a tree has the structure and the shapes of the params, but for what is left out of either."""
    leaves, outline = jtu.tree_flatten(copy, is_leaf=_is_left_out)
    try:
        parts = outline.flatten_up_to(given)
    except ValueError:
        return False
    present = [(x, part) for x, part in zip(leaves, parts, strict=True) if part is not None and not _is_left_out(x)]
    return all(jtu.all_leaves([part]) and np.shape(x) == np.shape(part) for x, part in present)


def _told_by_masked_node(copy: Any, covered: Any, _given: Any, _update: Any) -> Any:
    # No shape is known of a param that is masked out and not given, and none is needed.
    return 0.0 if covered is None and isinstance(copy, optax.MaskedNode) else covered


def _told_by_none(copy: Any, covered: Any, _given: Any, update: Any) -> Any:
    # Left out by init, or by a filter, which may have an update to drop.
    return None if copy is None and update is None else covered


def _told_by_array(copy: Any, covered: Any, given: Any, _update: Any) -> Any:
    return covered if _is_left_out(copy) else copy if given is None else given


def _is_left_out(x: Any) -> bool:
    return x is None or isinstance(x, optax.MaskedNode)


def _is_none(x: Any) -> bool:
    return x is None
