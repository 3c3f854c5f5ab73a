"""The boundary of a transformation: the user's trees outside, trees of the arrays that are trained inside.

Only the outermost transformation crosses it, once. What runs inside is a *core*, which never crosses it, with one
exception: the core of a subclass of `MultiSteps` that calls its own `update`.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from treekit._base.dtype import strengthen_all
from treekit._base.flax import is_nnx_state
from treekit._base.jax import jtu, untyped
from treekit._base.memory import closed_over, copied, unshared
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._compare.nodes import nodes_as_in
from treekit.optax._kernel.check_params import check_nothing_is_shared, check_params, check_something_is_trained
from treekit.optax._kernel.crossing import Crossing
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._kernel.misfit import check_fit_if_integers, explained
from treekit.optax._kernel.notes import note_shapes, note_transformation
from treekit.optax._kernel.passed import passing
from treekit.optax._kernel.sharding import shard_alike
from treekit.optax._kernel.state_map import map_state
from treekit.optax._kernel.taken import check_keys_are_taken
from treekit.optax._kernel.trained import flatten
from treekit.optax._kernel.transformation import GradientTransformation, core_of, is_own, with_core


def at_boundary(tx: TransformationLike) -> GradientTransformation[Any]:
    """Return a transformation that accepts raw models and preserves dtypes; one of treekit's is returned unchanged.

    Args:
        tx: any transformation, which runs inside.

    Raises:
        TypeError: `tx` is not a transformation.
    """
    if is_own(tx):
        return tx
    core = core_of(tx)
    inner_init, inner_update = core  # two names: see "Closures" in `transformation`

    def init(params: Params) -> Any:
        if is_params_placeholder(params):
            return inner_init(params)
        check_params(params)
        flat = flatten(params)
        check_something_is_trained(flat)
        check_nothing_is_shared(flat)
        arrays = flat.inside()
        try:
            with passing(arrays):
                return _first_state(inner_init(arrays), arrays, closed_over(inner_init))
        except Exception as error:
            note_shapes(error, arrays)
            note_transformation(error, arrays)
            raise

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        check_keys_are_taken(inner_update, extra)
        crossing = Crossing(updates, params, extra)
        with passing(crossing.like):
            own_state = _from_nnx(inner_init, state, crossing.like)
            try:
                check_fit_if_integers(inner_init, own_state, crossing.params)
                results = inner_update(crossing.updates, own_state, crossing.params, **crossing.extra)
                new_updates, new_state = crossing.leave(own_state, *results, closed_over(inner_update))
            except Exception as error:
                better = explained(error, inner_init, own_state, crossing.updates, crossing.params)
                if better is not error:
                    raise better from error
                note_transformation(error, crossing.updates, crossing.params)
                raise
        if own_state is not state:
            new_state = nodes_as_in(state, new_state)
        return new_updates, new_state

    return with_core(init, update, core)


# ------------------------------------------------------------------------------------------------------------ the state


def _first_state(state: OptState, params: Params, arrays: list[Any]) -> Any:
    """Return a state that `init` made, strongly typed, in arrays of its own, and sharded as the params.

    Args:
        state: the state.
        params: the params inside.
        arrays: those that belong to the optimizer.
    """
    leaves, treedef = jtu.tree_flatten(strengthen_all(state))
    # What belongs to no param may be an array that the optimizer keeps, such as a key: a donated step would delete it.
    leaves = [copied(x) if at.param is None else x for x, at in zip(leaves, map_state(state, params), strict=True)]
    own = unshared(leaves, jtu.tree_leaves((params, arrays)))
    return shard_alike(treedef.unflatten(own), params)


def _from_nnx(init: Callable[[Any], Any], state: OptState, like: Params) -> Any:
    """Return a state in the nodes that `init` makes, if Flax NNX has put it into others; else the state itself.

    After a step, `flax.nnx.Optimizer` has an `nnx.State` where a state had a list, a tuple or another node for a param.
    An update that takes such a list apart, `a, b = state`, would get the keys of the `nnx.State`.

    Args:
        init: the `init` of the core.
        state: the state that update received.
        like: the params inside, or the updates.
    """
    if is_nnx_state(like):
        with contextlib.suppress(Exception):  # an init that cannot be traced
            return nodes_as_in(untyped.eval_shape(init, like), state)
    return state
