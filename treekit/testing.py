"""The laws of a pytree and of a gradient transformation, for test suites.

`check_pytree` and `check_transformation` raise one AssertionError that lists every law broken, each with what will go
wrong and what to do about it.
"""

from typing import Any

from treekit.check._laws import raise_violations
from treekit.check._transformation_laws import transformation_laws
from treekit.check._tree_laws import tree_laws


def check_pytree(example: Any) -> None:
    """Check that a pytree can be taken apart and rebuilt, with anything JAX puts in the place of its leaves.

    Every node in it is checked: that flattening gives what it holds, in order, with key paths; that rebuilding keeps
    what is put in and everything else, and runs none of the class's code; that static parts are hashable, hold no
    array and are told apart.

    Args:
        example: an instance of any pytree class, of any library. What only another instance would show is not found.

    Raises:
        AssertionError: lists each law that is broken, what will go wrong, and what to do.

    >>> import jax.numpy as jnp
    >>> check_pytree({"w": jnp.ones(2), "b": None})
    """
    raise_violations(f"a pytree of class {type(example).__qualname__}", tree_laws(example))


def check_transformation(tx: Any, params: Any, grads: Any = None, **extra: Any) -> None:
    """Check that a gradient transformation can be used in every way that JAX has, and keeps what it should.

    The laws: init and update take params and gradients; update keeps the structure, shapes, dtypes and weak types of
    the state, gives updates like the gradients, and is traced once; finite gradients give no NaN; init can be jitted;
    update runs in scan and under vmap; a NaN gradient that the updates do not show leaves none in the state; state
    shares no buffer with the params, so both can be donated; it can be pickled; state of less than 32 bits falls when
    the gradients do. Extra arguments that are functions are called as update calls them, some hundred times.

    Args:
        tx: a transformation, with `init` and `update`.
        params: the params or the raw model that it is for.
        grads: gradients; by default ones for the inexact arrays of `params`, None for the other leaves.
        **extra: extra arguments for `update`.

    Raises:
        AssertionError: lists each law that is broken, what will go wrong, and what to do.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> check_transformation(optax.adam(1e-3), {"w": jnp.ones(2)})
    """
    raise_violations("the transformation", transformation_laws(tx, params, grads, extra))
