"""masked and partition: other transformations for other leaves."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optax
from jax.core import Tracer

from treekit._callable import match_spec, resolve_shown
from treekit._dtype import as_array
from treekit._filter import is_array, is_parameter
from treekit._jax import jtu
from treekit.optax._select import Held, Selection, held, hold, is_params_placeholder, select


def masked(
    inner: optax.GradientTransformation, mask: Any, *, mask_compatible_extra_args: bool = False
) -> optax.GradientTransformationExtraArgs:
    """`optax.masked` for every mask and every model: masked-in leaves are transformed, the others pass through.

    Where a leaf is masked out, the state holds an `optax.MaskedNode` and the update comes out as it went in: it is
    *not* frozen. To freeze, use `filtered`, or `partition` with `optax.set_to_zero`.

    Args:
        inner: the transformation for the masked-in leaves.
        mask: a prefix tree of the params with bools at its leaves, or a function from the params to one. A callable
            tree, such as a mask made from an Equinox model, is a tree. Leaves of the model that cannot be parameters
            need no value in it.
        mask_compatible_extra_args: mask each extra argument that has the structure of the params or the updates. By
            default only those that have their shapes too, so that a batch (x, y) is left alone.

    Returns:
        A transformation; its state is an `optax.MaskedState`.

    Raises:
        ValueError: the mask does not fit the params; names the first key path where they part.
        TypeError: a leaf of the mask is no bool; names its key path. Both are raised by `init` and `update`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    >>> decay = masked(optax.add_decayed_weights(0.1), {"w": True, "b": False})
    >>> updates, _ = decay.update(jax.tree.map(jnp.zeros_like, params), decay.init(params), params)
    >>> updates["b"]
    Array([0., 0.], dtype=float32)
    """

    def choose(params: Any) -> Selection:
        outline, matches = _match(mask, params, is_spec_leaf=_is_bool, name="mask")
        keep = tuple(_keep_masked("mask", *match) for match in matches)
        return Selection(outline, keep, optax.MaskedNode(), passes=True)

    return _select_masked(inner, choose, mask_compatible_extra_args)


def partition(
    transforms: Mapping[Any, optax.GradientTransformation],
    param_labels: Any,
    *,
    mask_compatible_extra_args: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """`optax.partition` for every tree of labels and every model: each leaf goes to the transformation of its label.

    Args:
        transforms: maps labels to transformations.
        param_labels: a prefix tree of the params with labels at its leaves, or a function from the params to one. A
            callable tree is a tree. Leaves of the model that cannot be parameters need no label.
        mask_compatible_extra_args: as in `masked`.

    Returns:
        A transformation; its state is an `optax.transforms.PartitionState`.

    Raises:
        ValueError: the labels do not fit the params (names the first key path where they part), or one has no
            transformation (names both sets of keys). Raised by `init` and `update`.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    >>> tx = partition({"train": optax.sgd(1.0), "freeze": optax.set_to_zero()}, {"w": "train", "b": "freeze"})
    >>> updates, _ = tx.update(params, tx.init(params), params)
    >>> updates["w"], updates["b"]
    (Array([-1., -1.], dtype=float32), Array([0., 0.], dtype=float32))
    """
    transforms = {key: hold(tx) for key, tx in transforms.items()}  # what is none is an error before any label is

    def is_label(x: Any) -> bool:
        try:
            return x in transforms
        except TypeError:  # unhashable, so no key
            return False

    def selections(params: Any) -> dict[Any, Selection]:
        outline, matches = _match(param_labels, params, is_spec_leaf=is_label, name="param_labels")

        def selection(key: Any) -> Selection:
            keep = (
                bool(label == key) if is_label(label) else not _holds_parameters(part) for _, label, part in matches
            )
            return Selection(outline, tuple(keep), optax.MaskedNode(), passes=True)

        for path, label, part in matches:
            if not is_label(label) and _has_parameters(label, part):
                raise ValueError(
                    f"Some parameters have no corresponding transformation: {jtu.keystr(path) or 'all'} have the label "
                    f"{label!r}.\nParameter labels: {_names(x for _, x, part in matches if _has_parameters(x, part))}\n"
                    f"Transforms keys: {_names(transforms)}"
                )

        return {key: selection(key) for key in transforms}

    def group(key: Any, selected: dict[Any, Selection]) -> Held:
        return _select_masked(transforms[key], lambda _: selected[key], mask_compatible_extra_args)

    def init(params: Any) -> Any:
        selected = {} if is_params_placeholder(params) else selections(params)
        return optax.transforms.PartitionState({key: group(key, selected).init(params) for key in transforms})

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        selected = selections(updates if params is None else params)
        states: dict[Any, Any] = {}
        for key in transforms:
            tx = group(key, selected)
            updates, states[key] = tx.update(updates, state.inner_states[key], params, **extra)
        return updates, optax.transforms.PartitionState(states)

    return held(init, update)


def _match(spec: Any, params: Any, *, is_spec_leaf: Callable[[Any], bool], name: str) -> tuple[Any, Any]:
    """What a spec says of the params; a function is shown arrays for the Python numbers in them."""

    def show(params: Any) -> Any:
        return jtu.tree_map(as_array, params)

    try:
        resolved = resolve_shown(spec, params, show, is_spec_leaf=is_spec_leaf, name=name)
        return match_spec(resolved, params, is_spec_leaf=is_spec_leaf, name=name)
    except ValueError as error:
        if not str(error).startswith(name):  # an error of the user's own function
            raise
        hint = f"Make {name} by jax.tree.map over the params, or give a function that does; a value covers a subtree"
        raise ValueError(f"{error}\n{hint}") from None


def _select_masked(tx: optax.GradientTransformation, choose: Callable[[Any], Selection], any_shape: bool) -> "Held":
    """`select` as Optax's masked does it: MaskedNode for holes, in a MaskedState."""
    return select(hold(tx), choose, any_shape=any_shape, wrap=optax.MaskedState, unwrap=lambda state: state.inner_state)


def _has_parameters(spec_leaf: Any, part: Any) -> bool:
    """Whether a leaf of a spec decides about a parameter; elsewhere it is left from the model the spec was made of."""
    return spec_leaf is not None and _holds_parameters(part)


def _holds_parameters(part: Any) -> bool:
    return any(map(is_parameter, jtu.tree_leaves(part)))


def _is_bool(x: Any) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return True
    return is_array(x) and not _is_traced(x) and x.dtype == np.bool_ and x.shape == ()


def _is_traced(x: object) -> bool:
    return isinstance(x, Tracer)


def resolve_mask(mask: Any, params: Any, name: str) -> Any:
    """A mask as Optax itself can use it: a bool wherever the params have a leaf.

    None is False, as in `filtered`: what hold shows as an array may be a number that a filtered model has None for.
    """

    def is_mask_leaf(x: Any) -> bool:
        return x is None or _is_bool(x)

    outline, matches = _match(mask, params, is_spec_leaf=is_mask_leaf, name=name)
    return outline.unflatten(None if match[2] is None else _keep_masked(name, *match) for match in matches)


def _keep_masked(name: str, path: Any, leaf: Any, part: Any) -> bool:
    if _is_bool(leaf):
        return bool(leaf)
    if _has_parameters(leaf, part):
        traced = ", which is traced: make it outside of jit, or of shapes and dtypes" if _is_traced(leaf) else ""
        raise TypeError(
            f"{name} must have bools at its leaves; at {jtu.keystr(path) or 'the root'} it has {leaf!r} of type "
            f"{type(leaf).__name__}{traced}"
        )
    return not _holds_parameters(part)  # a function is None in the state, in a raw model as in a filtered one


def _names(keys: Any) -> str:
    return "{" + ", ".join(sorted({repr(key) for key in keys})) + "}"
