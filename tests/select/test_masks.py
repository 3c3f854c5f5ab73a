"""leaf_mask, and what `&`, `|` and `~` make of it with path_mask and trainable."""

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.releases import needs
from tests.trees import untyped
from treekit import optax as tko


def is_matrix(x: Any) -> bool:
    return bool(x.ndim > 1)


@tk.node
class Layer:
    w: jax.Array
    b: jax.Array
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    mean: jax.Array = tk.field(default_factory=lambda: jnp.zeros((1, 1)), trainable=False)


MATRIX: Any = jnp.ones((2, 2))
# A tree, and where its arrays are matrices.
TREES: dict[str, tuple[Any, Any]] = {
    "arrays": ({"w": MATRIX, "b": jnp.ones(2)}, {"w": True, "b": False}),
    "NumPy": ([np.ones((2, 2)), np.ones(2), np.ones((1, 1), ml_dtypes.bfloat16)], [True, False, True]),
    "other leaves": ((MATRIX, len, "name", 1, True, b"2", object), (True, *[False] * 6)),
    "None": ({"w": MATRIX, "n": None}, {"w": True, "n": None}),
    "empty": ({"a": {}, "b": ()}, {"a": {}, "b": ()}),
    "shapes": (
        [untyped.ShapeDtypeStruct((2, 2), jnp.float32), untyped.ShapeDtypeStruct((), jnp.float32)],
        [True, False],
    ),
    "one array": (MATRIX, True),
    "one function": (len, False),
}


@pytest.mark.parametrize("name", TREES)
def test_it_asks_about_arrays_only_and_other_leaves_are_false_also_in_the_inverse(name: str) -> None:
    tree, expected = TREES[name]
    asked: list[Any] = []

    def ask(x: Any) -> bool:
        asked.append(x)
        return is_matrix(x)

    assert tk.leaf_mask(ask)(tree) == expected
    arrays = [x for x in jax.tree.leaves(tree) if tk.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)]
    assert len(asked) == len(arrays) and all(map(operator.is_, asked, arrays))
    of_arrays = [tk.is_array(x) or isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(tree)]
    both = zip(jax.tree.leaves(expected), jax.tree.leaves((~tk.leaf_mask(is_matrix))(tree)), of_arrays, strict=True)
    assert all((yes, no) == ((yes, not yes) if is_array else (False, False)) for yes, no, is_array in both)
    assert (~~tk.leaf_mask(is_matrix))(tree) == expected


def test_numbers_that_can_be_trained_are_arrays() -> None:
    tree = {"w": MATRIX, "x": 1.0, "y": [2j], "n": 1, "o": eqx.nn.Dropout(0.5)}
    mask = tk.leaf_mask(lambda x: x.ndim == 0)
    assert jax.tree.leaves(mask(tree)) == [False] * 4 + [True, True]


@pytest.mark.parametrize("make", [eqx.nn.MLP, nnx.Linear])
def test_in_a_model_it_is_the_tree_of_bools_that_one_writes_by_hand(make: Any) -> None:
    of_eqx = make is eqx.nn.MLP
    model: Any = make(2, 1, 3, 1, key=jax.random.key(0)) if of_eqx else nnx.state(make(2, 3, rngs=nnx.Rngs(0)))
    by_hand = jax.tree.map(lambda x: eqx.is_array(x) and is_matrix(x), model)
    assert jax.tree.leaves(tk.leaf_mask(is_matrix)(model)) == jax.tree.leaves(by_hand)
    kept = jax.tree.leaves(tk.filter(model, tk.leaf_mask(is_matrix)))
    assert [x.shape for x in kept] == [x.shape for x in jax.tree.leaves(model) if eqx.is_array(x) and is_matrix(x)]


LAYER = Layer(MATRIX, jnp.ones(2))
MASKS: dict[str, Any] = {
    "leaf": tk.leaf_mask(is_matrix),
    "path": tk.path_mask("w", "mean"),
    "class": tk.path_mask(Layer),
    "trainable": tk.trainable,
}
ARRAYS = ("w", "b", "mean")


@pytest.mark.parametrize("right", MASKS)
@pytest.mark.parametrize("left", MASKS)
def test_masks_combine_as_bools_do_at_every_array(left: str, right: str) -> None:
    a, b = MASKS[left], MASKS[right]
    for name in ARRAYS:
        x, y = (getattr(mask(LAYER), name) for mask in (a, b))
        found = [getattr(mask(LAYER), name) for mask in (a & b, a | b, ~a, ~(a & b), ~a | ~b, a & ~b)]
        assert found == [x and y, x or y, not x, not (x and y), not (x and y), x and not y]


def test_what_no_path_selects_is_still_false_where_a_leaf_mask_does_not_ask() -> None:
    of_matrices, of_function = tk.leaf_mask(is_matrix), tk.path_mask("activation")
    masks = (of_matrices | of_function, of_matrices & of_function, ~of_matrices & of_function)
    assert [tk.tree_find(mask(LAYER), "activation")["activation"] for mask in masks] == [True, False, False]


@needs("jax.new_ref")
def test_a_ref_counts_as_its_array() -> None:
    model = {"w": jax.new_ref(jnp.ones((2, 2))), "b": jax.new_ref(jnp.ones(2)), "f": len}
    mask = tk.leaf_mask(is_matrix)
    assert mask(model) == {"w": True, "b": False, "f": False}
    assert (~mask)(model) == {"w": False, "b": True, "f": False}


def test_the_advice_of_an_error_is_about_arrays_only_also_in_a_tree_of_arrays() -> None:
    mask = tk.leaf_mask(lambda x: x.absent)
    for tree in ({"w": jnp.ones(2)}, {"w": jnp.ones(2), "f": len}):
        with pytest.raises(ValueError, match=r"leaf w .*every array$"):
            mask(tree)


def test_equal_ones_are_equal_and_survive_a_copy() -> None:
    made = [
        tk.leaf_mask(is_matrix),
        tk.leaf_mask(is_matrix) & ~tk.path_mask("w"),
        ~tk.leaf_mask(is_matrix),
        tk.trainable,
    ]
    for mask in made:
        for other in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)):
            assert other == mask and hash(other) == hash(mask)
    # As the static part of a node, which JAX compares by `!=`.
    nodes: list[Any] = [untyped.tree_util.Partial(x) for mask in made for x in (mask, copy.deepcopy(mask))]
    traced: list[Any] = []
    f = jax.jit(traced.append)
    for x in nodes:
        f(x)
    assert len(traced) == len({*map(jax.tree.structure, nodes)}) == len(made)
    assert len({*made}) == len(made) and tk.leaf_mask(is_matrix) in made
    assert not tk.leaf_mask(is_matrix) == tk.leaf_mask(lambda x: x.ndim > 1)
    assert "is_matrix" in repr(made[0]) and "path_mask('w')" in repr(made[1])


# Every argument that is a mask.
ACCEPT: dict[str, Callable[[Any], Any]] = {
    "masked": lambda mask: tko.masked(tko.set_to_zero(), ~mask),
    "adamw": lambda mask: tko.chain(tko.set_to_zero(), tko.adamw(1.0, weight_decay=1.0, mask=mask)),
    "freeze": lambda mask: tko.transforms.freeze(~mask),
    "selective_transform": lambda mask: tko.transforms.selective_transform(tko.sgd(1.0), freeze_mask=~mask),
    "partition": lambda mask: tko.partition({True: tko.sgd(1.0), False: tko.set_to_zero()}, mask),
    "inject_hyperparams": lambda mask: tko.chain(
        tko.set_to_zero(), tko.inject_hyperparams(tko.adamw)(1.0, weight_decay=1.0, mask=mask)
    ),
    "MultiSteps": lambda mask: tko.MultiSteps(tko.transforms.selective_transform(tko.sgd(1.0), freeze_mask=~mask), 1),
    "in plain Optax": lambda mask: optax.masked(optax.set_to_zero(), ~mask),
}


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("name", ACCEPT)
def test_every_mask_of_optax_may_be_one(name: str, jitted: bool) -> None:
    params = {"embed": jnp.ones((3, 2)), "w": MATRIX, "b": jnp.ones(2)}
    mask = tk.leaf_mask(is_matrix) & ~tk.path_mask("embed")
    with jax.numpy_dtype_promotion("standard"):  # for Optax's own arithmetic
        tx = ACCEPT[name](mask)
        update = jax.jit(tx.update) if jitted else tx.update
        updates, _ = update(params, tx.init(params), params)
    assert {key: bool(x.any()) for key, x in updates.items()} == {"embed": False, "w": True, "b": False}
