"""Mistakes in classes of nodes and in the use of their instances. See tests/test_typing.py."""

import dataclasses
from typing import ClassVar

import jax

import treekit as tk
from treekit.typing import Batched, Typed


@tk.node
class Linear:
    weight: jax.Array
    bias: jax.Array | None = None
    name: str = tk.field(static=True, default="linear", kw_only=True)

    @classmethod
    @tk.node_factory
    def create(cls, key: jax.Array, din: int, dout: int) -> "Linear":
        return cls(jax.random.normal(key, (dout, din)))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.weight @ x


@tk.node
class Scaled(Linear):
    scale: float = 1.0


@tk.node
class Other:
    weight: jax.Array


def wrong_fields(key: jax.Array, weight: jax.Array, bias: jax.Array) -> None:
    Linear()  # both
    Linear(weight, bias, "first")  # both
    Linear(weight, name=1)  # both
    Scaled(weight, bias, "1.0")  # both
    Linear.create(2, 3, key)  # both


def wrong_use(linear: Linear, weight: jax.Array) -> None:
    linear.weigth  # both
    tk.replace(linear, weigth=weight)  # neither: Python has no type for "the fields of T"
    scaled: Scaled = tk.replace(linear, bias=None)  # both
    linear.weight = weight  # neither: nodes may be changed in __init__, so they are not frozen to checkers


@tk.node(frozen=True)  # both
class Frozen:
    x: int


@tk.node
class Defaults:
    x: int = tk.field(static=True, default="one")  # both
    y: list[int] = tk.field(default_factory=[])  # both
    z: int = tk.field(staitc=True)  # both


@tk.register_node(data_fields=["x"], static_fields=["y"])  # both
class Registered:
    def __init__(self) -> None:
        self.x = 1
        self.y = 1


@tk.node(check="always")  # both
class Checked:
    x: int


@tk.node
class Seeded:
    x: jax.Array
    seed: int = tk.field(static=True)
    scale: dataclasses.InitVar[int]
    derived: int = tk.field(init=False)
    _: dataclasses.KW_ONLY
    name: str = tk.field(converter=str)
    limit: ClassVar[int] = 3


@tk.node_factory
def seeded(seed: int) -> Seeded:
    return Seeded(jax.numpy.ones(2), seed, 1, name="seeded")


def scaled(linear: Typed[Linear], others: Batched["Other", "n"]) -> Typed[Linear]:
    linear.weigth  # both
    others.weigth  # both
    return Other(linear.weight)  # both


def wrong_creation(linear: Linear, weight: jax.Array) -> None:
    Seeded(weight, 1, 2, "name")  # both
    Seeded(weight, 1, "2", name="name")  # both
    Seeded(weight, 1, 2, derived=3, name="name")  # both
    Seeded(weight, 1, 2, limit=3, name="name")  # both
    seeded("3")  # both
    text: str = seeded(3)  # both
    scaled(weight, Other(weight))  # both
    scaled(linear, linear)  # both
    tk.replace(linear, weight)  # both
    tk.field(default=1, default_factory=int)  # both
    tk.register_node(Registered, data_fields=3)  # both
