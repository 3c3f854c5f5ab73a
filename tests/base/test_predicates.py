"""The predicates on leaves agree with Equinox's on every object; and what is truly callable: a table of everything."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given

import treekit as tk
from tests.releases import enable_x64, new_ref
from tests.trees import Box, Twig, is_leaf, trees, untyped

untyped_eqx: Any = eqx
DTYPES = ("bool", "int4", "int32", "uint8", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn")


def _x64(dtype: str) -> jax.Array:
    with enable_x64(True):
        return jnp.ones(2, dtype)


class Stands:
    """Returns what it is given from `__jax_array__`, or raises it; Equinox lets errors through."""

    dtype = np.dtype("float32")  # duck typing is not enough to be an array
    shape = ()

    def __init__(self, value: object) -> None:
        self.value = value

    def __jax_array__(self) -> object:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class OnInstance:
    """Has `__jax_array__` on the instance only."""

    def __init__(self) -> None:
        self.__jax_array__ = lambda: jnp.ones(2)


OBJECTS: dict[str, object] = {
    **{f"jax {dtype}": _x64(dtype) for dtype in DTYPES},
    **{f"numpy {dtype}": np.ones(2, jnp.dtype(dtype)) for dtype in DTYPES},
    **{f"numpy scalar {dtype}": jnp.dtype(dtype).type(1) for dtype in DTYPES},
    "key": jax.random.key(0),
    "numpy object": np.array([None, 1]),
    "numpy strings": np.array(["a"]),
    "numpy longdouble": np.longdouble(1),
    "float0": np.zeros(2, jax.dtypes.float0),
    **{type(x).__name__: x for x in (True, 1, 1.0, 1j, "a", None, len, [1.0], Box(jnp.ones(2)), Twig(jnp.ones(2)))},
    "ShapeDtypeStruct": untyped.ShapeDtypeStruct((2,), jnp.float32),
    **{f"__jax_array__ returns {x!r}": Stands(x) for x in (1, 1.0, None, jnp.ones(2), np.float32(1), np.int32(1))},
    "__jax_array__ returns NumPy bf16": Stands(np.ones(2, jnp.bfloat16)),
    "__jax_array__ twice": Stands(Stands(jnp.ones(2))),
    "__jax_array__ of an instance": OnInstance(),
    "__jax_array__ fails": Stands(ValueError("cannot be an array")),
    "a class with __jax_array__": Stands,
    **({"ref": new_ref(jnp.ones(2))} if new_ref else {}),
}


def keep(name: str, x: jax.Array) -> jax.Array:
    """Leak a tracer on purpose: a predicate asks for the type and dtype only."""
    OBJECTS[f"tracer of {name}"] = x
    return x.sum()


with jax.check_tracer_leaks(False):
    jax.jit(functools.partial(keep, "jit"))(jnp.ones(2))
    jax.jit(functools.partial(keep, "jit of integers"))(jnp.arange(2))
    jax.vmap(functools.partial(keep, "vmap"))(jnp.ones(2))
    jax.grad(functools.partial(keep, "grad"))(jnp.ones(2))


@pytest.mark.parametrize("name", OBJECTS)
def test_predicates_agree_with_equinox(name: str) -> None:
    x = OBJECTS[name]
    assert tk.is_array(x) is eqx.is_array(x)
    assert tk.is_inexact_array(x) is eqx.is_inexact_array(x)


# -------------------------------------------------------------------------------- functions, and trees that are called

MLP = eqx.nn.MLP(2, 1, 3, depth=1, key=jax.random.key(0))


class Called:
    """Answers to every name: what hasattr says of it means nothing."""

    def __getattr__(self, name: str) -> Any:
        return name

    def __call__(self, x: Any) -> Any:
        return x

    def method(self, x: Any) -> Any:
        return x


class Liar(eqx.Module):
    """The same, as a node that is a tree."""

    weight: Any
    __getattr__ = Called.__getattr__
    __call__ = Called.__call__


@tk.node
class CalledTwig:
    weight: Any
    __call__ = Called.__call__


@tk.node
class Bound:
    """A bound method that is a node."""

    __func__: Any = tk.field(static=True)
    __self__: Any
    __call__ = Called.__call__


FUNCTIONS: dict[str, Any] = {
    "lambda": lambda x: x,
    "class": dict,
    "functools.partial": functools.partial(len, [jnp.ones(2)]),
    "method": Called().method,
    "object with __call__ and a lying __getattr__": Called(),
    "jit": jax.jit(lambda x: x),
    "Partial of what a spec is made of": untyped.tree_util.Partial(len, True, "label"),
    "eqx.Partial of bools": eqx.Partial(len, True, flag=False),
    "bound method of a module": MLP.__call__,
    "bound method that is a node": Bound(max, jnp.ones(2)),
    "filter_jit of a model": eqx.filter_jit(MLP),
    "filter_grad": eqx.filter_grad(MLP),
    "sequence of functions": eqx.nn.Sequential([eqx.nn.Lambda(jax.nn.relu), eqx.nn.Lambda(jnp.tanh)]),
    "node without leaves": CalledTwig(None),
    "node that holds functions": CalledTwig([len, jax.nn.relu]),
}
TREES: dict[str, Any] = {
    "model of arrays and a function": MLP,
    "mask of bools": jax.tree.map(lambda _: True, MLP),
    "labels of None and strings": jax.tree.map(lambda _: "label", eqx.filter(MLP, eqx.is_array)),
    "one bool among functions": CalledTwig([len, True]),
    "module with a lying __getattr__": Liar(1),
    "NNX module": nnx.Linear(2, 3, rngs=nnx.Rngs(0)),
    "ShapeDtypeStructs": eqx.filter_eval_shape(lambda: MLP),
    "list of functions, which cannot be called": [len, jax.nn.relu],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_truly_callable(name: str) -> None:
    assert tk.is_truly_callable(FUNCTIONS[name]) is True


@pytest.mark.parametrize("name", TREES)
def test_trees_are_not_though_most_can_be_called(name: str) -> None:
    assert tk.is_truly_callable(TREES[name]) is False


@given(trees())
def test_the_rule_for_nodes(tree: Any) -> None:
    """Of the trees that are drawn, only a Box can be called, and stands for no function."""
    expected = callable(tree) and (is_leaf(tree) or all(map(callable, jax.tree.leaves(tree))))
    assert tk.is_truly_callable(tree) is expected
    assert tk.is_truly_callable(Box(tree)) is all(map(callable, jax.tree.leaves(tree)))
