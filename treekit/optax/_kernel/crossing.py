"""An update that crosses the boundary: updates, params and extra arguments go in, updates and state come out."""

from collections.abc import Collection
from typing import Any

from treekit._base.dtype import as_array, dtype_of, has_dtype, has_no_update, issubdtype, shape_of
from treekit._base.flax import is_nnx_module, is_nnx_state
from treekit._base.jax import jnp, jtu
from treekit._base.memory import unshared
from treekit._base.predicates import is_parameter
from treekit._base.states import is_of_optax
from treekit._base.tree import has_node
from treekit._base.types import OptState, Params, Updates
from treekit._compare.prefix import flatten_updates
from treekit._names.key_path import leaf_path_text, path_text
from treekit._text.describe import describe, describe_value
from treekit.optax._kernel.extra_args import view_extra_args
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.preserve import check_shapes_of_updates, is_complex, keep_state, keep_updates
from treekit.optax._kernel.state_map import Entry, map_state
from treekit.optax._kernel.trained import Flat, flatten, trained


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
        self._gradients = _gradients_of(flat, updates, has_params)
        triples = list(zip(flat.is_trained, self._gradients, flat.arrays, strict=True))
        shapes = ((shape_of(x), array.ndim) for is_trained, x, array in triples if is_trained and x is not None)
        examples = next((shape[: len(shape) - ndim] for shape, ndim in shapes), ())
        self.updates: Updates = flat.inside(
            (_zero(array, examples) if x is None else as_array(x)) if is_trained else None
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
            arrays: those that belong to the optimizer.
        """
        flat = self._flat
        news = flatten_updates(flat.treedef, keep_updates(self.updates, self.params, new_updates))
        new_state = keep_state(state, self.params, new_state)
        missing = {i for i, x in enumerate(self._gradients) if x is None and flat.is_trained[i]}
        if missing:
            entries = map_state(state, self.like)
            # In a round, a missing gradient counts as zero; for every leaf, if one array is the sum of all (`flatten`).
            rounds = {x.param for x in entries if x.in_rounds}
            held = missing - (missing if any(map(_is_sum_of_all, entries)) else rounds)
            if held:
                _check_can_hold(entries, state)
            news = [None if i in held else x for i, x in enumerate(news)]
            new_state = _hold(held, entries, state, new_state)
        new_updates = flat.treedef.unflatten(news)
        check_shapes_of_updates(self.updates, self.params, new_updates)
        # Outside of jit, adan keeps the gradient itself: a step that donates the state would delete the caller's.
        leaves, treedef = jtu.tree_flatten(new_state)
        others = news, self.updates, self.params, self.extra, arrays
        unaliased = unshared(leaves, jtu.tree_leaves(others))
        return new_updates, treedef.unflatten(unaliased)


def _is_sum_of_all(x: Entry) -> bool:
    """Whether an array has sums of a round for several params, as inside of `flatten`."""
    return x.param is None and x.known.takes_rounds and x.field in x.known.at_least_float32


def _check_can_hold(entries: list[Entry], state: OptState) -> None:
    """Raise a ValueError if a state of Optax has an array of moments for several params, as inside of `flatten`."""
    for entry, x in zip(entries, jtu.tree_leaves(state), strict=True):
        is_moment = entry.owner is not None and is_of_optax(entry.owner) and not entry.of_no_param
        if entry.param is None and is_moment and shape_of(x) and issubdtype(dtype_of(x), jnp.inexact):
            raise ValueError(
                f"a gradient is missing, and {path_text(entry.path)} of the state belongs to several params, as in "
                "optax.flatten, so what belongs to one of them cannot be kept as it is. Pass zeros for it"
            )


def _hold(held: Collection[int | None], entries: list[Entry], state: OptState, new_state: OptState) -> Any:
    """Return a new state in which the moments of parameters that have no update are the old ones.

    | an array of the state | without an update of its parameter |
    |---|---|
    | a copy or an average of the params, or the memory of L-BFGS | changes |
    | any other, such as a moment | stays |
    | the value of the loss that a line search found | is unknown: it is that of params which have all updates |
    | of no parameter, such as a count | changes |
    """

    def chosen(x: Entry, old: Any, new: Any) -> Any:
        if held and x.field in x.known.at_next_params:
            return jnp.full_like(new, jnp.inf)
        return old if x.param in held and x.field not in x.known.always_changes else new

    olds, treedef = jtu.tree_flatten(state)
    return treedef.unflatten(map(chosen, entries, olds, jtu.tree_leaves(new_state)))


def _zero(array: Any, examples: tuple[int, ...]) -> Any:
    """Return the zero that a core receives for a missing gradient."""
    zero = jnp.zeros_like(array)
    return jnp.broadcast_to(zero, (*examples, *zero.shape)) if examples else zero


def _gradients_of(flat: Flat, updates: Updates, has_params: bool) -> list[Any]:
    """Return the gradient of each leaf, None where it is missing; raise an error for one that does not fit."""
    try:
        parts = flatten_updates(flat.treedef, updates)
    except ValueError as error:
        of_nnx = has_node(updates, is_nnx_state) and has_node(flat.tree, is_nnx_module)
        cls: Any = updates.__class__
        is_pair = cls is tuple and len(updates) == 2
        raise ValueError(
            f"{error}. update takes (updates, state, params), in this order, and updates have the structure of the "
            "params"
            + ". nnx.grad returns an nnx.State, and jax.grad(loss, allow_int=True) a module" * of_nnx
            + ". These are a pair, as value_and_grad and has_aux=True return it: pass the gradients in it" * is_pair
        ) from None
    gradients = [None if is_hole(x) or has_no_update(x) else x for x in parts]
    are_toys = all(isinstance(x, int) for x in flat.leaves)  # Optax has params that are ints, with gradients of ints
    for i, x in enumerate(gradients):
        if x is not None and flat.is_trained[i]:
            _check_gradient(flat, i, x, has_params)
        elif x is not None and not (are_toys and isinstance(x, int)):
            _check_no_gradient(flat, i, x)
    return gradients


def _check_gradient(flat: Flat, i: int, x: Any, has_params: bool) -> None:
    """Raise an error unless the gradient of the i-th leaf, which is trained, is an array that fits it."""
    array = flat.arrays[i]
    if not (has_dtype(x) or is_parameter(x)) or not jtu.all_leaves([x]):
        raise TypeError(f"the gradient at {_path(flat, i)} must be an array, found {describe_value(x)}")
    if is_complex(x) and not is_complex(array):
        raise TypeError(f"the gradient at {_path(flat, i)} is complex, and the param is real: pass its real part")
    # Gradients of single examples, as for differential privacy, have more axes in front.
    if has_params and shape_of(x)[len(shape_of(x)) - array.ndim :] != array.shape:
        raise ValueError(
            f"the gradient at {_path(flat, i)} has shape {shape_of(x)}, and its parameter {array.shape}. Pass the "
            "gradients of these params to update"
        )


def _check_no_gradient(flat: Flat, i: int, x: Any) -> None:
    """Raise an error for a gradient of a leaf that is not trained; if its class freezes it, the gradient is ignored."""
    if is_parameter(x) and not flat.is_frozen[i]:
        raise TypeError(
            f"there is a gradient ({describe(x)}) at {_path(flat, i)}, which is {describe(flat.leaves[i])}, and is not "
            "trained: only floating-point and complex arrays are. Pass None as its gradient; or, to train it, make it "
            "such an array before init, with jnp.asarray(x, float)"
        )


def _path(flat: Flat, i: int) -> str:
    return leaf_path_text(flat.tree, i, is_hole)
