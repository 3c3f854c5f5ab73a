"""Classes and objects that lie about themselves, or raise when they are looked at: they work, or the error is clear."""

import re
from typing import Any

import jax
import pytest

import treekit as tk
from tests.trees import Refusing, untyped

tree_util: Any = untyped.tree_util
register_node: Any = tk.register_node
node: Any = tk.node  # of a class that is made here no checker knows what it takes

NAMES = "self cls é values data aux children leaves fields static attributes".split()
NAMES += "__init__ __eq__ __hash__ __module__ __getattribute__ __slots__".split()


def make(way: str, name: str) -> Any:
    """An instance of a new class with a field of that name, which is 3."""
    if way == "node":
        return node(type("Made", (), {"__annotations__": {name: int}}))(3)
    made = register_node(type("Made", (), {}), [name], [])()
    object.__setattr__(made, name, 3)
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["node", "register_node"])
def test_a_field_may_have_any_name_that_an_attribute_can_have(way: str, name: str) -> None:
    made = make(way, name)
    leaves, treedef = tree_util.tree_flatten(made)
    assert leaves == [3]
    assert [tree_util.keystr(path) for path, _ in tree_util.tree_leaves_with_path(made)] == [f".{name}"]
    for other in (treedef.unflatten([4]), tk.replace(made, **{name: 4})):
        assert type(other) is type(made) and object.__getattribute__(other, name) == 4


@pytest.mark.parametrize("name", ["x: int = print('run')\n", "a b", "1x", "class", "", "__class__", "__weakref__"])
@pytest.mark.parametrize("way", ["node", "register_node"])
def test_no_other_name_is_taken_or_written_into_code(way: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match=re.escape(repr(name))):
        make(way, name)
    assert capsys.readouterr().out == ""


class Liar(type):
    """Every object is an instance, every class a subclass and equal, and what is called makes nothing."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True

    def __subclasscheck__(cls, subclass: type) -> bool:
        return True

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 1


def test_a_metaclass_that_lies_about_its_instances_deceives_nobody() -> None:
    one, two = (node(Liar(name, (), {"__annotations__": {"x": int}})) for name in ("One", "Two"))
    for cls in (one, two):
        assert type(jax.tree.map(lambda x: x, cls(1))) is cls
    assert tree_util.tree_structure(one(1)) != tree_util.tree_structure(two(1))
    assert [difference.kind for difference in tk.tree_diff(one(1), two(1))] == ["type"]


VERBS: dict[str, Any] = {
    "filter": lambda x: tk.filter([x, 1], [True, False])[0],
    "map": lambda x: tk.dtype_preserving_tree_map(lambda leaf: leaf, [x])[0],
    "tree_at, beside it": lambda x: tk.tree_at(lambda tree: tree[1], [x, 1], 2)[0],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_leaf_that_refuses_everything_is_passed_on(verb: str) -> None:
    leaf = Refusing()
    assert VERBS[verb](leaf) is leaf


@tk.node
class Deep:
    a: Any
    buffer: Any = tk.field(default=None, trainable=False)


LEVELS = 900
NAME = ".".join("a" * LEVELS)
ON_DEEP: dict[str, Any] = {  # each returns the leaf
    "jax.tree.map": lambda x: jax.tree.map(lambda leaf: leaf, x),
    "tree_at, a name": lambda x: tk.tree_at(NAME, x, 3.0),
    "tree_at, a class": lambda x: tk.tree_at(float, x, replace_fn=lambda leaf: leaf),
    "tree_find": lambda x: tk.tree_find(x, NAME),
    "tree_find, nothing": lambda x: tk.tree_find(x, "**.b", strict=False) or 3.0,
    "path_mask": lambda x: tk.filter(x, tk.path_mask("**.a")),
    "path_labels": lambda x: tk.path_labels({NAME: 3.0})(x),
    "trainable": lambda x: 3.0 * jax.tree.leaves(tk.trainable(jax.tree.map(jax.numpy.asarray, x)))[0],
    "to_state_dict": lambda x: float(tk.to_state_dict(jax.tree.map(jax.numpy.asarray, x))[NAME]),
    "graft": lambda x: tk.graft(jax.tree.map(lambda _: 0.0, x), x)[0],
    "graft, names": lambda x: tk.graft(jax.tree.map(lambda _: 0.0, x), {NAME: 3.0}, rename={"**": "**"})[0],
    "tree_diff": lambda x: tk.tree_diff(x, jax.tree.map(lambda _: 0.0, x))[0].left,
    "tree_summary": lambda x: tk.tree_summary(x).rows and 3.0,
}


@pytest.mark.parametrize("verb", ON_DEEP)
@pytest.mark.parametrize("kind", [lambda x: {"a": x}, Deep])
def test_trees_may_be_as_deep_as_those_that_jax_maps(kind: Any, verb: str) -> None:
    deep: Any = 3.0
    for _ in range(LEVELS):
        deep = kind(deep)
    leaves = jax.tree.leaves(ON_DEEP[verb](deep))
    assert leaves in ([3.0], ["3.0"])
