"""Static values: which values can be static, and which are equal: those of one type, part by part."""

import copy
import dataclasses
import functools
import inspect
import numbers
import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import flax.core
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.node.ways import COPIES, Config, Holder, Law, Laws, Made, Way, created, every_way, same, structure
from tests.trees import Point
from treekit import field, node, replace

FrozenDict: Any = flax.core.FrozenDict  # has no types
law = Laws()


@law
def static_parts_are_honoured(way: Way) -> None:
    for value in ("n", None, 3, (1, ("a",)), frozenset({1}), jnp.sin, len, int, Config(3), np.dtype("int8"), ...):
        x = way.make(1, 2, value)
        assert x.name is value and same(x).name is value
        assert jax.tree.leaves(x) == [2, 2]
    # What compares equal and is not the same is not exchanged for it, within one tree or between two.
    one, two = way.make(1, 2, Config(3, "one")), way.make(1, 2, Config(3, "two"))
    assert structure(one) == structure(two)
    assert [y.name.comment for y in (one, two, *same((one, two)))] == ["one", "two"] * 2


@node(eq=True)
class NodeConfig:
    depth: Any = field(static=True)


class Seconds(float):
    pass


class Tally(int):
    pass


# Hashable whatever its values are, as classes for configurations may be.
HashableDict: Any = type("HashableDict", (dict,), {"__hash__": lambda self: hash(tuple(self))})
HashableOrderedDict: Any = type("HashableOrderedDict", (OrderedDict,), {"__hash__": lambda self: hash(tuple(self))})


def signature(**given: Any) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD, **given)])


DIFFERENT: list[tuple[Any, Any]] = [
    (1, True),
    (1, 1 + 0j),
    (0.0, -0.0),
    (0j, complex(0.0, -0.0)),
    (np.float32(1), np.float64(1)),
    (np.float64(1), 1.0),
    ("a", b"a"),
    (jnp.sin, jnp.cos),
    (float("nan"), 0.0),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal("NaN"), Decimal("-NaN")),
    (Fraction(1), 1),
    (Seconds(0.0), Seconds(-0.0)),
    (Tally(1), 1),
    (range(0, 3, 2), range(0, 4, 2)),
    (range(0), range(1, 1)),
    (signature(annotation=1), signature(annotation=True)),
    (FrozenDict(a=2), FrozenDict(a=2.0)),
    (FrozenDict({0: 2}), FrozenDict({False: 2})),
]
WRAPS: list[Callable[[Any], Any]] = [
    lambda v: v,
    lambda v: ((v, "x"),),
    lambda v: frozenset({v}),
    lambda v: FrozenDict({"a": v, "b": 1}),
    lambda v: HashableDict({v: 1}),
    lambda v: signature(default=v),
    lambda v: Point(v, 2),
    Config,
    NodeConfig,
]


def twice(value: Any) -> Any:
    """An equal value that is not the same object where Python allows it."""
    return value if callable(value) else pickle.loads(pickle.dumps(value))


@law
def treedefs_are_equal_for_equal_static_values_and_for_no_others(way: Way) -> None:
    for wrap in WRAPS:
        for a, b in DIFFERENT:
            x, y, again = (structure(way.make(1, 2, wrap(v))) for v in (a, b, twice(a)))
            assert x != y and not x == y, (a, b)
            assert x == again and not x != again and hash(x) == hash(again), a


@law
def copies_have_an_equal_treedef(way: Way) -> None:
    for value in (wrap(a) for wrap in WRAPS for a, _ in DIFFERENT if not callable(a)):
        x = way.make(1, 2, value)
        for how, duplicate in COPIES.items():
            assert structure(duplicate(x)) == structure(x), (how, value)


@law
def one_trace_for_equal_statics_and_for_rebuilt_instances(way: Way) -> None:
    traced: list[Any] = []

    @jax.jit
    def f(x: Any) -> Any:
        traced.append(x.name)
        return x.weight * (10 if isinstance(x.name, bool) else 20 if isinstance(x.name, int) else 30)

    for name, expected in ((1, 40), (True, 20), (1.0, 60), ("a", 60), (("a", 1.5), 60)) * 2:
        x = way.make(1, 2, twice(name))
        for each in (x, same(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
            assert f(each) == expected
    assert len(traced) == 5


atoms = st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, float("nan"), None, "", "1"])
static_values = st.recursive(atoms, lambda s: st.lists(s, max_size=2).map(tuple) | st.frozensets(s, max_size=2))


def written(x: Any) -> str:
    """Python's notation tells apart what is type-exactly different, but for the order of a set."""
    if isinstance(x, tuple):
        return f"({','.join(map(written, x))})"
    return f"{{{','.join(sorted(map(written, x)))}}}" if isinstance(x, frozenset) else repr(x)


@hypothesis.given(static_values, static_values)
def test_treedefs_are_equal_where_the_values_are_written_alike(a: Any, b: Any) -> None:
    x, y = structure(Made(1, 2, a)), structure(Made(1, 2, b))
    assert (x == y) == (written(a) == written(b))
    assert x != y or hash(x) == hash(y)


def test_static_dataclasses_are_compared_as_exactly_as_they_can_be_hashed() -> None:
    graph, params = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))  # its fields are lists, and it has a hash of its own
    other = nnx.graphdef(nnx.Linear(2, 3, use_bias=False, rngs=nnx.Rngs(0)))
    again = nnx.graphdef(nnx.Linear(2, 3, rngs=nnx.Rngs(1)))
    made = Made(1, params, graph)
    assert structure(Made(1, 2, graph)) == structure(Made(1, 2, again)) != structure(Made(1, 2, other))
    assert jax.jit(lambda made: nnx.merge(made.name, made.bias)(jnp.ones((1, 2), jnp.float32)))(made).shape == (1, 3)

    @dataclasses.dataclass(frozen=True)
    class Noted:
        size: Any
        notes: Any = dataclasses.field(hash=False)

    unhashable: list[Any] = [None, [], {"a": 1}]
    for notes in unhashable:
        same, float_size, other_notes = (Made(1, 2, Noted(*args)) for args in ((1, notes), (1.0, notes), (1, [3])))
        assert structure(Made(1, 2, Noted(1, notes))) == structure(same)
        assert structure(same) != structure(float_size) and structure(same) != structure(other_notes)


class Shape(tuple[int, ...]):
    """Its instances are more than their items, and its `__eq__` knows of it."""

    unit: str

    @classmethod
    def of(cls, unit: str, *sizes: int) -> "Shape":
        self = cls(sizes)
        self.unit = unit
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.unit == other.unit and tuple.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((self.unit, *self))


class Unit(Sequence[int]):
    """A sequence that is compared by identity; what it contains may be a lot of work to find out."""

    def __len__(self) -> int:
        raise AssertionError("looked into")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("looked into")


@dataclasses.dataclass(frozen=True)
class Strict:
    x: Any
    note: str = dataclasses.field(default="", compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strict) and (self.x, self.note) == (other.x, other.note)

    def __hash__(self) -> int:
        return hash(self.note)


class Money(numbers.Number):
    """A number without a `__repr__`, which would give its address away."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.amount == other.amount

    def __hash__(self) -> int:
        return hash(self.amount)


class Huge(int):
    """Too long to be written."""


def test_static_values_of_other_classes_are_compared_by_their_own_eq_too() -> None:
    unit = Unit()
    proxy: Any = types.MappingProxyType
    frozen: Any = flax.core.FrozenDict
    table: list[tuple[Any, Any, Any]] = [  # a value, an equal one, another one
        (Shape.of("m", 1), Shape.of("m", 1), Shape.of("s", 1)),
        (Shape.of("m", 1), Shape.of("m", 1), Shape.of("m", True)),
        (unit, unit, Unit()),
        (Strict(1), Strict(1), Strict(1, "note")),
        (Strict([1]), Strict([1]), Strict([2])),
        (Strict(1), Strict(1), Strict(1.0)),
        (Money(1), Money(1), Money(2)),
        (Huge(10**5000), Huge(10**5000), Huge(10**5000 + 1)),
        (HashableDict(a=[1]), HashableDict(a=[1]), HashableDict(a=[2])),
        (HashableDict(a=[1]), HashableDict(a=[1]), HashableDict(a=[1.0])),
        (frozen(a=1), frozen(a=1), HashableDict(a=1)),
        (HashableOrderedDict(a=1, b=2), HashableOrderedDict(a=1, b=2), HashableOrderedDict(b=2, a=1)),
    ]
    if sys.version_info >= (3, 12):  # where these are hashable
        table += [
            (slice(1), slice(1), slice(True)),
            (proxy(frozen(a=1)), proxy(frozen(a=1)), proxy(frozen(a=True))),
        ]
    for value, equal, other in table:
        x, y, z = (structure(Made(1, 2, v)) for v in (value, equal, other))
        assert x == y and hash(x) == hash(y) and x != z, value


STATIC_MISTAKES: dict[str, tuple[Any, str]] = {
    "list": ([1], "list, is not hashable.* tuple for a list"),
    "list in a tuple": (("a", [1]), "tuple, is not hashable"),
    "array": (jnp.ones(2), "ArrayImpl, is not hashable"),
    "array in a partial": (functools.partial(abs, jnp.ones(2)), "partial, holds an array"),
    "array in a node in a tuple": ((Holder(np.ones(2)),), "tuple, holds an array"),
}


@pytest.mark.parametrize("value, message", STATIC_MISTAKES.values(), ids=STATIC_MISTAKES)
@created
def test_static_values_are_checked(way: Way, value: Any, message: str) -> None:
    where = rf"{way.cls.__name__}\.name is static"
    with pytest.raises(TypeError, match=f"{where}, .* {message}"):
        way.make(1, 2, value)
    with pytest.raises(TypeError, match=f"{where}, .* {message}"):
        replace(way.make(1, 2, "a"), name=value)


def nested(depth: int, kind: Any = tuple) -> Any:
    value = kind()
    for _ in range(depth):
        value = kind([value])
    return value


class Endless:
    """A value whose hash never ends."""

    def __hash__(self) -> int:
        return hash(self)


TOO_DEEP = {
    "5,000 tuples": nested(5_000),
    "100,000 tuples": nested(100_000),
    "frozensets": nested(5_000, frozenset),
    "slices of tuples": slice(nested(5_000)),
    "endless": Endless(),
}


@pytest.mark.parametrize(
    "value",
    [pytest.param(x, id=name, marks=[pytest.mark.slow] if "100,000" in name else []) for name, x in TOO_DEEP.items()],
)
@created
def test_a_value_that_is_nested_too_deeply_is_an_error(way: Way, value: Any) -> None:
    message = rf"{way.cls.__name__}\.name is static, and comparing its value exceeds .* Pass a flat value"
    with pytest.raises(TypeError, match=message):
        way.make(1, 2, value)
    with pytest.raises(TypeError, match=message):
        replace(way.make(1, 2, "a"), name=value)


@pytest.mark.slow
def test_every_depth_is_accepted_or_gives_that_error() -> None:
    """Near Python's limit, it depends on the number of frames which step fails first."""
    deepest = 0
    for depth in range(1, sys.getrecursionlimit() + 50, 3):
        try:
            Made(1, 2, nested(depth))
        except TypeError as error:
            assert "exceeds Python's recursion limit" in str(error)
        else:
            deepest = depth
    assert deepest


@created
def test_static_values_can_be_neither_tracers_nor_methods_of_nodes_with_arrays(way: Way) -> None:
    where = rf"{way.cls.__name__}\.name is static"
    for transform in (jax.jit, jax.vmap):
        with pytest.raises(TypeError, match=where):
            transform(lambda leaf: way.make(1, 2, leaf).weight)(jnp.ones(2))
    with pytest.raises(TypeError, match=rf"{where}, .* method, holds an array"):
        replace(way.make(1, 2, "a"), name=Holder(jnp.ones(2)).method)


@every_way
@pytest.mark.parametrize("check", law)
def test_law(check: Law, way: Way) -> None:
    check(way)
