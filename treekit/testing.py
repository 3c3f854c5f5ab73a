"""Check pytrees and gradient transformations in your own test suite.

`check_pytree` and `check_transformation` raise one AssertionError that lists every broken law, with what was found,
what goes wrong because of it, and how to fix it.
"""

from treekit._base.types import Params, PyTree, TransformationLike, Updates
from treekit.check._laws import raise_violations
from treekit.check._transformation_laws import transformation_laws
from treekit.check._tree_laws import tree_laws


def check_pytree(example: PyTree) -> None:
    """Check that a pytree can be flattened, and rebuilt with anything that JAX uses as leaves.

    Every node inside is checked too. Flattening must give the same leaves each time, in order and with key paths.
    Rebuilding must preserve the new leaves and everything else, and must not run the code that creates an instance.
    Static parts must be hashable, must not contain arrays, and must distinguish 1, 1.0 and True.

    Args:
        example: an instance of any pytree class of any library. Only this instance is checked.

    Raises:
        AssertionError: lists each broken law, what goes wrong because of it, and how to fix it.

    >>> import jax.numpy as jnp
    >>> check_pytree({"w": jnp.ones(2), "b": None})
    """
    raise_violations(f"a pytree of class {type(example).__qualname__}", tree_laws(example))


def check_transformation(tx: TransformationLike, params: Params, grads: Updates = None, **extra: object) -> None:
    """Check that a gradient transformation works under every JAX transform, and preserves the types of its state.

    - `init` and `update` accept the params and the gradients; `init` can be jitted.
    - `update` preserves structure, shapes, dtypes and weak types of the state, and returns updates like the gradients.
    - `update` is traced once, and runs in `scan` and under `vmap`.
    - Finite gradients give no NaN. A NaN gradient that is removed from the updates leaves no NaN in the state.
    - Params and state do not share buffers, so that both can be donated; the state can be pickled.
    - State of less than 32 bits decays when the gradients do.

    Args:
        tx: a transformation, with `init` and `update`.
        params: the params, or the raw model, to check it on.
        grads: gradients; by default, ones for the inexact arrays of `params` and None for the other leaves.
        **extra: extra arguments for `update`, such as `value_fn`. Functions among them are called about 100 times.

    Raises:
        AssertionError: lists each broken law, what goes wrong because of it, and how to fix it.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> check_transformation(optax.adam(1e-3), {"w": jnp.ones(2)})
    """
    raise_violations("the transformation", transformation_laws(tx, params, grads, extra))
