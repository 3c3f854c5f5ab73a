"""register_node: an existing class becomes a node, and keeps its code and its mutability."""

import dataclasses
import inspect
from typing import Any

import jax
import pytest

from tests.node.ways import Data, Made, Plain, Slotted, WithSlots, parts
from treekit import register_node


def test_register_node_of_a_class_without_fields_and_without_a_dict() -> None:
    class Nothing:
        __slots__ = ()

    assert register_node(Nothing, data_fields=(), meta_fields=()) is Nothing
    assert type(jax.tree.map(lambda v: v, Nothing())) is Nothing


@dataclasses.dataclass
class Wheel:
    size: int
    spokes: int


@jax.tree_util.register_pytree_node_class
class Unfinished:
    size: int

    def tree_flatten(self) -> Any:
        return (self.size,), None

    @classmethod
    def tree_unflatten(cls, *_: Any) -> Any:
        return cls()


class WithProperty:
    @property
    def x(self) -> int:
        return 1


class Empty: ...


class Sub(Made): ...


@pytest.mark.parametrize(
    "cls, data, meta, message",
    [
        (Empty, "ab", [], "Empty: data_fields must be a list of attribute names, found 'ab'"),
        (Empty, ["a"], None, "Empty: meta_fields must be a list of attribute names, found None"),
        (Empty, None, None, "Empty: data_fields must be a list .*only a dataclass needs neither"),
        (Empty, ["a", "a"], [], "Empty: a occurs twice"),
        (Empty, ["a"], ["b", "a"], "Empty: a occurs twice"),
        (Empty, ["a b"], [], "field 'a b' of Empty is not a valid attribute name"),
        (Empty, ["class"], [], "field 'class' of Empty is not a valid attribute name"),
        (Wheel, ["size"], [], "Wheel: spokes is in neither"),
        (WithProperty, ["x"], [], "field 'x' of WithProperty is a property"),
        (WithSlots, ["x", "y"], [], "field 'y' of WithSlots is not one of its __slots__"),
        (Sub, ["weight"], [], "Sub extends the node Made: decorate it with @node"),
    ],
)
def test_register_node_refuses_and_registers_nothing(cls: type[Any], data: Any, meta: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        register_node(cls, data, meta)
    with pytest.raises(TypeError, match=message):
        register_node(data_fields=data, meta_fields=meta)(cls)
    blank = object.__new__(cls)
    assert jax.tree_util.all_leaves([blank])
    assert not [name for name in vars(cls) if "treekit" in name]


def test_register_node_wants_names() -> None:
    register = inspect.unwrap(register_node)  # beartype would be the first to say so
    with pytest.raises(TypeError, match=r"Empty: data_fields must be a list of attribute names, found \[1\]"):
        register(Empty, [1], [])


@pytest.mark.parametrize("way", [Plain, Slotted, Data])
def test_what_registered_classes_lack_is_told_when_they_are_flattened(way: type[Any]) -> None:
    x, y = way(1, 2, "a"), way(1, 2, "a")
    del x.bias
    with pytest.raises(TypeError, match=f"{way.__name__}.bias is not set"):
        jax.tree.leaves(x)
    for name, found in (({}, "dict"), (object.__new__(Wheel), "Wheel")):
        y.name = name
        with pytest.raises(TypeError, match=f"{way.__name__}.name is static, .* {found}, is not hashable"):
            jax.tree.leaves(y)
    y.name = Unfinished()
    with pytest.raises(AttributeError, match="'Unfinished' object has no attribute 'size'"):
        jax.tree.leaves(y)
    y.name, y.weight = "b", 7
    if way is not Slotted:
        y.cached = 8
    rebuilt = jax.tree.map(lambda v: v, y)
    rebuilt.weight = 9
    assert parts(rebuilt) == (9, 2, "b") and not hasattr(rebuilt, "cached")
