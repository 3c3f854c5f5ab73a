"""tree_at: Equinox's contract, for trees of any kind."""

import functools
import inspect
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import EXAMPLES, Box, Halved, Point, Twig, follow, identical, places, trees, untyped


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


@given(trees_and_paths(fewest=0), st.data())
def test_replace_agrees_with_equinox(case: tuple[Any, list[Any]], data: st.DataObject) -> None:
    tree, paths = case
    new = [data.draw(REPLACEMENTS) for _ in paths]
    ours = tk.tree_at(where_of(paths), tree, new)
    assert identical(ours, eqx.tree_at(where_of(paths), tree, new))
    for path, value in zip(paths, new, strict=True):
        assert identical(follow(path, ours), value)


@given(trees_and_paths())
def test_replace_fn_agrees_with_equinox_and_sees_each_node(case: tuple[Any, list[Any]]) -> None:
    tree, paths = case
    seen: list[Any] = []

    def keep_in_a_list(node: Any) -> Any:
        seen.append(node)
        return [node]

    ours = tk.tree_at(where_of(paths), tree, replace_fn=keep_in_a_list)
    for path, node in zip(paths, seen, strict=True):
        assert identical(node, follow(path, tree))
    assert identical(ours, eqx.tree_at(where_of(paths), tree, replace_fn=lambda node: [node]))


@given(trees_and_paths(none_too=True), st.data())
def test_with_none_as_a_leaf_each_none_is_a_node(case: tuple[Any, list[Any]], data: st.DataObject) -> None:
    tree, paths = case
    new = [data.draw(REPLACEMENTS) for _ in paths]
    ours = tk.tree_at(where_of(paths), tree, new, is_leaf=is_none)
    assert identical(ours, eqx.tree_at(where_of(paths), tree, new, is_leaf=is_none))


@given(trees())
def test_a_single_node_takes_a_single_replacement(tree: Any) -> None:
    for path, node in places(tree).items():
        if node is not None:
            where = functools.partial(follow, path)
            ours = tk.tree_at(where, tree, [1, 2])
            assert follow(path, ours) == [1, 2]
            assert identical(ours, eqx.tree_at(where, tree, [1, 2]))


@given(trees_and_paths())
def test_putting_back_what_was_there_changes_nothing(case: tuple[Any, list[Any]]) -> None:
    tree, paths = case
    assert identical(tk.tree_at(where_of(paths), tree, where_of(paths)(tree)), tree)
    assert identical(tk.tree_at(where_of(paths), tree, replace_fn=lambda node: node), tree)


@given(trees_and_paths())
def test_the_tree_given_is_left_as_it_is(case: tuple[Any, list[Any]]) -> None:
    tree, paths = case
    before = places(tree)
    tk.tree_at(where_of(paths), tree, replace_fn=lambda _: 0)
    after = places(tree)
    assert before.keys() == after.keys()
    assert all(node is after[path] for path, node in before.items())


MLP = EXAMPLES["mlp"]

# tree, where, replacement, what must be found afterwards
CASES: dict[str, tuple[Any, Callable[[Any], Any], Any, Any]] = {
    "root": ([1, 2], lambda t: t, 0, 0),
    "root leaf": (1, lambda t: t, [2], [2]),
    "root None": (None, lambda t: t, 1, 1),
    "the only None": ([None, 1], lambda t: t[0], 5, [5, 1]),
    "array to None": ([np.ones(2), 1], lambda t: t[0], None, [None, 1]),
    "subtree by subtree": ({"a": (1, 2), "b": 3}, lambda t: t["a"], {"x": 4}, {"a": {"x": 4}, "b": 3}),
    "subtree by leaf": ({"a": (1, 2), "b": 3}, lambda t: t["a"], 4, {"a": 4, "b": 3}),
    "leaf by subtree": ({"a": 1}, lambda t: t["a"], (1, (2, [])), {"a": (1, (2, []))}),
    "equal small ints": ([1, 1, 1], lambda t: t[1], 2, [1, 2, 1]),
    "one list at two places": ([[1]] * 3, lambda t: t[1], 2, [[1], 2, [1]]),
    "inside one list at two places": ([[1]] * 2, lambda t: t[1][0], 2, [[1], [2]]),
    "one of several ()": ([(), (), ()], lambda t: t[1], 2, [(), 2, ()]),
    "several of several ()": ([(), (), ()], lambda t: [t[0], t[2]], [1, 2], [1, (), 2]),
    "the () at the root": ((), lambda t: t, 1, 1),
    "() comes back": ([(), 1], lambda t: t[1], (), [(), ()]),
    "one of several []": ([[], [], {}], lambda t: t[1], 2, [[], 2, {}]),
    "one of several {}": ([{}, {}], lambda t: t[1], 2, [{}, 2]),
    "a namedtuple is a node and no sequence of nodes": (
        [Point(1, 2), 3],
        lambda t: t[0],
        Point(4, 5),
        [Point(4, 5), 3],
    ),
    "a tuple is a node and no sequence of nodes": ([(1, 2), 3], lambda t: t[0], (4, 5), [(4, 5), 3]),
    "sequence by tuple": ([1, 2, 3], lambda t: (t[0], t[2]), [4, 5], [4, 2, 5]),
    "sequence by list": ([1, 2, 3], lambda t: [t[2], t[0]], (4, 5), [5, 2, 4]),
    "no nodes at all": ([1, 2], lambda t: [], [], [1, 2]),
    "a tuple of no nodes": ([1, 2], lambda t: (), [], [1, 2]),
    "a tuple of no nodes, beside one ()": ([(), 1], lambda t: (), (), [(), 1]),
    "a tuple of no nodes, beside several ()": (
        [(), {"a": ()}],
        lambda t: tuple(x for x in t if x is None),
        (),
        [(), {"a": ()}],
    ),
    "a slice": ([1, 2, 3], lambda t: t[1:], "ab", [1, "a", "b"]),
    "OrderedDict": (OrderedDict(b=1, a=2), lambda t: t["a"], 3, OrderedDict(b=1, a=3)),
    "defaultdict": (defaultdict(list, a=1), lambda t: t["a"], 3, defaultdict(list, a=3)),
    "function as a leaf": ([len, max], lambda t: t[1], min, [len, min]),
    "string as a leaf": (["ab", "ab"], lambda t: t[1], "cd", ["ab", "cd"]),
    "a tuple that is taken for a leaf apart": ([(1, ()), 2], lambda t: t[0][1], 3, [(1, 3), 2]),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    tree, where, new, expected = CASES[name]
    ours = tk.tree_at(where, tree, new)
    assert ours == expected and type(ours) is type(expected)
    assert identical(ours, eqx.tree_at(where, tree, new))


def test_many_nodes_in_any_order() -> None:
    """More than are looked for one by one, leaves and containers of every size, in another order than the tree's."""
    tree: list[Any] = [(i, [i, {}], []) for i in range(30)]
    order = [*range(0, 30, 2), *range(29, 0, -2)]
    wheres: dict[str, Callable[[Any], Any]] = {
        "leaves": lambda t: [t[i][0] for i in order],
        "containers": lambda t: [t[i][1] for i in order],
        "empty ones": lambda t: [t[i][2] for i in order],
        "of all sorts": lambda t: [t[i][i % 3] for i in order],
        "nested": lambda t: [t[i] if i % 3 else t[i][1][1] for i in order],
    }
    for where in wheres.values():
        new = [f"new {i}" for i in order]
        ours = tk.tree_at(where, tree, new)
        assert where(ours) == new if where is not wheres["nested"] else ours != tree
        assert identical(ours, eqx.tree_at(where, tree, new))
        seen: list[Any] = []
        tk.tree_at(where, tree, replace_fn=seen.append)
        assert seen == where(tree), "in the order of where"


def test_equinox_modules() -> None:
    new = jnp.zeros((3, 5))
    ours = tk.tree_at(lambda m: (m.layers[0].weight, m.layers[1].bias), MLP, (new, None))
    assert ours.layers[0].weight is new and ours.layers[1].bias is None
    assert ours.layers[0].bias is MLP.layers[0].bias
    assert identical(ours, eqx.tree_at(lambda m: (m.layers[0].weight, m.layers[1].bias), MLP, (new, None)))

    back = tk.tree_at(lambda m: m.layers[1].bias, ours, jnp.ones(1), is_leaf=is_none)
    assert back.layers[1].bias.tolist() == [1.0]

    layer = eqx.nn.Linear(3, 7, key=jax.random.key(0))
    assert tk.tree_at(lambda m: m.layers[1], MLP, layer).layers[1] is layer
    doubled = tk.tree_at(
        lambda m: [x.weight for x in m.layers], MLP, replace_fn=lambda w: jnp.concatenate([w, w], axis=-1)
    )
    assert [x.weight.shape for x in doubled.layers] == [(3, 4), (1, 6)]
    assert tk.tree_at(lambda m: m.activation, MLP, len).activation is len


def test_a_shared_layer_is_replaced_at_the_place_named() -> None:
    layer = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    model: Any = eqx.nn.Sequential([layer, layer])
    ours = tk.tree_at(lambda m: m[1].weight, model, 0)
    assert ours[0].weight is layer.weight and ours[1].weight == 0
    assert identical(ours, eqx.tree_at(lambda m: m[1].weight, model, 0))


def test_nodes() -> None:
    tree = Twig({"a": 1}, Twig(None, 2.0, name="inner"))
    ours = tk.tree_at(lambda t: (t.left["a"], t.right.left), tree, ["x", "y"], is_leaf=is_none)
    assert (ours.left, ours.right.left, ours.right.right, ours.right.name) == ({"a": "x"}, "y", 2.0, "inner")
    assert untyped.tree.structure(tree).num_leaves == 2
    assert type(tk.tree_at(lambda t: t.right, tree, tree).right) is Twig


def test_a_registered_class_is_rebuilt_without_its_init() -> None:
    """A class whose `__init__` prepares what it is given, where JAX's usual registration runs it again."""
    halved = Halved(4.0)
    for new in (7.0, None, jnp.ones(3), [1, 2], "text"):
        assert tk.tree_at(lambda h: h.value, halved, new).value is new
        assert tk.tree_at(lambda t: t["h"].value, {"h": halved}, new)["h"].value is new
    assert halved.value == 2.0
    pair: dict[str, Any] = {"h": halved, "x": 1}
    assert tk.tree_at(lambda t: t["x"], pair, 2)["h"].value == 2.0


@jax.tree_util.register_pytree_node_class
class Preparing:
    """Registered the usual way, by running `__init__` to rebuild; this one takes what it prepares out of a table."""

    def __init__(self, value: Any) -> None:
        self.value = {1: "one", 2: "two"}.get(id(value), "other")

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> "Preparing":
        return cls(*children)


def test_a_class_that_replaces_its_leaves_is_told_how_to_register() -> None:
    with pytest.raises(ValueError, match=r"(?s)'other' is not a leaf.*treekit\.register_node"):
        tk.tree_at(lambda t: t.value, Preparing(1), 2)


@tk.register_node(data_fields=["x"], meta_fields=[])
class Registered:
    def __init__(self, x: Any) -> None:
        self.x = x


class Undecorated(Registered):
    """A leaf, and a subclass of a node."""


class Measured:
    """A node that cannot be printed when its leaf is no array."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __repr__(self) -> str:
        return f"Measured{self.x.shape}"


tk.register_node(Measured, ["x"], [])

ERRORS: dict[str, tuple[Any, Callable[[Any], Any], dict[str, Any], type[Exception], str]] = {
    "neither": ([1], lambda t: t[0], {}, ValueError, "exactly one of replace and replace_fn"),
    "both": ([1], lambda t: t[0], {"replace": 1, "replace_fn": str}, ValueError, "exactly one"),
    "too many": ([1, 2], lambda t: (t[0], t[1]), {"replace": [1, 2, 3]}, ValueError, "returned 2 nodes.*has 3 values"),
    "too few": ([1, 2], lambda t: (t[0], t[1]), {"replace": ()}, ValueError, "returned 2 nodes.*has 0 values"),
    "no sequence": ([1, 2], lambda t: (t[0], t[1]), {"replace": 3}, TypeError, "sequence of 2, found 3"),
    "static field": (
        MLP,
        lambda m: m.layers[0].use_bias,
        {"replace": 3},
        ValueError,
        r"static field MLP\.use_bias or .*Linear\.use_bias\..*treekit\.replace\(node, use_bias=\.\.\. or",
    ),
    "static field of a node": (
        [Twig(1, name="a name")],
        lambda t: t[0].name,
        {"replace": "x"},
        ValueError,
        r"static field Twig\.name\..*treekit\.replace\(node, name=\.\.\.\) makes",
    ),
    "static field among nodes": (
        Twig(1, name="a name"),
        lambda t: (t.left, t.name),
        {"replace": (1, "x")},
        ValueError,
        r"static field Twig\.name\.",
    ),
    "static field that holds a tuple": (
        Twig(1, name=("a", "b")),
        lambda t: t.name,
        {"replace": "x"},
        ValueError,
        r"static field Twig\.name\.",
    ),
    "computed": (
        [1],
        lambda t: "a" + "b",
        {"replace": 1},
        ValueError,
        "A static field is not a node.*computed from leaves",
    ),
    "constant": ([1], lambda t: "other", {"replace": 1}, ValueError, "did not return a node"),
    "object": ([1], lambda t: object(), {"replace": 1}, ValueError, "did not return a node"),
    "computed container": ([1, 2], lambda t: {"a": t[0]}, {"replace": [1]}, ValueError, "'a', which is not a node"),
    "nested sequence": ([1, 2], lambda t: [[t[0]], t[1]], {"replace": [1, 2]}, ValueError, "which is not a node"),
    "of another tree": ([1, 2], lambda t: [[]], {"replace": [1]}, ValueError, r"returned \[\], which is not a node"),
    "bound method": (MLP, lambda m: m.__call__, {"replace": 1}, ValueError, "did not return a node"),
    "the same twice": ([1, 2], lambda t: (t[0], t[0]), {"replace": [1, 2]}, ValueError, "the same node twice"),
    "inside another": (
        [[1], 2],
        lambda t: (t[0], t[0][0]),
        {"replace": [1, 2]},
        ValueError,
        "inside another",
    ),
    "inside another, the inner first": (
        [[1], 2],
        lambda t: (t[0][0], t[0]),
        {"replace": [1, 2]},
        ValueError,
        "inside another",
    ),
    "inside the root": ([1], lambda t: (t, t[0]), {"replace": [1, 2]}, ValueError, "inside another"),
    "one of several None": ([None, None], lambda t: t[0], {"replace": 1}, ValueError, "is_leaf=lambda x: x is None"),
    "two of several None": (
        [None, None],
        lambda t: (t[0], t[1]),
        {"replace": [1, 2]},
        ValueError,
        "is_leaf=lambda x: x is None",
    ),
    "None alone where there is none": (
        [1],
        lambda t: None,
        {"replace": 1},
        ValueError,
        "not return a node of the tree, but None",
    ),
    "None where there is none": (
        [1],
        lambda t: [None],
        {"replace": [1]},
        ValueError,
        "returned None, which is not a node",
    ),
    "a computed ()": (
        {"a": 1},
        lambda t: (t["a"], ()),
        {"replace": (2, 3)},
        ValueError,
        r"returned \(\), which is not a node",
    ),
    "no nodes, some replacements": (
        [1],
        lambda t: (),
        {"replace": [1]},
        ValueError,
        r"selects nothing.*pass strict=False$",
    ),
    "no nodes, a function": (
        [1],
        lambda t: [],
        {"replace_fn": str},
        ValueError,
        r"selects nothing.*pass strict=False$",
    ),
    "into a leaf": (
        {"a": [Undecorated(1)]},
        lambda t: t["a"][0].x,
        {"replace": 1},
        ValueError,
        r"reads \.x of \ba\.0\b, a leaf of type Undecorated.*register it",
    ),
    "into the root": (Undecorated(1), lambda t: t.x, {"replace": 1}, ValueError, "reads .x of the root, a leaf"),
    "into an array": ([np.ones(2)], lambda t: t[0].T, {"replace": 1}, ValueError, r"reads \.T of \b0\b.*ndarray"),
    "what cannot be printed": (
        {"a": np.ones(2)},
        lambda t: [Measured(t["a"])],
        {"replace": [1]},
        ValueError,
        "returned <Measured, whose __repr__ raises AttributeError>, which is not a node",
    ),
    "by value": (
        [1, 2],
        lambda t: [x for x in t if x == 1],
        {"replace": [3]},
        ValueError,
        "structure of the tree only",
    ),
    "by type": (
        [1, "a"],
        lambda t: [x for x in t if type(x) is int],
        {"replace": [3]},
        ValueError,
        "structure of the tree only",
    ),
    "by identity": (
        [1, len],
        lambda t: t[0] if t[1] is len else t[1],
        {"replace": 3},
        ValueError,
        "structure of the tree only",
    ),
}


def test_a_where_that_computes_is_told_that_leaves_are_placeholders() -> None:
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        tk.tree_at(lambda t: t["w"] * 2, {"w": jnp.ones(2)}, 1)
    assert "return nodes, and not compute with leaves" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    tree, where, how, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        tk.tree_at(where, tree, **how)


def test_help_shows_which_arguments_are_required() -> None:
    assert str(inspect.signature(tk.tree_at)).count(" = <required>") == 2


def test_what_where_or_replace_fn_raises_goes_through() -> None:
    wheres: list[tuple[Callable[[Any], Any], Any, type[Exception], str]] = [
        (lambda t: t["no such key"], {"a": 1}, KeyError, "no such key"),
        (operator.itemgetter(3), [1], IndexError, "list index out of range"),
        (operator.attrgetter("no_such"), [1], AttributeError, "'list' object has no attribute 'no_such'"),
        (lambda t: t["a"] + 1, {"a": 1}, TypeError, "unsupported operand"),
        (lambda t: 1 / 0, [1], ZeroDivisionError, "division by zero"),
    ]
    for where, tree, error, message in wheres:
        with pytest.raises(error, match=message) as caught:
            tk.tree_at(where, tree, 2)
        assert type(caught.value) is error and "`where` of tree_at raised this" in caught.value.__notes__[0]
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        tk.tree_at(lambda t: t[0], [0], replace_fn=lambda x: 1 / x)


NO_FUNCTION: Any = 3
NAMED: dict[str, Any] = {
    "functions, in order": (lambda t: [t["a"][1], t["b"]], "a.1"),
    "functions, not in order": (lambda t: [t["b"], t["a"][1]], "a.1"),
    "patterns": (["b", "a.1"], "a.1"),
    "a leaf": ("**.w", "a.1.0.w"),
    "a class": (dict, "the root"),
    "a function that returns the root": (lambda t: t, "the root"),
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


def test_replace_fn_must_be_a_function() -> None:
    with pytest.raises(
        TypeError, match=r"replace_fn must be a function .* found 3\. To put a value there, pass it as re"
    ):
        tk.tree_at("a", {"a": 1}, replace_fn=NO_FUNCTION)


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
    model: Any = eqx.nn.Sequential([eqx.nn.Linear(2, 2, use_bias=False, key=jax.random.key(0))])

    def biases(m: Any) -> tuple[Any, ...]:
        return tuple(layer.bias for layer in m.layers if layer.bias is not None)

    assert identical(tk.tree_at(biases, model, replace=[], is_leaf=is_leaf), model)
    assert identical(tk.tree_at(lambda m: (), model, (), is_leaf=is_none), model)
    with pytest.raises(ValueError, match="where selects nothing"):
        tk.tree_at(biases, model, replace_fn=jnp.zeros_like, is_leaf=is_leaf)


def test_a_sequence_of_nodes_that_is_leaf_would_select_itself() -> None:
    tree = {"a": (1, 2), "b": [3, 4]}
    out = tk.tree_at(lambda t: (t["a"], t["b"][1]), tree, ("x", "y"), is_leaf=lambda x: isinstance(x, tuple))
    assert out == {"a": "x", "b": [3, "y"]}


def test_under_transformations() -> None:
    @jax.jit
    def step(x: jax.Array) -> Any:
        return tk.tree_at(lambda t: t.left, Twig(x, x), replace_fn=lambda leaf: leaf * 2)

    out = step(jnp.ones(2))
    assert out.left.tolist() == [2.0, 2.0] and out.right.tolist() == [1.0, 1.0]

    def call(model: Any) -> Any:
        return model(jnp.ones(2)).sum()

    gradient = jax.grad(lambda w: call(tk.tree_at(lambda m: m.layers[0].weight, MLP, w)))(MLP.layers[0].weight)
    gradient_of: Any = eqx.filter_grad(call)
    np.testing.assert_allclose(gradient, gradient_of(MLP).layers[0].weight, rtol=1e-6)
    assert jax.vmap(lambda x: tk.tree_at(lambda t: t[0], [x, 1.0], x + 1))(jnp.zeros(3))[0].tolist() == [1.0] * 3


def test_types() -> None:
    assert_type(tk.tree_at(lambda p: p.x, Point(1, 2), 3), Point)
    assert_type(tk.tree_at(lambda t: t.left, Twig(1), replace_fn=str), Twig)
    assert_type(tk.tree_at("left", Twig(1), 2), Twig)
    assert_type(tk.tree_at(["left", Point], Twig(1, Point(2, 3)), (2, 3)), Twig)
    assert_type(tk.tree_at(int, Twig(1), replace_fn=str), Twig)
    assert_type(tk.tree_find(Twig(1), lambda t: t.left), dict[str, Any])
