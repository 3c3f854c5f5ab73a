"""Errors of classes: node, register_node, node_factory, replace, HashableArray, check_types, Typed and check_pytree."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import treekit.typing as tkt
from tests.errors.mistake import Mistake, unchecked
from tests.trees import Halved, Point
from treekit import HashableArray, check_types, field, node, node_factory, register_node, replace
from treekit._types.quoted import UnresolvedAnnotationError as Unresolved
from treekit._types.sizes import UnknownJaxtypingError, storage
from treekit.testing import check_pytree
from treekit.testing._violations import LawsBroken

ONES = jnp.ones(2, jnp.float32)
WORD: Any = "word"
NOTHING: Any = None
Typed: Any = tkt.Typed
Batched: Any = tkt.Batched
register_dataclass: Any = jax.tree_util.register_dataclass  # has no types


@node
class Layer:
    weight: Any
    name: Any = field(static=True, default="layer")

    def scale(self) -> Any:
        return self.weight


class Undecorated(Layer): ...


@node
class Careless:
    """Its `__init__` does what it is told."""

    weight: Any

    def __init__(self, do: Callable[[Any], object]) -> None:
        do(self)


@node(check=True)
class Square:
    matrix: Float[Array, "n n"]


class AbstractModule(eqx.Module):
    @abc.abstractmethod
    def call(self) -> None: ...


class Plain:
    """Not registered, and the entries below fail to."""


class WithSlots:
    __slots__ = ("x",)


@register_dataclass
@dataclasses.dataclass
class Overwrites:
    x: Any

    def __post_init__(self) -> None:
        self.x = 42


LAYER = Layer(ONES)
SQUARE = Square(jnp.ones((2, 2), jnp.float32))
MORE = Halved(2.0)
vars(MORE)["extra"] = 1


def class_with(*bases: type[Any], **body: Any) -> type[Any]:
    return type("Made", bases, body)


RaisesInEq = class_with(__eq__=lambda *_: 1 / 0, __hash__=lambda _: 0)


def check_field(hint: Any, n: object = 2) -> None:
    """Check an array against this annotation."""
    check_types(node(class_with(__annotations__={"n": Any, "field": hint}))(n, ONES))


def create_with_a_later_init() -> None:
    """IPython's %autoreload replaces it where it has been edited."""
    late: Any = node(class_with(__annotations__={"weight": Any}))
    late.__init__ = lambda self: setattr(self, "weight", 2)
    late()


def created_with_new(set_attribute: Any) -> None:
    def new(cls: Any) -> object:
        self: object = object.__new__(cls)
        set_attribute(self, "_seen", 1)
        return self

    node(class_with(__annotations__={"weight": Any}, weight=2, __new__=new))()


def check_with_a_later_jaxtyping() -> None:
    storage.cache_clear()
    with mock.patch("jaxtyping._storage.get_shape_memo", lambda: "another memo"):
        check_types(SQUARE)


MISTAKES: dict[str, Mistake] = {
    # Decorators
    "a node that is not a class": Mistake(lambda: node(WORD), TypeError, "'word'"),
    "an option that is not a bool": Mistake(lambda: unchecked(node)(eq="no"), TypeError, "'no'"),
    "a default_factory that is an array": Mistake(
        lambda: unchecked(field)(default_factory=ONES), TypeError, "default_factory must be"
    ),
    "a static field to train": Mistake(lambda: field(static=True, trainable=False), TypeError, "trainable=False"),
    "a field to train that its metadata makes static": Mistake(
        lambda: field(metadata={"static": True}, trainable=False), TypeError, "trainable=False"
    ),
    "an array in a class body": Mistake(lambda: node(class_with(w=ONES)), TypeError, "Made.w"),
    "a class made a node twice": Mistake(lambda: node(Layer), TypeError, "Layer"),
    "a node of Equinox": Mistake(lambda: node(eqx.nn.Linear), TypeError, "Linear"),
    "an abstract node of Equinox": Mistake(
        lambda: unchecked(register_node)(AbstractModule, [], []), TypeError, "AbstractModule"
    ),
    "a class written in C": Mistake(lambda: node(Point), TypeError, "Point"),
    "slots alone": Mistake(lambda: node(WithSlots), TypeError, "WithSlots"),
    "a field in the slots of a base": Mistake(
        lambda: node(class_with(WithSlots, __annotations__={"x": int})), TypeError, "'x' of Made"
    ),
    "a field that is not in the slots": Mistake(
        lambda: register_node(WithSlots, ["y"], []), TypeError, "'y' of WithSlots"
    ),
    "a field that is a property": Mistake(
        lambda: register_node(class_with(x=property(len)), ["x"], []), TypeError, "'x' of Made"
    ),
    "a field that is a keyword": Mistake(lambda: register_node(Plain, ["if"], []), TypeError, "'if' of Plain"),
    "fields that are a string": Mistake(lambda: register_node(Plain, "ab", []), TypeError, "data_fields"),
    "a field named twice": Mistake(lambda: register_node(Plain, ["a"], ["b", "a"]), TypeError, "Plain: a"),
    "a dataclass's field that is not named": Mistake(
        lambda: register_node(dataclasses.make_dataclass("Wheel", ["size", "spokes"]), ["size"], []),
        TypeError,
        "spokes",
    ),
    "a node in register_node": Mistake(lambda: register_node(Undecorated, ["weight"], []), TypeError, "Undecorated"),
    # Instances
    "a subclass that is not decorated": Mistake(lambda: Undecorated(1), TypeError, "Undecorated"),
    "a field that is not set": Mistake(lambda: Careless(id), TypeError, "weight"),
    "a node flattened too early": Mistake(lambda: Careless(jax.tree.leaves), TypeError, "Careless.weight"),
    "an attribute that is not a field": Mistake(
        lambda: Careless(lambda self: vars(self).update(weight=1, bias=ONES)), TypeError, "`bias: jax.Array`"
    ),
    "an attribute that __new__ sets and that is not a field": Mistake(
        lambda: created_with_new(object.__setattr__), TypeError, "`_seen: int`"
    ),
    "an attribute that __new__ sets in the usual way": Mistake(
        lambda: created_with_new(setattr), FrozenInstanceError, "__new__"
    ),
    "an attribute in the slots of a base": Mistake(
        lambda: node(class_with(WithSlots, __init__=lambda self: setattr(self, "x", 1)))(),
        TypeError,
        "slots__ of WithSlots",
    ),
    "an attribute that register_node does not know": Mistake(lambda: jax.tree.leaves(MORE), TypeError, "Halved.extra"),
    "an attribute set": Mistake(lambda: setattr(LAYER, "weight", 2), FrozenInstanceError, "weight"),
    "an attribute set by an __init__ that came later": Mistake(
        create_with_a_later_init, FrozenInstanceError, "has no weight"
    ),
    "an attribute deleted": Mistake(lambda: delattr(LAYER, "weight"), FrozenInstanceError, "weight"),
    "an instance initialized again": Mistake(lambda: Layer.__init__(LAYER, 1), FrozenInstanceError, "Layer"),
    "a method of its own that is stored": Mistake(
        lambda: Careless(lambda self: setattr(self, "weight", self.__repr__)), TypeError, "weight"
    ),
    "a function that captures arrays": Mistake(lambda: Layer(LAYER.scale), TypeError, "weight"),
    "a method that captures arrays, wrapped, in place of a static value": Mistake(
        lambda: replace(LAYER, name=jax.vmap(LAYER.scale)), TypeError, "captures a Layer"
    ),
    "a static list": Mistake(lambda: Layer(1, [1]), TypeError, "Layer.name"),
    "a static array": Mistake(lambda: Layer(1, ("a", ONES)), TypeError, "tuple"),
    "a static partial of an array": Mistake(lambda: Layer(1, functools.partial(abs, ONES)), TypeError, "partial"),
    "a static value that cannot be compared": Mistake(
        lambda: [Layer(1, RaisesInEq()), Layer(1, RaisesInEq())], TypeError, "ZeroDivisionError"
    ),
    "replace of a dict": Mistake(lambda: replace({}, a=1), TypeError, "{**tree, **items}"),
    "replace of a module of Equinox": Mistake(
        lambda: replace(eqx.nn.Linear(2, 2, key=jax.random.key(0)), weight=1), TypeError, "treekit.tree_at"
    ),
    "replace of a misspelled field": Mistake(lambda: replace(LAYER, wieght=1), TypeError, "weight, name"),
    "classmethod below node_factory": Mistake(
        lambda: unchecked(node_factory)(classmethod(Layer)), TypeError, "@classmethod above @node_factory"
    ),
    "a factory of no node": Mistake(lambda: node_factory(lambda: None)(), TypeError, "NoneType"),
    "a factory of what overwrites its leaf": Mistake(lambda: node_factory(Overwrites)(1), TypeError, "leaf x"),
    "a pytree that breaks a law": Mistake(lambda: check_pytree({"a": Overwrites(1)}), LawsBroken, "int 42"),
    "check_pytree of an array": Mistake(lambda: check_pytree(ONES), TypeError, "f32[2]"),
    "check_pytree of a class": Mistake(lambda: check_pytree(Layer), TypeError, "the class Layer"),
    # HashableArray
    "a hashable string": Mistake(lambda: HashableArray("abc"), TypeError, "<U3"),
    "a hashable None": Mistake(lambda: HashableArray(NOTHING), TypeError, "None"),
    "hashable keys": Mistake(lambda: HashableArray(jax.random.key(0)), TypeError, "jax.random.key_data(key)"),
    "a hashable list of a tracer": Mistake(
        lambda: jax.jit(lambda x: HashableArray([1.0, x]))(ONES), TypeError, "HashableArray"
    ),
    "an attribute of a hashable array set": Mistake(
        lambda: setattr(HashableArray(1.0), "shape", ()), AttributeError, "shape"
    ),
    "another dtype without a copy": Mistake(
        lambda: np.asarray(HashableArray(1.0), np.float16, copy=False), ValueError, "float16"
    ),
    # Types
    "a field of another type": Mistake(lambda: check_types({"a": replace(SQUARE, matrix=ONES)}), TypeError, "a.matrix"),
    "a field of another type at creation": Mistake(lambda: Square(ONES), TypeError, "matrix"),
    "check_types of a class": Mistake(lambda: check_types(Layer), TypeError, "the class Layer"),
    "an annotation that is not defined": Mistake(lambda: check_field("Nowhere"), Unresolved, "'Nowhere'"),
    "an annotation that is a function": Mistake(lambda: check_field(jnp.array), Unresolved, "function"),
    "an annotation that is a dtype": Mistake(lambda: check_field(jnp.float32), Unresolved, "float32"),
    "a size that nothing binds": Mistake(lambda: check_field(Float[Array, "m+1"]), Unresolved, "Made.field"),
    "a size in braces that is not an attribute": Mistake(
        lambda: check_field(Float[Array, "{n}"]), Unresolved, "{self.n}"
    ),
    "a size in braces that jit traces": Mistake(
        lambda: jax.jit(lambda n: check_field(Float[Array, "{self.n}"], n))(2), Unresolved, "{self.n}"
    ),
    "a jaxtyping that stores sizes in another way": Mistake(
        check_with_a_later_jaxtyping, UnknownJaxtypingError, "jaxtyping"
    ),
    "Typed of a union": Mistake(lambda: Typed[Layer | None], TypeError, "Layer | None"),
    "Typed of the name of a union": Mistake(lambda: Typed["Layer | None"], TypeError, "'Layer | None'"),
    "Batched without axes": Mistake(lambda: Batched[Layer], TypeError, "Batched"),
    "a name that treekit.typing does not have": Mistake(lambda: getattr(tkt, WORD), AttributeError, "'word'"),
}
