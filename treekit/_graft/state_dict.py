"""to_state_dict: the arrays of a tree by name, as files have them."""

from typing import Any

import jax
import numpy as np

from treekit._base.jax import untyped
from treekit._base.predicates import is_numeric_array, is_traced
from treekit._base.types import PyTree, TransformationLike
from treekit._graft.leaves import leaves_of
from treekit._text.arguments import refuse_class
from treekit._trained.leaves import numbers_as_arrays


def to_state_dict(tree: PyTree) -> dict[str, Any]:
    """Return the arrays of a tree by name, ready for a file: `{"layers.0.weight": array, …}`.

    `graft` takes the result back, for models, params and optimizer states. PyTorch calls such a dict a state dict.

    Args:
        tree: any pytree. A mapping that is not a pytree, such as an h5py file, counts as a dict.

    Returns:
        A dict of the arrays, in the order of the leaves, by their key paths, which are written as in `path_mask`. The
        arrays are NumPy arrays on the host, in C order, as `safetensors` and `np.savez` need them, and they are copies:
        they share no memory with the tree. An array that is sharded over several processes, none of which has all of
        its values, is returned unchanged, and so is a `jax.ShapeDtypeStruct`. A `jax.Ref` is saved as the array that it
        refers to, and what has `__array__` (an h5py data set, the tensor of another library) as that array, and
        so is a Python number that optimizers train, as in `{"scale": 1.0}`. Other Python numbers, functions, strings
        and typed PRNG keys are left out, since files of arrays cannot have them; `graft` keeps those of the new tree.
        Save a setting as an array, and `jax.random.key_data` of a key, which `graft` makes a key again.

    Raises:
        TypeError: an array is traced, or has a dtype that is not one of numbers; or `tree` is a class, or an
            optimizer, which is not its state.
        ValueError: two leaves have one name, such as those of the key "a.b" and of the key "b" in "a"; or an array is
            deleted.

    >>> import jax.numpy as jnp
    >>> params = {"layers": [{"w": jnp.ones(2)}, {"w": jnp.zeros(2)}], "name": "tiny", "n": 2}
    >>> list(to_state_dict(params))
    ['layers.0.w', 'layers.1.w']
    """
    refuse_class(tree, "to_state_dict")
    if isinstance(tree, TransformationLike):
        raise TypeError(
            "to_state_dict takes the state of an optimizer, found an optimizer: pass optimizer.init(params)"
        )
    arrays = {x.name: x.value for x in leaves_of(numbers_as_arrays(tree), are_read=True) if is_numeric_array(x.value)}
    for name, x in arrays.items():
        if is_traced(x):
            raise TypeError(f"to_state_dict needs values, but {name or 'the root'} is traced: call it outside of jit")
    # An array over several processes is whole on none of them; a `jax.ShapeDtypeStruct` has no values.
    here = {
        name: x
        for name, x in arrays.items()
        if not isinstance(x, jax.ShapeDtypeStruct)
        and (not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated)
    }
    # All at once, so that the copies from the devices overlap. On the CPU, they share the memory of the arrays.
    # safetensors writes other orders than C wrongly.
    return arrays | {name: np.array(x, order="C") for name, x in untyped.device_get(here).items()}
