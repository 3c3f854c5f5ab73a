"""Layers: generic nodes, inheritance, converters, static fields and factories."""

from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

import treekit as tk

Activation = Callable[[jax.Array], jax.Array]
T = TypeVar("T")
L = TypeVar("L", bound="Layer")


@tk.node
class Layer:
    """What every layer has."""

    name: str = tk.field(default="layer", static=True, kw_only=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        raise NotImplementedError

    def named(self, name: str) -> Self:
        return tk.replace(self, name=name)


@tk.node
class Linear(Layer):
    weight: Float[Array, "dout din"]
    bias: Float[Array, " dout"] | None

    @classmethod
    @tk.node_factory
    def create(cls, key: PRNGKeyArray, din: int, dout: int, *, use_bias: bool = True) -> "Linear":
        weight = jax.random.normal(key, (dout, din)) / din**0.5
        return cls(weight, jnp.zeros(dout) if use_bias else None)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.weight @ x
        return y if self.bias is None else y + self.bias


@tk.node
class Activated(Layer, Generic[L]):
    """A layer, and a function of what comes out of it."""

    inner: L
    activation: Activation = jnp.tanh

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(self.inner(x))


@tk.node
class Residual(Activated[L]):
    scale: ArrayLike = tk.field(converter=jnp.asarray, default=1.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.scale * super().__call__(x)


def as_layers(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    return tuple(layers)


@tk.node
class Sequential(Layer):
    layers: Sequence[Layer] = tk.field(converter=as_layers)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


@tk.node(kw_only=True)
class Config:
    """Settings of a model: all of them static."""

    width: int = tk.field(static=True)
    depth: int = tk.field(static=True, default=2)
    name: str = tk.field(static=True, default="mlp")


@tk.node(check=True)
class Scaler(Generic[T]):
    """Inputs to mean 0 and deviation 1; what it was made from is kept."""

    mean: Float[Array, " din"]
    deviation: Float[Array, " din"]
    source: T

    def __call__(self: tk.Typed["Scaler[T]"], x: jax.Array) -> jax.Array:
        return (x - self.mean) / self.deviation


@tk.register_node(data_fields=["rate"], meta_fields=[])
class Noise:
    """A class with an `__init__` of its own."""

    def __init__(self, percent: float) -> None:
        self.rate = jnp.asarray(percent / 100)


@tk.node_factory
def hidden(key: PRNGKeyArray, width: int) -> Residual[Linear]:
    return Residual(Linear.create(key, width, width), jax.nn.relu, name="hidden")
