"""The model, and the edits, filters and comparisons of it that a project needs."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

import treekit as tk

from .layers import Activated, Config, Layer, Linear, Scaler, Sequential, hidden


@tk.node
class Model:
    scaler: Scaler[str]
    body: Sequential
    head: Linear
    config: Config

    @classmethod
    @tk.node_factory
    def create(cls, key: PRNGKeyArray, config: Config) -> "Model":
        first, last, *keys = jax.random.split(key, config.depth + 2)
        layers: list[Layer] = [Activated(Linear.create(first, 2, config.width), jax.nn.relu)]
        layers += [hidden(k, config.width) for k in keys]
        scaler = Scaler(jnp.zeros(2), jnp.ones(2), "none")
        return cls(scaler, Sequential(layers), Linear.create(last, config.width, 1), config)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.body(self.scaler(x)))[0]


def in_half(model: Model, key: PRNGKeyArray) -> Model:
    """A copy in bfloat16, rounded at random."""

    def narrow(leaf: object) -> object:
        return tk.stochastic_round(leaf, jnp.bfloat16, key) if tk.is_inexact_array(leaf) else leaf

    half: Model = jax.tree.map(narrow, model)
    return half


def halved(model: Model) -> Model:
    return tk.dtype_preserving_tree_map(lambda leaf: leaf / 2 if tk.is_inexact_array(leaf) else leaf, model)


def size(model: Model) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tk.filter_arrays(model)))


def describe(leaf: object) -> str:
    if tk.is_array(leaf):
        return str(leaf.dtype)
    if tk.is_truly_callable(leaf):
        return str(leaf)
    return type(leaf).__name__
