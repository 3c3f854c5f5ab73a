"""node: a class becomes a frozen dataclass, with all that dataclasses can do."""

import abc
import copy
import dataclasses
import functools
import inspect
import pydoc
import types
import typing
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import beartype
import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from tests.node.ways import COPIES, RUNS, Made, MadeByInit, parts, same, structure
from treekit import field, node, register_node, replace, tree_at

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
        return super().__new__(cls)


def test_all_code_of_a_class_runs_once_at_creation_and_never_on_rebuilding() -> None:
    Rich.log.clear()
    x = New(5, seed=4)
    assert Rich.log == ["new", "post_init", "check_init"]
    for y in (same(x), replace(x, data=6), tree_at(lambda t: t.keys, x, "s"), jax.jit(lambda t: t)(x)):
        assert type(y) is New
    for duplicate in COPIES.values():
        assert duplicate(x).derived == [5, 4]
    assert tree_at(lambda t: t.keys, x, 3).keys == 3  # a converter would have made it a float
    assert Rich.log == ["new", "post_init", "check_init"]


def test_dataclass_features() -> None:
    x = Rich[int](5, seed=4, late=6)
    assert (x.data, x.keys, x.derived, x.items, x.aux, x.late, x.later) == (5, 1.0, [5, 4], [7], (), 6, 4)
    assert jax.tree.leaves(x) == [5, 1.0, 5, 4, 7, 6, 4]
    assert same(x).derived == [5, 4] and not hasattr(same(x), "_") and x.items is not Rich(5).items
    assert [f.name for f in dataclasses.fields(x)] == ["data", "keys", "derived", "items", "aux", "late", "later"]
    keyword_only: Any = node(kw_only=True)(type("Named", (), {"__annotations__": {"x": Any}}))
    with pytest.raises(TypeError, match="positional"):
        keyword_only(1)
    # dataclasses.replace is creation
    assert dataclasses.replace(x, data=6, seed=1).derived == [6, 1]


def test_help_shows_the_docstrings_and_the_signature() -> None:
    assert inspect.getdoc(Rich) == "Documented by its user."
    assert list(inspect.signature(Rich).parameters) == ["data", "keys", "items", "seed", "aux", "late"]
    assert "Made(weight: Any, bias: Any, name: Any)" in pydoc.render_doc(Made)
    assert "MadeByInit(w: Any, b: Any" in pydoc.render_doc(MadeByInit)

    @node
    class Documented:
        x: Any

        def __init__(self, x: Any) -> None:
            """Takes an x."""
            self.x = x

    @node
    class Generated(Documented):
        y: Any

    # That of the next class that documents its own.
    assert Documented.__init__.__doc__ == Generated.__init__.__doc__ == "Takes an x."
    assert Made.__init__.__doc__ is None


def test_cached_properties_are_right_after_rebuilding_and_no_part_of_the_treedef() -> None:
    x = Rich(5, 2)
    assert "doubled" in vars(x) and "doubled" not in vars(copy.copy(x)) and x.doubled == 4
    assert structure(x) == structure(same(x)) and hash(structure(x)) == hash(structure(same(x)))
    for y in (jax.tree.map(lambda leaf: leaf + 1, x), replace(x, keys=3.0), tree_at(lambda t: t.keys, x, 3)):
        assert y.doubled == 6


def test_equality_is_by_fields_if_asked_for_and_by_the_eq_of_the_class_if_it_has_one() -> None:
    @node(eq=True, order=True)
    class Version:
        major: int
        minor: int = field(static=True)

    assert Version(1, 2) == Version(1, 2) < Version(1, 3)
    assert hash(Version(1, 2)) == hash(Version(1, 2))

    @node
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

    assert Own(1) == Own(2) == 3


def test_an_instance_of_a_parametrized_class_knows_its_parameters() -> None:
    parametrized: Any = Rich[int]
    x, plain = parametrized(5), Rich(5)
    assert x.__orig_class__ == parametrized and structure(x) == structure(plain)
    for duplicate in (copy.copy, copy.deepcopy, same, replace):
        assert vars(duplicate(x)).keys() == vars(duplicate(plain)).keys()


def test_a_class_that_declares_no_field_keeps_the_init_of_its_base() -> None:
    inheriting: Any = node(type("Inheriting", (MadeByInit,), {}))
    kept = [inheriting, node(type("Again", (inheriting,), {})), node(init=False)(type("Told", (MadeByInit,), {}))]
    for cls in kept:
        runs = len(RUNS)
        assert parts(cls(1, 2, "a")) == (2, 2, "a")
        assert RUNS[runs:] == [cls.__name__]
    more: Any = node(type("More", (MadeByInit,), {"__annotations__": {"more": Any}}))
    assert parts(more(1, 2, "a", 4)) == (1, 2, "a"), "a class that declares a field has a generated init"


class Doubling:
    """No node, and no dataclass: a mixin."""

    x: Any

    def __init__(self, x: Any) -> None:
        self.x = 2 * x


@node
class Given:
    x: Any


@dataclasses.dataclass(frozen=True)
class PlainGiven:
    x: Any


class HasX(Protocol):
    x: Any


@pytest.mark.parametrize(
    "bases, x", [((Doubling, Given), 6), ((Given, Doubling), 3), ((HasX, Given), 3), ((PlainGiven,), 3)], ids=str
)
def test_the_init_that_comes_first_is_the_one_that_is_kept(bases: tuple[type[Any], ...], x: int) -> None:
    cls: Any = node(types.new_class("Inheriting", bases))
    assert cls(3).x == x
    assert jax.tree.leaves(jax.tree.map(lambda leaf: leaf, cls(3))) == [x]


def test_inheritance() -> None:
    class Mixin:
        def describe(self) -> str:
            return f"<{type(self).__name__}>"

    @node
    class Base(Mixin, abc.ABC):
        x: Any

        @abc.abstractmethod
        def f(self) -> Any:
            return self.x + 100

    @node
    class Other:
        y: Any

    @node
    class Both(Base, Other):
        z: Any = 20

        def f(self) -> Any:
            return super().f() + self.z

    abstract: Any = Base
    with pytest.raises(TypeError, match="abstract"):
        abstract(1)
    made = Both(y=3, x=2)
    assert (made.x, made.y, made.z) == (2, 3, 20) and made.f() == 122 and made.describe() == "<Both>"
    assert jax.tree.map(lambda leaf: leaf + 1, made).f() == 124
    assert isinstance(same(made), Other) and Base.__subclasses__() == [Both]


jaxtyping_checks = jaxtyped(typechecker=beartype.beartype)


def test_jaxtyped_above_node_checks_arguments_at_creation_only() -> None:
    @jaxtyping_checks
    @node
    class Checked:
        x: Float[Array, " n"]
        y: "Float[Array, 'n']"  # as under `from __future__ import annotations`
        z: Float[Array, " n"] = field(converter=jnp.asarray)  # which takes anything

    ones, given = jnp.ones(2), typing.cast(Any, [1.0, 2.0])
    made = Checked(ones, ones, given)
    assert same(made).x is made.x
    assert jax.tree.map(lambda leaf: "anything", made).y == "anything"
    assert jax.vmap(lambda t: t)(jax.tree.map(lambda leaf: leaf[:, None], made)).x.shape == (2, 1)
    for wrong in ((given, ones, ones), (ones, jnp.ones(3), ones)):
        with pytest.raises(TypeCheckError, match="Checked"):
            Checked(*wrong)

    @node
    @jaxtyping_checks
    class Below:
        x: Array

    assert Below(given).x == given  # jaxtyping gets a class that is not a dataclass yet


# Fields


def test_a_field_that_is_static_in_flax_is_static() -> None:
    @node
    class Ported:
        x: Any
        n: int = flax_field(pytree_node=False, default=1)
        y: Any = flax_field(pytree_node=True, default=2)

    @register_node
    @dataclasses.dataclass
    class Registered:
        x: Any
        n: int = flax_field(pytree_node=False, default=1)

    assert jax.tree.leaves((Ported(1.0), Registered(1.0))) == [1.0, 2, 1.0]


def test_copy_false_exempts_the_argument_of_that_field_alone() -> None:
    @node
    class Aliasing:
        mine: Any = field(copy=False)
        yours: Any = None

    given: list[int] = [1]
    for made in (Aliasing(given, given), Aliasing(mine=given, yours=given)):
        assert made.mine is given
        assert made.yours == given and made.yours is not given


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
    with pytest.raises(ValueError, match="could not convert string to float") as caught:
        Converted((1,), "x")
    assert caught.value.__notes__[0].endswith("Converted.scale")


@pytest.mark.parametrize(
    ("function", "option"),
    [
        *[(field, option) for option in ("init", "repr", "static", "copy", "trainable")],
        *[(node, option) for option in ("init", "repr", "eq", "order", "kw_only", "check")],
    ],
)
def test_options_are_bools(function: Any, option: str) -> None:
    unchecked: Any = inspect.unwrap(function)  # by beartype
    with pytest.raises(TypeError, match=rf"{function.__name__}: {option} must be True or False, found 'no'"):
        unchecked(**{option: "no"})


ARRAYS: dict[str, tuple[Any, str]] = {
    "array": (jnp.ones(2), "jax.Array"),
    "NumPy": (np.ones(2), "ndarray"),
    "in containers": ({1: "a", "b": [jnp.ones(2)]}, "dict"),
    "node": (Made(jnp.ones(2), 1, "a"), "Made"),
    "module": (eqx.nn.Linear(1, 1, key=jax.random.key(0)), "Linear"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_in_the_class_body_needs_an_annotation(kind: str) -> None:
    value, annotation = ARRAYS[kind]
    bare = type("Bare", (), {"w": value})
    before = dict(vars(bare))
    with pytest.raises(TypeError, match=rf"Bare\.w is or contains an array, .* not a field: .*`w: {annotation}`"):
        node(bare)
    assert dict(vars(bare)) == before
    for hint in (ClassVar[Any], "ClassVar[Any]"):
        shared: Any = node(type("Shared", (), {"w": value, "__annotations__": {"w": hint}}))
        assert shared().w is value and jax.tree.leaves(shared()) == []


def test_other_values_in_the_class_body_need_no_annotation() -> None:
    @node
    class Constants:
        size = 2
        table = ({1: "a", "b": np.float32(1)},)
        activation = staticmethod(jax.nn.relu)
        step = functools.partial(jnp.multiply, 2)

    assert jax.tree.leaves(Constants()) == []
