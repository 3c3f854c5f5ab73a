"""tree_shared: which leaves share memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.trees import deleted, untyped
from treekit.testing import tree_shared

ONE = jnp.ones((4, 2))
BUFFER = np.arange(12.0).reshape(3, 4)
KEY = jax.random.key(0)
DELETED = deleted()
CASES: dict[str, tuple[Any, dict[str, list[str]]]] = {
    "none": ({"a": ONE, "b": jnp.ones((4, 2)), "c": 1.0, "d": "x", "e": None, "f": jnp.tanh}, {}),
    "one object": ({"embed": ONE, "head": {"w": ONE}, "b": jnp.ones(2)}, {"embed": ["head.w"]}),
    "another object with the same buffer": ([ONE, jax.device_put(ONE), jnp.copy(ONE)], {"0": ["1"]}),
    "views of NumPy": ([BUFFER, BUFFER[1:], BUFFER.T, BUFFER.copy()], {"0": ["1", "2"]}),
    "two groups": ([ONE, KEY, ONE, jnp.ones(2), KEY, ONE], {"0": ["2", "5"], "1": ["4"]}),
    "views that interleave": ([BUFFER[:, ::2], BUFFER[:, 1::2]], {}),
    "views that meet through a third": ([BUFFER[1:], BUFFER[0], BUFFER[:2]], {"0": ["1", "2"]}),
    "empty": ([jnp.zeros(0), np.zeros(0), jnp.zeros((0, 3)), np.zeros(0)], {}),
    "deleted": ([DELETED, DELETED], {}),
    "shapes": ([untyped.ShapeDtypeStruct((2,), jnp.float32)] * 2, {}),
    "names that occur twice": (
        {"a": {"b": ONE}, "a.b": KEY, "c": ONE, "d": KEY},
        {"['a']['b']": ["c"], "['a.b']": ["d"]},
    ),
    "variables of Flax": (nnx.State({"a": nnx.Param(ONE), "b": nnx.Param(ONE)}), {"a": ["b"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_which_leaves_share_memory(case: str) -> None:
    tree, expected = CASES[case]
    found = tree_shared(tree)
    assert found == expected and list(found) == list(expected)
