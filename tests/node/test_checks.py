"""What can become a node: any class written in Python that is not one yet. Others are left as they were."""

import abc
import typing
from typing import Any, NamedTuple

import jax
import pytest

from tests.node.ways import Way, WithSlots, every_way
from treekit import node, register_node


@every_way
def test_registering_twice_is_an_error_and_changes_nothing(way: Way) -> None:
    before = dict(vars(way.cls))
    for register in (node, register_node, lambda cls: register_node(cls, ["weight"], ["bias", "name"])):
        with pytest.raises(TypeError, match=rf"{way.cls.__name__}"):
            register(way.cls)
    assert dict(vars(way.cls)) == before
    assert jax.tree.leaves(way.make(1, 2, "a")) == [2, 2]


def test_a_class_registered_elsewhere_cannot_be_a_node() -> None:
    @jax.tree_util.register_pytree_node_class
    class ByHand:
        def tree_flatten(self) -> Any:
            return (), None

        @classmethod
        def tree_unflatten(cls, *_: Any) -> Any:
            return cls()

    class Named(NamedTuple):
        x: int

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def f(self) -> None: ...

    register_by_hand: Any = jax.tree_util.register_pytree_node
    register_by_hand(Abstract, lambda x: ((), None), lambda *_: None)
    for cls in (ByHand, Abstract):
        with pytest.raises(TypeError, match=f"{cls.__name__} is a pytree node already, registered with JAX"):
            node(cls)
        with pytest.raises(TypeError, match=f"{cls.__name__} is a pytree node already, registered with JAX"):
            register_node(cls, [], [])
        assert not [name for name in vars(cls) if "treekit" in name]
    with pytest.raises(TypeError, match="Named cannot be a node: it extends a class written in C"):
        node(Named)
    with pytest.raises(TypeError, match="only a class can become a node, found 3"):
        node(typing.cast(Any, 3))


@pytest.mark.parametrize(
    "bases, body, message",
    [
        ((), {"__annotations__": {"x": int}, "x": property(int)}, "field 'x' of New is a property"),
        ((), {"__slots__": ("x",)}, "New has __slots__.* use register_node"),
        ((WithSlots,), {"__annotations__": {"x": int}}, "field 'x' of New is one of its __slots__.*use register_node"),
        (
            (),
            {"__annotations__": {"x": int}, "__setattr__": object.__setattr__},
            "Cannot overwrite attribute __setattr__",
        ),
    ],
)
def test_a_class_that_cannot_be_a_node_is_left_as_it_was(bases: Any, body: dict[str, Any], message: str) -> None:
    new = type("New", bases, body)
    before = dict(vars(new))
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            node(new)
        assert dict(vars(new)) == before


def test_a_metaclass_that_refuses_a_mark_leaves_none() -> None:
    class Meta(type):
        def __setattr__(cls, name: str, value: object) -> None:
            if name == "__treekit_static__":
                raise RuntimeError("not here")
            super().__setattr__(name, value)

    class Guarded(metaclass=Meta): ...

    before = dict(vars(Guarded))
    for register in (node, lambda cls: register_node(cls, [], [])):
        with pytest.raises(RuntimeError, match="not here"):
            register(Guarded)
        assert dict(vars(Guarded)) == before
