"""What the tests of saved trees share: trees in which no two arrays are equal, and a way through a file."""

import importlib
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import treekit as tk

orbax: Any = importlib.import_module("orbax.checkpoint")  # has no types


class Tensor:
    """What numpy.asarray knows of a tensor of another library."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self._x


def is_number(x: Any) -> bool:
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.number))


def numbered(tree: Any) -> Any:
    """The tree with other numbers in its arrays, no two of which are equal; its other leaves stay."""
    number = itertools.count(1)

    def other(x: Any) -> Any:
        return x + jnp.asarray(next(number), x.dtype) if is_number(x) else x

    return jax.tree.map(other, tree)


def zeroed(tree: Any) -> Any:
    """The tree with zeros in its arrays of numbers."""
    return jax.tree.map(lambda x: 0 * x if is_number(x) else x, tree)


def through_orbax(tree: Any, path: Path, *target: Any) -> Any:
    """What Orbax restores of the arrays of a tree."""
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tk.filter_arrays(tree))
        checkpointer.wait_until_finished()
        return checkpointer.restore(path, *target)


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
