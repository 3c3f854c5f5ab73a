"""filter, partition and combine agree with Equinox's, whose contract they keep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import LEAVES, Box, Point, Twig, identical, prefixes, trees, untyped


def is_number(x: Any) -> bool:
    return isinstance(x, int | float | complex)


PREDICATES = (tk.is_array, tk.is_inexact_array, is_number, lambda x: x is None, lambda x: False)
SPEC_LEAVES = st.booleans() | st.sampled_from(PREDICATES)
IS_LEAF = st.sampled_from((None, lambda x: x is None, lambda x: isinstance(x, tuple), lambda x: isinstance(x, Box)))


@st.composite
def trees_and_specs(draw: st.DrawFn) -> tuple[Any, Any]:
    tree = draw(trees())
    return tree, draw(prefixes(tree, SPEC_LEAVES))


@given(trees_and_specs(), st.booleans(), st.sampled_from((None, 0, "gone")), IS_LEAF)
def test_the_verbs_agree_with_equinox(case: tuple[Any, Any], inverse: bool, replace: Any, is_leaf: Any) -> None:
    tree, spec = case
    wanted = spec, inverse, replace, is_leaf
    assert identical(tk.filter(tree, *wanted), eqx.filter(tree, *wanted))
    ours, theirs = tk.partition(tree, spec, replace, is_leaf), eqx.partition(tree, spec, replace, is_leaf)
    assert identical(ours, theirs)
    assert identical(tk.combine(*ours, is_leaf=is_leaf), eqx.combine(*theirs, is_leaf=is_leaf))
    assert identical(tk.combine(*tk.partition(tree, spec)), tree)


@given(trees())
def test_the_default_is_arrays(tree: Any) -> None:
    left, right = tk.partition(tree)
    assert identical(left, tk.filter_arrays(tree)) and identical(left, eqx.filter(tree, eqx.is_array))
    assert identical(right, eqx.filter(tree, eqx.is_array, inverse=True))


@given(st.lists(st.lists(st.none() | st.sampled_from(LEAVES), min_size=3, max_size=3), min_size=1, max_size=4))
def test_combine_takes_the_first_that_is_not_none(rows: list[list[Any]]) -> None:
    assert identical(tk.combine(*rows), eqx.combine(*rows))


@pytest.mark.parametrize("one", [(), ({},), ({}, {}), (1, None), ({"a": 1}, {"a": 2}), ([None], [None]), [[1], [None]]])
def test_one_tree_is_combined_with_nothing(one: Any) -> None:
    """Only a tuple as `partition` returns is a mistake."""
    assert tk.combine(one) == one


def test_what_is_kept_whole_by_is_leaf_is_combined_whole() -> None:
    tree, is_pair = [(1, 2), "x"], lambda x: x == (1, 2)
    assert tk.combine(*tk.partition(tree, is_pair, is_leaf=is_pair), is_leaf=is_pair) == tree


def test_is_leaf_sees_the_first_of_the_trees_that_are_combined() -> None:
    """Where that has None, so has not the other, whose nodes may have it inside."""

    class Pair(NamedTuple):
        w: Any

    def is_leaf(x: Any) -> bool:
        return isinstance(x, Pair) and x.w.ndim == 2

    tree = [Pair(np.ones((1, 2))), Pair(np.ones(1))]
    parts = tk.partition(tree, lambda x: isinstance(x, np.ndarray), is_leaf=is_leaf)
    assert identical(tk.combine(*parts, is_leaf=is_leaf), eqx.combine(*parts, is_leaf=is_leaf))


def test_a_predicate_sees_each_leaf_once() -> None:
    seen: list[Any] = []

    def predicate(x: Any) -> bool:
        seen.append(x)
        return True

    tk.partition({"a": (1, 2), "b": [3]}, predicate)
    assert seen == [1, 2, 3]


def test_numpy_bools_and_bound_predicates_are_taken_too() -> None:
    """Beyond Equinox: a mask computed by NumPy, a predicate that carries its data."""
    assert tk.filter([1, 2], list(np.array([True, False]))) == [1, None]
    above = untyped.tree_util.Partial(lambda least, x: x >= least, 2)
    assert tk.filter([1, 2], above) == [None, 2]


MISFITS: list[Any] = [
    {"a": True, "c": True},
    {"a": True, "b": Point(Box([True]), True)},
    {"a": [None, True], "b": True},
    {"a": 0, "b": True},
    {"a": np.array([True]), "b": True},
]


@pytest.mark.parametrize("spec", MISFITS)
@pytest.mark.parametrize("verb", [tk.filter, eqx.filter])
def test_a_spec_that_does_not_fit_raises_as_with_equinox(verb: Callable[..., Any], spec: Any) -> None:
    with pytest.raises(ValueError):
        verb({"a": [1, 2.0], "b": Point(Box(3), Twig(4))}, spec)


@pytest.mark.parametrize("answer", [{"w": True}, None, jnp.ones(2, bool), 0.5])
def test_a_predicate_answers_with_a_bool(answer: Any) -> None:
    for spec in (lambda _: answer, {"w": lambda _: answer, "b": True}):
        with pytest.raises(ValueError, match=r"the leaf [wb]\b"):
            tk.filter({"w": jnp.ones(2), "b": 1}, spec)


@pytest.mark.parametrize("yes", [np.bool_(True), jnp.array(True), 1])
def test_a_bool_of_any_library_is_an_answer(yes: Any) -> None:
    assert tk.filter([1.0, "x"], lambda x: yes if x == "x" else False) == [None, "x"]
