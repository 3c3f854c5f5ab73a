"""The gradient of each leaf of the params: None where it is missing, and an error where it does not fit."""

from typing import Any

from treekit._base.dtype import has_dtype, has_no_update, shape_of
from treekit._base.flax import is_nnx_module, is_nnx_state
from treekit._base.jax import jtu
from treekit._base.predicates import is_parameter
from treekit._base.tree import has_node
from treekit._base.types import Updates
from treekit._compare.prefix import flatten_updates
from treekit._names.key_path import leaf_path_text
from treekit._text.describe import describe, describe_value
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.preserve import is_complex
from treekit.optax._kernel.trained import Flat


def gradients_of(flat: Flat, updates: Updates, *, has_params: bool) -> list[Any]:
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
