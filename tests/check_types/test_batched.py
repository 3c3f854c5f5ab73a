"""Batched: the arrays of an argument have more axes first, and its fields are checked without them."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Key

import treekit as tk
from tests.check_types.nodes import FIVE, Linear, T, blamed, checked, fits, linear, network
from treekit.typing import Batched, Typed

batched: Any = Batched


@tk.node
class Mixed:
    """Leaves of several kinds, a size of its own, and a static field."""

    numpy: Float[np.ndarray, "n d"]
    key: Key[Array, ""]
    inner: Linear
    rate: float
    mean: float = 0.5
    n: int = tk.field(default=4, static=True)
    sized: Float[Array, "{self.n}"] | None = None


def mixed(*first: int) -> Mixed:
    keys = jax.random.split(jax.random.key(0), first)
    rate: Any = jnp.ones(first)
    inner = Linear(jnp.ones((*first, 5, 3)), jnp.ones((*first, 5)))
    return Mixed(np.ones((*first, 2, 3)), keys, inner, rate, sized=jnp.ones((*first, 4)))


@checked
def ensemble(models: Batched[Linear, "n"], x: Float[Array, "n din"]) -> Float[Array, "n dout"]:
    def one(model: Typed[Linear], x: Float[Array, "din"]) -> Float[Array, "dout"]:
        return model.weight @ x

    return jax.vmap(checked(one))(models, x)


def wide(n: int) -> Linear:
    return tk.tree_stack([linear()] * n)


def test_in_a_signature_axes_and_fields_are_sizes_of_the_call() -> None:
    assert ensemble(wide(7), jnp.ones((7, 3))).shape == (7, 5)
    assert jax.jit(ensemble)(wide(7), jnp.ones((7, 3))).shape == (7, 5)
    for models, x, parameter in (
        (linear(), jnp.ones((7, 3)), "models"),
        (Linear(jnp.ones((7, 5, 3)), jnp.ones((7, 4))), jnp.ones((7, 3)), "models"),
        (wide(7), jnp.ones((6, 3)), "x"),
        (wide(7), jnp.ones((7, 4)), "x"),
    ):
        assert blamed(ensemble, models, x)[0] == parameter


def test_the_axis_is_gone_inside_vmap() -> None:
    @checked
    def one(model: Typed[Linear]) -> Batched[Linear, "copies"]:
        return tk.tree_stack([model, model])

    @checked
    def again(model: Batched[Linear, "copies"]) -> Batched[Linear, "copies"]:
        return model

    assert jax.vmap(one)(wide(3)).weight.shape == (3, 2, 5, 3)
    assert jax.vmap(again)(jax.vmap(one)(wide(3))).weight.shape == (3, 2, 5, 3)
    assert blamed(jax.vmap(again), wide(3))[0] == "model"


@pytest.mark.parametrize(
    ("x", "cls", "axes", "right"),
    [
        (mixed(3), Mixed, "a", True),
        (mixed(2), Mixed, "n", True),  # a name that a field has too is one size
        (mixed(3), Mixed, "n", False),
        (mixed(3, 2), Mixed, "a b", True),
        (mixed(3, 2), Mixed, "a a", False),
        (mixed(3, 2), Mixed, "4 _", False),
        (mixed(3), Mixed, "a b", False),
        (mixed(0), Mixed, "a", True),
        (wide(2), "Linear", "a", True),
        (wide(2), "Mixed", "a", False),
        ({"w": jnp.ones(2)}, dict, "a", False),
        (tk.tree_stack([network()] * 2), type(network()), "a", True),
    ],
)
def test_every_array_has_the_axes_first(x: Any, cls: Any, axes: str, right: bool) -> None:
    assert fits(x, batched[cls, axes]) is right
    assert fits(x, batched[cls, axes] | None) is right


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (linear(), r"without the first axes of its arrays, 'n': 2 fields .*\nweight   float\d+\[3\]   is not"),
        (Linear(jnp.ones((2, 5, 3)), FIVE), r"the first axes of bias, float\d+\[5\], are not 'n'   \(n=2\)"),
        (Linear(jnp.ones((2, 5, 3)), jnp.ones(())), r"the first axes of bias, float\d+\[\], are not 'n'   \(n=2\)"),
        (Linear(jnp.ones((2, 5, 3)), jnp.ones((2, 4))), r"without the first axes of its arrays, 'n': 1 field .*\nbias"),
        (3, "int is not Linear"),
    ],
)
def test_the_message_names_the_leaf(model: Any, words: str) -> None:
    parameter, why = blamed(ensemble, model, jnp.ones((2, 3)))
    assert parameter == "models" and re.search(words, why)


ONE_CLASS = r"Batched takes one class, or its name in quotes, found .* Write Batched\[A\]"
CLASS_AND_AXES = r'takes a class and its first axes, such as Batched\[Linear, "batch"\]'
PARTS: list[Any] = [Linear, (Linear,), (Linear, 3), (Linear, ""), (Linear, "*batch"), (Linear, "... n")]


@pytest.mark.parametrize(
    "parts, message",
    [*((part, CLASS_AND_AXES) for part in PARTS), *(((of, "batch"), ONE_CLASS) for of in (Linear | None, T, 3))],
)
def test_it_takes_one_class_and_axes(parts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        batched[parts]
