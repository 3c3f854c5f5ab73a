"""`tree_find`, and `tree_at` by name and by class: which nodes are found, and what they are called."""

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import identical, trees, untyped
from treekit._base.key_path import Place


class Pair(NamedTuple):
    left: Any
    right: Any


@tk.node
class Layer:
    weight: Any
    bias: Any
    name: str = tk.field(default="layer", static=True)


TREE = {"layers": [Layer(1, 2), Layer(3, None)], "head": Pair(Layer(5, 6), (7, {"weight": 8}))}

# For each `where`: the names that it finds in TREE, in order.
FOUND: dict[str, tuple[Any, list[str]]] = {
    "a name": ("layers.0.weight", ["layers.0.weight"]),
    "a star": ("layers.*.weight", ["layers.0.weight", "layers.1.weight"]),
    "two stars": ("**.weight", ["head.left.weight", "head.right.1.weight", "layers.0.weight", "layers.1.weight"]),
    "None is a node": ("layers.1.bias", ["layers.1.bias"]),
    "a regular expression": (re.compile(r"layers\.\d"), ["layers.0", "layers.1"]),
    "a class": (Layer, ["head.left", "layers.0", "layers.1"]),
    "classes": ([Layer, dict], ["", "head.left", "layers.0", "layers.1"]),
    "several": (["**.bias", Pair], ["head", "head.left.bias", "layers.0.bias", "layers.1.bias"]),
    "a function": (lambda t: t["layers"][1].weight, ["layers.1.weight"]),
    "a function that returns several": (lambda t: [t["layers"][1], t["head"].left], ["head.left", "layers.1"]),
    "the root": (lambda t: t, [""]),
}


@pytest.mark.parametrize("name", FOUND)
def test_nodes_are_found_by_name_in_the_order_of_the_tree(name: str) -> None:
    where, names = FOUND[name]
    found = tk.tree_find(TREE, where)
    assert list(found) == names
    for each, node in found.items():
        assert identical(node, dict(tk.tree_find(TREE, re.compile(re.escape(each))))[each])


@pytest.mark.parametrize("name", ["a name", "a star", "None is a node", "a class", "two stars"])
def test_what_is_found_can_be_replaced(name: str) -> None:
    where, names = FOUND[name]
    seen: list[Any] = []

    def mark(node: Any) -> str:
        seen.append(node)
        return f"new {len(seen)}"

    out = tk.tree_at(where, TREE, replace_fn=mark)
    assert identical(seen, list(tk.tree_find(TREE, where).values()))
    assert [tk.tree_find(out, each)[each] for each in names] == [f"new {i + 1}" for i in range(len(names))]
    back = iter(seen)
    assert identical(tk.tree_at(names, out, replace_fn=lambda _: next(back)), TREE)


@given(trees(), st.data())
def test_every_leaf_is_found_and_replaced_by_its_name(tree: Any, data: st.DataObject) -> None:
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    i = data.draw(st.sampled_from(range(len(names)))) if names else 0
    if not names or not names[i] or names.count(names[i]) > 1:
        return
    where, new = re.compile(re.escape(names[i])), object()
    (found,) = tk.tree_find(tree, where).values()
    assert found is jax.tree.leaves(tree)[i]
    ours = tk.tree_at(where, tree, new)
    assert [j for j, x in enumerate(jax.tree.leaves(ours)) if x is new] == [i]
    assert untyped.tree.structure(ours) == untyped.tree.structure(tree)


def test_both_trees_own_their_containers() -> None:
    tree = {"a": [1], "b": [2]}
    out = tk.tree_at("b", tree, 3)
    out["a"].append(9)
    assert tree == {"a": [1], "b": [2]}


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a misspelt name": ("layers.0.wieght", {"replace": 0}, r"'layers\.0\.wieght' matches nothing.*layers\.0\.weight"),
    "a class that is not there": (
        eqx.nn.Linear,
        {"replace": 0},
        r"instance of Linear\. It has instances of Layer, Pair, dict, int, list, tuple$",
    ),
    "one of several": (["**.bias", "nothing"], {"replace_fn": str}, "'nothing' matches nothing"),
    "one replacement for several": ("**.bias", {"replace": 0}, "matches 3 nodes: head.left.bias.*replace_fn"),
    "a node inside another": (["head", "**.weight"], {"replace_fn": str}, "'head.left.weight', which is inside 'head'"),
    "no selector": ([], {"replace_fn": str}, "where is empty"),
    "an empty pattern": ("", {"replace_fn": str}, "must not be empty"),
    "a static field": (
        "layers.0.name",
        {"replace": 0},
        r"static field.*of Layer. treekit\.replace\(node, name=\.\.\.\)",
    ),
    "a predicate": (lambda x: isinstance(x, int), {"replace": 0}, "predicate on leaves, pass a class"),
    "another length": (["head", "layers"], {"replace": [0]}, "where has 2 items, and replace has 1 value"),
    "the same node twice": (["head", Pair], {"replace": [0, 1]}, "the same node twice; it selects head"),
    "one of a list that matches several": (["head.left", "layers.*"], {"replace": [0, 1]}, "matches 2 nodes: layers.0"),
}


def test_a_list_takes_a_list_of_replacements_in_its_order() -> None:
    out: Any = tk.tree_at(["layers.1.bias", Pair, "layers.0"], TREE, [0, 1, 2])
    assert tk.tree_find(out, "**.bias") == {"layers.1.bias": 0} and out["head"] == 1 and out["layers"][0] == 2
    out = tk.tree_at(["head"], TREE, [1])
    assert out["head"] == 1


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_raises(name: str) -> None:
    where, how, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        tk.tree_at(where, TREE, **how)


LINEAR: Any = eqx.nn.Linear(2, 2, key=jax.random.key(0))
NOT_SELECTORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: tk.tree_find(TREE, ["**.bias", 3]), r"a pattern must be a string.*found 3"),
    (lambda: tk.tree_find(TREE, tk.path_mask("**.bias")), "where must be a function of the tree, a pattern.*; found"),
    (lambda: tk.tree_at(LINEAR, "bias", None), r"found a Linear\. Are the arguments in the right order\?"),
    (lambda: tk.tree_find("**.bias", LINEAR), r"found a Linear\. Are the arguments in the right order\?"),
    (lambda: tk.tree_at(["head"], TREE, 3), "where has 1 item, so replace must be a sequence of 1, found 3"),
]


@pytest.mark.parametrize("call, message", NOT_SELECTORS)
def test_what_is_not_a_selector_raises(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_strict_is_a_bool() -> None:
    find, at = inspect.unwrap(tk.tree_find), inspect.unwrap(tk.tree_at)  # beartype would be the first to say so
    with pytest.raises(TypeError, match="strict must be True or False, found 'no'"):
        find(TREE, "head", strict="no")
    with pytest.raises(TypeError, match="strict must be True or False, found 'no'"):
        at("head", TREE, 0, strict="no")


@pytest.mark.parametrize("leaves", [1_000, 4_000])
def test_a_list_of_names_is_looked_up(leaves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node is asked for its place in all names, not each name for each node."""
    asked: list[str] = []
    after = Place.after

    def counted(self: Place, text: str) -> Place:
        asked.append(text)
        return after(self, text)

    monkeypatch.setattr(Place, "after", counted)
    tree = {"layers": [{"w": i, "b": i} for i in range(leaves // 2)]}
    names = [f"layers.{i}.w" for i in range(leaves // 2)]
    assert list(tk.tree_find(tree, names).values()) == list(range(leaves // 2))
    assert len(asked) <= 2 * leaves


def test_two_nodes_of_one_name_raise() -> None:
    tree = {"a.b": 1, "a": {"b": 2}}
    with pytest.raises(ValueError, match=r"two nodes are called 'a\.b'.*where=lambda"):
        tk.tree_find(tree, "a.b")
    with pytest.raises(ValueError, match=r"two nodes are called 'a\.b'"):
        tk.tree_at("a.b", tree, replace_fn=str)
    assert tk.tree_find(tree, "a") == {"a": {"b": 2}}
    assert tk.tree_at(int, tree, replace_fn=str) == {"a.b": "1", "a": {"b": "2"}}


def test_models_and_states_of_others() -> None:
    model: Any = eqx.nn.MLP(2, 1, 4, depth=1, key=jax.random.key(0))
    assert list(tk.tree_find(model, eqx.nn.Linear)) == ["layers.0", "layers.1"]
    state = optax.adam(1e-3).init(eqx.filter(model, eqx.is_array))
    assert list(tk.tree_find(state, "**.mu.layers.0.*")) == ["0.mu.layers.0.weight", "0.mu.layers.0.bias"]


def test_the_value_of_a_flax_variable_has_its_name() -> None:
    model: Any = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    state: Any = nnx.state(model)
    (kernel,) = tk.tree_find(state, "kernel").values()
    assert isinstance(kernel, jax.Array) and kernel.shape == (2, 3)
    assert list(tk.tree_find(state, nnx.Param)) == ["bias", "kernel"]
    out = tk.tree_at("kernel", state, jnp.zeros((2, 3)))
    np.testing.assert_array_equal(np.asarray(out["kernel"].get_value()), 0)


def test_a_leaf_that_is_a_node_elsewhere() -> None:
    tree = {"a": OrderedDict(b=(1, 2))}

    def is_tuple(x: object) -> bool:
        return isinstance(x, tuple)

    assert list(tk.tree_find(tree, "**", is_leaf=is_tuple)) == ["", "a", "a.b"]
    assert list(tk.tree_find(tree, "**")) == ["", "a", "a.b", "a.b.0", "a.b.1"]


def test_shapes_and_traced_values() -> None:
    model: Any = eqx.filter_eval_shape(eqx.nn.Linear, 2, 3, key=jax.random.key(0))
    assert tk.tree_find(model, "weight")["weight"].shape == (3, 2)

    def double(params: Any) -> Any:
        return tk.tree_at("**.weight", params, replace_fn=lambda x: 2 * x)

    assert jax.jit(double)({"a": {"weight": 2.0, "bias": 1.0}}) == {"a": {"weight": 4.0, "bias": 1.0}}


NOWHERE: dict[str, Any] = {
    "a pattern": "nothing",
    "a regular expression": re.compile("nothing"),
    "a class": eqx.nn.Linear,
    "several": ["nothing", eqx.nn.Linear],
    "an empty list": [],
    "a function": lambda t: [],
}


@pytest.mark.parametrize("case", NOWHERE)
@pytest.mark.parametrize("how", [{"replace_fn": str}, {"replace": [0, 0]}])
def test_without_strict_what_matches_nothing_is_nothing(case: str, how: dict[str, Any]) -> None:
    where = NOWHERE[case]
    assert tk.tree_find(TREE, where, strict=False) == {}
    many = isinstance(where, list) and "replace" in how
    replaced: dict[str, Any] = {"replace": [0] * len(where)} if many else how
    out = tk.tree_at(where, TREE, strict=False, **replaced)
    assert identical(out, TREE) and out is not TREE
    with pytest.raises(ValueError, match=r"nothing|no instance|where is empty"):
        tk.tree_at(where, TREE, **how)
    with pytest.raises(ValueError, match=r"nothing|no instance|where is empty"):
        tk.tree_find(TREE, where)


def test_without_strict_the_others_of_a_list_get_their_replacements() -> None:
    out: Any = tk.tree_at(["nothing", "layers.1.bias", eqx.nn.Linear, Pair], TREE, [0, 1, 2, 3], strict=False)
    assert out["layers"][1].bias == 1 and out["head"] == 3 and out["layers"][0].bias == 2
    with pytest.raises(ValueError, match="matches 3 nodes"):
        tk.tree_at(["nothing", "**.bias"], TREE, [0, 1], strict=False)
    with pytest.raises(ValueError, match="the same node twice"):
        tk.tree_at(["nothing", "head", Pair], TREE, [0, 1, 2], strict=False)
