"""filter, partition and combine agree with Equinox's, whose contract they keep."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
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


TREE = {"a": [1, 2.0], "b": Point(Box(3), Twig(4))}
MISFITS: list[tuple[Any, str]] = [
    ({"a": True, "c": True}, r"at key path filter_spec it has 2 children: a, c, "),
    ({"a": True, "b": Point(Box([True]), True)}, r"(?s)filter_spec\.b\.x\.value.*list.*int"),
    ({"a": [None, True], "b": True}, r"(?s)filter_spec\.a\.0.*None.*int"),
    *(({"a": x, "b": True}, r"^filter_spec.*bools and predicates.*found .* at a") for x in (0, np.array([True]))),
]


@pytest.mark.parametrize(("spec", "said"), MISFITS)
@pytest.mark.parametrize("verb", [tk.filter, tk.partition])
def test_a_spec_that_does_not_fit_is_an_error_that_says_where(verb: Callable[..., Any], spec: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        verb(TREE, spec)
    with pytest.raises(ValueError, match=r"structure error|mismatch|Expected|callables"):  # it depends on JAX
        eqx.filter(TREE, spec)


@pytest.mark.parametrize(
    ("answer", "described"), [({"w": True}, "dict"), (None, "None"), (jnp.ones(2, bool), "bool[2]"), (0.5, "float 0.5")]
)
def test_a_predicate_answers_with_a_bool(answer: Any, described: str) -> None:
    tree = {"w": jnp.ones(2), "b": 1}
    for spec in (lambda _: answer, {"w": lambda _: answer, "b": True}):
        found = rf"^a predicate must return a bool for each leaf, found {re.escape(described)} for the leaf [wb] \("
        with pytest.raises(ValueError, match=found):
            tk.filter(tree, spec)


@pytest.mark.parametrize("yes", [np.bool_(True), jnp.array(True), 1])
def test_a_bool_of_any_library_is_an_answer(yes: Any) -> None:
    assert tk.filter([1.0, "x"], lambda x: yes if x == "x" else False) == [None, "x"]


ORDER = r"The arguments are \(tree, filter_spec\): are they in the right order\?$"
# a call, and words of the message of its ValueError
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "another static value": (
        lambda: tk.filter({"m": Twig(1, name="a")}, {"m": Twig(True, name="b")}),
        r"at key path filter_spec\.m\.name it has 'b', and the tree it is for 'a'",
    ),
    "a traced spec": (
        lambda: jax.jit(lambda keep: tk.filter([1.0], [keep]))(True),
        "^filter_spec contains a traced array, at 0",
    ),
    "a predicate that asks for values while tracing": (
        lambda: jax.jit(lambda tree: tk.filter(tree, lambda x: (x > 0).all()))({"w": jnp.ones(2)}),
        "found a traced array, whose value is not known, for the leaf w",
    ),
    "a predicate that raises StopIteration": (
        lambda: tk.filter({"a": jnp.ones(2), "b": jnp.ones(())}, lambda x: next(iter(x.shape)) > 1),
        r"for the leaf b \(.*\): RuntimeError the predicate raised StopIter",
    ),
    "a predicate that raises below is_leaf": (  # it selects nodes, and a prefix may end above them
        lambda: tk.filter(
            {"a": (1, 2), "b": "x"}, {"a": (True, True), "b": lambda x: x.ndim > 0}, is_leaf=lambda x: type(x) is tuple
        ),
        r"for the leaf b \(str\)",
    ),
    "a predicate for a tree": (lambda: tk.filter(tk.is_array, {"w": 1.0}), ORDER),
    "a mask function for a tree": (lambda: tk.partition(tk.path_mask("w"), {"w": 1.0}), ORDER),
    "a mask for a tree": (lambda: tk.filter({"w": True}, {"w": jnp.ones(2)}), ORDER),
    "trees that do not fit": (
        lambda: tk.combine({"a": [1, None]}, {"a": [None]}),
        r"(?s)tree does not fit rest\[0\].*\ba\b.*2 children: 0, 1, and rest\[0\] 1 child: 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_raises(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_predicate_that_raises_names_the_leaf() -> None:
    with pytest.raises(ValueError, match=r"raised an error for the leaf b\.0 \(custom_jvp.*is_array") as caught:
        tk.filter({"a": jnp.ones(2), "b": [jax.nn.relu]}, lambda leaf: leaf.ndim > 0)
    assert isinstance(caught.value.__cause__, AttributeError)
