"""tree_at: Equinox's contract, for trees of any kind."""

import functools
import inspect
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import EXAMPLES, Box, Halved, Point, Twig, follow, identical, places, trees


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
    before = places(tree)
    tk.tree_at(where_of(paths), tree, replace_fn=lambda _: 0)
    assert all(node is before[path] for path, node in places(tree).items()), "the tree given is left as it is"
    assert identical(tk.tree_at(where_of(paths), tree, where_of(paths)(tree)), tree)
    assert identical(tk.tree_at(where_of(paths), tree, replace_fn=lambda node: node), tree)


MLP = EXAMPLES["mlp"]

# tree, where, replacement, what must be found afterwards
CASES: dict[str, tuple[Any, Callable[[Any], Any], Any, Any]] = {
    "root": ([1, 2], lambda t: t, 0, 0),
    "root None": (None, lambda t: t, 1, 1),
    "the only None": ([None, 1], lambda t: t[0], 5, [5, 1]),
    "array to None": ([np.ones(2), 1], lambda t: t[0], None, [None, 1]),
    "subtree by subtree": ({"a": (1, 2), "b": 3}, lambda t: t["a"], {"x": 4}, {"a": {"x": 4}, "b": 3}),
    "subtree by leaf": ({"a": (1, 2), "b": 3}, lambda t: t["a"], 4, {"a": 4, "b": 3}),
    "inside one list at two places": ([[1]] * 2, lambda t: t[1][0], 2, [[1], [2]]),
    "one of several ()": ([(), (), ()], lambda t: t[1], 2, [(), 2, ()]),
    "the () at the root": ((), lambda t: t, 1, 1),
    "a tuple is a node and no sequence of nodes": ([(1, 2), 3], lambda t: t[0], (4, 5), [(4, 5), 3]),
    "sequence by tuple": ([1, 2, 3], lambda t: (t[0], t[2]), [4, 5], [4, 2, 5]),
    "sequence by list": ([1, 2, 3], lambda t: [t[2], t[0]], (4, 5), [5, 2, 4]),
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

# a tree, `where`, the other arguments, and words of the message of the ValueError
ERRORS: dict[str, tuple[Any, Callable[[Any], Any], dict[str, Any], str]] = {
    "neither": ([1], lambda t: t[0], {}, "exactly one of replace and replace_fn"),
    "both": ([1], lambda t: t[0], {"replace": 1, "replace_fn": str}, "exactly one"),
    "too many": ([1, 2], lambda t: (t[0], t[1]), {"replace": [1, 2, 3]}, "returned 2 nodes.*has 3 values"),
    "static field": (
        MLP,
        lambda m: m.layers[0].use_bias,
        {"replace": 3},
        r"static field MLP\.use_bias or .*Linear\.use_bias\..*treekit\.replace\(node, use_bias=\.\.\. or",
    ),
    "static field of a node": (
        [Twig(1, name="a name")],
        lambda t: t[0].name,
        {"replace": "x"},
        r"static field Twig\.name\..*treekit\.replace\(node, name=\.\.\.\) makes",
    ),
    "computed": ([1], lambda t: "a" + "b", {"replace": 1}, "A static field is not a node.*computed from leaves"),
    "constant": ([1], lambda t: "other", {"replace": 1}, "did not return a node"),
    "object": ([1], lambda t: object(), {"replace": 1}, "did not return a node"),
    "computed container": ([1, 2], lambda t: {"a": t[0]}, {"replace": [1]}, "'a', which is not a node"),
    "of another tree": ([1, 2], lambda t: [[]], {"replace": [1]}, r"returned \[\], which is not a node"),
    "bound method": (MLP, lambda m: m.__call__, {"replace": 1}, "did not return a node"),
    "the same twice": ([1, 2], lambda t: (t[0], t[0]), {"replace": [1, 2]}, "the same node twice"),
    "one of several None": ([None, None], lambda t: t[0], {"replace": 1}, "is_leaf=lambda x: x is None"),
    "None alone where there is none": ([1], lambda t: None, {"replace": 1}, "not return a node of the tree, but None"),
    "a computed ()": ({"a": 1}, lambda t: (t["a"], ()), {"replace": (2, 3)}, r"returned \(\), which is not a node"),
    "no nodes, some replacements": ([1], lambda t: (), {"replace": [1]}, r"selects nothing.*pass strict=False$"),
    "into a leaf": (
        {"a": [Undecorated(1)]},
        lambda t: t["a"][0].x,
        {"replace": 1},
        r"reads \.x of \ba\.0\b, a leaf of type Undecorated.*register it",
    ),
    "into an array": ([np.ones(2)], lambda t: t[0].T, {"replace": 1}, r"reads \.T of \b0\b.*ndarray"),
    "what cannot be printed": (
        {"a": np.ones(2)},
        lambda t: [Measured(t["a"])],
        {"replace": [1]},
        "returned <Measured, whose __repr__ raises AttributeError>, which is not a node",
    ),
    "by value": ([1, 2], lambda t: [x for x in t if x == 1], {"replace": [3]}, "structure of the tree only"),
    "by identity": ([1, len], lambda t: t[0] if t[1] is len else t[1], {"replace": 3}, "structure of the tree only"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    tree, where, how, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        tk.tree_at(where, tree, **how)


@pytest.mark.parametrize(
    ("where", "how", "message"),
    [
        (lambda t: (t["a"], t["b"]), {"replace": 3}, "sequence of 2, found 3"),
        ("a", {"replace_fn": 3}, r"replace_fn must be a function .* found 3\. To put a value there, pass it as re"),
    ],
)
def test_what_replaces_has_a_type(where: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tk.tree_at(where, {"a": 1, "b": 2}, **how)


def test_help_shows_which_arguments_are_required() -> None:
    assert str(inspect.signature(tk.tree_at)).count(" = <required>") == 2


WHERES: list[tuple[Callable[[Any], Any], Any, type[Exception], str]] = [
    (lambda t: t["no such key"], {"a": 1}, KeyError, "no such key"),
    (operator.attrgetter("no_such"), [1], AttributeError, "'list' object has no attribute 'no_such'"),
    (lambda t: t["a"] * 2, {"a": jnp.ones(2)}, TypeError, "unsupported operand"),
]


def test_what_where_raises_goes_through() -> None:
    for where, tree, error, message in WHERES:
        with pytest.raises(error, match=message) as caught:
            tk.tree_at(where, tree, 2)
        (note,) = caught.value.__notes__
        assert "`where` of tree_at raised this" in note and "with placeholders for its leaves" in note
        assert ("return nodes, and not compute with leaves" in note) == (error is TypeError)


NAMED: dict[str, Any] = {
    "functions, in order": (lambda t: [t["a"][1], t["b"]], "a.1"),
    "patterns": (["b", "a.1"], "a.1"),
    "a leaf": ("**.w", "a.1.0.w"),
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
    model: Any = eqx.nn.Sequential([eqx.nn.Linear(2, 2, use_bias=False, key=jax.random.key(0))])

    def biases(m: Any) -> tuple[Any, ...]:
        return tuple(layer.bias for layer in m.layers if layer.bias is not None)

    assert identical(tk.tree_at(biases, model, replace=[], is_leaf=is_leaf), model)
    with pytest.raises(ValueError, match="where selects nothing"):
        tk.tree_at(biases, model, replace_fn=jnp.zeros_like, is_leaf=is_leaf)


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
