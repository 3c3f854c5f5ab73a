"""What can become a node: any class written in Python that is not one yet. Others are left as they were."""

import abc
import copy
import dataclasses
import functools
import pickle
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import pytest

from tests.errors.mistake import unchecked
from tests.node.ways import Data, Made, Mutable, Slotted, parts, rebuilt
from treekit import node, register_node, replace

T = TypeVar("T")
register: Any = register_node
tree_util: Any = jax.tree_util  # has no types


class Plain: ...


class SetsItself:
    x: int
    __setattr__ = object.__setattr__


# JAX knows it, and treekit learns of it late, since it has no instance to try.
Abstract: Any = abc.ABCMeta("Abstract", (), {"f": abc.abstractmethod(lambda self: None)})
tree_util.register_pytree_node(Abstract, lambda x: ((), None), lambda *_: None)


@dataclasses.dataclass
class Wheel:
    size: int
    spokes: int


# A decorator, a class that it refuses, and the fact that the message names. Some are found before the class is changed,
# others after.
REFUSED: list[tuple[Any, type[Any], str]] = [
    (node, SetsItself, "__setattr__"),
    (node, Abstract, "Abstract"),
    (lambda cls: register(cls, [], []), Abstract, "Abstract"),
    (lambda cls: register(cls, ["a"], None), Plain, "meta_fields"),
    (lambda cls: register(cls, None, []), Plain, "data_fields"),
    (lambda cls: register(cls, ["size", "spokes"], None), Wheel, "meta_fields"),
    (lambda cls: register(cls, ["a b"], []), Plain, "a b"),
    (lambda cls: unchecked(register)(cls, [1], []), Plain, "data_fields"),
    (lambda cls: register(cls, ["size"], [], ["size", "spokes"]), Wheel, "size occurs twice"),
    (lambda cls: register(cls, ["size"], [], drop_fields="spokes"), Wheel, "drop_fields"),
    (lambda cls: register(cls, drop_fields=["rim", "a b"]), Wheel, "a b"),
    (node, Made, "Made"),
    (register, Mutable, "Mutable"),
]


@pytest.mark.parametrize("make, cls, fact", REFUSED)
def test_a_class_that_cannot_become_a_node_is_left_as_it_was(make: Any, cls: type[Any], fact: str) -> None:
    before = dict(vars(cls))
    for _ in range(2):
        with pytest.raises(TypeError, match=fact):
            make(cls)
        assert dict(vars(cls)) == before


def test_register_node_of_a_class_without_fields_and_without_a_dict() -> None:
    class Nothing:
        __slots__ = ()

    assert register_node(Nothing, data_fields=(), meta_fields=()) is Nothing
    assert type(rebuilt(Nothing())) is Nothing


# A value whose own flattening raises an AttributeError, which is not a fault of the node that holds it.
unset: Any = object.__new__(tree_util.register_dataclass(dataclasses.make_dataclass("Unset", ["size"], eq=False)))


@pytest.mark.parametrize("cls", [Mutable, Slotted, Data])
def test_a_registered_class_stays_mutable_and_is_checked_when_it_is_flattened(cls: type[Any]) -> None:
    x, y = cls(1, 2, "a"), cls(1, 2, "a")
    del x.bias
    with pytest.raises(TypeError, match=rf"{cls.__name__}\.bias"):
        jax.tree.leaves(x)
    y.name = {}
    with pytest.raises(TypeError, match=rf"{cls.__name__}\.name"):
        jax.tree.leaves(y)
    y.name = unset
    with pytest.raises(AttributeError, match="size"):
        jax.tree.leaves(y)
    y.name, y.weight = "b", 7
    again = rebuilt(y)
    again.weight = 9
    assert parts(again) == (9, 2, "b")


class Scratch:
    """With an attribute for values that may be lost."""

    def __init__(self, w: Any, name: str) -> None:
        self.w, self.name = w, name

    def double(self) -> Any:
        self.seen = 2 * self.w  # a tracer, perhaps
        return self.seen


class ScratchSlots(Scratch):
    __slots__ = ("name", "seen", "w")


@dataclasses.dataclass
class ScratchData:
    w: Any
    name: str = dataclasses.field(metadata={"static": True})
    seen: Any = None
    cache: dict[str, Any] = dataclasses.field(default_factory=dict)
    double = Scratch.double


@dataclasses.dataclass(slots=True)
class ScratchDataSlots:
    w: Any
    name: str = dataclasses.field(metadata={"static": True})
    seen: Any = None
    cache: dict[str, Any] = dataclasses.field(default_factory=dict)
    double = Scratch.double


DROPS = ["seen", "cache"]
CLASSES: tuple[Any, ...] = (Scratch, ScratchSlots, ScratchData, ScratchDataSlots)
for scratch in CLASSES[:2]:
    register_node(scratch, ["w"], ["name"], DROPS)
for scratch in CLASSES[2:]:
    register_node(scratch, drop_fields=DROPS)


@pytest.mark.parametrize("cls", CLASSES)
def test_what_is_dropped_is_lost_and_has_its_default(cls: Any) -> None:
    create: Any = cls
    x = create(jnp.ones(2), "a")
    for _ in range(2):
        jax.jit(lambda x: x.double())(x)
        x.double()
        again = rebuilt(x)
        structures: list[Any] = [jax.tree.structure(y) for y in (again, x, create(1.0, "a"))]
        assert structures[0] == structures[1] == structures[2]
        assert again.name == "a" and (again.w == x.w).all()
        if dataclasses.is_dataclass(cls):
            assert again.seen is None and again.cache == {} and again.cache is not rebuilt(x).cache
        else:
            assert not hasattr(again, "seen")
        assert copy.copy(x).seen is x.seen and (copy.deepcopy(x).seen == x.seen).all()
        assert (pickle.loads(pickle.dumps(x)).seen == x.seen).all()
        with pytest.raises(TypeError, match="no field seen"):
            replace(x, seen=3)


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
    __init__ = Listed.__init__


class GenericListed(Listed, Generic[T]): ...


for cls in (Listed, ListedSlots, OnlySlots, GenericListed):
    register_node(cls, ["w"], ["v"])


@pytest.mark.parametrize("cls", [Listed, ListedSlots, OnlySlots, GenericListed[int]])
def test_an_attribute_that_rebuilding_would_lose_is_told_when_it_is_flattened(cls: Any) -> None:
    for flatten in (jax.tree.leaves, tree_util.tree_leaves_with_path):
        x: Any = cls(v=1, w=2)
        if not isinstance(x, OnlySlots):
            assert x.total == 3  # which is stored in x, and computed again
        assert len(flatten(x)) == 1
        x.u = 5
        with pytest.raises(TypeError, match=rf"{type(x).__name__}\.u"):
            flatten(x)
