"""tree_at and tree_find: Equinox's contract, for trees of any kind; and by name and by class."""

import functools
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import assume, given
from hypothesis import strategies as st

import treekit as tk
from tests.releases import VARIABLES, needs, new_ref
from tests.trees import Box, Point, Twig, follow, identical, places, trees, untyped


@tk.node
class Layer:
    weight: Any
    bias: Any


untyped_nnx: Any = nnx
TREE = {"layers": [Layer(1, 2), Layer(3, None)], "head": Point(Layer(5, 6), (7, {"weight": 8}))}


def is_none(x: Any) -> bool:
    return x is None


# ------------------------------------------------------------------------------------------------------- by a function


def where_of(paths: list[tuple[Any, ...]]) -> Callable[[Any], Any]:
    return lambda tree: [follow(path, tree) for path in paths]


@st.composite
def trees_and_paths(draw: st.DrawFn, none_too: bool = False) -> tuple[Any, list[tuple[Any, ...]]]:
    """A tree, and the paths of some of its nodes, none of which is inside another."""
    tree = draw(trees())
    found = [path for path, node in places(tree).items() if none_too or node is not None]
    paths = draw(st.lists(st.sampled_from(found), max_size=3, unique=True)) if found else []
    assume(not any(a != b and b[: len(a)] == a for a in paths for b in paths))
    return tree, paths


REPLACEMENTS = st.sampled_from((0, None, "new", [1], jnp.ones(3), (), Point(1, None), Box([1]), Twig(None)))


@pytest.mark.parametrize("is_leaf", [None, is_none])
@given(st.data())
def test_replace_agrees_with_equinox(is_leaf: Any, data: st.DataObject) -> None:
    """Where None is a leaf, each None is a node that can be replaced."""
    tree, paths = data.draw(trees_and_paths(none_too=is_leaf is is_none))
    new = [data.draw(REPLACEMENTS) for _ in paths]
    ours = tk.tree_at(where_of(paths), tree, new, is_leaf=is_leaf)
    assert identical(ours, eqx.tree_at(where_of(paths), tree, new, is_leaf=is_leaf))
    for path, value in zip(paths, new, strict=True):
        assert identical(follow(path, ours), value)
        alone = tk.tree_at(functools.partial(follow, path), tree, value, is_leaf=is_leaf)
        assert identical(alone, tk.tree_at(where_of([path]), tree, [value], is_leaf=is_leaf))


@given(trees_and_paths())
def test_replace_fn_sees_each_node_in_the_order_of_where(case: tuple[Any, list[Any]]) -> None:
    tree, paths = case
    before, seen = places(tree), list[Any]()

    def keep_in_a_list(node: Any) -> Any:
        seen.append(node)
        return [node]

    ours = tk.tree_at(where_of(paths), tree, replace_fn=keep_in_a_list, strict=False)
    assert identical(seen, where_of(paths)(tree))
    assert identical(ours, tk.tree_at(where_of(paths), tree, [[node] for node in seen]))
    assert all(node is before[path] for path, node in places(tree).items()), "the tree given is left as it is"


# tree, where, replacement, what must be found afterwards
CASES: dict[str, tuple[Any, Callable[[Any], Any], Any, Any]] = {
    "the only None": ([None, 1], lambda t: t[0], 5, [5, 1]),
    "inside one list at two places": ([[1]] * 2, lambda t: t[1][0], 2, [[1], [2]]),
    "one of several ()": ([(), (), ()], lambda t: t[1], 2, [(), 2, ()]),
    "the () at the root": ((), lambda t: t, 1, 1),
    "a tuple is a node and no sequence of nodes": ([(1, 2), 3], lambda t: t[0], (4, 5), [(4, 5), 3]),
    "sequence by tuple": ([1, 2, 3], lambda t: (t[0], t[2]), [4, 5], [4, 2, 5]),
    "a tuple of no nodes, next to one ()": ([(), 1], lambda t: (), (), [(), 1]),
    "a tuple of no nodes, next to several ()": ([(), [()]], lambda t: tuple(x for x in t if not t), (), [(), [()]]),
    "a slice": ([1, 2, 3], lambda t: t[1:], range(5, 7), [1, 5, 6]),
    "OrderedDict": (OrderedDict(b=1, a=2), lambda t: t["a"], 3, OrderedDict(b=1, a=3)),
    "a tuple that is taken for a leaf apart": ([(1, ()), 2], lambda t: t[0][1], 3, [(1, 3), 2]),
}


@pytest.mark.parametrize("is_leaf", [None, is_none])
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, is_leaf: Any) -> None:
    tree, where, new, expected = CASES[name]
    ours = tk.tree_at(where, tree, new, is_leaf=is_leaf)
    assert ours == expected and type(ours) is type(expected)
    assert identical(ours, eqx.tree_at(where, tree, new, is_leaf=is_leaf))


def test_help_shows_which_arguments_are_required() -> None:
    assert str(inspect.signature(tk.tree_at)).count(" = <required>") == 2


# --------------------------------------------------------------------------------------------- by name, and by class


# For each `where`: the names that it finds in TREE, in order.
FOUND: dict[str, tuple[Any, list[str]]] = {
    "a name": ("layers.0.weight", ["layers.0.weight"]),
    "two stars": ("**.weight", ["head.x.weight", "head.y.1.weight", "layers.0.weight", "layers.1.weight"]),
    "None is a node": ("layers.1.bias", ["layers.1.bias"]),
    "a regular expression": (re.compile(r"layers\.\d"), ["layers.0", "layers.1"]),
    "a class": (Layer, ["head.x", "layers.0", "layers.1"]),
    "classes": ([Layer, dict], ["", "head.x", "layers.0", "layers.1"]),
    "several": (["**.bias", Point], ["head", "head.x.bias", "layers.0.bias", "layers.1.bias"]),
    "a function": (lambda t: t["layers"][1].weight, ["layers.1.weight"]),
    "a function that returns several": (lambda t: [t["layers"][1], t["head"].x], ["head.x", "layers.1"]),
    "the root": (lambda t: t, [""]),
}


@pytest.mark.parametrize("name", FOUND)
def test_nodes_are_found_by_name_in_the_order_of_the_tree(name: str) -> None:
    where, names = FOUND[name]
    found = tk.tree_find(TREE, where)
    assert list(found) == names
    for each, node in found.items():
        assert identical(node, tk.tree_find(TREE, re.compile(re.escape(each)))[each])


@pytest.mark.parametrize("name", ["a name", "two stars", "None is a node", "a regular expression", "a class"])
def test_what_is_found_can_be_replaced(name: str) -> None:
    where, names = FOUND[name]
    out = tk.tree_at(where, TREE, replace_fn=lambda node: Box(node))
    assert identical([tk.tree_find(out, each)[each].value for each in names], [*tk.tree_find(TREE, where).values()])
    assert identical(tk.tree_at(names, out, replace_fn=lambda box: box.value), TREE)


@given(trees())
def test_every_leaf_is_found_and_replaced_by_its_name(tree: Any) -> None:
    leaves, treedef = untyped.tree_util.tree_flatten_with_path(tree)
    new = object()
    for i, (path, leaf) in enumerate(leaves):
        name = re.compile(re.escape(untyped.tree_util.keystr(path, simple=True, separator=".")))
        (found,) = tk.tree_find(tree, name).values()
        assert found is leaf
        expected = [new if i == j else other for j, (_, other) in enumerate(leaves)]
        assert identical(tk.tree_at(name, tree, new), treedef.unflatten(expected))


def test_both_trees_own_their_containers() -> None:
    tree = {"a": [1], "b": [2]}
    out = tk.tree_at("b", tree, 3)
    out["a"].append(9)
    assert tree == {"a": [1], "b": [2]}


@pytest.mark.parametrize("options", [{"replace": None}, {"replace_fn": None}])
def test_the_result_owns_the_containers_of_a_replacement(options: Any) -> None:
    new: list[Any] = [1, {"a": (Point([2], 3),)}]
    given: Any = {"replace": new, "replace_fn": lambda _: new}
    tree: Any = {"b": 0}
    out = tk.tree_at("b", tree, **{name: given[name] for name in options})
    out["b"].append(9)
    out["b"][1]["c"] = 9
    assert len(new) == 2 and [*new[1]] == ["a"]


def test_a_list_takes_a_list_of_replacements_in_its_order() -> None:
    where, new = ["layers.1.bias", Point, "layers.0"], [0, 1, 2]
    expected = {"layers": [2, Layer(3, 0)], "head": 1}
    assert identical(tk.tree_at(where, TREE, new), expected)
    assert identical(tk.tree_at(["nothing", *where, eqx.nn.Linear], TREE, [8, *new, 9], strict=False), expected)


def test_two_nodes_of_one_name_are_found_by_what_is_around_them_and_by_class() -> None:
    tree = {"a.b": 1, "a": {"b": 2}}
    assert tk.tree_find(tree, "a") == {"a": {"b": 2}}
    assert tk.tree_at(int, tree, replace_fn=str) == {"a.b": "1", "a": {"b": "2"}}


def test_a_leaf_that_is_a_node_elsewhere() -> None:
    tree = {"a": OrderedDict(b=(1, 2))}
    assert list(tk.tree_find(tree, "**", is_leaf=lambda x: isinstance(x, tuple))) == ["", "a", "a.b"]
    assert list(tk.tree_find(tree, "**")) == ["", "a", "a.b", "a.b.0", "a.b.1"]


class Wrapped(nnx.Module):
    def __init__(self, inner: Any) -> None:
        self.inner, self.scale = inner, nnx.Param(jnp.ones(2))


class Net(nnx.Module):
    def __init__(self) -> None:
        self.first, self.last = (nnx.Linear(2, 2, rngs=nnx.Rngs(i)) for i in range(2))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(2))


# Ways to edit a module; all but the first give the new one modules or variables of the old one.
EDITS: dict[str, Callable[[Any], Any]] = {
    "by name": lambda net: tk.tree_at("first.bias", net, replace_fn=lambda x: x),
    "a module in another one": lambda net: tk.tree_at("first", net, replace_fn=Wrapped),
    "by class": lambda net: tk.tree_at(nnx.Linear, net, replace_fn=Wrapped),
    "by a function": lambda net: tk.tree_at(lambda net: net.last, net, Wrapped(net.last)),
    "a variable": lambda net: tk.tree_at(lambda net: net.first.bias, net, replace_fn=lambda x: x),
    "another part": lambda net: tk.tree_at(lambda net: net.first, net, net.last),
}


@needs("flax.nnx.var_defaults")
@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("kind", VARIABLES)
def test_a_module_and_its_edited_copy_share_no_variables(name: str, kind: Any) -> None:
    with untyped_nnx.var_defaults(**kind):
        net = Net()
        out = EDITS[name](net)
    before = [np.asarray(x) for x in tk.to_state_dict(net).values()]
    for _, x in untyped_nnx.iter_graph(out):
        if isinstance(x, nnx.Param):
            x[...] = x[...] + 1
    for x, y in zip(before, tk.to_state_dict(net).values(), strict=True):
        np.testing.assert_array_equal(x, y)


@needs("flax.nnx.var_defaults")
@pytest.mark.parametrize("kind", VARIABLES)
@pytest.mark.parametrize("where", ["first.bias", lambda net: net.first.bias, lambda net: [net.first.bias]])
def test_an_array_becomes_the_value_of_a_variable(kind: Any, where: Any) -> None:
    new = jnp.ones(2)
    with untyped_nnx.var_defaults(**kind):
        net: Any = Net()
    replaced = tk.tree_at(where, net, [new] if callable(where) and isinstance(where(net), list) else new)
    for out in (replaced, tk.tree_at(where, net, replace_fn=lambda _: new)):
        assert type(out.first.bias) is type(net.first.bias)
        np.testing.assert_array_equal(out.first.bias[...], new)
        assert untyped.tree.structure(out) == untyped.tree.structure(net)


@needs("jax.new_ref")
def test_other_references_are_shared_as_arrays_are() -> None:
    tree: dict[str, Any] = {"r": new_ref(jnp.ones(2)), "w": 1}
    assert tk.tree_at("w", tree, 2)["r"] is tree["r"]


@pytest.mark.parametrize("where", ["x", re.compile("x"), eqx.nn.Linear, ["x", eqx.nn.Linear], [], lambda t: []])
def test_without_strict_what_matches_nothing_is_nothing(where: Any) -> None:
    find: Any = functools.partial(tk.tree_find, TREE, where)
    replace: Any = functools.partial(tk.tree_at, where, TREE, [0] * len(where) if isinstance(where, list) else [0, 0])
    replace_fn: Any = functools.partial(tk.tree_at, where, TREE, replace_fn=str)
    for call, expected in ((find, {}), (replace, TREE), (replace_fn, TREE)):
        out = call(strict=False)
        assert identical(out, expected) and out is not TREE
        with pytest.raises(ValueError):
            call()
