"""Errors and reports write the name of a leaf as patterns do, so that it can be given back to them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from treekit import optax as tko

NAME = "layers.1.w"


def tree(leaf: Any) -> Any:
    return {"layers": [{"w": jnp.ones(2)}, {"w": leaf}]}


MODEL = tree(jnp.ones(2))
WRONG: dict[str, Callable[[], Any]] = {
    "apply_updates": lambda: tko.apply_updates(MODEL, tree(jnp.ones(3))),
    "dtype_preserving_tree_map": lambda: tk.dtype_preserving_tree_map(lambda x: x / 2, tree(np.ones(2, int))),
    "filter": lambda: tk.filter(MODEL, tree("yes")),
    "graft": lambda: tk.graft(MODEL, tree(jnp.ones(3))),
    "incremental_update": lambda: tko.incremental_update(MODEL, tree(jnp.ones(3)), 0.5),
    "masked": lambda: tko.masked(tko.sgd(0.1), tree(0.5)).init(MODEL),
    "masked, another structure": lambda: tko.masked(tko.sgd(0.1), tree([True])).init(MODEL),
    "of objects": lambda: tko.sgd(0.1).init(tree(np.array([None]))),
    "partition": lambda: tko.partition({"a": tko.sgd(0.1)}, jax.tree.map(lambda _: "a", MODEL) | tree("b")).init(MODEL),
    "rates": lambda: tko.scale_by_tree(tree("fast")).init(MODEL),
    "state_dtype": lambda: tko.dtype_preserving(tko.adam(0.1), state_dtype=jnp.bfloat16).update(
        MODEL, optax.adam(0.1).init(MODEL), MODEL
    ),
    "tree_stack": lambda: tk.tree_stack([MODEL, tree(jnp.ones(3))]),
    "tree_unstack": lambda: tk.tree_unstack(tree(jnp.ones(3))),
    "update, another shape": lambda: tko.adam(0.1).update(tree(jnp.ones(3)), tko.adam(0.1).init(MODEL), MODEL),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_the_leaf(case: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"\blayers\.[01]\.w\b") as caught:
        WRONG[case]()
    assert "['" not in str(caught.value).partition("\nIt led to")[0]


def test_reports_name_leaves_as_patterns_do() -> None:
    other = tree(jnp.zeros(2))
    assert [difference.path for difference in tk.tree_diff(MODEL, other)] == [NAME]
    assert tko.summary(tko.sgd(0.1), MODEL).rows[1].path == NAME
    assert tk.tree_summary(MODEL).rows[1].name == NAME
    assert list(tk.tree_find(MODEL, NAME)) == [NAME] == list(tk.to_state_dict(MODEL))[1:]
