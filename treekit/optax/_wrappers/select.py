"""`masked`, `partition` and similar: on which leaves does a transformation run?"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optax

from treekit._base.jax import jnp, jtu
from treekit._base.tree import is_mapping
from treekit._base.types import Labels, Mask, OptState, Params, PyTree, TransformationLike, Updates
from treekit._select.tree_spec import TreeSpec
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.extra_args import args_like
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._wrappers.masks_and_labels import MaskFunction, parts_by_label, short


def masked(
    inner: TransformationLike, mask: Mask, *, mask_compatible_extra_args: bool = False
) -> GradientTransformation[optax.MaskedState]:
    """Transform the leaves whose mask is True, and pass the others through: `optax.masked` for every mask and model.

    For a leaf that is masked out, the state has an `optax.MaskedNode`, and its update is returned unchanged: the leaf
    is *not* frozen. To freeze, use `selective_transform`, or `partition` with `optax.set_to_zero`.

    Args:
        inner: the transformation for leaves whose mask is True.
        mask: a prefix tree of the params whose leaves are bools, or a function from the params to one. A callable tree,
            such as a mask made from an Equinox model, is used as a tree. A function receives what a filtered model has:
            the arrays that are trained, and None for other leaves, which may be None in a tree too.
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
    return at_boundary(_masked(core_of(inner), MaskFunction(mask, "mask"), any_shape=mask_compatible_extra_args))


def _masked(core: Core, mask: MaskFunction, *, any_shape: bool) -> Core:
    """Run a core on the part that a mask selects, and pass on the updates of the rest."""
    inner_init, inner_update = core

    def init(params: Params) -> Any:
        return optax.MaskedState(inner_init(mask.part(params)))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        part = mask.part(updates)
        news, new = update_part(inner_update, part, updates, state.inner_state, params, extra, any_shape)
        return _filled(part, news, updates), optax.MaskedState(new)

    return Core(init, update)


def partition(
    transforms: Mapping[Any, TransformationLike], param_labels: Labels, *, mask_compatible_extra_args: bool = False
) -> GradientTransformation[optax.transforms.PartitionState]:
    """Give each leaf to the transformation with its label: `optax.partition` for every label tree and model.

    `treekit.partition` is another function: it splits a tree in two.

    Args:
        transforms: maps labels to transformations.
        param_labels: a prefix tree of the params whose leaves are labels, or a function from the params to one, as in
            `masked`. A callable tree is used as a tree.
        mask_compatible_extra_args: as in `masked`.

    Returns:
        A transformation; its state is an `optax.transforms.PartitionState`.

    Raises:
        ValueError: raised by `init` and `update` if the labels do not fit the params, or one has no transformation.
        TypeError: an item of `transforms` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx = partition({"train": optax.sgd(1.0), "freeze": optax.set_to_zero()}, {"w": "train", "b": "freeze"})
    >>> updates, _ = tx.update(params, tx.init(params), params)
    >>> updates["w"], updates["b"]
    (Array([-1., -1.], dtype=float32), Array([0., 0.], dtype=float32))
    """
    if not is_mapping(transforms):
        raise TypeError(
            f"transforms must map labels to transformations, found {short(transforms)}. To split a tree in two, use "
            "treekit.partition"
        )
    keys = frozenset(transforms)

    def select(params: Params) -> Any:
        return parts_by_label(param_labels, keys, params)

    cores = {key: core_of(tx, f"transforms[{key!r}] of partition") for key, tx in transforms.items()}
    return at_boundary(_partition(cores, select, any_shape=mask_compatible_extra_args))


def _partition(cores: Mapping[Any, Core], select: Callable[[Any], Any], *, any_shape: bool) -> Core:
    """Run each core on its own part; `select` returns the part of each key."""
    states: Any = dict if _have_order(cores) else OrderedDict
    inits = {key: core.init for key, core in cores.items()}
    inner_updates = {key: core.update for key, core in cores.items()}

    def init(params: Params) -> Any:
        parts = select(params)
        inner = states((key, optax.MaskedState(inner_init(parts[key]))) for key, inner_init in inits.items())
        return optax.transforms.PartitionState(inner)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        parts, new_updates, inner = select(updates), updates, states()
        for key, inner_update in inner_updates.items():
            old = state.inner_states[key].inner_state
            news, new = update_part(inner_update, parts[key], updates, old, params, extra, any_shape)
            new_updates, inner[key] = _filled(parts[key], news, new_updates), optax.MaskedState(new)
        return new_updates, optax.transforms.PartitionState(inner)

    return Core(init, update)


def set_to_zero() -> GradientTransformation[optax.EmptyState]:
    """Make all updates zero: `optax.set_to_zero`, in the shapes of the params, also for gradients of single examples.

    Returns:
        A transformation; its state is an `optax.EmptyState`.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> frozen = optax.set_to_zero()
    >>> frozen.update(jnp.ones(2), frozen.init(jnp.ones(2)))[0]
    Array([0., 0.], dtype=float32)
    """
    return at_boundary(_SET_TO_ZERO)


def _update_to_zero(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
    return jtu.tree_map(zero_update, updates, updates if params is None else params), state


def zero_update(update: Any, like: Any) -> Any:
    """Return the zero for an update, in the shape of its param, or of another update of it."""
    return jnp.zeros_like(update, shape=None if update.shape == like.shape else like.shape)


_SET_TO_ZERO = Core(optax.set_to_zero().init, _update_to_zero)


def _have_order(keys: Iterable[Any]) -> bool:
    """Whether JAX can sort the keys of a dict; those of an Enum have no order, nor have those of several types."""
    try:
        sorted(keys)
    except TypeError:
        return False
    return True


def freeze(mask: Mask) -> GradientTransformation[optax.MaskedState]:
    """Make updates zero where the mask is True: `optax.freeze` for every mask and model.

    It does not stop what comes after it: `chain(freeze(mask), adamw(1e-3))` decays the weights of frozen leaves. Put it
    last in a chain, or use `selective_transform`, which also keeps no state for them.

    Args:
        mask: as in `masked`.

    Returns:
        A transformation; its state is an `optax.MaskedState`.

    Raises:
        ValueError, TypeError: the mask is wrong, as in `masked`; or it is `treekit.trainable`.

    >>> import jax.numpy as jnp
    >>> tx = freeze(lambda params: {"w": True, "b": False})
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'b': Array([1., 1.], dtype=float32), 'w': Array([0., 0.], dtype=float32)}
    """
    _check_freezes(mask, "mask")
    return masked(set_to_zero(), mask)


def _check_freezes(mask: Mask, name: str) -> None:
    """Raise a ValueError for a mask of what is frozen that is `treekit.trainable`."""
    if isinstance(mask, TreeSpec) and mask.selects_all_trained:
        raise ValueError(
            f"{name}=treekit.trainable freezes all that can be trained: True means frozen. What classes declare not to "
            "be trained is frozen without a mask; to freeze more, name that, such as "
            f"{name}=treekit.path_mask('encoder.**')"
        )


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
        ValueError, TypeError: the mask is wrong, as in `freeze`; or `optimizer` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = selective_transform(optax.sgd(1.0), freeze_mask={"w": True, "b": False})
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'b': Array([-1., -1.], dtype=float32), 'w': Array([0., 0.], dtype=float32)}
    """
    _check_freezes(freeze_mask, "freeze_mask")
    is_frozen = MaskFunction(freeze_mask, "freeze_mask")

    def select(params: Params) -> Any:
        frozen, trained = is_frozen.part_and_rest(params)
        return {"train": trained, "freeze": frozen}

    cores = {"train": core_of(optimizer), "freeze": _SET_TO_ZERO}
    return at_boundary(_partition(cores, select, any_shape=False))


# ----------------------------------------------------------------------------------------------------- a part of a tree


def update_part(
    inner_update: Callable[..., Any],
    part: PyTree,
    updates: Updates,
    state: OptState,
    params: Params,
    extra: Mapping[str, Any],
    any_shape: bool,
) -> tuple[Any, Any]:
    """Update a part of the params: updates and params with more holes, and what is like them in the extra arguments.

    Args:
        part: a tree like the updates, with a hole, None or MaskedNode, for each that is not in the part.
        any_shape: whether the structure alone says which extra arguments are like the updates.
    """

    def hole_or(own: object, x: PyTree) -> Any:
        return own if is_hole(own) else x

    def of_part(tree: PyTree) -> Any:
        return jtu.tree_map(hole_or, part, tree, is_leaf=is_hole)

    likes = args_like(extra, updates, any_shape=any_shape)
    extra = {**extra, **{name: of_part(x) for name, x in likes.items()}}
    out: tuple[Any, Any] = inner_update(of_part(updates), state, None if params is None else of_part(params), **extra)
    return out


def _filled(part: PyTree, new: PyTree, others: PyTree) -> Any:
    """Return a new tree for a part, with what another tree has for each hole of the part."""

    def fill(own: object, x: PyTree, other: PyTree) -> Any:
        return other if is_hole(own) else x

    return jtu.tree_map(fill, part, new, others, is_leaf=is_hole)
