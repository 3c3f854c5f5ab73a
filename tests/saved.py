"""What the tests of saved trees share: trees in which no two arrays are equal, and flat dicts as files have them."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def numbered(tree: Any) -> Any:
    """The tree with other numbers in its arrays, no two of which are equal; its other leaves stay."""
    number = itertools.count(1)

    def other(x: Any) -> Any:
        is_number = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.number)
        return x + jnp.asarray(next(number), x.dtype) if is_number else x

    return jax.tree.map(other, tree)


def zeroed(tree: Any) -> Any:
    """The tree with zeros in its arrays of numbers."""
    return jax.tree.map(lambda x: 0 * x if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.number) else x, tree)


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
