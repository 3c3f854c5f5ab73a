"""node: a class becomes a frozen dataclass, with all that dataclasses can do."""

import abc
import copy
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import beartype
import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from tests.node.ways import COPIES, Made, rebuilt, structure
from treekit import field, node, replace, tree_at

flax_field: Any = flax.struct.field  # has no types

T = TypeVar("T")


@node
class Rich(Generic[T]):
    """Documented by its user."""

    data: T
    keys: Any = field(default=1, converter=float)
    derived: Any = field(init=False)
    items: list[Any] = field(default_factory=lambda: [7])
    seed: dataclasses.InitVar[int] = 3
    _: dataclasses.KW_ONLY
    aux: Any = field(static=True, default=())
    late: Any = field(default=0, kw_only=True)
    later: int = field(init=False, default=4)
    log: ClassVar[list[str]] = []

    def __post_init__(self, seed: int) -> None:
        self.log.append("post_init")
        _ = self.doubled
        self.derived = [self.data, seed]

    def __check_init__(self) -> None:
        self.log.append("check_init")

    @functools.cached_property
    def doubled(self) -> Any:
        return 2 * self.keys


@node
class New(Rich[T]):
    def __new__(cls, *args: Any, **kwargs: Any) -> "New[T]":
        cls.log.append("new")
        self = super().__new__(cls)
        object.__setattr__(self, "later", 4)
        return self


def doubles(self: Any, x: Any) -> None:
    """Store twice an x."""
    self.x = 2 * x


def with_x(**body: Any) -> type[Any]:
    return type("WithX", (), {"__annotations__": {"x": Any}, **body})


class HasX(Protocol):
    x: Any


Mixin = type("Mixin", (), {"__init__": doubles})
Generated: Any = node(with_x())
ByHand: Any = node(with_x(__init__=doubles))
Inheriting: Any = node(type("Inheriting", (ByHand,), {}))


def test_all_code_of_a_class_runs_once_at_creation_and_never_on_rebuilding() -> None:
    Rich.log.clear()
    x = New(5, seed=4)
    assert Rich.log == ["new", "post_init", "check_init"]
    for y in (rebuilt(x), replace(x, data=6), tree_at(lambda t: t.keys, x, "s"), jax.jit(lambda t: t)(x)):
        assert type(y) is New
    for duplicate in COPIES.values():
        assert duplicate(x).derived == [5, 4]
    assert tree_at(lambda t: t.keys, x, 3).keys == 3  # a converter would have made it a float
    assert Rich.log == ["new", "post_init", "check_init"]


def test_dataclass_features() -> None:
    x = Rich[int](5, seed=4, late=6)
    assert (x.data, x.keys, x.derived, x.items, x.aux, x.late, x.later) == (5, 1.0, [5, 4], [7], (), 6, 4)
    assert jax.tree.leaves(x) == [5, 1.0, 5, 4, 7, 6, 4]
    assert rebuilt(x).derived == [5, 4] and not hasattr(rebuilt(x), "_") and x.items is not Rich(5).items
    assert [f.name for f in dataclasses.fields(x)] == ["data", "keys", "derived", "items", "aux", "late", "later"]
    assert dataclasses.replace(x, data=6, seed=1).derived == [6, 1], "this is creation"
    keyword_only: Any = node(kw_only=True)(with_x())
    with pytest.raises(TypeError, match="positional"):
        keyword_only(1)
    no_init: Any = node(init=False)(type("NoInit", (ByHand,), {"__annotations__": {"y": Any}, "y": 4}))
    assert (no_init(3).x, no_init(3).y) == (6, 4)


def test_help_shows_the_docstrings_and_the_signature() -> None:
    assert inspect.getdoc(Rich) == "Documented by its user."
    assert list(inspect.signature(Rich).parameters) == ["data", "keys", "items", "seed", "aux", "late"]
    assert list(inspect.signature(ByHand).parameters) == ["x"]
    more: Any = node(type("More", (ByHand,), {"__annotations__": {"y": Any}}))
    assert ByHand.__init__.__doc__ == more.__init__.__doc__ == "Store twice an x.", "that of the next documented one"
    assert Generated.__init__.__doc__ is None


def test_cached_properties_are_right_after_rebuilding_and_no_part_of_the_treedef() -> None:
    x = Rich(5, 2)
    assert "doubled" in vars(x) and "doubled" not in vars(copy.copy(x)) and x.doubled == 4
    assert structure(x) == structure(rebuilt(x)) and hash(structure(x)) == hash(structure(rebuilt(x)))
    for y in (jax.tree.map(lambda leaf: leaf + 1, x), replace(x, keys=3.0), tree_at(lambda t: t.keys, x, 3)):
        assert y.doubled == 6


def test_equality_is_by_fields_if_asked_for() -> None:
    @node(eq=True, order=True)
    class Version:
        major: int
        minor: int = field(static=True)

    assert Version(1, 2) == Version(1, 2) < Version(1, 3)
    assert hash(Version(1, 2)) == hash(Version(1, 2))


def test_an_instance_of_a_parametrized_class_knows_its_parameters() -> None:
    parametrized: Any = Rich[int]
    x, plain = parametrized(5), Rich(5)
    assert x.__orig_class__ == parametrized and structure(x) == structure(plain)
    for duplicate in (copy.copy, copy.deepcopy, rebuilt, replace):
        assert vars(duplicate(x)).keys() == vars(duplicate(plain)).keys()


BASES: list[tuple[tuple[type[Any], ...], int]] = [
    ((Mixin, Generated), 6),
    ((Generated, Mixin), 3),
    ((HasX, Generated), 3),
    ((dataclasses.dataclass(frozen=True)(with_x()),), 3),
    ((ByHand,), 6),
    ((Inheriting,), 6),
]


@pytest.mark.parametrize("bases, x", BASES, ids=str)
def test_a_class_that_declares_no_field_keeps_the_init_that_comes_first(bases: tuple[type[Any], ...], x: int) -> None:
    kept: Any = node(types.new_class("Kept", bases))
    assert kept(3).x == rebuilt(kept(3)).x == x
    declaring: Any = node(type("Declaring", bases, {"__annotations__": {"more": Any}}))
    assert (declaring(3, 4).x, declaring(3, 4).more) == (3, 4), "a class that declares a field has a generated init"


def test_an_abstract_base() -> None:
    @node
    class Base(abc.ABC):
        x: Any

        @abc.abstractmethod
        def f(self) -> Any:
            return self.x + 100

    @node
    class Derived(Base):
        y: Any = 20

        def f(self) -> Any:
            return super().f() + self.y

    assert jax.tree.map(lambda leaf: leaf + 1, Derived(2)).f() == 124
    assert Base.__subclasses__() == [Derived]


def test_jaxtyped_above_node_checks_arguments_at_creation_only() -> None:
    @jaxtyped(typechecker=beartype.beartype)
    @node
    class Checked:
        x: Float[Array, " n"]
        y: "Float[Array, 'n']"  # as under `from __future__ import annotations`
        z: Float[Array, " n"] = field(converter=jnp.asarray)  # which takes anything

    ones, given = jnp.ones(2), typing.cast(Any, [1.0, 2.0])
    made = Checked(ones, ones, given)
    assert rebuilt(made).x is made.x
    assert jax.tree.map(lambda leaf: "anything", made).y == "anything"
    assert jax.vmap(lambda t: t)(jax.tree.map(lambda leaf: leaf[:, None], made)).x.shape == (2, 1)
    for wrong in ((given, ones, ones), (ones, jnp.ones(3), ones)):
        with pytest.raises(TypeCheckError, match="Checked"):
            Checked(*wrong)


# Fields


def test_a_field_that_is_static_in_flax_is_static() -> None:
    @node
    class Ported:
        x: Any
        n: int = flax_field(pytree_node=False, default=1)
        y: Any = flax_field(pytree_node=True, default=2)

    assert jax.tree.leaves(Ported(1.0)) == [1.0, 2]


def test_converters_run_after_init_on_defaults_too_and_before_the_checks() -> None:
    @node
    class Converted:
        shape: tuple[int, ...] = field(static=True, converter=tuple)
        scale: Any = field(default=1, converter=float)

        def __check_init__(self) -> None:
            seen.append((self.shape, self.scale))

    seen: list[Any] = []
    made = Converted(typing.cast(Any, [1, 2]))
    assert (made.shape, made.scale) == ((1, 2), 1.0) and type(made.scale) is float
    assert seen == [((1, 2), 1.0)]
    with pytest.raises(ValueError, match="'x'") as caught:
        Converted((1,), "x")
    assert caught.value.__notes__[0].endswith("Converted.scale")

    @node
    class Unset:
        size: Any = field(init=False, converter=len)

    with pytest.raises(TypeError, match=r"Unset .*size"):
        Unset()


@pytest.mark.parametrize("function", [field, node])
def test_options_are_bools(function: Any) -> None:
    unchecked: Any = inspect.unwrap(function)  # by beartype
    options = [p.name for p in inspect.signature(function).parameters.values() if isinstance(p.default, bool)]
    assert len(options) > 4
    for option in options:
        with pytest.raises(TypeError, match=f"{function.__name__}: {option} .*'no'"):
            unchecked(**{option: "no"})


def test_an_array_in_the_class_body_needs_an_annotation() -> None:
    module = eqx.nn.Linear(1, 1, key=jax.random.key(0))
    for value in (jnp.ones(2), np.ones(2), {1: "a", "b": [jnp.ones(2)]}, Made(jnp.ones(2), 1, "a"), module):
        bare = type("Bare", (), {"w": value})
        before = dict(vars(bare))
        with pytest.raises(TypeError, match=r"Bare\.w"):
            node(bare)
        assert dict(vars(bare)) == before
        for hint in (ClassVar[Any], "ClassVar[Any]"):
            shared: Any = node(type("Shared", (), {"w": value, "__annotations__": {"w": hint}}))
            assert shared().w is value and jax.tree.leaves(shared()) == []


class NotRead(Mapping[str, Any]):
    """A mapping that would read a file."""

    __getitem__: Any = None
    __iter__: Any = None

    def __len__(self) -> int:
        return 1


def test_other_values_in_the_class_body_need_no_annotation() -> None:
    @node
    class Constants:
        size = 2
        table = ({1: "a", "b": np.float32(1)},)
        activation = staticmethod(jax.nn.relu)
        step = functools.partial(jnp.multiply, 2)
        weights = NotRead()

    assert jax.tree.leaves(Constants()) == []
