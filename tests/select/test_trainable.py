"""`trainable`: which leaves it selects."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import treekit as tk
from treekit.testing import assert_trees_same


@tk.node
class Norm:
    scale: Any
    mean: Any = tk.field(trainable=False)


class Module(eqx.Module):
    weight: Any
    buffer: Any = eqx.field(metadata={"trainable": False})
    note: str = eqx.field(default="", static=True, metadata={"trainable": False})


@dataclasses.dataclass
class ByHand:
    """Registered by hand, with its children in another order."""

    weight: Any
    buffer: Any = dataclasses.field(metadata={"trainable": False})


register: Any = jax.tree_util.register_pytree_with_keys
register(
    ByHand,
    lambda x: ([(jax.tree_util.GetAttrKey(name), getattr(x, name)) for name in ("buffer", "weight")], None),
    lambda _, children: ByHand(children[1], children[0]),
)


class Frozen(eqx.Module):
    """As paramax's `NonTrainable`: all leaves in an instance are excluded."""

    __treekit_trainable__ = False
    tree: Any


class Thawed(Frozen):
    __treekit_trainable__ = True


ONE = jnp.ones(2)
CASES: dict[str, tuple[Any, Any]] = {
    "a node": (Norm(ONE, ONE), Norm(True, False)),
    "an Equinox module around it": (Module([Norm(ONE, ONE)], ONE), Module([Norm(True, False)], False)),
    "registered by hand": (ByHand(ONE, {"a": ONE}), ByHand(True, {"a": False})),
    "all below the field, None too": (Norm([None, ONE], {"a": [None, ONE]}), Norm([None, True], {"a": [None, False]})),
    "a class": ([Frozen({"a": ONE, "b": None}), ONE], [Frozen({"a": False, "b": None}), True]),
    "a subclass that is trained": (Thawed(ONE), Thawed(True)),
    "other leaves": (
        {
            "key": jax.random.key(0),
            "int": jnp.arange(2),
            "f": jnp.tanh,
            "float": Norm(1.0, 1.0),
            "name": "a",
            "none": None,
            "w": ONE,
        },
        {"key": False, "int": False, "f": False, "float": Norm(False, False), "name": False, "none": None, "w": True},
    ),
    "dtypes": ([ONE * 1j, np.ones(2), np.ones(2, ml_dtypes.bfloat16), jnp.bfloat16(1)], [True, True, True, True]),
    "shapes": (jax.eval_shape(lambda: Norm(ONE, ONE)), Norm(True, False)),
    "an array": (ONE, True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_leaves_that_can_be_trained(name: str) -> None:
    tree, expected = CASES[name]
    assert_trees_same(tk.trainable(tree), expected)
    assert_trees_same(tk.filter(tree, tk.trainable), tk.filter(tree, expected))


def test_an_attribute_that_is_set_later_counts() -> None:
    class Wrapper(eqx.Module):
        tree: Any

    tree = [Wrapper(ONE), ONE]
    assert jax.tree.leaves(tk.trainable(tree)) == [True, True]
    other: Any = Wrapper
    other.__treekit_trainable__ = False
    assert jax.tree.leaves(tk.trainable(tree)) == [False, True]


def test_is_leaf_is_followed() -> None:
    tree = [Norm(ONE, ONE), ONE]
    assert tk.trainable.of_leaves(tree, lambda x: isinstance(x, Norm)) == [False, True]
    kept = tk.filter(Norm((ONE,), (ONE,)), ~tk.trainable, is_leaf=lambda x: isinstance(x, tuple))
    assert kept.mean == (ONE,) and kept.scale == (ONE,)
