"""Is it a function, or a tree that can be called? A table of everything callable."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given

import treekit as tk
from tests.trees import Box, Point, Twig, is_leaf, trees, untyped

Partial = untyped.tree_util.Partial
KEY = jax.random.key(0)
MLP = eqx.nn.MLP(2, 1, 3, depth=1, key=KEY)
NNX = nnx.Linear(2, 3, rngs=nnx.Rngs(0))


class Called:
    def __call__(self, x: Any) -> Any:
        return x

    def method(self, x: Any) -> Any:
        return x


class Answering:
    """Answers to every name: what hasattr says of it means nothing."""

    def __getattr__(self, name: str) -> Any:
        return name

    def __call__(self, x: Any) -> Any:
        return x


class Liar(eqx.Module):
    """The same, as a node that is a tree."""

    weight: Any

    def __getattr__(self, name: str) -> Any:
        return name

    def __call__(self, x: Any) -> Any:
        return x


class Leafless(eqx.Module):
    def __call__(self, x: Any) -> Any:
        return x


@tk.node
class CalledTwig:
    weight: Any

    def __call__(self, x: Any) -> Any:
        return x


class Bound:
    """A bound method that is a node, as Equinox's are."""

    def __init__(self, function: Callable[..., Any], owner: Any) -> None:
        self.__func__, self.__self__ = function, owner

    def __call__(self, x: Any) -> Any:
        return self.__func__(self.__self__, x)


tk.register_node(Bound, data_fields=["__self__"], meta_fields=["__func__"])


class Model(eqx.Module):
    """Its bound methods, and what wraps them, are nodes that hold the model."""

    mlp: eqx.nn.MLP
    activation: Callable[..., Any] = jax.nn.relu

    def __call__(self, x: Any) -> Any:
        return self.activation(self.predict(x))

    def predict(self, x: Any) -> Any:
        return self.mlp(x)


MODEL = Model(MLP)

FUNCTIONS: dict[str, Any] = {
    "lambda": lambda x: x,
    "builtin": len,
    "builtin method": [].append,
    "class": dict,
    "scalar type": jnp.bfloat16,
    "functools.partial": functools.partial(len, [jnp.ones(2)]),
    "method": Called().method,
    "object with __call__": Called(),
    "object with __call__ and a lying __getattr__": Answering(),
    "activation": jax.nn.relu,
    "jit": jax.jit(lambda x: x),
    "vmap of a model": jax.vmap(MLP),
    "custom_vjp": jax.custom_vjp(lambda x: x),
    "Partial of what a spec is made of": Partial(len, True, "label"),
    "Partial of a model": Partial(MLP),
    "eqx.Partial of bools": eqx.Partial(len, True, flag=False),
    "bound method of a module": MODEL.predict,
    "bound method that is a node": Bound(max, jnp.ones(2)),
    "filter_jit": eqx.filter_jit(is_leaf),
    "filter_jit of a model": eqx.filter_jit(MLP),
    "filter_grad": eqx.filter_grad(MLP),
    "filter_jit of filter_vmap": eqx.filter_jit(eqx.filter_vmap(MLP)),
    "sequence of functions": eqx.nn.Sequential([eqx.nn.Lambda(jax.nn.relu), eqx.nn.Lambda(jnp.tanh)]),
    "node without leaves": Leafless(),
    "module that holds a function": Box(len),
    "node that holds functions": CalledTwig([len, jax.nn.relu]),
    "method of a Linen module": nn.Dense(3).apply,
    "method of an NNX module": NNX.__call__,
}

TREES: dict[str, Any] = {
    "model of a layer and a function": MODEL,
    "mask of bools": jax.tree.map(lambda _: True, MLP),
    "mask of arrays": jax.tree.map(lambda _: jnp.array(True), MLP),
    "labels of strings": jax.tree.map(lambda _: "label", MLP),
    "labels of None and strings": jax.tree.map(lambda _: "label", eqx.filter(MLP, eqx.is_array)),
    "one bool among functions": CalledTwig([len, True]),
    "module with a lying __getattr__": Liar(1),
    "node": CalledTwig(jnp.ones(2)),
    "NNX module": NNX,
    "mask of an NNX module": jax.tree.map(lambda _: True, NNX),
    "ShapeDtypeStructs": eqx.filter_eval_shape(lambda: MLP),
}

OTHERS: dict[str, Any] = {
    "None": None,
    "string": "relu",
    "array": jnp.ones(2),
    "list of functions": [len, jax.nn.relu],
    "namedtuple of functions": Point(len, len),
    "empty list": [],
    "node that is not callable": Twig(len),
    "not callable, with a lying __getattr__": type("Mute", (), {"__getattr__": lambda self, name: name})(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_truly_callable(name: str) -> None:
    assert callable(FUNCTIONS[name])
    assert tk.is_truly_callable(FUNCTIONS[name]) is True


@pytest.mark.parametrize("name", TREES | OTHERS)
def test_trees_are_not_though_some_can_be_called(name: str) -> None:
    x = (TREES | OTHERS)[name]
    assert callable(x) is (name in TREES)
    assert tk.is_truly_callable(x) is False


@given(trees())
def test_the_rule_for_nodes(tree: Any) -> None:
    """Of the trees that are drawn, only a Box can be called, and stands for no function."""
    expected = callable(tree) and (is_leaf(tree) or all(map(callable, jax.tree.leaves(tree))))
    assert tk.is_truly_callable(tree) is expected


def test_functions_are_answered_without_flattening(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = (tk.filter, lambda x: x)
    with monkeypatch.context() as patch:
        for name in ("all_leaves", "tree_flatten", "tree_leaves", "tree_structure"):
            patch.delattr(jax.tree_util, name)
        answers = [tk.is_truly_callable(f) for f in functions]
    assert answers == [True, True]
