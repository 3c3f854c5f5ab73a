"""Is it a function, or a tree that can be called? A table of everything callable."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
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

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x

    @staticmethod
    def static(x: Any) -> Any:
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
    "function": tk.filter,
    "lambda": lambda x: x,
    "builtin": len,
    "builtin method": [].append,
    "ufunc": np.add,
    "class": dict,
    "class of models": eqx.nn.MLP,
    "scalar type": jnp.bfloat16,
    "functools.partial": functools.partial(len, [jnp.ones(2)]),
    "method": Called().method,
    "class method": Called.of_class,
    "static method": Called.static,
    "object with __call__": Called(),
    "object with __call__ and a lying __getattr__": Answering(),
    "activation": jax.nn.relu,
    "jit": jax.jit(lambda x: x),
    "jit of a model": jax.jit(MLP),
    "grad": jax.grad(lambda x: x),
    "vmap of a model": jax.vmap(MLP),
    "custom_vjp": jax.custom_vjp(lambda x: x),
    "Partial": Partial(len),
    "Partial of arrays": Partial(jnp.add, jnp.ones(2), jnp.ones(2)),
    "Partial of what a spec is made of": Partial(len, True, "label"),
    "Partial of a model": Partial(MLP),
    "eqx.Partial": eqx.Partial(len, jnp.ones(2)),
    "eqx.Partial of bools": eqx.Partial(len, True, flag=False),
    "bound method of a module": MODEL.predict,
    "bound method that is a node": Bound(max, jnp.ones(2)),
    "filter_jit": eqx.filter_jit(is_leaf),
    "filter_jit of a model": eqx.filter_jit(MLP),
    "filter_jit of a bound method": eqx.filter_jit(MODEL.predict),
    "filter_grad": eqx.filter_grad(MLP),
    "filter_value_and_grad": eqx.filter_value_and_grad(MLP),
    "filter_vmap": eqx.filter_vmap(MLP),
    "filter_jit of filter_vmap": eqx.filter_jit(eqx.filter_vmap(MLP)),
    "eqx.nn.Lambda": eqx.nn.Lambda(jax.nn.relu),
    "sequence of functions": eqx.nn.Sequential([eqx.nn.Lambda(jax.nn.relu), eqx.nn.Lambda(jnp.tanh)]),
    "node without leaves": Leafless(),
    "eqx.nn.Identity": eqx.nn.Identity(),
    "module that holds a function": Box(len),
    "node that holds functions": CalledTwig([len, jax.nn.relu]),
    "Linen module": nn.Dense(3),
    "method of a Linen module": nn.Dense(3).apply,
    "method of an NNX module": NNX.__call__,
}

TREES: dict[str, Any] = {
    "module": Box(1),
    "model": MLP,
    "model of a layer and a function": MODEL,
    "layer": eqx.nn.Linear(2, 3, key=KEY),
    "filtered model": eqx.filter(MLP, eqx.is_array),
    "mask of bools": jax.tree.map(lambda _: True, MLP),
    "mask of bools from the filtered model": jax.tree.map(lambda x: x.ndim > 1, eqx.filter(MLP, eqx.is_array)),
    "mask of NumPy bools": jax.tree.map(np.bool_, jax.tree.map(lambda _: True, MLP)),
    "mask of arrays": jax.tree.map(lambda _: jnp.array(True), MLP),
    "labels of strings": jax.tree.map(lambda _: "label", MLP),
    "labels of ints": jax.tree.map(lambda _: 1, MLP),
    "labels of None and strings": jax.tree.map(lambda _: "label", eqx.filter(MLP, eqx.is_array)),
    "mask by tree_at": eqx.tree_at(lambda m: m.layers[0].weight, jax.tree.map(lambda _: False, MLP), True),
    "one bool among functions": CalledTwig([len, True]),
    "module with a lying __getattr__": Liar(1),
    "node": CalledTwig(jnp.ones(2)),
    "NNX module": NNX,
    "mask of an NNX module": jax.tree.map(lambda _: True, NNX),
    "ShapeDtypeStructs": eqx.filter_eval_shape(lambda: MLP),
}

OTHERS: dict[str, Any] = {
    "None": None,
    "bool": True,
    "string": "relu",
    "array": jnp.ones(2),
    "NumPy array": np.ones(2),
    "list of functions": [len, jax.nn.relu],
    "tuple of functions": (len,),
    "dict of functions": {"f": len},
    "namedtuple of functions": Point(len, len),
    "empty list": [],
    "node that is not callable": Twig(len),
    "ShapeDtypeStruct": untyped.ShapeDtypeStruct((2,), jnp.float32),
    "not callable, with a lying __getattr__": type("Mute", (), {"__getattr__": lambda self, name: name})(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_truly_callable(name: str) -> None:
    assert callable(FUNCTIONS[name])
    assert tk.is_truly_callable(FUNCTIONS[name]) is True


@pytest.mark.parametrize("name", TREES)
def test_trees_are_not_though_they_can_be_called(name: str) -> None:
    assert callable(TREES[name])
    assert tk.is_truly_callable(TREES[name]) is False


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_called_is_not_truly_callable(name: str) -> None:
    assert not callable(OTHERS[name])
    assert tk.is_truly_callable(OTHERS[name]) is False


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
