"""The ways to make a node, one class of the same three fields for each, and what else several files need."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import pytest

from treekit import field, node, node_factory, register_node

structure: Callable[[Any], Any] = jax.tree.structure  # treedefs have no type that a checker knows

RUNS: list[str] = []  # every run of a class's own code

# The ways to make a node: a class for each, of the same three fields, that doubles the weight it is given.


@node
class Made:
    weight: Any
    bias: Any
    name: Any = field(static=True)

    def __post_init__(self) -> None:
        RUNS.append(type(self).__name__)
        self.weight = 2 * self.weight


@node
class MadeByInit:
    weight: Any
    bias: Any
    name: Any = field(static=True)

    def __init__(self, w: Any, b: Any, n: Any) -> None:
        RUNS.append(type(self).__name__)
        self.weight, self.bias, self.name = 2 * w, b, n


@register_node(data_fields=["weight", "bias"], meta_fields=["name"])
class Plain:
    def __init__(self, w: Any, b: Any, n: Any) -> None:
        RUNS.append(type(self).__name__)
        self.weight, self.bias, self.name = 2 * w, b, n


@register_node(data_fields=["weight", "bias"], meta_fields=["name"])
class Slotted:
    __slots__ = ("__weakref__", "bias", "name", "weight")

    def __init__(self, w: Any, b: Any, n: Any) -> None:
        RUNS.append(type(self).__name__)
        self.weight, self.bias, self.name = 2 * w, b, n


@register_node
@dataclasses.dataclass
class Data:
    weight: Any
    bias: Any
    name: Any = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        RUNS.append(type(self).__name__)
        self.weight = 2 * self.weight


@register_node(data_fields=["weight", "bias"], meta_fields=["name"])
class Mutable:
    """Made in steps, and changed later on."""

    weight: Any
    bias: Any
    name: Any

    def __init__(self) -> None:
        RUNS.append(type(self).__name__)
        self.weight = self.bias = self.name = None

    @classmethod
    def of(cls, w: Any, b: Any, n: Any) -> "Mutable":
        self = cls()
        self.weight = 2 * w
        self.bias, self.name = b, n
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        RUNS.append(f"Mutable.{name}")
        super().__setattr__(name, value)


@node_factory
def factory(w: Any, b: Any, n: Any) -> Made:
    return Made(w, b, n)


class Way(NamedTuple):
    cls: type[Any]
    make: Callable[[Any, Any, Any], Any]
    local: Callable[[], Any]  # another class of the same fields, made the same way


Law = Callable[[Way], None]


class Laws(list[Any]):
    """What is tested for each way to make a node. Decorate a law with it to add one."""

    def __call__(self, law: Law) -> Law:
        self.append(law)
        return law

    def slow(self, law: Law) -> Law:
        """Add a law that `make test` leaves out."""
        self.append(pytest.param(law, marks=pytest.mark.slow))
        return law


def local_made() -> Any:
    @node
    class Local:
        weight: Any
        bias: Any
        name: Any = field(static=True)

    return Local


def local_by_init() -> Any:
    @node
    class Local:
        weight: Any
        bias: Any
        name: Any = field(static=True)

        def __init__(self, w: Any, b: Any, n: Any) -> None:
            self.weight, self.bias, self.name = w, b, n

    return Local


def local_plain() -> Any:
    @register_node(data_fields=["weight", "bias"], meta_fields=["name"])
    class Local:
        def __init__(self, w: Any, b: Any, n: Any) -> None:
            self.weight, self.bias, self.name = w, b, n

    return Local


def local_slotted() -> Any:
    @register_node(data_fields=["weight", "bias"], meta_fields=["name"])
    class Local:
        __slots__ = ("__weakref__", "bias", "name", "weight")

        def __init__(self, w: Any, b: Any, n: Any) -> None:
            self.weight, self.bias, self.name = w, b, n

    return Local


def local_data() -> Any:
    @register_node
    @dataclasses.dataclass
    class Local:
        weight: Any
        bias: Any
        name: Any = dataclasses.field(metadata={"static": True})

    return Local


WAYS = {
    "node": Way(Made, Made, local_made),
    "node with its own init": Way(MadeByInit, MadeByInit, local_by_init),
    "node_factory": Way(Made, factory, local_made),
    "register_node": Way(Plain, Plain, local_plain),
    "register_node, slots": Way(Slotted, Slotted, local_slotted),
    "register_node, dataclass": Way(Data, Data, local_data),
    "register_node, mutable": Way(Mutable, Mutable.of, local_plain),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
# Those that have the steps of creation: arguments are copied, fields are checked, and instances are frozen.
CREATED = ("node", "node with its own init", "node_factory")
created = pytest.mark.parametrize("way", [WAYS[key] for key in CREATED], ids=CREATED)


def same(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf, x)


def parts(x: Any) -> tuple[Any, Any, Any]:
    return x.weight, x.bias, x.name


def arrays(way: Way) -> Any:
    """A node with weight 0, 2, 4, bias 1, 1, 1."""
    return way.make(jnp.arange(3.0), jnp.ones(3), "n")


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "pickle, protocol 2": lambda x: pickle.loads(pickle.dumps(x, protocol=2)),
    "cloudpickle": lambda x: pickle.loads(cloudpickle.dumps(x)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@node
class Holder:
    x: Any
    y: Any = None

    def method(self) -> Any:
        return self.x


@node_factory
def hold(x: Any, y: Any = None) -> Holder:
    return Holder(x, y)


@dataclasses.dataclass(frozen=True)
class Config:
    depth: Any
    comment: str = dataclasses.field(default="", compare=False)


class WithSlots:
    __slots__ = ("x",)
