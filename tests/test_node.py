"""Nodes: created once by their class's own code, rebuilt with none of it, and told apart exactly."""

import abc
import copy
import dataclasses
import functools
import gc
import inspect
import numbers
import pickle
import sys
import types
import typing
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, assert_type

import beartype
import cloudpickle
import equinox as eqx
import flax.core
import flax.struct
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from tests.node.ways import RUNS, Data, Holder, Made, MadeByInit, Plain, Slotted, Way, every_way, hold, parts, structure
from tests.trees import Point
from treekit import field, node, node_factory, register_node, replace

T = TypeVar("T")

# Static values


@every_way
def test_nan_equals_any_nan_of_its_type(way: Way) -> None:
    for one, two in ((float("nan"), -float("nan")), (np.float32("nan"), np.float32("nan") + 0)):
        x, y = structure(way.make(1, 2, one)), structure(way.make(1, 2, two))
        assert one is not two and x == y and hash(x) == hash(y)


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
    assert jax.jit(lambda made: nnx.merge(made.name, made.bias)(jnp.ones((1, 2))))(made).shape == (1, 3)

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
    pass


# Hashable whatever their values are, as classes for configurations may be.
HashableDict: Any = type("HashableDict", (dict,), {"__hash__": lambda self: hash(tuple(self))})
HashableOrderedDict: Any = type("HashableOrderedDict", (OrderedDict,), {"__hash__": lambda self: hash(tuple(self))})


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


def test_an_instance_of_a_parametrized_class_knows_its_parameters() -> None:
    @node
    class Typed(Generic[T]):
        x: Any

    parametrized: Any = Typed[int]
    x = parametrized(1)
    assert x.__orig_class__ == parametrized and type(x) is Typed
    plain: Typed[int] = Typed(1)
    assert structure(x) == structure(plain)
    for duplicate in (copy.copy, copy.deepcopy, lambda y: jax.tree.map(lambda leaf: leaf, y), replace):
        assert vars(duplicate(x)).keys() == vars(duplicate(plain)).keys()
    with pytest.raises(dataclasses.FrozenInstanceError, match="x was set"):
        x.x = 2


def test_init_has_the_docstring_of_the_next_class_that_documents_its_own() -> None:
    @node
    class Documented:
        x: Any

        def __init__(self, x: Any) -> None:
            """Takes an x."""
            self.x = x

    @node
    class Inheriting(Documented): ...

    @node
    class Generated(Inheriting):
        y: Any

    @node
    class Written(Generated):
        def __init__(self) -> None:
            super().__init__(1, 2)

    @node
    class Own(Generated):
        def __init__(self) -> None:
            """Takes nothing."""
            super().__init__(1, 2)

    for cls in (Documented, Inheriting, Generated, Written):
        assert cls.__init__.__doc__ == "Takes an x."
    assert Own.__init__.__doc__ == "Takes nothing." and Made.__init__.__doc__ is None


flax_field: Any = flax.struct.field  # has no types


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
    assert jax.tree.map(lambda x: 2 * x, Ported(1.0, n=3)).n == 3


# Classes


def test_a_class_that_declares_no_field_keeps_the_init_of_its_base() -> None:
    @node
    class Inheriting(MadeByInit):
        def method(self) -> None: ...

    @node
    class Again(Inheriting): ...

    @node(init=False)
    class Told(MadeByInit): ...

    kept: list[Any] = [Inheriting, Again, Told]
    for cls in kept:
        runs = len(RUNS)
        assert parts(cls(1, 2, "a")) == (2, 2, "a")
        assert RUNS[runs:] == [cls.__name__]


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


def test_a_class_that_declares_a_field_has_a_generated_init() -> None:
    @node
    class More(MadeByInit):
        more: Any

    assert parts(More(1, 2, "a", 4)) == (1, 2, "a")


@every_way
def test_replace_takes_fields_only(way: Way) -> None:
    with pytest.raises(TypeError, match=rf"{way.cls.__name__} has no field wieght; it has weight, bias, name"):
        replace(way.make(1, 2, "a"), wieght=3)


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


class Slot:
    __slots__ = ("x",)


@pytest.mark.parametrize(
    "bases, body, message",
    [
        ((), {"__annotations__": {"x": int}, "x": property(int)}, "field 'x' of New is a property"),
        ((), {"__slots__": ("x",)}, "New has __slots__.* use register_node"),
        ((Slot,), {"__annotations__": {"x": int}}, "field 'x' of New is one of its __slots__.*use register_node"),
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


# Creation


def test_a_finished_instance_is_not_initialized_again() -> None:
    @node
    class One:
        x: Any

    table: Any = ((One(1), (2,)), (Made(1, 2, "a"), (3, 4, "b")), (MadeByInit(1, 2, "a"), (3, 4, "b")))
    for done, again in table:
        before = repr(done)
        with pytest.raises(dataclasses.FrozenInstanceError, match="finished once it is created, and cannot be init"):
            type(done).__init__(done, *again)
        assert repr(done) == before


def test_an_instance_shows_its_fields_alone_while_it_is_created() -> None:
    @node
    class Curious:
        x: Any
        name: str = field(static=True)
        seen: Any = field(default=None, init=False)

        def __post_init__(self) -> None:
            self.seen = dict(vars(self))

    @node
    class Wholesale:
        x: Any

        def __init__(self, **fields: Any) -> None:
            self.__dict__ = fields

    curious = Curious(1, "a")
    assert curious.seen == {"x": 1, "name": "a"}
    assert Wholesale(x=1).x == 1
    given = {name: value for name, value in vars(curious).items() if name != "seen"}
    assert Curious(**given).x == 1


def held_by_its_own_static(cls: type[Any]) -> list[weakref.ref[Any]]:
    return [weakref.ref(cls(np.ones(3))) for _ in range(3)]


def test_an_instance_that_its_own_static_value_holds_is_freed() -> None:
    @node
    class ByClosure:
        x: Any
        loss: Any = field(static=True, init=False)

        def __post_init__(self) -> None:
            self.loss = lambda: self.x

    @node
    class ByPartial:
        x: Any
        go: Any = field(static=True, init=False)

        def __post_init__(self) -> None:
            self.go = functools.partial(lambda: self.x)

    for cls in (ByClosure, ByPartial):
        refs = held_by_its_own_static(cls)
        gc.collect()
        assert [ref() for ref in refs] == [None] * 3


def test_treedefs_made_while_an_equal_one_is_freed_are_equal() -> None:
    """Another thread can make one at that moment; a callback does so reliably."""

    @dataclasses.dataclass(frozen=True)
    class Setting:
        value: int

    @node
    class Configured:
        setting: Setting = field(static=True)

    def treedef() -> Any:
        return structure(Configured(Setting(1)))

    made: list[Any] = []
    ref = weakref.ref(treedef().node_data()[1], lambda _: made.append(treedef()))
    assert ref() is None and made == [treedef()]


@pytest.mark.parametrize("name", ["__hash__", "__eq__"])
def test_a_static_value_that_raises_is_named(name: str) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("not now")

    methods = {"__hash__": lambda self: 1, "__eq__": lambda self, other: self is other, name: fail}
    bad = type("Bad", (), methods)
    kept = []
    with pytest.raises(TypeError, match=r"Made\b.*\bname\b") as caught:
        kept += [Made(1, 2, bad()), Made(1, 2, bad())]
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_one_being_created_does_not_unfreeze_another() -> None:
    done = Made(1, 2, "a")

    @node
    class Meddler:
        x: Any

        def __post_init__(self) -> None:
            done.weight = self.x

    with pytest.raises(dataclasses.FrozenInstanceError, match="Made is finished"):
        Meddler(3)

    @node
    class Failing:
        x: Any

        def __post_init__(self) -> None:
            leaked.append(self)
            raise KeyError("mine")

    leaked: list[Failing] = []
    with pytest.raises(KeyError, match="mine"):
        Failing(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="x was set"):
        leaked[0].x = 2


def looping() -> list[Any]:
    out: list[Any] = [1]
    out.append((out,))
    return out


CONTAINERS: dict[str, Any] = {
    "dict": {"a": 1},
    "list": [1, 2],
    "set": {1, 2},
    "ordered": OrderedDict(b=1, a=2),
    "defaultdict": defaultdict(list, a=[1]),
    "deque": deque([1, 2], maxlen=2),
    "namedtuple": Point([1], 2),
    "tuple": ([1], 2),
    "nested": {"a": [({"b": [1]},)]},
}


def containers_in(x: Any) -> list[Any]:
    """Every mutable container in x."""
    inner = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple, set, deque)) else ()
    return [x] * isinstance(x, (dict, list, set, deque)) + [z for y in inner for z in containers_in(y)]


@node
class HolderByInit:
    x: Any
    y: Any

    def __init__(self, x: Any, y: Any = None) -> None:
        self.x, self.y = x, y


CREATE: dict[str, Callable[..., Any]] = {
    "node": Holder,
    "kwargs": lambda x, y=None: Holder(x=x, y=y),
    "own init": HolderByInit,
    "factory": hold,
}
each_creation = pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)


@each_creation
@pytest.mark.parametrize("given", CONTAINERS.values(), ids=CONTAINERS)
def test_containers_are_copied_with_type_and_sharing(create: Callable[..., Any], given: Any) -> None:
    held = create(given, given)
    assert held.x == given and type(held.x) is type(given)
    assert held.x is held.y
    assert not {id(c) for c in containers_in(given)} & {id(c) for c in containers_in(held.x)}
    assert getattr(held.x, "maxlen", None) == getattr(given, "maxlen", None)
    assert getattr(held.x, "default_factory", None) == getattr(given, "default_factory", None)


@each_creation
def test_what_is_not_a_plain_container_is_passed_as_it_is(create: Callable[..., Any]) -> None:
    class MyList(list[int]): ...

    class MyTuple(tuple[Any, ...]): ...

    for given in (
        jnp.ones(2),
        np.ones(2),
        MyList([1]),
        MyTuple([[1]]),
        (1, (2, "a")),
        Made([1], 2, "a"),
        object(),
        "ab",
    ):
        assert create(given).x is given


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x, []), lambda x: {"k": (x,)}, lambda x: Point(1, [x])])
def test_containers_may_be_nested_as_deeply_as_jax_allows(wrap: Callable[[Any], Any]) -> None:
    given: Any = 1.0
    for _ in range(400):
        given = wrap(given)
    deep = Holder(given)
    assert jax.tree.leaves(deep) == jax.tree.leaves(given) and deep.x is not given
    deeper: Any = []
    for _ in range(10_000):
        deeper = [deeper]
    Holder(deeper)


def test_containers_that_hold_themselves_are_copied() -> None:
    given = looping()
    for held in (Holder(given).x, Holder(given[1]).x[0]):
        assert held is not given and held[0] == 1
        assert held[1][0] is held
    back: list[Any] = []
    pair = (back, [5])
    back.append(pair)
    copied = Holder(pair).x
    assert copied[0][0] is copied and copied[1] == [5] and copied[1] is not pair[1]


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
    assert jax.tree.map(lambda x: "a", made).scale == "a"


def test_a_failing_converter_is_named() -> None:
    @node
    class Converted:
        n: int = field(converter=int)

    with pytest.raises(ValueError, match="invalid literal") as caught:
        Converted(typing.cast(Any, "x"))
    assert caught.value.__notes__[0].endswith("Converted.n")


def test_a_node_may_be_flattened_while_it_is_created() -> None:
    @node
    class Early:
        x: Any
        name: str = field(static=True)
        size: int = field(init=False)

        def __post_init__(self) -> None:
            self.size = 0
            size = len(jax.tree.leaves(self))
            del self.size
            assert not hasattr(self, "size")
            self.size = size
            self.name = self.name + "!"

    made = Early([1, 2], "a")
    assert (made.x, made.name, made.size) == ([1, 2], "a!", 3)
    assert jax.tree.map(lambda v: v, made).name == "a!"
    with pytest.raises(dataclasses.FrozenInstanceError, match="size was set"):
        made.size = 4

    @node
    class TooEarly:
        x: Any
        name: str = field(static=True)

        def __init__(self) -> None:
            self.name = "a"
            self.x = jax.tree.leaves(self)

    with pytest.raises(TypeError, match=r"TooEarly\.x is not set"):
        TooEarly()


def test_check_init_runs_for_each_class_once_all_is_frozen() -> None:
    ran = []

    class Mixin:
        def __check_init__(self) -> None:
            ran.append("mixin")

    @node
    class Base(Mixin):
        x: int

        def __check_init__(self) -> None:
            ran.append("base")
            with pytest.raises(dataclasses.FrozenInstanceError, match="x was set"):
                self.x = 3

    @node
    class Derived(Base):
        y: int

        def __init__(self, y: int) -> None:
            super().__init__(y)
            self.y = self.x + 1

        def __check_init__(self) -> None:
            ran.append("derived")
            if self.y > 10:
                raise ValueError("y too large")

    made = Derived(1)
    assert (made.x, made.y) == (1, 2)
    assert ran == ["derived", "base", "mixin"]
    with pytest.raises(ValueError, match="y too large"):
        Derived(10)


def functions_of_methods(method_of: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    return {
        "": method_of,
        " in a list": lambda x: [abs, method_of(x)],
        " in a dict in a tuple": lambda x: ({"abs": abs, "method": method_of(x)},),
        " in a partial": lambda x: functools.partial(method_of(x), times=2),
        " as an argument": lambda x: functools.partial(map, method_of(x)),
        " jitted": lambda x: jax.jit(method_of(x)),
        " mapped": lambda x: jax.vmap(method_of(x)),
    }


def test_functions_that_carry_no_arrays_can_be_stored() -> None:
    holder = Holder("no array")

    def wraps_itself() -> None: ...

    typing.cast(Any, wraps_itself).__wrapped__ = wraps_itself
    fine: list[Any] = [holder.method, jax.jit(holder.method), functools.partial(abs, 1), jax.nn.relu, Holder]
    for f in [*fine, wraps_itself]:
        assert Holder(f).x is f and Made(1, 2, f).name is f
    for f in (functools.partial(jnp.add, jnp.ones(2)), jnp.ones(2).sum):
        assert Holder(f).x is f


def bad_creations() -> dict[str, tuple[Callable[[], Any], str]]:
    @node
    class Forgets:
        weight: Any
        bias: Any = field(converter=len)

        def __init__(self) -> None:
            self.weight = 1

    @node
    class Undeclared:
        weight: Any

        def __post_init__(self) -> None:
            typing.cast(Any, self).extra = 1

    @node
    class UndeclaredByObject:
        weight: Any

        def __post_init__(self) -> None:
            object.__setattr__(self, "extra", 1)

    @node
    class Stores:
        weight: Any
        call: Any

        def __init__(self, weight: Any, call_of: Callable[[Any], Any]) -> None:
            self.weight = weight
            self.call = call_of(self)

        def double(self, times: Any = 1) -> Any:
            return 2 * self.weight * times

    @node
    class HidesMethod:
        weight: Any

        def method(self) -> None: ...

        def __post_init__(self) -> None:
            typing.cast(Any, self).method = 3

    class Undecorated(Made): ...

    class UndecoratedInit(Made):
        def __init__(self) -> None:
            super().__init__(1, 2, "a")

    class UndecoratedSetter(Made):
        def __init__(self) -> None:
            self.weight = 1

    array = jnp.ones((2, 3))
    module = eqx.nn.Linear(1, 1, key=jax.random.key(0))
    return {
        "forgotten": (Forgets, "Forgets left bias unset"),
        **{
            f"undeclared{how}": (functools.partial(cls, 1), f"{cls.__name__} set extra, which is not a .*`extra: int`")
            for how, cls in {"": Undeclared, ", by object.__setattr__": UndeclaredByObject}.items()
        },
        **{
            f"own method{how}": (
                functools.partial(Stores, 1, call_of),
                "Stores stored a method of itself.* in call.*Store a",
            )
            for how, call_of in functions_of_methods(lambda x: x.double).items()
        },
        **{
            f"method of another{how}": (
                functools.partial(Holder, call_of(Stores(array, lambda _: abs))),
                "creating Holder stored a function in x that captures a .*Stores.*no gradient",
            )
            for how, call_of in functions_of_methods(lambda x: x.double).items()
        },
        "method of a node that is being created": (
            lambda: Stores(1, lambda x: Holder(x.double)),
            "creating Holder stored a method of the .*Stores that is being created.* in x",
        ),
        "module in a partial": (lambda: Holder(functools.partial(module)), "Holder .* captures a Linear"),
        "module mapped": (lambda: Holder((jax.vmap(module),)), "Holder .* captures a Linear"),
        "method": (lambda: HidesMethod(1), "HidesMethod set method, which is not a field"),
        "undecorated": (lambda: Undecorated(1, 2, "a"), "Undecorated extends a node.* @node"),
        "undecorated init": (UndecoratedInit, "UndecoratedInit extends a node.* @node"),
        "undecorated setter": (UndecoratedSetter, "UndecoratedSetter extends a node.* @node"),
    }


@pytest.mark.parametrize("create, message", bad_creations().values(), ids=bad_creations())
def test_creation_refuses(create: Callable[[], Any], message: str) -> None:
    for make in (create, node_factory(create)):
        with pytest.raises(TypeError, match=message):
            make()


@pytest.mark.parametrize("way", [Plain, Slotted, Data])
def test_what_registered_classes_lack_is_told_when_they_are_flattened(way: type[Any]) -> None:
    x = way(1, 2, "a")
    del x.bias
    with pytest.raises(TypeError, match=f"{way.__name__}.bias is not set"):
        jax.tree.leaves(x)
    y = way(1, 2, "a")
    y.name = {}
    with pytest.raises(TypeError, match=f"{way.__name__}.name is static, .* dict, is not hashable"):
        jax.tree.leaves(y)
    y.name = object.__new__(Wheel)
    with pytest.raises(TypeError, match=f"{way.__name__}.name is static, .* Wheel, is not hashable"):
        jax.tree.leaves(y)
    y.name = Unfinished()
    with pytest.raises(AttributeError, match="'Unfinished' object has no attribute 'size'"):
        jax.tree.leaves(y)
    y.name, y.weight = "b", 7
    assert jax.tree.map(lambda v: v + 1, y).weight == 8
    rebuilt = jax.tree.map(lambda v: v, y)
    rebuilt.weight = 9
    assert parts(rebuilt) == (9, 2, "b")


# Features of classes


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

        def __hash__(self) -> int:
            return 7

    assert Own(1) == Own(2) == 3
    assert hash(Own(1)) == 7


def test_jaxtyped_reads_annotations_that_are_strings_and_leaves_out_fields_with_converters() -> None:
    @jaxtyped(typechecker=beartype.beartype)
    @node
    class Quoted:  # as under `from __future__ import annotations`
        x: "Float[Array, 'n']"
        y: "Float[Array, 'n']"

    with pytest.raises(TypeCheckError, match="Quoted"):
        Quoted(jnp.ones(2), jnp.ones(3))

    @jaxtyped(typechecker=beartype.beartype)
    @node
    class Converted:
        x: Float[Array, " n"] = field(converter=jnp.asarray)
        y: Float[Array, " n"]

    given: Any = [1.0, 2.0]
    assert Converted(given, jnp.ones(2)).x.shape == (2,)
    with pytest.raises(TypeCheckError, match="Converted"):
        Converted(jnp.ones(2), given)


def test_defaults_that_are_arrays_go_through_default_factory() -> None:
    with pytest.raises(ValueError, match="use default_factory"):

        @node
        class Bad:
            x: jax.Array = jnp.zeros(2)

    @node
    class Good:
        x: jax.Array = field(default_factory=lambda: jnp.zeros(2))

    assert Good().x.shape == (2,)


def test_a_class_that_pickles_in_its_own_way_is_left_to_it() -> None:
    made = Registry("one")
    assert pickle.loads(pickle.dumps(made)) is made


def test_own_getstate_sees_the_fields_alone() -> None:
    made = WithoutLoss(1, lambda: None)
    assert jax.tree.map(lambda x: x + 1, made).w == 2
    assert pickle.loads(pickle.dumps(made)).w == 1


@node
class WithoutLoss:
    w: Any
    loss: Any = field(static=True)

    def __getstate__(self) -> Any:
        state = self.__dict__.copy()
        del state["loss"]
        return state

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)


@node
class Registry:
    name: str = field(static=True)
    known: ClassVar[dict[str, "Registry"]] = {}

    def __post_init__(self) -> None:
        self.known[self.name] = self

    def __reduce__(self) -> Any:
        return Registry.find, (self.name,)

    @classmethod
    def find(cls, name: str) -> "Registry":
        return cls.known[name]


@pytest.mark.usefixtures("leaks")
def test_repr() -> None:
    @node
    class Dense:
        weight: Any
        bias: Any
        name: str = field(static=True, default="out")
        hidden: Any = field(repr=False, default=0)

    x = Dense(jnp.ones((64, 10), jnp.float32), jnp.ones(10, jnp.bfloat16))
    assert repr(x).endswith("Dense(weight=f32[64,10], bias=bf16[10], name='out')")
    assert "name='out'" in str(structure(x))
    held: list[Dense] = []
    jax.jit(lambda v: held.append(Dense(v, jax.nn.relu)))(jnp.float32(1))
    assert "weight=f32[]" in repr(held[0])
    assert "ShapeDtypeStruct" in repr(Dense(jax.eval_shape(lambda: 1.0), None))

    @node(repr=False)
    class Quiet:
        x: int

    assert "object at" in repr(Quiet(1))


# register_node


def test_register_node_of_a_class_without_fields_and_without_a_dict() -> None:
    @register_node(data_fields=(), meta_fields=())
    class Nothing:
        __slots__ = ()

    assert type(jax.tree.map(lambda v: v, Nothing())) is Nothing


def test_register_node_keeps_no_attribute_that_is_not_named() -> None:
    @register_node(data_fields=("x",), meta_fields=())
    class Cache:
        def __init__(self) -> None:
            self.x, self.cached = 1, 2

    assert not hasattr(jax.tree.map(lambda v: v, Cache()), "cached")
    assert_type(Cache(), Cache)


class Labelled:
    def __init__(self, x: Any, f: Any) -> None:
        self.x, self.f = x, f


class WithGetstate(Labelled):
    def __getstate__(self) -> Any:
        return {"x": self.x, "f": self.f, "state": "its own"}


@register_node(data_fields=["x"], meta_fields=["f"])
class Registered(Labelled):
    pass


class Derived(Registered):
    pass


def test_deepcopy_of_registered_classes() -> None:
    f = functools.partial(jnp.add, 1)
    x: Any = Registered([1], f)
    x.cached = [x]
    y = copy.deepcopy(x)
    assert y.f is f and y.x == [1] and y.x is not x.x and y.cached[0] is y
    derived = copy.deepcopy(Derived([1], f))  # not a node: nothing of it is static
    assert type(derived) is Derived and derived.f is not f and derived.f(1) == 2
    register_node(WithGetstate, ["x"], ["f"])
    own: Any = copy.deepcopy(WithGetstate([1], f))
    assert own.state == "its own"

    @node
    class Extended(Registered):
        x: Any
        f: Any = field(static=True)

    extended = copy.deepcopy(Extended([1], f))
    assert extended.f is f and pickle.loads(cloudpickle.dumps(extended)).x == [1]


@dataclasses.dataclass
class Wheel:
    size: int
    spokes: int


@jax.tree_util.register_pytree_node_class
class Unfinished:
    size: int

    def tree_flatten(self) -> Any:
        return (self.size,), None

    @classmethod
    def tree_unflatten(cls, *_: Any) -> Any:
        return cls()


class WithProperty:
    @property
    def x(self) -> int:
        return 1


class WithSlots:
    __slots__ = ("x",)


class Empty: ...


class Sub(Made): ...


@pytest.mark.parametrize(
    "cls, data, meta, message",
    [
        (Empty, "ab", [], "Empty: data_fields must be a list of attribute names, found 'ab'"),
        (Empty, ["a"], None, "Empty: meta_fields must be a list of attribute names, found None"),
        (Empty, None, None, "Empty: data_fields must be a list .*only a dataclass needs neither"),
        (Empty, ["a", "a"], [], "Empty: a occurs twice"),
        (Empty, ["a"], ["b", "a"], "Empty: a occurs twice"),
        (Empty, ["a b"], [], "field 'a b' of Empty is not a valid attribute name"),
        (Empty, ["class"], [], "field 'class' of Empty is not a valid attribute name"),
        (Wheel, ["size"], [], "Wheel: spokes is in neither"),
        (WithProperty, ["x"], [], "field 'x' of WithProperty is a property"),
        (WithSlots, ["x", "y"], [], "field 'y' of WithSlots is not one of its __slots__"),
        (Sub, ["weight"], [], "Sub extends the node Made: decorate it with @node"),
    ],
)
def test_register_node_refuses_and_registers_nothing(cls: type[Any], data: Any, meta: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        register_node(cls, data, meta)
    with pytest.raises(TypeError, match=message):
        register_node(data_fields=data, meta_fields=meta)(cls)
    blank = object.__new__(cls)
    assert jax.tree_util.all_leaves([blank])
    assert not [name for name in vars(cls) if "treekit" in name]


def test_register_node_wants_names() -> None:
    register = inspect.unwrap(register_node)  # beartype would be the first to say so
    with pytest.raises(TypeError, match=r"Empty: data_fields must be a list of attribute names, found \[1\]"):
        register(Empty, [1], [])


def test_copy_replace_of_python_3_13_rebuilds() -> None:
    x: Any = Made(1, 2, "a")
    runs = len(RUNS)
    assert parts(x.__replace__(bias=3)) == (2, 3, "a")
    assert len(RUNS) == runs

    @node
    class Own:
        def __replace__(self, **changes: Any) -> Any:
            return changes

    assert Own().__replace__(bias=3) == {"bias": 3}


def test_replace_says_how_to_register() -> None:
    with pytest.raises(TypeError, match="class made by node or register_node, not of dict"):
        replace({"a": 1}, a=2)


# node_factory


@jax.tree_util.register_pytree_node_class
class Rerun:
    """Registered by hand in the usual way, which runs `__init__` again: what it prepares is prepared twice."""

    def __init__(self, x: Any) -> None:
        self.x = self.prepare(x)

    def prepare(self, x: Any) -> Any:
        return x

    def tree_flatten(self) -> Any:
        return ((self.x,), None)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        return cls(*children)

    @classmethod
    @node_factory
    def make(cls, x: Any) -> "Rerun":
        return cls(x)

    @node_factory
    def bare(cls, x: Any) -> "Rerun":
        return typing.cast(type[Rerun], cls)(x)


@jax.tree_util.register_pytree_node_class
class Overwrites(Rerun):
    def prepare(self, x: Any) -> Any:
        return 42


@jax.tree_util.register_pytree_node_class
class Computes(Rerun):
    def prepare(self, x: Any) -> Any:
        return x + 1


@jax.tree_util.register_pytree_node_class
class Restructures(Rerun):
    def prepare(self, x: Any) -> Any:
        return [x]


@jax.tree_util.register_pytree_node_class
class ForgetsStatic(Rerun):
    def tree_flatten(self) -> Any:
        return ((self.x,), getattr(self, "extra", "set anew"))

    def prepare(self, x: Any) -> Any:
        if isinstance(x, int):
            self.extra = "given"
        return x


class NoNode(Rerun): ...


@pytest.mark.parametrize(
    "cls, message",
    [
        (Overwrites, r"rebuilding a Overwrites overwrote its leaf \[<flat index 0>\].*register_node"),
        (Computes, "rebuilding a Computes around other leaves raised TypeError: unsupported operand"),
        (Restructures, r"rebuilding a Restructures overwrote its leaf \[<flat index 0>\]\[0\]"),
        (ForgetsStatic, "rebuilding a ForgetsStatic changed its static parts"),
        (NoNode, "returned a NoNode, which is not a pytree node"),
    ],
)
def test_node_factory_refuses_what_tree_at_would_break(cls: type[Any], message: str) -> None:
    for make in (cls.make, typing.cast(Any, cls).bare, node_factory(lambda x: cls(x))):
        with pytest.raises(TypeError, match=message):
            make(1)


def test_node_factory_makes_what_the_function_makes() -> None:
    made = Rerun.make(1)
    assert_type(made, Rerun)
    assert type(made) is Rerun and made.x == 1
    assert typing.cast(Any, Rerun).bare(2).x == typing.cast(Any, made).bare(2).x == made.make(2).x == 2
    assert hold(3).x == 3
    assert list(inspect.signature(hold).parameters) == ["x", "y"]
    assert hold.__name__ == "hold"

    calls = []

    @node_factory
    def table(sizes: list[int]) -> Holder:
        """Makes a table."""
        sizes.append(0)
        calls.append(sizes)
        return Holder([jnp.zeros(n) for n in sizes])

    given = [1, 2]
    out = table(given)
    assert_type(out, Holder)
    assert given == [1, 2] and calls == [[1, 2, 0]] and len(out.x) == 3
    assert table.__doc__ == "Makes a table."
    for function in (hold, Rerun.make):
        assert pickle.loads(pickle.dumps(function)) == function


def test_node_factory_of_a_function_that_returns_nothing() -> None:
    with pytest.raises(TypeError, match="a node_factory returned a NoneType, which is not a pytree node"):
        node_factory(lambda: None)()


def test_types() -> None:
    assert_type(Made(1, 2, "a"), Made)
    assert_type(field(default=3), int)
    assert_type(field(default_factory=lambda: "a"), str)
    assert_type(register_node(Free, ["x"], []), type[Free])


class Free:
    x: int
