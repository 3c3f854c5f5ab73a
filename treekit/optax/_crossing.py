"""Convert the trees of one update between the user's form and the form that cores see."""

from collections.abc import Callable
from typing import Any

import numpy as np

from treekit._describe import describe
from treekit._dtype import as_array, cast_like, dtype_of, has_dtype, has_no_update, issubdtype, promoted_dtype
from treekit._jax import jnp, jtu, untyped
from treekit._predicates import is_inexact_parameter, is_parameter
from treekit._tree import is_none, path_text
from treekit._types import OptState, Params, PyTree, Updates
from treekit.optax._covered import covered_leaves
from treekit.optax._selection import update_parts


class Crossing:
    """The trees of one update, in the user's form and in the form that cores see.

    A parameter may have no update: Equinox's gradient of a Python float is None, and JAX's of an int array is float0.
    The core, which has state for it, sees a zero, and the user gets None. Cores see an integer parameter as a
    floating-point one, since optimizers compute with those.

    Args:
        updates: the user's updates; in `init`, the params.
        params: the user's params, or None.
        state: the state, which shows for which params it was made; None if for these.

    Attributes:
        inside_params: the params as cores see them, or None.
        originals: maps the id of an array that cores see to the array and the user's leaf that it represents.

    Raises:
        TypeError: a leaf that cannot be a parameter has a gradient, or is an array of objects; the message names the
            key path.
    """

    def __init__(self, updates: Updates, params: Params, state: OptState = None) -> None:
        given = updates if params is None else params
        leaves, self._treedef = jtu.tree_flatten(given, is_leaf=is_none)
        if params is None:  # None and float0 mean the same for a missing update
            leaves = [None if has_no_update(x) else x for x in leaves]
        self._params = None if params is None else leaves
        self._updates = leaves if updates is given else update_parts(self._treedef, updates)
        self._leaves = covered_leaves(state, given, leaves, self._updates)
        self._keep = list(map(is_parameter, self._leaves))
        if not all(self._keep):
            self._check_left_out(is_update=updates is not given)
        self.originals: dict[int, tuple[Any, Any]] = {}
        self.inside_params = None if self._params is None else self._inside(self._params, _as_inexact)

    @property
    def is_plain(self) -> bool:
        """Whether every leaf that can be a parameter is a floating-point or complex JAX array, and has an update."""
        trios = zip(self._keep, self._leaves, self._updates, strict=True)
        return all(not keep or (_is_plain(leaf) and not has_no_update(update)) for keep, leaf, update in trios)

    @property
    def inside_updates(self) -> Any:
        """Return the updates as cores see them."""
        return self._inside(self._updates, as_array)

    def inside(self, tree: PyTree) -> Any:
        """Return a tree like the params, with None for leaves that are not parameters and zeros for missing updates."""
        return self._inside(update_parts(self._treedef, tree), as_array)

    def outside(self, new_updates: Updates) -> Any:
        """Return the updates in the user's form: None for leaves that had no update."""
        pairs = zip(update_parts(self._treedef, new_updates), self._updates, strict=True)
        return self._treedef.unflatten([None if has_no_update(old) else new for new, old in pairs])

    def restore(self, inside_params: Params, params: Params) -> Any:
        """Return the user's params, with the values of `inside_params` for leaves that are trained."""

        def choose(leaf: object, new: object, update: object, old: object) -> Any:
            return old if has_no_update(update) or not is_inexact_parameter(leaf) else new

        news, olds = (update_parts(self._treedef, tree) for tree in (inside_params, params))
        return self._treedef.unflatten(map(choose, self._leaves, news, self._updates, olds))

    def _inside(self, parts: list[Any], as_leaf: Callable[[Any], Any]) -> Any:
        def enter(keep: bool, x: object, leaf: object) -> Any:
            if not keep:
                return None
            absent = has_no_update(x)
            shown = jnp.zeros_like(_as_inexact(leaf)) if absent else as_leaf(x)
            if shown is not x:
                # Without an update, it was not a floating-point array: a Python number, or integers of this shape.
                number: Any = np.broadcast_to(0, np.shape(shown)) if np.ndim(shown) else 0.0
                self.originals[id(shown)] = (shown, number if absent else x)
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
            if is_update and not keep and not has_no_update(update) and update is not param:
                why = (
                    "the state does not cover it, since this leaf was None in the params that init received"
                    if is_parameter(param)
                    else f"the params have a {describe(param)} there, which cannot be a parameter"
                )
                raise TypeError(
                    f"there is a gradient ({describe(update)}) at {self._path(i)}, and {why}. It would be lost: pass "
                    "None instead, or make the leaf an array and make the state again with init"
                )

    def _path(self, i: int) -> str:
        tree = self._treedef.unflatten(self._leaves)
        return path_text(jtu.tree_flatten_with_path(tree, is_leaf=is_none)[0][i][0])


def _as_inexact(param: object) -> Any:
    """Return a number as an array, and an integer as an array of JAX's default float."""
    if has_dtype(param) and issubdtype(dtype_of(param), jnp.inexact):
        return param  # dtype_of, since to NumPy and Equinox a NumPy array in bf16 is not inexact
    x = as_array(param)
    return (
        x
        if issubdtype(dtype_of(x), jnp.inexact)
        else cast_like(x, untyped.ShapeDtypeStruct((), promoted_dtype(x, 0.0)))
    )


def _is_plain(param: object) -> bool:
    return isinstance(param, untyped.Array) and is_inexact_parameter(param)


def _is_of_objects(param: object) -> bool:
    dtype: Any = getattr(param, "dtype", None)
    return isinstance(param, np.ndarray) and dtype == np.dtype(object)
