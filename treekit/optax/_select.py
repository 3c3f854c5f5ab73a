"""`filtered`, `masked`, `partition` and similar: run transformations on selected leaves."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import optax

from treekit._base.jax import jtu
from treekit._base.predicates import has_gradient, is_inexact_array
from treekit._base.tree import is_none
from treekit._base.types import FilterSpec, Labels, Mask, OptState, Params, TransformationLike, Updates
from treekit.optax._boundary import at_boundary
from treekit.optax._masks import (
    LeafSelection,
    apply_to_selection,
    check_labels,
    choose_filtered,
    choose_groups,
    choose_masked,
    resolve_mask,
)
from treekit.optax._state_map import is_params_placeholder
from treekit.optax._transformation import (
    SET_TO_ZERO,
    Core,
    DeclaringCore,
    GradientTransformation,
    S,
    core_of,
    described,
    freezes,
)


@described
def filtered(
    inner: GradientTransformation[S] | TransformationLike, filter_spec: FilterSpec = is_inexact_array
) -> GradientTransformation[S]:
    """Run a transformation on some of the leaves of a raw (unfiltered) model, and freeze the others.

    True is trained, where True in `freeze` is frozen. `treekit.filter` filters a tree. The other leaves (functions,
    strings, integers, …) are None in the state and in the updates, so that `apply_updates` does not change them.

    Args:
        inner: any transformation.
        filter_spec: a predicate on leaves, or a prefix tree of the params whose leaves are bools or predicates. By
            default, every floating-point or complex array.

    Returns:
        A transformation for the raw model, with the state of `inner`.

    Raises:
        ValueError: raised by `init` and `update` if `filter_spec` does not fit the params, or selects no leaf.
        TypeError: `inner` is not a transformation, or `filter_spec` is None.

    >>> import jax
    >>> import equinox as eqx
    >>> import optax
    >>> model = eqx.nn.MLP(2, 1, 8, depth=1, key=jax.random.key(0))
    >>> tx = filtered(optax.adam(1e-3))  # plain Optax's adam, on a model with its activation function
    >>> state = tx.init(model)
    """
    # Equinox's `closure_to_pytree`, which Optimistix applies to optimizers, would make a node of a predicate that a
    # function closes over. It does not open a partial.
    choose = _choose_inexact if filter_spec is is_inexact_array else functools.partial(choose_filtered, filter_spec)
    return at_boundary(apply_to_selection(core_of(inner), choose))


_choose_inexact = functools.partial(choose_filtered, is_inexact_array)  # one for all, so that Optimistix compiles once


@described
def masked(
    inner: TransformationLike, mask: Mask, *, mask_compatible_extra_args: bool = False
) -> GradientTransformation[optax.MaskedState]:
    """Transform the leaves whose mask is True, and pass the others through: `optax.masked` for every mask and model.

    For a leaf that is masked out, the state has an `optax.MaskedNode`, and its update is returned unchanged: the leaf
    is *not* frozen. To freeze, use `filtered`, or `partition` with `optax.set_to_zero`.

    Args:
        inner: the transformation for leaves whose mask is True.
        mask: a prefix tree of the params whose leaves are bools, or a function from the params to one. A callable tree,
            such as a mask made from an Equinox model, is used as a tree. Leaves of the model that cannot be parameters
            need no entry.
        mask_compatible_extra_args: mask every extra argument that has the structure of the params or the updates. By
            default, it must have their shapes too, so that a batch (x, y) is not masked.

    Returns:
        A transformation; its state is an `optax.MaskedState`.

    Raises:
        ValueError: raised by `init` and `update` if the mask does not fit the params.
        TypeError: raised by them if a leaf of the mask is not a bool; or `inner` is not a transformation.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    >>> decay = masked(optax.add_decayed_weights(0.1), {"w": True, "b": False})
    >>> updates, _ = decay.update(jax.tree.map(jnp.zeros_like, params), decay.init(params), params)
    >>> updates["b"]
    Array([0., 0.], dtype=float32)
    """

    core = core_of(inner)
    trains = core is not SET_TO_ZERO

    def choose(params: Params) -> LeafSelection:
        return choose_masked(mask, trains, params)

    return at_boundary(_select_masked(core, choose, mask_compatible_extra_args))


@described
def partition(
    transforms: Mapping[Any, TransformationLike],
    param_labels: Labels,
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformation[optax.transforms.PartitionState]:
    """Give each leaf to the transformation with its label: `optax.partition` for every label tree and model.

    `treekit.partition` is another function: it splits a tree in two.

    Args:
        transforms: maps labels to transformations.
        param_labels: a prefix tree of the params whose leaves are labels, or a function from the params to one. A
            callable tree is used as a tree. Leaves of the model that cannot be parameters need no label.
        mask_compatible_extra_args: as in `masked`.

    Returns:
        A transformation; its state is an `optax.transforms.PartitionState`.

    Raises:
        ValueError: raised by `init` and `update` if the labels do not fit the params, or one has no transformation.
        TypeError: an item of `transforms` is not a transformation, or its keys cannot be sorted.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx = partition({"train": optax.sgd(1.0), "freeze": optax.set_to_zero()}, {"w": "train", "b": "freeze"})
    >>> updates, _ = tx.update(params, tx.init(params), params)
    >>> updates["w"], updates["b"]
    (Array([-1., -1.], dtype=float32), Array([0., 0.], dtype=float32))
    """
    return _partition(transforms, _given_labels, param_labels, mask_compatible_extra_args)


def _given_labels(param_labels: Labels, _: Params) -> Labels:
    return param_labels


def _partition(
    transforms: Mapping[Any, TransformationLike],
    labels_of: Callable[[Any, Any], Labels],
    spec: Any,
    any_shape: bool = False,
) -> GradientTransformation[optax.transforms.PartitionState]:
    """Give each leaf to the transformation with its label; `labels_of(spec, params)` are the labels that apply.

    The two are not bound together, since Equinox's `closure_to_pytree` compares what `init` and `update` close over.
    """
    check_labels(transforms)
    cores = {key: core_of(tx) for key, tx in transforms.items()}
    frozen = frozenset(key for key, core in cores.items() if core is SET_TO_ZERO)
    inits = {key: core.init for key, core in cores.items()}  # `init` closes over these alone: see `at_boundary`

    def init(params: Params) -> Any:
        if is_params_placeholder(params):
            inside = dict.fromkeys(inits, params)
        else:
            groups = choose_groups(frozenset(inits), frozen, labels_of(spec, params), params)
            inside = {key: selection.inside(params) for key, selection in groups.items()}
        states = {key: optax.MaskedState(inits[key](inside[key])) for key in inits}
        return optax.transforms.PartitionState(states)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        given = updates if params is None else params
        states: dict[Any, Any] = {}
        for key, group in _groups(cores, frozen, labels_of(spec, given), given, any_shape).items():
            updates, states[key] = group.update(updates, state.inner_states[key], params, **extra)
        return updates, optax.transforms.PartitionState(states)

    def freezes_all(params: Params) -> bool:
        groups = choose_groups(frozenset(cores), frozen, labels_of(spec, params), params)
        inside = {key: selection.inside(params) for key, selection in groups.items()}
        used = [key for key, tree in inside.items() if any(map(has_gradient, jtu.tree_leaves(tree)))]
        return all(freezes(cores[key], inside[key]) for key in used)

    return at_boundary(DeclaringCore(init, update, freezes=freezes_all))


def _groups(
    cores: Mapping[Any, Core], frozen: frozenset[Any], param_labels: Labels, params: Params, any_shape: bool
) -> dict[Any, Core]:
    """Return each core, applied to the params with its label."""
    selections = choose_groups(frozenset(cores), frozen, param_labels, params)

    def group(key: object) -> Core:
        return _select_masked(cores[key], lambda _: selections[key], any_shape)

    return {key: group(key) for key in cores}


@described
def freeze(mask: Mask) -> GradientTransformation[optax.MaskedState]:
    """Make updates zero where the mask is True: `optax.freeze` for every mask and model.

    Here True means frozen; in `filtered` it means trained.

    Args:
        mask: as in `masked`.

    Returns:
        A transformation; its state is an `optax.MaskedState`.

    Raises:
        ValueError, TypeError: the mask is wrong, as in `masked`.

    >>> import jax.numpy as jnp
    >>> tx = freeze(lambda params: {"w": True, "b": False})
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'b': Array([1., 1.], dtype=float32), 'w': Array([0., 0.], dtype=float32)}
    """
    return masked(optax.set_to_zero(), mask)


@described
def selective_transform(
    optimizer: TransformationLike, *, freeze_mask: Mask
) -> GradientTransformation[optax.transforms.PartitionState]:
    """Freeze the leaves whose mask is True, and transform the others: `optax.selective_transform` for every model.

    Args:
        optimizer: the transformation for the other leaves.
        freeze_mask: as `mask` in `masked`.

    Returns:
        A transformation; its state is an `optax.transforms.PartitionState`, with the labels "train" and "freeze".

    Raises:
        ValueError, TypeError: the mask is wrong, as in `masked`; or `optimizer` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = selective_transform(optax.sgd(1.0), freeze_mask={"w": True, "b": False})
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'b': Array([-1., -1.], dtype=float32), 'w': Array([0., 0.], dtype=float32)}
    """
    if freeze_mask is None:
        raise TypeError("freeze_mask is None, which would freeze nothing: to do so, use the optimizer alone")
    # Resolved before the labels are, so that an error names the argument that the user wrote.
    return _partition({"train": optimizer, "freeze": optax.set_to_zero()}, _train_or_freeze, freeze_mask)


def _train_or_freeze(freeze_mask: Mask, params: Params) -> Any:
    def label(frozen: bool | None) -> str | None:
        return None if frozen is None else "freeze" if frozen else "train"

    return jtu.tree_map(label, resolve_mask(freeze_mask, params, "freeze_mask", trains=False), is_leaf=is_none)


def _select_masked(core: Core, choose: Callable[[Any], LeafSelection], any_shape: bool) -> Core:
    """Apply a core as Optax's masked does: with MaskedNode for other leaves, and a MaskedState."""
    return apply_to_selection(
        core, choose, any_shape=any_shape, wrap=optax.MaskedState, unwrap=lambda state: state.inner_state
    )
