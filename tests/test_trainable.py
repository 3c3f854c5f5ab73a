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


class Module(eqx.Module):
    weight: Any
    buffer: Any = eqx.field(metadata={"trainable": False})


def by_hand(keys: Any) -> Any:
    """A dataclass that is registered by hand, with these keys."""

    @dataclasses.dataclass
    class ByHand:
        weight: Any
        buffer: Any = dataclasses.field(metadata={"trainable": False})

    def children(x: Any) -> Any:
        return (x.buffer, x.weight), None

    def rebuild(_: Any, found: Any) -> Any:
        return ByHand(found[1], found[0])

    if keys is None:
        jax.tree_util.register_pytree_node(ByHand, children, rebuild)
    else:
        jax.tree_util.register_pytree_with_keys(
            ByHand, lambda x: (tuple(zip(keys, children(x)[0], strict=True)), None), rebuild, children
        )
    return ByHand


class Frozen(eqx.Module):
    """As paramax's `NonTrainable`: all leaves in an instance are excluded."""

    __treekit_trainable__ = False
    tree: Any


class Thawed(Frozen):
    __treekit_trainable__ = True


ATTRIBUTES = by_hand([jax.tree_util.GetAttrKey("buffer"), jax.tree_util.GetAttrKey("weight")])
ONE = jnp.ones(2)
CASES: dict[str, tuple[Any, Any]] = {
    "a node": (Norm(ONE, ONE), Norm(True, False)),
    "an Equinox module around it": (Module([Norm(ONE, ONE)], ONE), Module([Norm(True, False)], False)),
    "registered by hand": (ATTRIBUTES(ONE, {"a": ONE}), ATTRIBUTES(True, {"a": False})),
    "all below the field, None too": (Norm([None, ONE], {"a": [None, ONE]}), Norm([None, True], {"a": [None, False]})),
    "a class": ([Frozen({"a": ONE, "b": None}), ONE], [Frozen({"a": False, "b": None}), True]),
    "a subclass that is trained": (Thawed(ONE), Thawed(True)),
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


def test_a_static_field_is_never_trained_so_it_cannot_be_marked() -> None:
    with pytest.raises(TypeError, match=r"field\(static=True, trainable=False\): a static value is not a leaf"):
        tk.field(static=True, trainable=False)


def test_an_attribute_that_is_set_later_counts() -> None:
    class Wrapper(eqx.Module):
        tree: Any

    tree = [Wrapper(ONE), ONE]
    assert jax.tree.leaves(tk.trainable(tree)) == [True, True]
    other: Any = Wrapper
    other.__treekit_trainable__ = False
    assert jax.tree.leaves(tk.trainable(tree)) == [False, True]


@pytest.mark.parametrize("keys", (None, [jax.tree_util.GetAttrKey("b"), jax.tree_util.GetAttrKey("weight")]))
def test_a_field_that_is_not_found_among_the_children_raises(keys: Any) -> None:
    with pytest.raises(TypeError, match=r"ByHand.buffer is declared with .*keys (0, 1|b, weight), and.*register_node"):
        tk.trainable({"a": by_hand(keys)(ONE, ONE)})


def test_is_leaf_is_followed() -> None:
    tree = [Norm(ONE, ONE), ONE]
    assert tk.trainable.of_leaves(tree, lambda x: isinstance(x, Norm)) == [False, True]
    kept = tk.filter(Norm((ONE,), (ONE,)), ~tk.trainable, is_leaf=lambda x: isinstance(x, tuple))
    assert kept.mean == (ONE,) and kept.scale == (ONE,)
