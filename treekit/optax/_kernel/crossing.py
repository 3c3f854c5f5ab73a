"""An update that crosses the boundary: updates, params and extra arguments go in, updates and state come out."""

from typing import Any

from treekit._base.dtype import as_array, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.memory import unshared
from treekit._base.types import OptState, Params, Updates
from treekit._compare.prefix import flatten_updates
from treekit.optax._kernel.extra_args import view_extra_args
from treekit.optax._kernel.gradients import gradients_of
from treekit.optax._kernel.missing import hold, without_update
from treekit.optax._kernel.preserve import check_shapes_of_updates, keep_state, keep_updates
from treekit.optax._kernel.state_map import map_state
from treekit.optax._kernel.trained import flatten, trained


class Crossing:
    """An update that goes in, and comes out again.

    Args:
        updates: the updates; None or float0 for a missing one, which is a zero inside.
        params: the params; without them, the updates stand for them, and every array of numbers can be trained.
        extra: the extra arguments.

    Attributes:
        updates, params, extra: what the core receives: trees with None for what is not trained, and extra arguments.
            The zero for a missing gradient has the axes in front that the other gradients have, as those of examples.
        like: the params that the core receives; without them, the updates, which stand for them.

    Raises:
        ValueError: the updates have another structure or other shapes than the params; the message names the key path.
        TypeError: there is a gradient for what cannot be trained; or one is not an array, or complex where the param is
            real. A gradient for what a class declares not to be trained is left out.
    """

    def __init__(self, updates: Updates, params: Params, extra: dict[str, Any]) -> None:
        has_params = params is not None
        if updates is None and has_params and jtu.tree_leaves(trained(params)):
            raise ValueError(
                "update received None in place of all updates, and the params have arrays that are trained. It takes "
                "(updates, state, params), in this order; None is for a single leaf, or a subtree, without a gradient"
            )
        self._flat = flat = flatten(params) if has_params else flatten(updates, are_updates=True)
        self._gradients = gradients_of(flat, updates, has_params=has_params)
        triples = list(zip(flat.is_trained, self._gradients, flat.arrays, strict=True))
        shapes = ((shape_of(x), array.ndim) for is_trained, x, array in triples if is_trained and x is not None)
        axes_of_examples = next((shape[: len(shape) - ndim] for shape, ndim in shapes), ())
        self.updates: Updates = flat.inside(
            (_zero(array, axes_of_examples) if x is None else as_array(x)) if is_trained else None
            for is_trained, x, array in triples
        )
        self.params: Params = flat.inside() if has_params else None
        self.like: Params = self.params if has_params else self.updates
        self.extra = view_extra_args(extra, updates, params, self.updates) if extra else extra

    def leave(self, state: OptState, new_updates: Updates, new_state: OptState, arrays: list[Any]) -> tuple[Any, Any]:
        """Return new updates and a new state for the user.

        The state has the structure and dtypes of the old one, and each update the dtype that the core computed. A
        parameter without a gradient has no update, unless it is in rounds: of `MultiSteps` or `sam`.

        Args:
            state: the state that the core received.
            new_updates: what the core returned.
            new_state: what it returned too.
            arrays: those that the functions of the core refer to, which belong to the optimizer.
        """
        flat = self._flat
        news = flatten_updates(flat.treedef, keep_updates(self.updates, self.params, new_updates))
        new_state = keep_state(state, self.params, new_state)
        missing = {i for i, x in enumerate(self._gradients) if x is None and flat.is_trained[i]}
        if missing:
            entries = map_state(state, self.like)
            held = without_update(missing, entries)
            news = [None if i in held else x for i, x in enumerate(news)]
            new_state = hold(held, entries, state, new_state)
        new_updates = flat.treedef.unflatten(news)
        check_shapes_of_updates(self.updates, self.params, new_updates)
        # Outside of jit, adan keeps the gradient itself: a step that donates the state would delete the caller's.
        leaves, treedef = jtu.tree_flatten(new_state)
        others = news, self.updates, self.params, self.extra, arrays
        unaliased = unshared(leaves, jtu.tree_leaves(others))
        return new_updates, treedef.unflatten(unaliased)


def _zero(array: Any, axes: tuple[int, ...]) -> Any:
    """Return the zero that a core receives for a missing gradient, with these axes in front."""
    zero = jnp.zeros_like(array)
    return jnp.broadcast_to(zero, (*axes, *zero.shape)) if axes else zero
