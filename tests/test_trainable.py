"""`trainable`: which leaves it selects; tests/optax/test_trainable.py has what optimizers do."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import treekit as tk


@tk.node
class Norm:
    scale: Any
    mean: Any = tk.field(trainable=False)


@tk.node
class Deeper(Norm):
    inner: Any = None


class Module(eqx.Module):
    weight: Any
    buffer: Any = eqx.field(metadata={"trainable": False})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weight: Any
    buffer: Any = dataclasses.field(metadata={"trainable": False})


ONE = jnp.ones(2)
CASES: dict[str, tuple[Any, Any]] = {
    "a node": (Norm(ONE, ONE), Norm(True, False)),
    "all that is below the field": (Norm(ONE, {"a": [ONE, ONE]}), Norm(True, {"a": [False, False]})),
    "a subclass": (Deeper(ONE, ONE, Norm(ONE, ONE)), Deeper(True, False, Norm(True, False))),
    "an Equinox module": (Module([Norm(ONE, ONE)], ONE), Module([Norm(True, False)], False)),
    "a registered dataclass": (Registered(ONE, ONE), Registered(True, False)),
    "other leaves": (
        {"key": jax.random.key(0), "int": jnp.arange(2), "f": jnp.tanh, "float": 1.0, "name": "a", "none": None},
        {"key": False, "int": False, "f": False, "float": False, "name": False, "none": None},
    ),
    "dtypes": ([ONE * 1j, np.ones(2), np.ones(2, ml_dtypes.bfloat16), jnp.bfloat16(1)], [True, True, True, True]),
    "shapes": (jax.eval_shape(lambda: Norm(ONE, ONE)), Norm(True, False)),
    "an array": (ONE, True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_leaves_that_can_be_trained(name: str) -> None:
    tree, expected = CASES[name]
    tk.assert_trees_same(tk.trainable(tree), expected)
    kept, others = tk.partition(tree, tk.trainable)
    tk.assert_trees_same(tk.combine(kept, others), tree)
    tk.assert_trees_same(kept, tk.filter(tree, tk.trainable))


def test_under_transformations() -> None:
    def masks(tree: Any) -> Any:
        return jax.tree.map(jnp.asarray, tk.trainable(tree))

    tk.assert_trees_same(jax.jit(masks)(Norm(ONE, ONE)), Norm(jnp.array(True), jnp.array(False)))


def test_a_static_field_is_never_trained_so_it_cannot_be_marked() -> None:
    with pytest.raises(TypeError, match=r"field\(static=True, trainable=False\): a static value is not a leaf"):
        tk.field(static=True, trainable=False)
