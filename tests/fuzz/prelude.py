"""What the programs of the fuzzer are written in: nodes and leaves, gradients, a loss, masks and labels."""

import zlib
from collections import OrderedDict as OrderedDict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

import treekit as tk
from tests import trees
from tests.optax import cases

Model, Point, Twig, Box = trees.Box, trees.Point, trees.Twig, cases.HasArray
loss, of_numbers, schedule = cases.loss, cases.of_numbers, cases.schedule
jnp: Any = jax.numpy
_tree: Any = jax.tree_util


def numbers(dtype: Any, *shape: int) -> Any:
    """An array of numbers from -0.5 to 1."""
    return jnp.linspace(-0.5, 1, int(np.prod(shape))).reshape(shape).astype(dtype)


def has_refs(tree: Any) -> bool:
    """Whether there are mutable arrays of JAX's among the leaves."""
    return any(isinstance(x, jax.Ref) for x in jax.tree.leaves(tree))


def value_of(leaf: Any) -> Any:
    """The array that a leaf stands for, or None."""
    if isinstance(leaf, jax.Ref):
        return leaf[...]
    is_array = isinstance(leaf, (Box, jax.Array, np.ndarray, np.generic, float, complex, int))
    return jnp.asarray(leaf) if is_array and getattr(leaf, "dtype", None) != jax.dtypes.float0 else None


def is_inexact(x: Any) -> bool:
    return x is not None and bool(jnp.issubdtype(x.dtype, jnp.inexact))


def arrays_of(tree: Any) -> Any:
    """The params that Equinox takes for such: None for the other leaves."""
    return eqx.filter(tree, eqx.is_inexact_array)


def is_trained(leaf: Any) -> bool:
    """Whether a leaf is a floating-point or complex array, or a reference to one."""
    return isinstance(leaf, (jax.Array, jax.Ref, np.ndarray, np.generic)) and is_inexact(value_of(leaf))


def trained_of(tree: Any) -> Any:
    """The params that are trained, numbers of Python among them: None for the other leaves."""
    return tk.filter(tree, tk.trainable)


def gradients(params: Any, step: int, dtype: Any = None, missing: str = "None", special: float = 0.0) -> Any:
    """A gradient for every leaf that is trained, others in each step; `dtype` is that of the real ones.

    For another leaf there is None, as Equinox has it; with "float0" as JAX has it for integers. If `special` is not 0,
    it replaces the first element of each gradient in the second step.
    """

    def gradient(leaf: Any, has_gradient: bool) -> Any:
        x = value_of(leaf)
        if not has_gradient:
            return None if x is None or missing == "None" else np.zeros(x.shape, jax.dtypes.float0)
        g = jnp.cos(jnp.arange(x.size) + step).reshape(x.shape)
        if special and step == 1:
            g = jnp.where(jnp.arange(x.size).reshape(x.shape) == 0, special, g)
        return (g * (1 + 1j)).astype(x.dtype) if jnp.iscomplexobj(x) else g.astype(dtype or x.dtype)

    return jax.tree.map(gradient, params, tk.trainable(params))


def mask(seed: int, depth: int | None = None) -> Callable[[Any], Any]:
    """A function from params to bools by key path; with `depth` 1, to one bool for each child of the root."""

    def bit(path: Any, _: Any) -> bool:
        return bool(zlib.crc32(f"{seed}{_tree.keystr(path)}".encode()) % 2)

    def of(params: Any) -> Any:
        return _tree.tree_map_with_path(bit, params, is_leaf=lambda x: depth is not None and x is not params)

    return of


def labels(seed: int, depth: int | None = None) -> Callable[[Any], Any]:
    """As `mask`, with the labels "a" and "b"."""
    return lambda params: jax.tree.map(lambda bit: "a" if bit else "b", mask(seed, depth)(params))
