"""Nodes, types and values that several of these tests use."""

import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import beartype
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

import treekit as tk
from treekit import check_types

T = TypeVar("T")
old: Any = typing  # for how types were written once
checked = jaxtyped(typechecker=beartype.beartype)


def ones(*shape: int) -> Array:
    return jnp.ones(shape)


@tk.node
class Linear:
    weight: Float[Array, "dout din"]
    bias: Float[Array, "dout"] | None = None


def linear(dout: int = 5, din: int = 3) -> Linear:
    return Linear(ones(dout, din), ones(dout))


@tk.node
class Network:
    layers: list[Linear]
    head: Linear
    by_name: dict[str, Linear | None]
    activation: Callable[[Array], Array] = tk.field(default=jnp.tanh, static=True)


def network() -> Network:
    return Network([linear(), linear(2, 5)], linear(1, 2), {"a": linear(), "b": None})


def holder(module: str = __name__, /, **hints: Any) -> Any:
    """A node class of a module with these fields and annotations."""
    own = {"__module__": module, "__annotations__": hints}
    return tk.node(types.new_class("Holder", exec_body=lambda body: body.update(own)))


def fits(x: Any, hint: Any) -> bool:
    return isinstance(x, hint)


def refused(tree: Any) -> str:
    """What check_types says of a tree."""
    with pytest.raises(TypeError) as caught:
        check_types(tree)
    return str(caught.value)


def blamed(function: Callable[..., Any], *args: Any) -> tuple[str, str]:
    """The parameter that the error of a checked call names, or "the return value", and what is wrong with it."""
    with pytest.raises(TypeCheckError) as caught:
        function(*args)
    found = re.search(r"parameter '(\w+)'|the return value", str(caught.value))
    why: Any = caught.value.__cause__
    return (found[1] or found[0]) if found else "", str(why.__cause__ if why else "")


F = Float[Array, "n"]
ONES, FIVE = jnp.ones(2), jnp.ones(5)
WORD: Any = "word"  # and a number, which checkers take for right where they are wrong
ONE: Any = 1
