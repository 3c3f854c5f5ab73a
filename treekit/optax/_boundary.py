"""The boundary of a transformation: the user's trees outside, trees of the arrays that are trained inside.

What is trained is an array that can have a gradient. Everything else is None inside, and a MaskedNode stays one, so to
cross the boundary again changes nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import optax

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import OF_NUMPY, as_array, dtype_of, has_no_update, issubdtype
from treekit._base.jax import is_ref, jnp, jtu
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import has_gradient, is_parameter
from treekit._base.tree import broadcast_prefix
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._mismatch import flatten_updates, updates_mismatch
from treekit._trainable import declared_frozen, declares
from treekit.optax._extra_args import view_extra_args
from treekit.optax._misfit import explained
from treekit.optax._preserve import is_complex, preserving
from treekit.optax._state_map import is_hole, is_params_placeholder, map_state
from treekit.optax._transformation import (
    GradientTransformation,
    core_of,
    own_core,
    with_core,
)

Select = Callable[[Any], Any]  # maps params, as they are inside, to the same with None for leaves that are left out


def at_boundary(
    tx: TransformationLike, *, select: Select | None = None, passes: Select | None = None
) -> GradientTransformation[Any]:
    """Return a transformation that accepts raw models and preserves dtypes; one of treekit's is returned unchanged.

    `init` and `update` close over transformations only, so that Equinox's `closure_to_pytree`, which Optimistix applies
    to optimizers, finds the arrays among their hyperparameters. It follows every path to a function, so here, as in
    every core, `init` closes over the inner `init` alone; otherwise each wrapper doubles the paths that it follows.

    Args:
        tx: any transformation.
        select: which of the arrays that are trained the transformation runs on. The others are frozen.
        passes: the same for a transformation that returns the updates of others unchanged, whatever they are.

    Raises:
        TypeError: `tx` is not a transformation.
    """
    core = core_of(tx)
    own: Any = tx
    if select is None and isinstance(tx, GradientTransformation) and own_core(tx) is not None:
        out: GradientTransformation[Any] = own
        return out
    inner = preserving(core)
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
        return inner_init(Crossing(params, select).params)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        crossing = Crossing(updates if params is None else params, select)
        inside = crossing.enter(updates, passes)
        inside_params = None if params is None else crossing.params
        views = view_extra_args(extra, updates, params, inside) if extra else extra
        try:
            new_updates, new_state = inner.update(inside, state, inside_params, **views)
        except Exception as error:
            if better := explained(error, state, inside_params, inside):
                raise better from error
            raise
        new_state, is_accumulated = crossing.hold_missing(state, new_state)
        return crossing.leave(new_updates, is_accumulated), new_state

    if select is None:
        return with_core(init, update, core)
    return with_core(init, update, optax.GradientTransformationExtraArgs(init, update))


class Crossing:
    """The leaves of one tree of params, and which of them a transformation sees.

    Args:
        tree: the params; or the updates, if params were not passed.
        select: as in `at_boundary`.

    Attributes:
        params: the tree inside.
    """

    def __init__(self, tree: Params, select: Select | None = None) -> None:
        classes = set[Any]()

        def stop(x: object) -> bool:
            classes.add(type(x))
            return is_hole(x)

        self._tree = tree
        self._leaves, self._treedef = jtu.tree_flatten(tree, is_leaf=stop)
        arrays: list[Any] = [x[...] if is_ref(x) else x for x in self._leaves]
        if not any(map(is_trained, arrays)):  # programs of ten lines begin with {"w": 0.0}
            arrays = [as_array(x) if isinstance(x, (float, complex)) else x for x in arrays]
        self._arrays = arrays
        self._is_trained = self._keep = list(map(is_trained, arrays))
        if any(map(declares, classes)):
            frozen = declared_frozen(tree, is_hole) or [False] * len(arrays)
            self._keep = [keep and not out for keep, out in zip(self._keep, frozen, strict=True)]
        self.params = self._with_holes(arrays)
        self._is_selected = select is not None
        if select is not None:
            self._keep = [not is_hole(x) for x in self._treedef.flatten_up_to(select(self.params))]
            self.params = self._with_holes(arrays)
        self._updates: list[Any] = [None] * len(arrays)
        self._passed: dict[int, Any] = {}  # gradients of what is not trained, which `passes` leaves out

    def enter(self, updates: Updates, passes: Select | None = None) -> Any:
        """Return the updates inside, with zeros for those that are missing.

        Raises:
            ValueError: they have another structure than the params; the message names the key path.
            TypeError: there is a gradient for what is not trained, which no wrapper was told to leave out; or one is a
                tree, or complex, and its array is not.
        """
        try:
            parts = flatten_updates(self._treedef, updates)
        except ValueError as error:
            raise ValueError(
                f"{error}. update takes (updates, state, params), in this order, and updates have the structure of the "
                "params"
            ) from None
        self._updates = [None if is_hole(x) or has_no_update(x) else x for x in parts]
        if not jtu.all_leaves([x for keep, x in zip(self._keep, self._updates, strict=True) if keep and x is not None]):
            where = updates_mismatch(self._treedef, updates, "updates")
            raise TypeError(f"the updates do not fit the params: {where}")
        trains_any = any(self._is_trained)
        for i, (keep, update) in enumerate(zip(self._keep, self._updates, strict=True)):
            if keep:
                if is_complex(update) and not is_complex(self._arrays[i]):
                    raise TypeError(
                        f"the gradient at {leaf_path_text(self._tree, i, is_hole)} is complex, and the param is real: "
                        "pass its real part"
                    )
            elif trains_any and not self._is_trained[i] and not self._is_selected and is_parameter(update):
                self._passed[i] = update
        if self._passed:
            self._check_passed(passes)
        return self._with_holes(
            as_array(update) if update is not None else jnp.zeros_like(param) if keep else None
            for keep, param, update in zip(self._keep, self._arrays, self._updates, strict=True)
        )

    def _check_passed(self, passes: Select | None) -> None:
        """Raise a TypeError for a gradient of what is not trained, unless a mask leaves it out."""
        numbered = self._treedef.unflatten(range(len(self._leaves)))
        mask = None if passes is None else passes(self.params)
        masks = self._treedef.flatten_up_to(broadcast_prefix(mask, numbered, is_hole))
        for i, update in self._passed.items():
            if masks[i] is not False:
                raise TypeError(
                    f"there is a gradient ({describe(update)}) at {leaf_path_text(self._tree, i, is_hole)}, which is "
                    f"{describe(self._leaves[i])}, and is not trained: only floating-point and complex arrays are. "
                    "Pass None as its gradient; or, to train it, make it such an array before init, with "
                    "jnp.asarray(x, float)"
                )

    def leave(self, new_updates: Updates, is_accumulated: dict[int, Any]) -> Any:
        """Return new updates outside: None for leaves that had none.

        Args:
            new_updates: the updates inside.
            is_accumulated: for leaves that had no update, but may have one from earlier steps, whether they do.
        """
        news = flatten_updates(self._treedef, new_updates)
        for i, (keep, old) in enumerate(zip(self._keep, self._updates, strict=True)):
            if keep and old is None and news[i] is not None:
                news[i] = jnp.where(is_accumulated[i], news[i], 0) if i in is_accumulated else None
        for i, update in self._passed.items():
            news[i] = update
        return self._treedef.unflatten(news)

    def hold_missing(self, state: OptState, new_state: OptState) -> tuple[Any, dict[int, Any]]:
        """Restore the moments of parameters that had no update, from the state before the step.

        Counts and estimates that parameters share advance. An accumulator of `MultiSteps` takes a zero; if it holds
        gradients of earlier steps, the parameter and its moments may change.

        Returns:
            The new state; and, for parameters without an update that have an accumulator, whether it holds anything.
        """
        missing = {i for i, x in enumerate(self._updates) if x is None and self._keep[i]}
        is_accumulated: dict[int, Any] = {}
        if not missing:
            return new_state, is_accumulated
        olds, treedef = jtu.tree_flatten(state)
        news = jtu.tree_leaves(new_state)
        entries = [(n, x, x.param or 0) for n, x in enumerate(map_state(state, self.params)) if x.param in missing]
        for n, x, i in entries:
            if x.is_accumulator:
                is_accumulated[i] = is_accumulated.get(i, False) | jnp.array(olds[n] != 0).any()
        for n, x, i in entries:
            if not x.advances:
                news[n] = jnp.where(is_accumulated[i], news[n], olds[n]) if i in is_accumulated else olds[n]
        return treedef.unflatten(news), is_accumulated

    @property
    def has_gradient(self) -> bool:
        """Whether a leaf that is trained has a gradient, or nothing can be trained."""
        return not any(self._keep) or any(x is not None for x in self._updates)

    @property
    def is_plain(self) -> bool:
        """Whether all that is trained are arrays of JAX that have an update, and no other leaf is one of NumPy."""
        triples = zip(self._keep, self._leaves, self._updates, strict=True)
        return all(
            isinstance(x, jax.Array) and update is not None if keep else not isinstance(x, OF_NUMPY)
            for keep, x, update in triples
        )

    def restore(self, inside_params: Params) -> Any:
        """Return the user's params, with new values for those that are trained."""
        triples = zip(self._keep, self._treedef.flatten_up_to(inside_params), self._leaves, strict=True)
        return self._treedef.unflatten(new if keep else old for keep, new, old in triples)

    def _with_holes(self, parts: Iterable[Any]) -> Any:
        triples = zip(self._keep, parts, self._leaves, strict=True)
        return self._treedef.unflatten(
            part if keep else leaf if isinstance(leaf, optax.MaskedNode) else None for keep, part, leaf in triples
        )


def is_trained(x: object) -> bool:
    """Whether a leaf is trained: a floating-point or complex array, or what has only its shape and dtype."""
    return has_gradient(x) or (isinstance(x, jax.ShapeDtypeStruct) and issubdtype(dtype_of(x), jnp.inexact))
