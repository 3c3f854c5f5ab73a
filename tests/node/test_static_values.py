"""Static values: which values can be static, which are equal (those of one type, part by part), and when they die."""

import dataclasses
import gc
import itertools
import numbers
import pickle
import sys
import weakref
from collections import OrderedDict, UserString
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import treekit as tk
from tests.node.ways import COPIES, Config, Holder, Made, Way, every_way, rebuilt, structure
from tests.trees import Point
from treekit import field, node, replace

FrozenDict: Any = flax.core.FrozenDict  # has no types


@every_way
def test_static_parts_are_honoured(way: Way) -> None:
    for value in ("n", None, frozenset({1}), jnp.sin, int, Config(3), np.dtype("int8"), ...):
        x = way.cls(1, 2, value)
        assert x.name is value and rebuilt(x).name is value
        assert jax.tree.leaves(x) == [2, 2]
    # What compares equal and is not the same is not exchanged for it, within one tree or between two.
    one, two = way.cls(1, 2, Config(3, "one")), way.cls(1, 2, Config(3, "two"))
    assert structure(one) == structure(two)
    assert [y.name.comment for y in (one, two, *rebuilt((one, two)))] == ["one", "two"] * 2


@node(eq=True)
class NodeConfig:
    depth: Any = field(static=True)


# Hashable whatever its values are, as classes for configurations may be.
HashableDict: Any = type("HashableDict", (dict,), {"__hash__": lambda self: hash(tuple(self))})
HashableOrderedDict: Any = type("HashableOrderedDict", (OrderedDict,), {"__hash__": lambda self: hash(tuple(self))})
HashableList: Any = type("HashableList", (list,), {"__hash__": lambda self: hash(tuple(self))})


@dataclasses.dataclass(frozen=True)
class OwnEq:
    x: Any
    note: str = dataclasses.field(default="", compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnEq) and (self.x, self.note) == (other.x, other.note)

    def __hash__(self) -> int:
        return hash(self.note)


@dataclasses.dataclass(unsafe_hash=True)
class Options:
    scale: Any


@dataclasses.dataclass
class OwnEqOptions:
    scale: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnEqOptions) and self.scale == other.scale

    def __hash__(self) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Noted:
    size: Any
    notes: Any = dataclasses.field(hash=False)


# A number without a `__repr__`, which would give its address away.
number: dict[str, Any] = {"bases": (numbers.Number,), "frozen": True, "repr": False}
Money: Any = dataclasses.make_dataclass("Money", ["amount"], namespace={"__module__": __name__}, **number)


class Huge(int):
    """Too long to be written."""


DIFFERENT: list[tuple[Any, Any]] = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    (0j, complex(0.0, -0.0)),
    (float("nan"), 0.0),
    (np.float32(0), np.float64(0)),
    (np.float64(0), np.float64(-0.0)),
    (ml_dtypes.bfloat16(0), ml_dtypes.bfloat16(-0.0)),
    (jnp.sin, jnp.cos),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal("NaN"), Decimal("-NaN")),
    (Money(1), Money(2)),
    (Huge(10**5000), Huge(10**5000 + 1)),
    (range(0, 3, 2), range(0, 4, 2)),
    (OwnEq(1), OwnEq(1, "note")),
    (OwnEq([1]), OwnEq([2])),
    (OwnEq(1), OwnEq(1.0)),
    (Noted(1, []), Noted(1.0, [])),
    (Noted(1, []), Noted(1, [3])),
    (HashableDict(a=[1]), HashableDict(a=[2])),
    (HashableDict(a=[1]), HashableDict(a=[1.0])),
    (FrozenDict(a=1), HashableDict(a=1)),
    (FrozenDict(a=1), FrozenDict(a=True)),
    *((kind(a=1, b=2), kind(b=2, a=1)) for kind in (FrozenDict, HashableDict, HashableOrderedDict)),
    (Options(1), Options(1.0)),
    (HashableList([1]), HashableList([1.0])),
    (UserString("a"), UserString("b")),
    *((partial(pow, exp=2), x) for x in (partial(pow, exp=2.0), partial(pow, 2), partial(abs), pow)),
]
if sys.version_info >= (3, 12):  # where a slice is hashable
    DIFFERENT.append((slice(1), slice(True)))
WRAPS: list[Callable[[Any], Any]] = [
    lambda v: v,
    lambda v: ((v, "x"),),
    lambda v: frozenset({v}),
    lambda v: HashableDict({v: 1}),
    lambda v: Point(v, 2),
    Config,
    NodeConfig,
]


@every_way
def test_treedefs_are_equal_for_equal_static_values_and_for_no_others(way: Way) -> None:
    for wrap in WRAPS:
        for a, b in DIFFERENT:
            x, y = way.cls(1, 2, wrap(a)), way.cls(1, 2, wrap(b))
            assert structure(x) != structure(y) and not structure(x) == structure(y), (a, b)
            for duplicate in COPIES.values() if not callable(a) or isinstance(a, partial) else ():
                again = structure(duplicate(x))
                assert structure(x) == again and not structure(x) != again and hash(structure(x)) == hash(again), a


# A value, and how it is changed to what the second one is.
CHANGED: list[tuple[Callable[[Any], Any], Callable[[Any], None]]] = [
    (Options, lambda value: setattr(value, "scale", 2.0)),
    (OwnEqOptions, lambda value: setattr(value, "scale", 2.0)),
    (lambda scale: HashableDict(scale=scale), lambda value: value.update(scale=2.0)),
    (lambda scale: HashableList([scale]), lambda value: value.__setitem__(0, 2.0)),
    (lambda scale: partial(pow, exp=Options(scale)), lambda value: setattr(value.keywords["exp"], "scale", 2.0)),
]


@every_way
@pytest.mark.parametrize("make, change", CHANGED)
def test_a_value_that_changes_is_compared_as_it_is_when_the_node_is_flattened(way: Way, make: Any, change: Any) -> None:
    for wrap in WRAPS:
        value = make(1.0)
        x, y = way.cls(1, 2, wrap(value)), way.cls(1, 2, wrap(make(1.0)))
        z = rebuilt(x)
        assert structure(x) == structure(y) == structure(z)
        change(value)
        assert structure(x) == structure(z) == structure(way.cls(1, 2, wrap(make(2.0))))
        assert structure(x) != structure(y) == structure(way.cls(1, 2, wrap(make(1.0))))


@every_way
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_each_model_runs_its_own_program_after_a_static_value_has_changed(way: Way, order: tuple[int, ...]) -> None:
    options = Options(1.0)
    models = [way.cls(1.0, 2, options), way.cls(1.0, 2, Options(1.0))]
    options.scale = 3.0
    models.append(way.cls(1.0, 2, Options(1.0)))
    scaled = jax.jit(lambda model: model.weight * model.name.scale)
    assert [scaled(models[i]) for i in order] == [[6.0, 2.0, 2.0][i] for i in order]


@every_way
def test_an_equal_partial_is_not_traced_again_and_stacks(way: Way) -> None:
    """In any order of making, and also one that holds what has no hash, which is compared by identity."""
    traces = []

    @jax.jit
    def f(model: Any) -> Any:
        traces.append(0)
        return model.name(model.weight)

    models = [way.cls(jnp.array(x), jnp.ones(2), partial(jnp.clip, max=y)) for x, y in ((1.0, 2), (3.0, 2), (3.0, 1))]
    assert [float(f(model)) for model in models] == [2.0, 2.0, 1.0]
    assert len(traces) == 2
    assert tk.tree_stack(models[:2]).weight.shape == (2,)
    same = partial(sum, [1])
    assert (
        structure(way.cls(1, 2, same)) == structure(way.cls(1, 2, same)) != structure(way.cls(1, 2, partial(sum, [1])))
    )


def test_a_sequence_that_is_compared_by_identity_is_not_read() -> None:
    Unit: Any = type("Unit", (Sequence,), {"__len__": None, "__getitem__": None})
    unit = Unit()
    assert structure(Made(1, 2, unit)) == structure(Made(1, 2, unit)) != structure(Made(1, 2, Unit()))


def test_a_static_value_is_hashable_and_holds_no_array() -> None:
    array = jnp.ones(2)
    Raising: Any = type("Raising", (), {"__hash__": lambda self: 1 / 0})
    wrong: list[Any] = [[1], ("a", [1]), Raising(), array, (Holder(array),), partial(abs, array)]
    makes: list[Callable[[Any], Any]] = [lambda v: Made(1, 2, v), lambda v: replace(Made(1, 2, "a"), name=v)]
    for value in (*wrong, Holder(array).method):
        for make in makes:
            with pytest.raises(TypeError, match=r"Made\b.*\bname\b"):
                make(value)
    for transform in (jax.jit, jax.vmap):
        with pytest.raises(TypeError, match=r"Made\.name"):
            transform(lambda leaf: Made(1, 2, leaf).weight)(array)


def test_a_value_that_cannot_be_compared_without_end_is_an_error_of_python() -> None:
    Endless: Any = type("Endless", (), {"__hash__": lambda self: hash(self)})
    # As the characters of a string are strings; those of Python's own are known.
    body = {"__len__": lambda _: 1, "__getitem__": lambda self, i: [self][i], "__eq__": lambda *_: False}
    Text: Any = type("Text", (Sequence,), {**body, "__hash__": lambda _: 0})
    for value in (Endless(), Text()):
        with pytest.raises(RecursionError) as caught:
            Made(1, 2, value)
        assert "Made (name)" in caught.value.__notes__[0]


# Equal static parts share one object, which is freed with the last instance or treedef that has it.


@every_way
def test_weakly_referable_and_freed_by_reference_count(way: Way) -> None:
    gc.disable()
    try:
        x = way.cls(1, 2, Config(object()))
        y, z = rebuilt(x), pickle.loads(pickle.dumps(way.cls(1, 2, "n")))
        held = weakref.ref(x), weakref.ref(y), weakref.ref(z), weakref.ref(x.name)
        structure((x, z))
        del x, y, z
        assert [r() for r in held] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("hold", [lambda self: lambda: self.x, lambda self: partial(lambda: self.x)])
def test_an_instance_that_its_own_static_value_holds_is_freed(hold: Callable[[Any], Any]) -> None:
    @node
    class Held:
        x: Any
        loss: Any = field(static=True, init=False)

        def __post_init__(self) -> None:
            self.loss = hold(self)

    refs = [weakref.ref(each) for each in map(Held, range(3))]
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_treedefs_made_while_an_equal_one_is_freed_are_equal() -> None:
    """Another thread can make one at that moment; a callback does so reliably."""

    def treedef() -> Any:
        return structure(Made(1, 2, Config(1)))

    made: list[Any] = []
    ref = weakref.ref(treedef().node_data()[1], lambda _: made.append(treedef()))
    assert ref() is None and made == [treedef()]
