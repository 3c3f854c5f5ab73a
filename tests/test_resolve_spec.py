"""Masks and labels that are trees or functions from the params to one: the three rules of `resolve_spec`."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import EXAMPLES, Box, identical, prefixes, trees, untyped

Partial = untyped.tree_util.Partial
KEY = jax.random.key(0)
MLP = eqx.nn.MLP(2, 1, 3, depth=1, key=KEY)
NNX = nnx.Linear(2, 3, rngs=nnx.Rngs(0))


class Model(eqx.Module):
    weight: jax.Array

    def predict(self, x: Any) -> Any:
        return self.weight * x


PREDICT = Model(jnp.ones(2)).predict  # a node with the model below it


class Leafless(eqx.Module):
    def __call__(self, x: Any) -> Any:
        return x


PARAMS: dict[str, Any] = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2), "act": jax.nn.relu, "name": "dense", "key": KEY}


def is_bool(x: Any) -> bool:
    return isinstance(x, bool)


def is_label(x: Any) -> bool:
    return isinstance(x, str)


def resolve_mask(mask: Any, params: Any) -> Any:
    return tk.resolve_spec(mask, params, is_spec_leaf=is_bool, name="mask")


def resolve_labels(labels: Any, params: Any) -> Any:
    return tk.resolve_spec(labels, params, is_spec_leaf=is_label, name="labels")


def is_parameter(x: Any) -> bool:
    """Numbers that an optimizer can work on."""
    is_key = eqx.is_array(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return eqx.is_array_like(x) and not is_key


def seen_by_functions(tree: Any) -> Any:
    return eqx.filter(tree, is_parameter)


@st.composite
def trees_and_masks(draw: st.DrawFn) -> tuple[Any, Any]:
    tree = draw(trees())
    # A mask has bools or None where the tree has functions and strings: one is made from the raw tree, one from the
    # filtered one.
    return tree, draw(prefixes(draw(st.sampled_from((tree, seen_by_functions(tree)))), st.booleans()))


@given(trees_and_masks(), st.booleans())
def test_a_prefix_is_the_answer_itself_and_so_is_what_a_function_returns(case: tuple[Any, Any], raw: bool) -> None:
    tree, mask = case
    params = tree if raw else seen_by_functions(tree)
    assert resolve_mask(mask, params) is mask

    def mask_function(p: Any) -> Any:
        assert identical(p, seen_by_functions(tree))
        return mask

    assert resolve_mask(mask_function, params) is mask


FITTING: dict[str, tuple[Any, Any]] = {
    "bool": (True, PARAMS),
    "dict": ({"w": True, "b": False, "act": True, "name": False, "key": True}, PARAMS),
    "dict with None": ({"w": True, "b": False, "act": None, "name": None, "key": None}, PARAMS),
    "mask of a callable model": (jax.tree.map(lambda _: True, MLP), MLP),
    "mask of a filtered model for the raw one": (
        jax.tree.map(lambda x: x.ndim > 1, eqx.filter(MLP, eqx.is_array)),
        MLP,
    ),
    "mask of a raw model for the filtered one": (jax.tree.map(lambda _: True, MLP), eqx.filter(MLP, eqx.is_array)),
    "prefix of a model": (eqx.tree_at(lambda m: m.layers, jax.tree.map(lambda _: True, MLP), (True, False)), MLP),
    "mask of filter_jit(model)": (jax.tree.map(lambda _: True, eqx.filter_jit(MLP)), eqx.filter_jit(MLP)),
    "mask of a bound method": (jax.tree.map(lambda _: True, PREDICT), PREDICT),
    "mask of an NNX module": (jax.tree.map(lambda _: True, NNX), NNX),
    "mask of ShapeDtypeStructs": (jax.tree.map(lambda _: True, MLP), eqx.filter_eval_shape(lambda: MLP)),
    "model without parameters": (Leafless(), Leafless()),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_spec_that_fits_is_the_answer_callable_or_not(name: str) -> None:
    spec, params = FITTING[name]
    assert resolve_mask(spec, params) is spec


LABELS: dict[str, tuple[Any, Any]] = {
    "string": ("a", PARAMS),
    "model": (jax.tree.map(lambda _: "a", MLP), MLP),
    "filter_jit(model)": (jax.tree.map(lambda _: "a", eqx.filter_jit(MLP)), eqx.filter_jit(MLP)),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_fit_are_the_answer(name: str) -> None:
    labels, params = LABELS[name]
    assert resolve_labels(labels, params) is labels


@pytest.mark.parametrize("labels", [("a", "b"), [("a", "b"), ("a", "c")], [("a", "b"), [("a", "c")]], {}])
def test_a_spec_leaf_may_be_a_node(labels: Any) -> None:
    """A label of several parts is one label, also where the params have a tuple of the same length."""
    params = {} if labels == {} else [(jnp.ones(2), jnp.ones(2)), [jnp.ones(2)]]

    def resolve(spec: Any) -> Any:
        return tk.resolve_spec(spec, params, is_spec_leaf=lambda x: isinstance(x, tuple), name="labels")

    assert resolve(labels) is labels
    assert resolve(lambda p: labels) is labels


class MaskModule(eqx.Module):
    """A mask function that carries data: as a node it is a tree, and fits no params."""

    threshold: Any

    def __call__(self, params: Any) -> Any:
        return jax.tree.map(lambda x: x.ndim > int(self.threshold), params)

    def method(self, params: Any) -> Any:
        return self(params)


@tk.node
class MaskNode:
    threshold: Any
    inclusive: bool = True

    def __call__(self, params: Any) -> Any:
        return jax.tree.map(lambda x: x.ndim > int(self.threshold), params)


def by_ndim(threshold: Any, params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > int(threshold), params)


MASK_FUNCTIONS: dict[str, Any] = {
    "function": lambda p: by_ndim(1, p),
    "functools.partial": functools.partial(by_ndim, 1),
    "Partial of what masks are made of": Partial(by_ndim, True),
    "eqx.Partial": eqx.Partial(by_ndim, jnp.array(1)),
    "module": MaskModule(jnp.array(1)),
    "bound method of a module": MaskModule(1.0).method,
    "node, with a bool too": MaskNode(jnp.array(1)),
}


@pytest.mark.parametrize("params", [{"w": jnp.ones((2, 2)), "b": [jnp.zeros(2)]}, MLP, PARAMS, PREDICT, NNX])
@pytest.mark.parametrize("name", MASK_FUNCTIONS)
def test_mask_functions_of_any_kind_are_called(name: str, params: Any) -> None:
    expected = by_ndim(1, seen_by_functions(params))
    assert identical(resolve_mask(MASK_FUNCTIONS[name], params), expected)


def test_a_mask_function_is_called_under_transformations_too() -> None:
    seen: list[Any] = []

    def mask(p: Any) -> Any:
        seen.append(untyped.tree.structure(p))
        return by_ndim(1, p)

    jax.jit(lambda p: (resolve_mask(mask, p), p)[1])({"w": jnp.ones((2, 2)), "b": jnp.zeros(2)})
    eqx.filter_eval_shape(lambda m: (resolve_mask(mask, m), m)[1], MLP)
    assert seen == [untyped.tree.structure({"w": 0, "b": 0}), untyped.tree.structure(seen_by_functions(MLP))]


def test_a_function_sees_what_can_be_a_parameter_and_none_elsewhere() -> None:
    tree = [*PARAMS.values(), 1, 2.5, True, 1j, np.ones(2), np.array(["a"]), np.array([None]), object(), len, None]
    seen: list[Any] = []

    def mask(p: Any) -> bool:
        seen.extend(p if isinstance(p, list) else [])  # a leaf, where it is asked whether it is a predicate
        return True

    assert resolve_mask(mask, tree) is True
    assert identical(seen, [*tree[:2], None, None, None, *tree[5:10], None, None, None, None, None])


@pytest.mark.parametrize("name", ["dict", "mlp", "node", "mixed"])
def test_a_model_that_is_no_mask_is_never_called(name: str) -> None:
    """A tree of spec leaves that does not fit is an error; a Box refuses to be called."""
    mask = jax.tree.map(lambda _: True, Box([EXAMPLES[name], 1]))
    with pytest.raises(ValueError, match=r"(?s)mask does not fit"):
        resolve_mask(mask, [jnp.ones(2), jnp.ones(2)])


ERRORS: dict[str, tuple[Any, Any, str]] = {
    "type": ({"w": [True]}, {"w": (jnp.ones(2),)}, r"(?s)mask\.w.*list.*tuple"),
    "too deep": ({"w": {"x": True}}, {"w": jnp.ones(2)}, r"(?s)mask\.w.*dict.*an array"),
    "None for a parameter": ({"w": None}, {"w": jnp.ones(2)}, r"(?s)mask\.w.*None.*an array"),
    "below a module": (
        eqx.tree_at(lambda m: m.layers[1].bias, jax.tree.map(lambda _: True, MLP), [True]),
        MLP,
        r"(?s)mask\.layers\.1\.bias.*list.*an array",
    ),
    "function, deeper": (lambda p: {"w": [True]}, {"w": jnp.ones(2)}, r"(?s)mask.*\bw\b.*list.*an array"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_argument_the_key_path_and_both_types(name: str) -> None:
    mask, params, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        resolve_mask(mask, params)
    with pytest.raises(ValueError, match=message.replace("mask", "weight_decay_mask")):
        tk.resolve_spec(mask, params, is_spec_leaf=is_bool, name="weight_decay_mask")


def test_the_error_of_a_mask_function_is_told_and_is_the_cause() -> None:
    def mask(p: Any) -> Any:
        raise KeyError("no such layer")

    with pytest.raises(ValueError, match=r"the function given as mask raised KeyError: 'no such layer'") as caught:
        resolve_mask(mask, PARAMS)
    assert isinstance(caught.value.__cause__, KeyError)
