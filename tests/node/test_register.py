"""What can become a node: any class written in Python that is not one yet. Others are left as they were."""

import abc
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import pytest

from tests.node.ways import Data, Made, Mutable, Slotted, Way, WithSlots, every_way, parts
from treekit import node, register_node

T = TypeVar("T")


@every_way
def test_registering_twice_is_an_error_and_changes_nothing(way: Way) -> None:
    before = dict(vars(way.cls))
    for register in (node, register_node, lambda cls: register_node(cls, ["weight"], ["bias", "name"])):
        with pytest.raises(TypeError, match=f"{way.cls.__name__} is a pytree node already, registered with treekit"):
            register(way.cls)
    assert dict(vars(way.cls)) == before
    assert jax.tree.leaves(way.cls(1, 2, "a")) == [2, 2]


@dataclasses.dataclass
class Wheel:
    size: int
    spokes: int


@jax.tree_util.register_pytree_node_class
class ByHand:
    size: int

    def tree_flatten(self) -> Any:
        return (self.size,), None

    @classmethod
    def tree_unflatten(cls, *_: Any) -> Any:
        return cls()


class AbstractByHand(abc.ABC):
    @abc.abstractmethod
    def f(self) -> None: ...


untyped_tree_util: Any = jax.tree_util
untyped_tree_util.register_pytree_node(AbstractByHand, lambda x: ((), None), lambda *_: None)


class Named(NamedTuple):
    x: int


class WithProperty:
    x: Any = property(lambda self: 1)


class SlottedField(WithSlots):
    x: int


class SetsItself:
    x: int
    __setattr__ = object.__setattr__


class Empty: ...


class Sub(Made): ...


NODE: list[tuple[type[Any], str]] = [
    (ByHand, "ByHand is a pytree node already, registered with JAX"),
    (AbstractByHand, "AbstractByHand is a pytree node already, registered with JAX"),
    (Named, "Named cannot be a node: it extends a class written in C"),
    (WithSlots, "WithSlots has __slots__.* use register_node"),
    (SlottedField, "field 'x' of SlottedField is one of its __slots__.*use register_node"),
    (SetsItself, "Cannot overwrite attribute __setattr__"),
]
REGISTER: list[tuple[type[Any], Any, Any, str]] = [
    (ByHand, [], [], "ByHand is a pytree node already, registered with JAX"),
    (AbstractByHand, [], [], "AbstractByHand is a pytree node already, registered with JAX"),
    (Empty, "ab", [], "Empty: data_fields must be a list of attribute names, found 'ab'"),
    (Empty, ["a"], None, "Empty: meta_fields must be a list of attribute names, found None"),
    (Empty, None, None, "Empty: data_fields must be a list .*only a dataclass needs neither"),
    (Empty, ["a"], ["b", "a"], "Empty: a occurs twice"),
    (Empty, ["a b"], [], "field 'a b' of Empty is not a valid attribute name"),
    (Empty, ["class"], [], "field 'class' of Empty is not a valid attribute name"),
    (Wheel, ["size"], [], "Wheel: spokes is in neither"),
    (WithProperty, ["x"], [], "field 'x' of WithProperty is of type property"),
    (WithSlots, ["x", "y"], [], "field 'y' of WithSlots is not one of its __slots__"),
    (Sub, ["weight"], [], "Sub extends the node Made: decorate it with @node"),
]
registering: list[Any] = [pytest.param(cls, node, message) for cls, message in NODE]
for cls, data, meta, message in REGISTER:
    registering.append(pytest.param(cls, lambda cls, data=data, meta=meta: register_node(cls, data, meta), message))


@pytest.mark.parametrize("cls, register, message", registering)
def test_a_class_that_cannot_be_a_node_is_left_as_it_was(
    cls: type[Any], register: Callable[[type[Any]], object], message: str
) -> None:
    before = dict(vars(cls))
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            register(cls)
        assert dict(vars(cls)) == before


def test_register_node_wants_a_class_and_names() -> None:
    with pytest.raises(TypeError, match="only a class can become a node, found 3"):
        node(typing.cast(Any, 3))
    register = inspect.unwrap(register_node)  # beartype would be the first to say so
    with pytest.raises(TypeError, match=r"Empty: data_fields must be a list of attribute names, found \[1\]"):
        register(Empty, [1], [])


def test_register_node_of_a_class_without_fields_and_without_a_dict() -> None:
    class Nothing:
        __slots__ = ()

    assert register_node(Nothing, data_fields=(), meta_fields=()) is Nothing
    assert type(jax.tree.map(lambda v: v, Nothing())) is Nothing


@pytest.mark.parametrize("cls", [Mutable, Slotted, Data])
def test_what_registered_classes_lack_is_told_when_they_are_flattened(cls: type[Any]) -> None:
    x, y = cls(1, 2, "a"), cls(1, 2, "a")
    del x.bias
    with pytest.raises(TypeError, match=f"{cls.__name__}.bias is not set"):
        jax.tree.leaves(x)
    y.name = {}
    with pytest.raises(TypeError, match=f"{cls.__name__}.name is static, .* dict, is not hashable"):
        jax.tree.leaves(y)
    y.name = ByHand()
    with pytest.raises(AttributeError, match="'ByHand' object has no attribute 'size'"):
        jax.tree.leaves(y)
    y.name, y.weight = "b", 7
    rebuilt = jax.tree.map(lambda v: v, y)
    rebuilt.weight = 9
    assert parts(rebuilt) == (9, 2, "b")


class Listed:
    """With more attributes than are named below."""

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)

    @functools.cached_property
    def total(self) -> Any:
        return 3


class ListedSlots(Listed):
    __slots__ = ("u", "v")  # and the __dict__ of its base


class OnlySlots:
    __slots__ = ("u", "v", "w")

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class GenericListed(Listed, Generic[T]): ...


for cls in (Listed, ListedSlots, OnlySlots, GenericListed):
    register_node(cls, ["w"], ["v"])


@pytest.mark.parametrize("cls", [Listed, ListedSlots, OnlySlots, GenericListed[int]])
@pytest.mark.parametrize("flatten", [jax.tree.leaves, jax.tree_util.tree_leaves_with_path])
def test_an_attribute_that_rebuilding_would_lose_is_told_when_it_is_flattened(cls: Any, flatten: Any) -> None:
    x: Any = cls(v=1, w=2)
    if not isinstance(x, OnlySlots):
        assert x.total == 3  # which is stored in x, and computed again
    assert len(flatten(x)) == 1
    x.u = 5
    with pytest.raises(TypeError, match=rf"{type(x).__name__}\.u is neither in data_fields nor in meta_fields"):
        flatten(x)
    del x.u
    assert len(flatten(x)) == 1
