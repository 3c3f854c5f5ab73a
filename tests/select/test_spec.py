"""Masks and labels that are trees or functions from the params to one: the three rules of `resolve_spec`."""

import functools
import itertools
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
from tests.trees import Box, identical, prefixes, trees, untyped

KEY = jax.random.key(0)
MLP = eqx.nn.MLP(2, 1, 3, depth=1, key=KEY)
PARAMS: dict[str, Any] = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2), "act": jax.nn.relu, "name": "dense", "key": KEY}
MODELS: dict[str, Any] = {
    "dict": PARAMS,
    "Equinox": MLP,
    "filter_jit": eqx.filter_jit(MLP),
    "bound method, a node with the model below it": MLP.__call__,
    "NNX": nnx.Linear(2, 3, rngs=nnx.Rngs(0)),
    "without parameters": eqx.nn.Identity(),
}


def is_bool(x: Any) -> bool:
    return isinstance(x, bool)


def resolve(mask: Any, params: Any) -> Any:
    return tk.resolve_spec(mask, params, is_spec_leaf=is_bool, name="mask")


def seen_by_functions(tree: Any) -> Any:
    """The tree without what no optimizer can work on."""

    def is_parameter(x: Any) -> bool:
        return eqx.is_array_like(x) and not (eqx.is_array(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key))

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
    assert resolve(mask, params) is mask

    def mask_function(p: Any) -> Any:
        assert identical(p, seen_by_functions(tree))
        return mask

    assert resolve(mask_function, params) is mask


@pytest.mark.parametrize("name", [*MODELS, "shapes"])
def test_a_mask_of_the_raw_or_of_the_filtered_model_fits_both_callable_or_not(name: str) -> None:
    raw = MODELS[name] if name in MODELS else eqx.filter_eval_shape(lambda: MLP)
    filtered = eqx.filter(raw, lambda x: not callable(x) and not isinstance(x, str))
    for masked, params in itertools.product((raw, filtered), repeat=2):
        mask, labels = (jax.tree.map(lambda _, x=x: x, masked) for x in (True, "label"))
        assert resolve(mask, params) is mask
        assert tk.resolve_spec(labels, params, is_spec_leaf=lambda x: isinstance(x, str), name="labels") is labels


@pytest.mark.parametrize("labels", [("a", "b"), [("a", "b"), ("a", "c")], [("a", "b"), [("a", "c")]]])
def test_a_spec_leaf_may_be_a_node(labels: Any) -> None:
    """A label of several parts is one label, also where the params have a tuple of the same length."""
    params = [(jnp.ones(2), jnp.ones(2)), [jnp.ones(2)]]
    for spec in (labels, lambda p: labels):
        found = tk.resolve_spec(spec, params, is_spec_leaf=lambda x: isinstance(x, tuple), name="labels")
        assert found is labels


def by_ndim(threshold: Any, params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > int(threshold), params)


class MaskModule(eqx.Module):
    """A mask function that carries data: as a node it is a tree, and fits no params."""

    threshold: Any
    inclusive: bool = True

    def __call__(self, params: Any) -> Any:
        return by_ndim(self.threshold, params)


MASK_FUNCTIONS: dict[str, Any] = {
    "function": lambda p: by_ndim(1, p),
    "functools.partial": functools.partial(by_ndim, 1),
    "Partial without leaves": untyped.tree_util.Partial(functools.partial(by_ndim, 1)),
    "Partial of what masks are made of": untyped.tree_util.Partial(by_ndim, True),
    "bound method of a module": MaskModule(1.0).__call__,
    "module, with a bool too": MaskModule(jnp.array(1)),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", MASK_FUNCTIONS)
def test_mask_functions_of_any_kind_are_called(name: str, model: str) -> None:
    params = MODELS[model]
    expected = by_ndim(1, seen_by_functions(params))
    assert identical(resolve(MASK_FUNCTIONS[name], params), expected)


def test_a_function_sees_what_can_be_a_parameter_and_none_elsewhere() -> None:
    tree = [*PARAMS.values(), 1, 2.5, True, 1j, np.ones(2), np.array(["a"]), np.array([None]), object(), len, None]
    seen: list[Any] = []

    def mask(p: Any) -> bool:
        seen.extend(p if isinstance(p, list) else [])  # a leaf, where it is asked whether it is a predicate
        return True

    assert resolve(mask, tree) is True
    assert identical(seen, [*tree[:2], None, None, None, *tree[5:10], None, None, None, None, None])


def test_a_mask_that_does_not_fit_is_not_called() -> None:
    with pytest.raises(ValueError, match="mask") as caught:
        resolve(Box([True, True]), [jnp.ones(2)] * 2)
    assert "a tree was called" not in str(caught.value)
