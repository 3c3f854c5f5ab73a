"""Errors and reports write the name of a leaf as patterns do, so that it can be given back to them."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import treekit as tk
from tests.trees import Box
from treekit import optax as tko


def tree(leaf: Any) -> Any:
    return {"layers": [{"w": jnp.ones(2)}, {"w": leaf}]}


MODEL = tree(jnp.ones(2))
WRONG: dict[str, Callable[[], Any]] = {
    "dtype_preserving_tree_map": lambda: tk.dtype_preserving_tree_map(lambda x: x / 2, tree(np.ones(2, int))),
    "filter": lambda: tk.filter(MODEL, tree("yes")),
    "incremental_update": lambda: tko.incremental_update(MODEL, tree(jnp.ones(3)), 0.5),
    "masked, another structure": lambda: tko.masked(tko.sgd(0.1), tree([True])).init(MODEL),
    "rates": lambda: tko.scale_by_tree(tree("fast")).init(MODEL),
    "tree_unstack": lambda: tk.tree_unstack(tree(jnp.ones(3))),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_the_leaf(case: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"\blayers\.[01]\.w\b") as caught:
        WRONG[case]()
    assert "['" not in str(caught.value).partition("\nIt led to")[0]


class Net(nnx.Module):
    def __init__(self) -> None:
        self.lin = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        self.pair = nnx.Param((jnp.ones(2), {"b": jnp.ones(3)}))


# Trees, with variables of Flax among them, and the names of their leaves in order: a variable and its value have one.
TREES: dict[str, tuple[Any, list[str]]] = {
    "keys and indices": (MODEL, ["layers.0.w", "layers.1.w"]),
    "a module": (Net(), ["lin.bias", "lin.kernel", "pair.0", "pair.1.b"]),
    "a state": (nnx.state(Net()), ["lin.bias", "lin.kernel", "pair.0", "pair.1.b"]),
    "variables in a dict": ({"a": nnx.Param(jnp.ones(2)), "value": jnp.ones(3)}, ["a", "value"]),
    "fields called value": ({"a": Box(jnp.ones(2)), "b": nnx.Param(jnp.ones(3))}, ["a.value", "b"]),
}


# What names the leaf of a tree with this name.
NAMED: dict[str, Callable[[Any, str], Any]] = {
    "path_mask": lambda tree, name: tk.path_mask(name).of_leaves(tree, None),
    "path_labels": lambda tree, name: tk.path_labels({name: True}, default=False).of_leaves(tree, None),
}
LISTED: dict[str, Callable[[Any], list[str]]] = {
    "tree_find": lambda tree: list(tk.tree_find(tree, "**")),
    "tree_summary": lambda tree: [row.name for row in tk.tree_summary(tree).rows],
    "to_state_dict": lambda tree: list(tk.to_state_dict(tree)),
    "tree_diff": lambda tree: [found.path for found in tk.tree_diff(tree, jax.tree.map(lambda x: x + 1, tree))],
    "summary": lambda tree: [row.path for row in tko.summary(tko.adam(0.1), tree).rows],
}


# What raises for a tree whose leaf with this name is wrong, and names it.
ADAM = tko.adam(0.1)
MISTAKES: dict[str, Callable[[Any, Any, str], Any]] = {
    "apply_gradients": lambda tree, wrong, name: tko.apply_gradients(ADAM, wrong, ADAM.init(tree), tree),
    "update": lambda tree, wrong, name: ADAM.update(wrong, ADAM.init(tree), tree),
    "apply_updates": lambda tree, wrong, name: tko.apply_updates(tree, wrong),
    "graft": lambda tree, wrong, name: tk.graft(tree, wrong, strict=True),
    "tree_stack": lambda tree, wrong, name: tk.tree_stack([tree, wrong]),
    "partition": lambda tree, wrong, name: tko.partition(
        {"a": ADAM}, tk.path_labels({name: "b"}, default="a")(tree)
    ).init(tree),
    "masked": lambda tree, wrong, name: tko.masked(ADAM, tk.path_labels({name: "x"}, default=True)(tree)).init(tree),
}


@pytest.mark.parametrize("case", TREES)
def test_a_leaf_has_one_name(case: str) -> None:
    tree, names = TREES[case]
    for how, found in LISTED.items():
        assert [x for x in found(tree) if x in names] == names, how
        assert not any(name.endswith("value") for name in found(tree) if name not in names), how
    leaves = jax.tree.leaves(tree)
    for i, name in enumerate(names):
        for how, select in NAMED.items():
            assert select(tree, name) == [j == i for j in range(len(names))], how
        (node,) = tk.tree_find(tree, name).values()
        assert node is leaves[i]
        replaced = jax.tree.leaves(tk.tree_at(name, tree, jnp.zeros(())))
        assert [x.shape == () for x in replaced] == [j == i for j in range(len(names))]
        wrong = tk.tree_at(name, tree, replace_fn=lambda x: jnp.zeros((7, *x.shape)))
        for mistake in MISTAKES.values():
            with pytest.raises((ValueError, TypeError), match=rf"(^|[\s'(]){re.escape(name)}($|[\s,:;'.)](?!value))"):
                mistake(tree, wrong, name)
