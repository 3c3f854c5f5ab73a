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


class Prepared:
    """A base of the next two that is not a node."""

    __slots__ = ()

    def __init__(self: Any, w: Any, b: Any, n: Any) -> None:
        RUNS.append(type(self).__name__)
        self.weight, self.bias, self.name = 2 * w, b, n


@register_node(data_fields=["weight", "bias"], meta_fields=["name"])
class Mutable(Prepared):
    def __setattr__(self, name: str, value: Any) -> None:
        RUNS.append(f"Mutable.{name}")
        super().__setattr__(name, value)


@register_node(data_fields=["weight", "bias"], meta_fields=["name"])
class Slotted(Prepared):
    __slots__ = ("__weakref__", "bias", "name", "weight")


@register_node
@dataclasses.dataclass
class Data:
    weight: Any
    bias: Any
    name: Any = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        RUNS.append(type(self).__name__)
        self.weight = 2 * self.weight


# Other classes of the same fields, made in the same ways.


def store(self: Any, w: Any, b: Any, n: Any) -> None:
    """An `__init__` that prepares nothing."""
    self.weight, self.bias, self.name = w, b, n


def local_plain(**body: Any) -> Any:
    return register_node(type("Local", (), {"__init__": store, **body}), ["weight", "bias"], ["name"])


def local_made() -> Any:
    hints = {"__annotations__": dict.fromkeys(("weight", "bias", "name"), Any)}
    return node(type("Local", (), {**hints, "name": field(static=True)}))


def local_data() -> Any:
    return register_node(dataclasses.make_dataclass("Local", ["weight", "bias", "name"]), ["weight", "bias"], ["name"])


class Way(NamedTuple):
    cls: type[Any]
    local: Callable[[], Any]  # another class of the same fields, made the same way


WAYS = {
    "node": Way(Made, local_made),
    "register_node": Way(Mutable, local_plain),
    "register_node, slots": Way(Slotted, lambda: local_plain(__slots__=Slotted.__slots__)),
    "register_node, dataclass": Way(Data, local_data),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def rebuilt(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf, x)


def parts(x: Any) -> tuple[Any, Any, Any]:
    return x.weight, x.bias, x.name


def arrays(cls: type[Any]) -> Any:
    """A node with weight 0, 2, 4, bias 1, 1, 1."""
    return cls(jnp.arange(3.0), jnp.ones(3), "n")


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
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
    """Hold both."""
    return Holder(x, y)


@dataclasses.dataclass(frozen=True)
class Config:
    depth: Any
    comment: str = dataclasses.field(default="", compare=False)
