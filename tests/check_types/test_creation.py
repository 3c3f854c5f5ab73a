"""node(check=True): fields are checked when a node is created."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

import treekit as tk
from tests.check_types.nodes import FIVE, ONE, ONES, WORD, Linear, linear


def two_zeros(x: Any) -> Any:
    return jnp.zeros(2) if x is ONE else x


@tk.node(check=True)
class Checked:
    weight: Float[Array, "dout din"]
    bias: Float[Array, "dout"] = tk.field(default_factory=lambda: ONE, converter=two_zeros)
    rate: float = 0.5

    def __check_init__(self) -> None:
        assert self.weight.shape[0] == self.bias.shape[0], "checked before"


def test_creation_checks_defaults_and_what_converters_and_init_store() -> None:
    made = Checked(jnp.ones((2, 3)))
    assert made.bias.shape == (2,)
    with pytest.raises(TypeError, match=r"^creating Checked: 1 field is not .*:\nbias   float32\[2\]   is not Float"):
        Checked(jnp.ones((3, 3)))
    with pytest.raises(TypeError, match=r"creating Checked: 1 field is not .*:\nrate   str   is not float   \(dout=2"):
        Checked(jnp.ones((2, 3)), rate=WORD)

    @tk.node(check=True)
    class Written:
        total: Float[Array, ""]

        def __init__(self, values: Array) -> None:
            self.total = values

    with pytest.raises(TypeError, match=r"total   float32\[2\]   is not Float\[Array, ''\]$"):
        Written(ONES)


def test_rebuilding_checks_nothing() -> None:
    made = Checked(jnp.ones((2, 3)))
    assert tk.tree_at(lambda c: c.bias, made, None).bias is None
    assert jax.vmap(lambda x: Checked(x))(jnp.ones((4, 2, 3))).weight.shape == (4, 2, 3)
    wrong = tk.replace(made, bias=FIVE)
    for again in (copy.copy(wrong), copy.deepcopy(wrong), pickle.loads(pickle.dumps(wrong))):
        assert again.bias.shape == (5,)


def test_nodes_inside_are_checked_with_it_and_subclasses_ask_for_themselves() -> None:
    @tk.node(check=True)
    class Outer:
        inner: Any

    Outer(linear())
    with pytest.raises(TypeError, match=r"creating .*Outer: 1 field .*:\ninner\.bias"):
        Outer(Linear(jnp.ones((5, 3)), ONES))

    @tk.node
    class Loose(Checked):
        pass

    @tk.node(check=True)
    class Strict(Loose):
        pass

    assert Loose(jnp.ones((2, 3)), rate=WORD).rate is WORD
    with pytest.raises(TypeError, match=r"creating .*Strict: "):
        Strict(jnp.ones((2, 3)), rate=WORD)
