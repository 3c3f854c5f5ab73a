"""What the programs of the fuzzer are written in: kinds of leaves and nodes, gradients, a loss, masks and labels."""

import zlib
from collections import OrderedDict as OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

import treekit as tk

jnp: Any = jax.numpy
new_ref: Any = jax.new_ref
key: Any = jax.random.key
relu: Any = jax.nn.relu
Partial: Any = jax.tree_util.Partial
_tree: Any = jax.tree_util


class Pair(NamedTuple):
    """Params in a named tuple."""

    left: Any
    right: Any


class Model(eqx.Module):
    """A model of Equinox's that can be called."""

    weight: Any
    rest: Any

    def __call__(self, x: Any) -> Any:
        return self.weight @ x


@tk.node
class Dense:
    """A node of treekit's with a static part."""

    weight: Any
    rest: Any
    name: str = tk.field(static=True, default="dense")


class Box:
    """A leaf with `__jax_array__`, as Flax's variables are."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __jax_array__(self) -> Any:
        return self.value


def numbers(dtype: Any, *shape: int) -> Any:
    """An array of numbers from -0.5 to 1."""
    return jnp.linspace(-0.5, 1, int(np.prod(shape))).reshape(shape).astype(dtype)


def is_ref(x: object) -> bool:
    """Whether a leaf is a mutable array of JAX's."""
    return isinstance(x, jax.Ref)


def value_of(leaf: Any) -> Any:
    """The array that a leaf stands for, or None."""
    if is_ref(leaf):
        return leaf[...]
    if getattr(leaf, "dtype", None) == jax.dtypes.float0:
        return None
    return (
        jnp.asarray(leaf) if isinstance(leaf, (Box, jax.Array, np.ndarray, np.generic, float, complex, int)) else None
    )


def is_inexact(x: Any) -> bool:
    """Whether an array has a floating or complex dtype."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def arrays_of(tree: Any) -> Any:
    """The params that Equinox takes for such: None for the other leaves."""
    return eqx.filter(tree, eqx.is_inexact_array)


def parameters_of(tree: Any) -> Any:
    """The params without what no optimizer can do arithmetic on: None for functions, strings, keys and objects."""
    return eqx.filter(tree, lambda leaf: _is_number(value_of(leaf)))


def _is_number(x: Any) -> bool:
    return x is not None and bool(jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool)


def gradients(params: Any, step: int, dtype: Any = None, missing: str = "None", special: float = 0.0) -> Any:
    """A gradient for every leaf that has one.

    Args:
        params: any tree.
        step: the number of the step; each has other gradients.
        dtype: the dtype of the real ones; by default that of their params.
        missing: what stands for a leaf without a gradient. "None": as Equinox has it, so for Python numbers too.
            "float0": as JAX has it, for integers. "zeros": a zero for every number, but
            for an array of integers, which cannot have a gradient, None.
        special: replaces the first element of each gradient in the second step, where it is not 0.
    """

    def gradient(leaf: Any) -> Any:
        x = value_of(leaf)
        if not _is_number(x):
            return None if x is None or missing != "float0" else np.zeros(x.shape, jax.dtypes.float0)
        if missing == "None" and not (
            eqx.is_inexact_array(leaf) or (isinstance(leaf, (Box, jax.Ref)) and is_inexact(x))
        ):
            return None
        if not is_inexact(x):
            if missing == "float0":
                return np.zeros(x.shape, jax.dtypes.float0)
            return None if hasattr(leaf, "dtype") else jnp.zeros_like(x)
        g = jnp.cos(jnp.arange(x.size) + step).reshape(x.shape)
        if special and step == 1:
            g = jnp.where(jnp.arange(x.size).reshape(x.shape) == 0, special, g)
        return (g * (1 + 1j) if jnp.iscomplexobj(x) else g).astype(
            x.dtype if jnp.iscomplexobj(x) or dtype is None else dtype
        )

    return jax.tree.map(gradient, params)


def applied(library: Any, params: Any, updates: Any) -> Any:
    """The params of the next step, where they are not mutable: nothing can be added to such."""
    return params if any(map(is_ref, jax.tree.leaves(params))) else library.apply_updates(params, updates)


def traced_update(tx: Any, grads: Any, state: Any, params: Any) -> Any:
    """Shapes and dtypes of the updates and the state that come of a jitted update."""
    arrays, rest = eqx.partition((grads, state, params), eqx.is_array)

    def update(arrays: Any) -> Any:
        grads, state, params = eqx.combine(arrays, rest)
        return tx.update(grads, state, params, value=jnp.float32(1), grad=grads, value_fn=loss)

    with jax.disable_jit(False):
        return eqx.filter_eval_shape(update, arrays)


def loss(params: Any) -> Any:
    """The sum of the squares of all inexact arrays in f32."""
    values = jax.tree.leaves(arrays_of(params))
    wide = [jnp.abs(x.astype(jnp.complex64 if jnp.iscomplexobj(x) else jnp.float32)) for x in values]
    return sum((jnp.sum(x**2) for x in wide), jnp.zeros([]))


def _bit(path: Any, seed: int) -> bool:
    return bool(zlib.crc32(f"{seed}{_tree.keystr(path)}".encode()) % 2)


def mask(seed: int, depth: int | None = None) -> Callable[[Any], Any]:
    """A function from params to bools by key path; with `depth` 1, to one bool for each child of the root."""

    def of(params: Any) -> Any:
        def is_leaf(x: Any) -> bool:
            return depth is not None and x is not params

        return _tree.tree_map_with_path(lambda path, _: _bit(path, seed), params, is_leaf=is_leaf)

    return of


def labels(seed: int, depth: int | None = None) -> Callable[[Any], Any]:
    """As `mask`, with the labels "a" and "b"."""

    def of(params: Any) -> Any:
        return jax.tree.map(lambda bit: "a" if bit else "b", mask(seed, depth)(params))

    return of


def even(step: Any, **_: Any) -> Any:
    """A condition on the count of steps."""
    return step % 2 == 0


def always(step: Any, **_: Any) -> Any:
    """A condition that is always true."""
    return step >= 0


def falling(count: Any) -> Any:
    """A schedule."""
    return 0.1 / (1 + count)


class Counted(NamedTuple):
    """State of Python numbers."""

    steps: Any
    rate: Any


def counted() -> optax.GradientTransformation:
    """A transformation that a user may write, with Python numbers for its state."""

    def init(params: Any) -> Counted:
        del params
        return Counted(0, 0.5)

    def update(updates: Any, state: Counted, params: Any = None) -> tuple[Any, Counted]:
        del params
        return jax.tree.map(lambda g: g * -state.rate, updates), Counted(state.steps + 1, 0.9 * state.rate)

    return optax.GradientTransformation(init, update)
