"""The boundary of a transformation: the user's trees outside, trees of the arrays that are trained inside.

What is trained is an array that `can_be_trained`. Everything else is None inside, and a MaskedNode stays one. What
is outermost crosses, once; what runs inside is a *core*, and never does.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import optax

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import as_array, has_dtype, has_no_update, owned, shape_of, stands_for_array
from treekit._base.jax import is_ref, jnp, jtu
from treekit._base.key_path import is_nnx_module, leaf_path_text
from treekit._base.patterns import listed
from treekit._base.predicates import can_be_trained, floats_as_arrays, is_numeric_array, is_parameter
from treekit._base.tree import in_nodes_of
from treekit._base.types import LeafPredicate, OptState, Params, PyTreeDef, TransformationLike, Updates
from treekit._compare.prefix import flatten_updates, updates_mismatch
from treekit._select.trainable import declared_frozen, declares
from treekit.optax._kernel.extra_args import view_extra_args
from treekit.optax._kernel.misfit import check_fits, explained, note_none
from treekit.optax._kernel.notes import note_transformation
from treekit.optax._kernel.preserve import as_init_makes, first_state, is_complex, keep_state, keep_updates
from treekit.optax._kernel.state_map import (
    FOLLOWS_PARAMS,
    is_declared,
    is_hole,
    is_optimizer_state,
    is_params_placeholder,
    map_state,
)
from treekit.optax._kernel.transformation import GradientTransformation, core_of, own_core, with_core


def at_boundary(tx: TransformationLike) -> GradientTransformation[Any]:
    """Return a transformation that accepts raw models and preserves dtypes; one of treekit's is returned unchanged.

    `init` and `update` close over transformations only, so that Equinox's `closure_to_pytree`, which Optimistix applies
    to optimizers, finds the arrays among their hyperparameters. It follows every path to a function, so here, as in
    every core, `init` closes over the inner `init` alone; otherwise each wrapper doubles the paths that it follows.

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
        _check_params(params)
        flat = _flatten(params, can_be_trained)
        if not any(flat.can_train):
            _check_nothing_is_meant(flat)
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
                check_fits(inner_init, state, inside.params)
            new_updates, new_state = inner_update(inside.updates, state, inside.params, **inside.extra)
            out, new_state = leave(state, new_updates, new_state)
            return out, in_nodes_of(received, new_state, object)
        except Exception as error:
            like = inside.params if has_params else trained(inside.updates)
            if better := explained(error, inner_init, state, inside.updates, like, has_params):
                raise better from error
            note_transformation(error, inside.updates, inside.params)
            raise

    return with_core(init, update, core)


def _check_params(params: Params) -> None:
    """Raise a TypeError for what a user may mistake for params: a class, a module of Flax NNX, a state."""
    if is_nnx_module(params) and not isinstance(params, type):
        raise TypeError(
            f"init received the module {type(params).__name__} of Flax NNX, whose variables are not its params only: "
            "pass nnx.state(model, nnx.Param), to init and to update"
        )
    if params is not None and jtu.all_leaves([params]) and not is_parameter(params):
        advice = "an instance of this class" if isinstance(params, type) else "a pytree with arrays"
        raise TypeError(
            f"init takes the params, or a model, and received {describe_value(params)}, which has no parameters. "
            f"Pass {advice}; a class of your own must be registered, with treekit.node or treekit.register_node"
        )
    children = jtu.tree_leaves(params, is_leaf=lambda x: x is not params)
    if is_optimizer_state(params) or (children and all(map(is_optimizer_state, children))):  # those of a chain
        raise TypeError("init takes the params, or a model, and received the state of an optimizer")


def _check_nothing_is_meant(flat: "_Flat") -> None:
    """Raise a TypeError for params without an array that can be trained, of which some look like arrays.

    Inside of a mask, where leaves are MaskedNodes, the others may all be integers.
    """
    if any(isinstance(x, optax.MaskedNode) for x in flat.leaves):
        return
    found = [
        f"{leaf_path_text(flat.tree, i, is_hole)}, which is {describe(x)}"
        for i, x in enumerate(flat.leaves)
        if _looks_like_array(x)
    ]
    if found:
        raise TypeError(
            f"init received nothing that can be trained: {listed(found)}. Only floating-point and complex arrays are "
            "trained. Make what you want to train such an array, jnp.asarray(x, float); if an object has an array, "
            "register its class, with treekit.node or treekit.register_node, or pass the array"
        )


def _looks_like_array(x: object) -> bool:
    """Whether a user may take a leaf for an array that is trained: one of numbers, or an object that is like one."""
    if has_dtype(x):
        return is_numeric_array(x)
    return stands_for_array(x) or (hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type))


class Inside(NamedTuple):
    """What a core receives, besides its state: trees with None for what is not trained, and extra arguments."""

    updates: Updates
    params: Params
    extra: dict[str, Any]


Leave = Callable[[OptState, Updates, OptState], tuple[Any, Any]]


def trained(params: Params) -> Any:
    """Return the params inside: the arrays that are trained, and None for everything else."""
    return _flatten(params, can_be_trained).inside()


def cross(updates: Updates, params: Params, extra: dict[str, Any]) -> tuple[Inside, Leave]:
    """Go inside with the arguments of an update; return them, and a function that leads back out.

    Args:
        updates: the updates; None or float0 for a missing one, which is a zero inside.
        params: the params; without them, every array of numbers among the updates is one.
        extra: the extra arguments.

    Returns:
        What the core receives. And a function of the state before, the new updates and the new state, which returns the
            two outside: in their old structure and dtypes, and without any change for a missing gradient.

    Raises:
        ValueError: the updates have another structure or other shapes than the params; the message names the key path.
        TypeError: there is a gradient for what is not trained; or one is a tree, or complex, and its array is not.
    """
    has_params = params is not None
    flat = _flatten(params, can_be_trained) if has_params else _flatten(updates, is_numeric_array)
    given = _flatten_gradients(flat, updates, has_params)
    triples = zip(flat.keep, given, flat.arrays, strict=True)
    inside_updates = flat.inside(
        (jnp.zeros_like(array) if x is None else as_array(x)) if keep else None for keep, x, array in triples
    )
    inside_params = flat.inside() if has_params else None
    views = view_extra_args(extra, updates, params, inside_updates) if extra else extra

    def leave(state: OptState, new_updates: Updates, new_state: OptState) -> tuple[Any, Any]:
        news = flatten_updates(flat.treedef, keep_updates(inside_updates, inside_params, new_updates))
        new_state = keep_state(state, inside_params, new_state)
        missing = {i for i, x in enumerate(given) if x is None and flat.keep[i]}
        if missing:
            held, new_state = _hold(missing, state, new_state, inside_updates)
            news = [None if i in held else x for i, x in enumerate(news)]
        return flat.treedef.unflatten(news), new_state

    return Inside(inside_updates, inside_params, views), leave


class _Flat(NamedTuple):
    """A tree of params taken apart, with None and MaskedNode as leaves.

    Attributes:
        tree: the tree.
        treedef: its structure.
        leaves: its leaves.
        arrays: the same, with the arrays of references.
        can_train: for each leaf, whether it is an array that can be trained.
        keep: for each leaf, whether it is trained: it can be, and no class declares that it is not.
    """

    tree: Params
    treedef: PyTreeDef
    leaves: list[Any]
    arrays: list[Any]
    can_train: list[bool]
    keep: list[bool]

    def inside(self, parts: Iterable[Any] | None = None) -> Any:
        """Return a tree with these parts, by default the arrays, for what is trained. Arrays of NumPy are copied."""
        triples = zip(self.keep, self.arrays if parts is None else parts, self.leaves, strict=True)
        return self.treedef.unflatten(
            owned(part) if keep else leaf if isinstance(leaf, optax.MaskedNode) else None
            for keep, part, leaf in triples
        )


def _flatten(tree: Params, is_trained: LeafPredicate) -> _Flat:
    classes = set[Any]()

    def stop(x: object) -> bool:
        classes.add(type(x))
        return is_hole(x)

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=stop)
    arrays = floats_as_arrays([x[...] if is_ref(x) else x for x in leaves])
    can_train = keep = list(map(is_trained, arrays))
    if any(map(declares, classes)):
        frozen = declared_frozen(tree, is_hole)
        keep = [can and not out for can, out in zip(can_train, frozen, strict=True)]
    return _Flat(tree, treedef, leaves, arrays, can_train, keep)


def _flatten_gradients(flat: _Flat, updates: Updates, has_params: bool) -> list[Any]:
    """Return the gradient of each leaf, None where it is missing; raise an error for one that does not fit."""
    try:
        parts = flatten_updates(flat.treedef, updates)
    except ValueError as error:
        raise ValueError(
            f"{error}. update takes (updates, state, params), in this order, and updates have the structure of the "
            "params"
        ) from None
    gradients = [None if is_hole(x) or has_no_update(x) else x for x in parts]
    if not jtu.all_leaves([x for keep, x in zip(flat.keep, gradients, strict=True) if keep and x is not None]):
        raise TypeError(f"the updates do not fit the params: {updates_mismatch(flat.treedef, updates, 'updates')}")
    are_ints = all(isinstance(x, int) for x in flat.leaves)  # as toy params are, of which Optax has some
    for i, (x, array) in enumerate(zip(gradients, flat.arrays, strict=True)):
        if x is None:
            continue
        if not flat.keep[i]:
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
        elif has_params and (shape := shape_of(x)) != array.shape and shape[len(shape) - array.ndim :] != array.shape:
            raise ValueError(
                f"the gradient at {leaf_path_text(flat.tree, i, is_hole)} has shape {shape}, and its parameter "
                f"{array.shape}. Pass the gradients of these params to update"
            )
    return gradients


def _hold(missing: set[int], state: OptState, new_state: OptState, like: Updates) -> tuple[set[int], Any]:
    """Keep the moments that a state has for parameters without a gradient. In a `MultiSteps`, that is a zero.

    Counts and estimates that parameters share change as always, and copies and averages of the params follow them.

    Returns:
        The parameters that do not change, as they are in no `MultiSteps`; and the new state.
    """
    entries = map_state(state, like)
    held = missing - {x.param for x in entries if x.in_rounds and x.param is not None}
    olds, treedef = jtu.tree_flatten(state)
    kept = [x.param in missing and not x.in_rounds and not is_declared(FOLLOWS_PARAMS, x) for x in entries]
    triples = zip(kept, olds, jtu.tree_leaves(new_state), strict=True)
    return held, treedef.unflatten(old if keep else new for keep, old, new in triples)
