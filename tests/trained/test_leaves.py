"""Which leaves are trained? `trainable`, the boundary of optimizers, files and summaries give one answer."""

import collections
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import freeze

import treekit as tk
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same


class Pair(NamedTuple):
    a: Any
    b: Any


class Buffer(nnx.Variable[jax.Array]):
    """A class of variables of a user's own."""


class Chosen(nnx.Variable[jax.Array]):
    """One whose class says that it is trained."""

    __treekit_trainable__ = True


@tk.node
class Scale:
    factor: Any
    mean: Any = tk.field(trainable=False, default=None)


@tk.node
class Fixed:
    """A class of which nothing is trained."""

    w: Any
    __treekit_trainable__ = False


class Module(nnx.Module):
    """A module with all kinds of leaves."""

    def __init__(self) -> None:
        self.own = Buffer(jnp.ones(2))
        self.chosen = Chosen(jnp.ones(2))
        self.param = nnx.Param(jnp.ones(2))
        self.pair = nnx.Param(Scale(jnp.ones(2), jnp.ones(2)))
        self.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        self.bare = nnx.data(jnp.ones(2))
        self.fixed = nnx.data(Fixed(nnx.Param(jnp.ones(2))))


ARRAY = np.ones(2, np.float32)
# A tree, and the names of its leaves that are trained.
TREES: dict[str, tuple[Any, set[str]]] = {
    "numbers in plain containers": (
        {"w": ARRAY, "l": [1.0, (2.0, 1j)], "n": Pair(3.0, 1), "o": collections.OrderedDict(x=1.0)},
        {"w", "l.0", "l.1.0", "l.1.1", "n.a", "o.x"},
    ),
    "a frozen dict": (freeze({"w": ARRAY, "x": {"y": 1.0}}), {"w", "x.y"}),
    "a number in a class is a setting": ({"w": ARRAY, "x": Scale(1.0), "y": eqx.nn.Dropout(0.5)}, {"w"}),
    "containers in a class": ({"w": ARRAY, "x": Scale({"y": 1.0, "z": [2.0]})}, {"w"}),
    "no array: the numbers of a class": ({"x": Scale(1.0), "n": 1, "b": True}, {"x.factor"}),
    "no array: not those that it declares frozen": (Scale(1.0, 2.0), {"factor"}),
    "integers, bools, strings, None, functions": (
        {"w": ARRAY, "n": 3, "b": True, "s": "x", "f": len, "o": None},
        {"w"},
    ),
    "NumPy": ({"w": np.float64(1.0), "n": np.int32(1)}, {"w"}),
    "fields and classes that are frozen": (
        {"a": Scale(ARRAY, ARRAY), "b": Fixed({"c": ARRAY}), "d": Scale(Fixed(ARRAY), ARRAY)},
        {"a.factor"},
    ),
    "a module of Flax": (Module(), {"chosen", "param", "pair.factor", "norm.scale", "norm.bias"}),
    "a module in a dict": ({"m": nnx.Linear(1, 1, rngs=nnx.Rngs(0)), "x": 1.0}, {"m.kernel", "m.bias", "x"}),
    "a state of Flax": (nnx.state(Module(), Buffer), {"own"}),
    "numbers in variables": ({"p": nnx.Param(2.0), "w": ARRAY}, {"p", "w"}),
    "numbers that JAX's transforms return": (
        jax.vjp(lambda x: (x, x), {"w": jnp.asarray(ARRAY), "x": 1.0}, has_aux=True)[2],  # JAX 0.8 wraps NumPy's
        {"w", "x"},
    ),
}


def true_names(mask: Any) -> set[str]:
    """The names of the leaves of a mask that are True."""
    paths = jax.tree_util.tree_flatten_with_path(mask)[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator=".").replace(".value", "") for path, x in paths if x is True
    }


@pytest.mark.parametrize("case", TREES)
def test_everybody_who_asks_gets_one_answer(case: str) -> None:
    tree, expected = TREES[case]
    assert true_names(tk.trainable(tree)) == expected
    state: Any = tko.sgd(0.1, momentum=0.9).init(tree)
    assert {x.replace(".value", "") for x in tk.to_state_dict(state[0].trace)} == expected
    rows = training.summary(tko.sgd(0.1), tree).rows
    assert {row.path.replace(".value", "") for row in rows if row.step} == expected


PLAIN: dict[str, Any] = {
    "multipliers beside arrays": {"w": jnp.ones(3), "multipliers": (1.0, 2.0)},
    "numbers alone": {"a": 1.0, "b": [2.0]},
    "complex": {"w": jnp.ones(2, jnp.complex64), "x": [1 + 2j]},
    "one number": 1.0,
}


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("case", PLAIN)
def test_numbers_are_trained_as_by_optax(case: str, jitted: bool) -> None:
    """Updates, the structure of the state and the new params are Optax's, and masks see arrays."""

    def scalars(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.ndim(x) == 0, tree)

    def steps(library: Any, params: Any) -> Any:
        tx = library.adamw(0.1, weight_decay=0.5, mask=scalars)
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
            params = library.apply_updates(params, updates)
        return params, state

    # Optax computes 1 - b1 ** count, of a float and an integer.
    with jax.numpy_dtype_promotion("standard"):
        ours, theirs = [(jax.jit(steps, static_argnums=0) if jitted else steps)(x, PLAIN[case]) for x in (tko, optax)]
    # Under `jit`, numbers are weakly typed, which treekit preserves, so that a step is traced once.
    assert_trees_same(*jax.tree.map(lambda x: x.astype(x.dtype), (ours, theirs)))


def test_a_number_that_is_trained_is_saved_and_loaded() -> None:
    params = {"w": jnp.ones(2), "multipliers": (1.5, 2.0), "layer": Scale(0.5)}
    saved = tk.to_state_dict(params)
    assert list(saved) == ["multipliers.0", "multipliers.1", "w"]
    fresh: Any = {"w": jnp.zeros(2), "multipliers": (0.0, 0.0), "layer": Scale(0.25)}
    new, _ = tk.graft(fresh, saved)
    assert (float(new["multipliers"][0]), new["layer"].factor) == (1.5, 0.25)
    with pytest.raises(ValueError, match=r"multipliers\.0"):
        tk.graft(params, {"w": jnp.ones(2), "multipliers.1": jnp.ones(())})


@dataclasses.dataclass(frozen=True)
class Unregistered:
    """An object that is a leaf, of a class that declares something."""

    w: Any
    __treekit_trainable__ = False


def test_a_leaf_is_one_answer_whatever_its_class_declares() -> None:
    assert tk.trainable({"x": Unregistered(1), "w": jnp.ones(2)}) == {"x": False, "w": True}
