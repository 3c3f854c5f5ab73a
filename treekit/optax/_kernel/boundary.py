"""The boundary of a transformation: the user's trees outside, trees of the arrays that are trained inside.

What is outermost crosses, once; what runs inside is a *core*, and never does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from treekit._base.describe import describe
from treekit._base.dtype import as_array, has_no_update, shape_of, unshared
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import leaf_path_text
from treekit._base.predicates import is_numeric_array, is_parameter
from treekit._base.tree import in_nodes_of
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._compare.prefix import flatten_updates, updates_mismatch
from treekit.optax._kernel.extra_args import view_extra_args
from treekit.optax._kernel.misfit import check_integers, explained
from treekit.optax._kernel.notes import note_none, note_transformation
from treekit.optax._kernel.preserve import as_init_makes, first_state, is_complex, keep_state, keep_updates
from treekit.optax._kernel.state_map import FOLLOWS_PARAMS, is_declared, is_hole, is_params_placeholder, map_state
from treekit.optax._kernel.trained import Flat, check_params, check_something_is_trained, flatten, trained
from treekit.optax._kernel.transformation import GradientTransformation, core_of, own_core, with_core


def at_boundary(tx: TransformationLike) -> GradientTransformation[Any]:
    """Return a transformation that accepts raw models and preserves dtypes; one of treekit's is returned unchanged.

    `init` and `update` close over transformations only, so that Equinox's `closure_to_pytree`, which Optimistix applies
    to optimizers, finds the arrays among their hyperparameters. It follows every path to a function, so `init` closes
    over the inner `init` alone, here and in the cores of wrappers; otherwise each of them doubles the paths.

    Args:
        tx: any transformation, which runs inside.

    Raises:
        TypeError: `tx` is not a transformation.
    """
    given: Any = tx
    if isinstance(given, GradientTransformation) and own_core(given) is not None:
        out: GradientTransformation[Any] = cast(Any, given)
        return out
    core = core_of(tx)
    inner_init, inner_update = core

    def init(params: Params) -> Any:
        if is_params_placeholder(params):  # a placeholder for any params
            return inner_init(params)
        check_params(params)
        flat = flatten(params)
        check_something_is_trained(flat)
        inside = flat.inside()
        try:
            return first_state(inner_init(inside), inside)
        except Exception as error:
            note_none(error, inside)
            note_transformation(error, inside)
            raise

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        if updates is None and jtu.tree_leaves(trained(params)):
            raise ValueError(
                "update received None in place of all updates, and the params have arrays that are trained. It takes "
                "(updates, state, params), in this order; None is for a single leaf, or a subtree, without a gradient"
            )
        inside, leave = cross(updates, params, extra)
        has_params = params is not None
        received, state = state, as_init_makes(inner_init, state, inside.params if has_params else inside.updates)
        try:
            if has_params:
                check_integers(inner_init, state, inside.params)
            new_updates, new_state = inner_update(inside.updates, state, inside.params, **inside.extra)
            new_updates, new_state = leave(state, new_updates, new_state)
            return new_updates, new_state if state is received else in_nodes_of(received, new_state, object)
        except Exception as error:
            like = inside.params if has_params else trained(inside.updates)
            if better := explained(error, inner_init, state, inside.updates, like, has_params):
                raise better from error
            note_transformation(error, inside.updates, inside.params)
            raise

    return with_core(init, update, core)


class Inside(NamedTuple):
    """What a core receives, besides its state: trees with None for what is not trained, and extra arguments."""

    updates: Updates
    params: Params
    extra: dict[str, Any]


Leave = Callable[[OptState, Updates, OptState], tuple[Any, Any]]


def cross(updates: Updates, params: Params, extra: dict[str, Any]) -> tuple[Inside, Leave]:
    """Go inside with the arguments of an update; return them, and a function that leads back out.

    Args:
        updates: the updates; None or float0 for a missing one, which is a zero inside.
        params: the params; without them, the updates stand for them, and every array of numbers can be trained.
        extra: the extra arguments.

    Returns:
        What the core receives. And a function of the state before, the new updates and the new state, which returns the
            two outside: in their old structure and dtypes, and without any change for a missing gradient.

    Raises:
        ValueError: the updates have another structure or other shapes than the params; the message names the key path.
        TypeError: there is a gradient for what is not trained; or one is a tree, or complex, and its array is not.
    """
    has_params = params is not None
    flat = flatten(params) if has_params else flatten(updates, is_numeric_array)
    given = _flatten_gradients(flat, updates, has_params)
    triples = zip(flat.is_trained, given, flat.arrays, strict=True)
    inside_updates = flat.inside(
        (jnp.zeros_like(array) if x is None else as_array(x)) if is_trained else None
        for is_trained, x, array in triples
    )
    inside_params = flat.inside() if has_params else None
    views = view_extra_args(extra, updates, params, inside_updates) if extra else extra

    def leave(state: OptState, new_updates: Updates, new_state: OptState) -> tuple[Any, Any]:
        news = flatten_updates(flat.treedef, keep_updates(inside_updates, inside_params, new_updates))
        new_state = keep_state(state, inside_params, new_state)
        missing = {i for i, x in enumerate(given) if x is None and flat.is_trained[i]}
        if missing:
            without_update, new_state = _hold(missing, state, new_state, inside_updates)
            news = [None if i in without_update else x for i, x in enumerate(news)]
        # Outside of jit, adan keeps the gradient itself: a step that donates the state would delete the caller's.
        leaves, treedef = jtu.tree_flatten(new_state)
        owned = unshared(leaves, jtu.tree_leaves((news, inside_updates, inside_params)))
        return flat.treedef.unflatten(news), treedef.unflatten(owned)

    return Inside(inside_updates, inside_params, views), leave


def _flatten_gradients(flat: Flat, updates: Updates, has_params: bool) -> list[Any]:
    """Return the gradient of each leaf, None where it is missing; raise an error for one that does not fit."""
    try:
        parts = flatten_updates(flat.treedef, updates)
    except ValueError as error:
        raise ValueError(
            f"{error}. update takes (updates, state, params), in this order, and updates have the structure of the "
            "params"
        ) from None
    gradients = [None if is_hole(x) or has_no_update(x) else x for x in parts]
    pairs = zip(flat.is_trained, gradients, strict=True)
    if not jtu.all_leaves([x for is_trained, x in pairs if is_trained and x is not None]):
        raise TypeError(f"the updates do not fit the params: {updates_mismatch(flat.treedef, updates, 'updates')}")
    are_ints = all(isinstance(x, int) for x in flat.leaves)  # as toy params are, of which Optax has some
    for i, (x, array) in enumerate(zip(gradients, flat.arrays, strict=True)):
        if x is None:
            continue
        if not flat.is_trained[i]:
            is_gradient = is_parameter(x) and not (are_ints and isinstance(x, int))
            if is_gradient and not flat.can_train[i]:
                raise TypeError(
                    f"there is a gradient ({describe(x)}) at {leaf_path_text(flat.tree, i, is_hole)}, which is "
                    f"{describe(flat.leaves[i])}, and is not trained: only floating-point and complex arrays are. Pass "
                    "None as its gradient; or, to train it, make it such an array before init, with jnp.asarray(x, "
                    "float)"
                )
        elif is_complex(x) and not is_complex(array):
            raise TypeError(
                f"the gradient at {leaf_path_text(flat.tree, i, is_hole)} is complex, and the param is real: pass its "
                "real part"
            )
        elif has_params and shape_of(x)[len(shape_of(x)) - array.ndim :] != array.shape:  # it may have more in front
            raise ValueError(
                f"the gradient at {leaf_path_text(flat.tree, i, is_hole)} has shape {shape_of(x)}, and its parameter "
                f"{array.shape}. Pass the gradients of these params to update"
            )
    return gradients


def _hold(missing: set[int], state: OptState, new_state: OptState, like: Updates) -> tuple[set[int], Any]:
    """Keep the moments of parameters without a gradient, which get no update.

    In a `MultiSteps` or `sam`, a missing gradient is a zero of that update instead. Counts and estimates that
    parameters share change as always, and copies and averages of the params follow them.

    Returns:
        The parameters that get no update; and the new state.
    """
    entries = map_state(state, like)
    without_update = missing - {x.param for x in entries if x.in_rounds and x.param is not None}
    olds, treedef = jtu.tree_flatten(state)
    kept = [x.param in missing and not x.in_rounds and not is_declared(FOLLOWS_PARAMS, x) for x in entries]
    triples = zip(kept, olds, jtu.tree_leaves(new_state), strict=True)
    return without_update, treedef.unflatten(old if keep else new for keep, old, new in triples)
