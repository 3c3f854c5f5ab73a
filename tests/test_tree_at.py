"""tree_at and tree_find: Equinox's contract, for trees of any kind; and by name and by class."""

import dataclasses
import functools
import inspect
import operator
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import EXAMPLES, Box, Halved, Point, Twig, calls_of, follow, identical, places, trees, untyped


@tk.node
class Layer:
    weight: Any
    bias: Any
    name: str = tk.field(default="layer", static=True)


TREE = {"layers": [Layer(1, 2), Layer(3, None)], "head": Point(Layer(5, 6), (7, {"weight": 8}))}


def is_none(x: Any) -> bool:
    return x is None


def where_of(paths: list[tuple[Any, ...]]) -> Callable[[Any], Any]:
    return lambda tree: [follow(path, tree) for path in paths]


def apart(paths: list[tuple[Any, ...]]) -> bool:
    """Whether no path lies inside another one."""
    return not any(a != b and b[: len(a)] == a for a in paths for b in paths)


@st.composite
def trees_and_paths(draw: st.DrawFn, none_too: bool = False, fewest: int = 1) -> tuple[Any, list[tuple[Any, ...]]]:
    tree = draw(trees())
    found = [path for path, node in places(tree).items() if none_too or node is not None]
    assume(found)
    paths = draw(st.lists(st.sampled_from(found), min_size=fewest, max_size=3, unique=True))
    assume(apart(paths))
    return tree, paths


REPLACEMENTS = st.sampled_from((0, None, "new", jnp.ones(3), (), Point(1, None), Box([1]), Twig(None), len))


@pytest.mark.parametrize("is_leaf", [None, is_none])
@given(st.data())
def test_replace_agrees_with_equinox(is_leaf: Any, data: st.DataObject) -> None:
    """Where None is a leaf, each None is a node that can be replaced."""
    tree, paths = data.draw(trees_and_paths(none_too=is_leaf is is_none, fewest=0))
    new = [data.draw(REPLACEMENTS) for _ in paths]
    ours = tk.tree_at(where_of(paths), tree, new, is_leaf=is_leaf)
    assert identical(ours, eqx.tree_at(where_of(paths), tree, new, is_leaf=is_leaf))
    for path, value in zip(paths, new, strict=True):
        assert identical(follow(path, ours), value)


@given(trees_and_paths())
def test_replace_fn_agrees_with_equinox_and_sees_each_node_in_the_order_of_where(case: tuple[Any, list[Any]]) -> None:
    tree, paths = case
    before, seen = places(tree), list[Any]()

    def keep_in_a_list(node: Any) -> Any:
        seen.append(node)
        return [node]

    ours = tk.tree_at(where_of(paths), tree, replace_fn=keep_in_a_list)
    assert identical(seen, where_of(paths)(tree))
    assert identical(ours, eqx.tree_at(where_of(paths), tree, replace_fn=lambda node: [node]))
    assert identical(tk.tree_at(where_of(paths), tree, seen), tree)
    assert all(node is before[path] for path, node in places(tree).items()), "the tree given is left as it is"


@given(trees())
def test_a_single_node_takes_a_single_replacement(tree: Any) -> None:
    for path, node in places(tree).items():
        if node is not None:
            where = functools.partial(follow, path)
            ours = tk.tree_at(where, tree, [1, 2])
            assert follow(path, ours) == [1, 2]
            assert identical(ours, eqx.tree_at(where, tree, [1, 2]))


# tree, where, replacement, what must be found afterwards
CASES: dict[str, tuple[Any, Callable[[Any], Any], Any, Any]] = {
    "the only None": ([None, 1], lambda t: t[0], 5, [5, 1]),
    "inside one list at two places": ([[1]] * 2, lambda t: t[1][0], 2, [[1], [2]]),
    "one of several ()": ([(), (), ()], lambda t: t[1], 2, [(), 2, ()]),
    "the () at the root": ((), lambda t: t, 1, 1),
    "a tuple is a node and no sequence of nodes": ([(1, 2), 3], lambda t: t[0], (4, 5), [(4, 5), 3]),
    "sequence by tuple": ([1, 2, 3], lambda t: (t[0], t[2]), [4, 5], [4, 2, 5]),
    "sequence by list": ([1, 2, 3], lambda t: [t[2], t[0]], (4, 5), [5, 2, 4]),
    "a tuple of no nodes, beside one ()": ([(), 1], lambda t: (), (), [(), 1]),
    "a tuple of no nodes, beside several ()": ([(), [()]], lambda t: tuple(x for x in t if not t), (), [(), [()]]),
    "a slice": ([1, 2, 3], lambda t: t[1:], "ab", [1, "a", "b"]),
    "OrderedDict": (OrderedDict(b=1, a=2), lambda t: t["a"], 3, OrderedDict(b=1, a=3)),
    "a tuple that is taken for a leaf apart": ([(1, ()), 2], lambda t: t[0][1], 3, [(1, 3), 2]),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    tree, where, new, expected = CASES[name]
    ours = tk.tree_at(where, tree, new)
    assert ours == expected and type(ours) is type(expected)
    assert identical(ours, eqx.tree_at(where, tree, new))


def test_a_registered_class_is_rebuilt_without_its_init() -> None:
    """A class whose `__init__` prepares what it is given, where JAX's usual registration runs it again."""
    tree: Any = {"h": Halved(4.0), "x": 1}
    for new in (7.0, None, [1, 2]):
        assert tk.tree_at(lambda t: t["h"].value, tree, new)["h"].value is new
    assert tk.tree_at(lambda t: t["x"], tree, 2)["h"].value == tree["h"].value == 2.0


class Preparing:
    """Registered the usual way, by running `__init__` to rebuild."""

    def __init__(self, value: Any) -> None:
        self.value = repr(value)


jax.tree_util.register_pytree_node(Preparing, lambda x: ((x.value,), None), lambda _, children: Preparing(*children))


class Undecorated(Halved):
    """A leaf, and a subclass of a node."""


AT: Any = tk.tree_at
LINEAR: Any = eqx.nn.Linear(2, 2, key=jax.random.key(0))
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: AT(lambda t: t[0], [1]), "exactly one of replace and replace_fn"),
    (lambda: AT(lambda t: t[0], [1], 1, str), "exactly one of replace and replace_fn"),
    (lambda: AT(lambda t: (t[0], t[1]), [1, 2], [1, 2, 3]), "sequence of 2 values.*; found 3 values"),
    (
        lambda: AT(lambda m: m.layers[0].use_bias, EXAMPLES["mlp"], 3),
        r"If where is a predicate .*static field MLP\.use_bias or .*Linear\.use_bias\..*Create the MLP again",
    ),
    (lambda: AT(lambda t: "a" + "b", [1], 1), "A static field is not a node.*computed from leaves"),
    (lambda: AT(lambda t: {"a": t[0]}, [1, 2], [1]), "'a', which is not a node"),
    (lambda: AT(lambda t: [[]], [1, 2], [1]), r"returned \[\], which is not a node"),
    (lambda: AT(lambda m: m.__call__, LINEAR, 1), "did not return a node"),
    (lambda: AT(lambda t: (t[0], t[0]), [1, 2], [1, 2]), "the same node twice"),
    (lambda: AT(lambda t: t[0], [None, None], 1), "is_leaf=lambda x: x is None"),
    (lambda: AT(lambda t: None, [1], 1), "not return a node of the tree, but None"),
    (lambda: AT(lambda t: (t["a"], ()), {"a": 1}, (2, 3)), r"returned \(\), which is not a node"),
    (lambda: AT(lambda t: (), [1], [1]), r"selects nothing.*pass strict=False$"),
    (
        lambda: AT(lambda t: t["a"][0].value, {"a": [Undecorated(1)]}, 1),
        r"reads \.value of \ba\.0\b, a leaf of type Undecorated.*register it",
    ),
    (lambda: AT(lambda t: [x for x in t if x == 1], [1, 2], [3]), "structure of the tree only"),
    (lambda: AT(lambda t: t[0] if t[1] is len else t[1], [1, len], 3), "structure of the tree only"),
    (lambda: AT(lambda t: t.value, Preparing(1), 2), r"'<object object.* is not a leaf.*treekit\.register_node"),
    (lambda: AT(lambda x: isinstance(x, int), TREE, 0), "predicate on leaves, pass a class"),
    # By name and by class.
    (lambda: AT("layers.0.wieght", TREE, 0), r"'layers\.0\.wieght' matches nothing.*layers\.0\.weight"),
    (lambda: AT("**.bias", TREE, 0), "matches 3 nodes: head.x.bias.*replace_fn"),
    (lambda: AT(["head", "**.weight"], TREE, replace_fn=str), "'head.x.weight', which is inside 'head'"),
    (lambda: AT([], TREE, replace_fn=str), "where is empty"),
    (
        lambda: AT("layers.0.name", TREE, 0),
        r"is the static field Layer\.name\..*\.replace\(node, name=\.\.\.\)",
    ),
    (lambda: AT(["head", "layers"], TREE, [0]), "sequence of 2 values, one for each item.*; found 1 value"),
    (lambda: AT(["head", Point], TREE, [0, 1]), "the same node twice; it selects head"),
    (lambda: AT(["head.x", "layers.*"], TREE, [0, 1]), "matches 2 nodes: layers.0"),
]
MISTYPED: list[tuple[Callable[[], Any], str]] = [
    (lambda: tk.tree_find(TREE, ["**.bias", 3]), r"a pattern must be a string.*found 3"),
    (lambda: tk.tree_find(TREE, tk.path_mask("**.bias")), "where must be a function of the tree, a pattern.*; found"),
    (lambda: AT(LINEAR, "bias", None), r"found Linear\. Are the arguments in the right order\?"),
    (lambda: AT(["head"], TREE, 3), "replace must be a sequence of 1 value, one for each item.*; found 3"),
    (lambda: AT(lambda t: (t["head"], t["layers"]), TREE, 3), "sequence of 2 values, .*; found 3"),
    (lambda: AT("head", TREE, replace_fn=3), r"replace_fn must be a function .* 3\. To put a value there, pass"),
    (lambda: inspect.unwrap(tk.tree_find)(TREE, "head", strict="no"), "strict must be True or False, found 'no'"),
    (lambda: inspect.unwrap(AT)("head", TREE, 0, strict="no"), "strict must be True or False, found 'no'"),
]


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [*((ValueError, *row) for row in WRONG), *((TypeError, *row) for row in MISTYPED)],
)
def test_what_is_wrong_raises(error: type[Exception], call: Callable[[], Any], message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        call()


def test_help_shows_which_arguments_are_required() -> None:
    assert str(inspect.signature(tk.tree_at)).count(" = <required>") == 2


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        (lambda t: t["no such key"], KeyError, "no such key"),
        (operator.attrgetter("no_such"), AttributeError, "'dict' object has no attribute 'no_such'"),
        (lambda t: t["a"] * 2, TypeError, "unsupported operand"),
    ],
)
def test_what_where_raises_goes_through(where: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        tk.tree_at(where, {"a": jnp.ones(2)}, 2)
    (note,) = caught.value.__notes__
    assert "`where` of tree_at raised this" in note and "with placeholders for its leaves" in note
    assert ("return nodes, and not compute with leaves" in note) == (error is TypeError)


NAMED: dict[str, Any] = {
    "functions, in order": (lambda t: [t["a"][1], t["b"]], "a.1"),
    "patterns": (["b", "a.1"], "a.1"),
    "a class": (dict, "the root"),
}


@pytest.mark.parametrize("case", NAMED)
def test_an_error_of_replace_fn_names_the_node(case: str) -> None:
    where, name = NAMED[case]

    def fail(node: Any) -> Any:
        if node == [2]:
            return node
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        tk.tree_at(where, {"a": [1, [{"w": 0}]], "b": [2]}, replace_fn=fail)
    assert caught.value.__notes__ == [f"the function `replace_fn` of tree_at raised this for {name}"]


@given(trees(), st.data())
def test_a_node_inside_another_one_that_is_named_is_an_error(tree: Any, data: st.DataObject) -> None:
    tree = (tree, 1)
    found = [path for path, node in places(tree).items() if node is not None]
    inside = [[a, b] for a in found for b in found if a != b and b[: len(a)] == a]
    pair = data.draw(st.permutations(data.draw(st.sampled_from(inside))))
    with pytest.raises(ValueError, match="inside another"):
        tk.tree_at(where_of(pair), tree, [1, 2])


class OnlyOne:
    """Rebuilding gives the one instance there is, wherever it stands."""


ONLY_ONE = OnlyOne()
jax.tree_util.register_pytree_node(OnlyOne, lambda _: ((), None), lambda *_: ONLY_ONE)


def test_a_node_that_cannot_be_told_from_another_is_an_error() -> None:
    with pytest.raises(ValueError, match="the tree has that object at 2 places"):
        tk.tree_at(lambda t: t[0], [ONLY_ONE, ONLY_ONE], 1)
    assert tk.tree_at(lambda t: t[0], [ONLY_ONE, 1], 2) == [2, 1]


@pytest.mark.parametrize("is_leaf", [None, lambda x: isinstance(x, tuple) and not x], ids=["none", "()"])
def test_no_nodes_leave_the_tree_as_it_is_if_that_is_meant(is_leaf: Any) -> None:
    """As where there are no biases to replace."""
    model: Any = {"weights": [1, 2], "biases": [None, None]}

    def biases(m: Any) -> tuple[Any, ...]:
        return tuple(x for x in m["biases"] if x is not None)

    assert identical(tk.tree_at(biases, model, replace=[], is_leaf=is_leaf), model)
    with pytest.raises(ValueError, match="where selects nothing"):
        tk.tree_at(biases, model, replace_fn=jnp.zeros_like, is_leaf=is_leaf)


@pytest.mark.parametrize("where", [lambda t: t.left, "left"], ids=["function", "name"])
def test_under_jit(where: Any) -> None:
    step = jax.jit(lambda x: tk.tree_at(where, Twig(x, x), replace_fn=lambda leaf: leaf * 2))
    out = step(jnp.ones(2))
    assert out.left.tolist() == [2.0, 2.0] and out.right.tolist() == [1.0, 1.0]


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


def test_a_list_takes_a_list_of_replacements_in_its_order() -> None:
    out: Any = tk.tree_at(["layers.1.bias", Point, "layers.0"], TREE, [0, 1, 2])
    assert tk.tree_find(out, "**.bias") == {"layers.1.bias": 0} and out["head"] == 1 and out["layers"][0] == 2


def test_a_list_of_names_is_looked_up() -> None:
    """Not each name is compared with each node: with twice as many of both, it takes twice as long."""

    def find(number: int) -> None:
        tree = {"layers": [{"w": i, "b": i} for i in range(number)]}
        names = [f"layers.{i}.w" for i in range(number)]
        assert list(tk.tree_find(tree, names).values()) == list(range(number))

    find(10)  # what is cached at the first call
    assert calls_of(lambda: find(400)) < 2.1 * calls_of(lambda: find(200))


def test_two_nodes_of_one_name_raise() -> None:
    tree = {"a.b": 1, "a": {"b": 2}}
    with pytest.raises(ValueError, match=r"two nodes are called 'a\.b'.*where=lambda"):
        tk.tree_find(tree, "a.b")
    with pytest.raises(ValueError, match=r"two nodes are called 'a\.b'"):
        tk.tree_at("a.b", tree, replace_fn=str)
    assert tk.tree_find(tree, "a") == {"a": {"b": 2}}
    assert tk.tree_at(int, tree, replace_fn=str) == {"a.b": "1", "a": {"b": "2"}}


def test_a_leaf_that_is_a_node_elsewhere() -> None:
    tree = {"a": OrderedDict(b=(1, 2))}

    def is_tuple(x: object) -> bool:
        return isinstance(x, tuple)

    assert list(tk.tree_find(tree, "**", is_leaf=is_tuple)) == ["", "a", "a.b"]
    assert list(tk.tree_find(tree, "**")) == ["", "a", "a.b", "a.b.0", "a.b.1"]


NOWHERE: list[Any] = ["x", re.compile("x"), eqx.nn.Linear, ["x", eqx.nn.Linear], [], lambda t: []]


@pytest.mark.parametrize("where", NOWHERE)
@pytest.mark.parametrize("how", [{"replace_fn": str}, {"replace": [0, 0]}])
def test_without_strict_what_matches_nothing_is_nothing(where: Any, how: dict[str, Any]) -> None:
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
    out: Any = tk.tree_at(["nothing", "layers.1.bias", eqx.nn.Linear, Point], TREE, [0, 1, 2, 3], strict=False)
    assert out["layers"][1].bias == 1 and out["head"] == 3 and out["layers"][0].bias == 2
    with pytest.raises(ValueError, match="matches 3 nodes"):
        tk.tree_at(["nothing", "**.bias"], TREE, [0, 1], strict=False)
    with pytest.raises(ValueError, match="the same node twice"):
        tk.tree_at(["nothing", "head", Point], TREE, [0, 1, 2], strict=False)


@dataclasses.dataclass
class Keyless:
    w: Any
    n: Any = 3

    def __post_init__(self) -> None:
        self.extra = 0


make: Any = Keyless
register: Any = jax.tree_util.register_pytree_node
register(Keyless, lambda x: ((x.w,), x.n), lambda n, children: make(*children, n))


@pytest.mark.parametrize("field", ["w", "n", "extra"])
@pytest.mark.parametrize("start", ["", "a.", "**."])
def test_the_children_of_a_class_without_key_paths_are_numbered(start: str, field: str) -> None:
    tree: Any = {"a": Keyless(1.0)} if start else Keyless(1.0)
    words = rf"{re.escape(start + field)}' matches no.* Keyless has a field '{field}', .* its children are called 0$"
    for call in (tk.tree_find, lambda tree, name: tk.path_mask(name)(tree)):
        with pytest.raises(ValueError, match=words):
            call(tree, start + field)
    tk.tree_at(f"{start}0", tree, 2.0)
    with pytest.raises(ValueError, match=r"depth$"):
        tk.tree_find(tree, f"{start}other")
