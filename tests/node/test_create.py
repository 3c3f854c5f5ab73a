"""Creation: the class's own code runs once, the fields are checked, and the instance is frozen."""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from tests.node.ways import COPIES, RUNS, Holder, Made, MadeByInit, Way, arrays, created, parts, same, structure
from tests.trees import FLOAT
from treekit import field, node, node_factory, replace


@created
def test_code_runs_once_at_creation(way: Way) -> None:
    runs = len(RUNS)
    x = way.make(1, 2, "n")
    assert RUNS[runs:] == [way.cls.__name__]
    assert parts(x) == (2, 2, "n")


@created
def test_frozen_after_creation_and_after_rebuilding(way: Way) -> None:
    x = way.make(1, 2, "n")
    for y in (x, same(x), replace(x, bias=1), *(duplicate(x) for duplicate in COPIES.values())):
        for name in ("weight", "name", "other"):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"{name} was set"):
                setattr(y, name, 3)
        with pytest.raises(dataclasses.FrozenInstanceError, match="weight was deleted"):
            del y.weight
    for transform in (jax.jit, jax.vmap, jax.grad, jax.checkpoint):
        with pytest.raises(dataclasses.FrozenInstanceError, match="weight was set"):
            transform(lambda t: setattr(t, "weight", 0))(arrays(way))


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


def test_one_being_created_does_not_unfreeze_another() -> None:
    done = Made(1, 2, "a")
    leaked: list[Any] = []

    @node
    class Meddler:
        x: Any

        def __post_init__(self) -> None:
            leaked.append(self)
            done.weight = self.x

    for frozen in (lambda: Meddler(3), lambda: setattr(leaked[0], "x", 2)):
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"Made is finished|x was set"):
            frozen()


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

    assert Curious(1, "a").seen == {"x": 1, "name": "a"}
    assert Wholesale(x=1).x == 1


def test_a_node_may_be_flattened_while_it_is_created() -> None:
    @node
    class Early:
        x: Any
        name: str = field(static=True)
        size: int = field(init=False)

        def __post_init__(self) -> None:
            with pytest.raises(TypeError, match=r"Early\.size is not set"):
                jax.tree.leaves(self)
            self.size = 0
            size = len(jax.tree.leaves(self))
            del self.size
            assert not hasattr(self, "size")
            self.size = size
            self.name = self.name + "!"

    made = Early([1, 2], "a")
    assert (made.x, made.name, made.size) == ([1, 2], "a!", 3)
    assert same(made).name == "a!"


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
        " in a dict in a tuple": lambda x: ({"abs": abs, "method": method_of(x)},),
        " as an argument": lambda x: functools.partial(map, method_of(x)),
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

    undeclared = "set extra, which is not a field.*`extra: int`"
    array = jnp.ones((2, 3))
    module = eqx.nn.Linear(1, 1, key=jax.random.key(0))
    return {
        "forgotten": (Forgets, "Forgets left bias unset"),
        "undeclared": (lambda: Undeclared(1), f"Undeclared {undeclared}"),
        "undeclared, by object": (lambda: UndeclaredByObject(1), f"UndeclaredByObject {undeclared}"),
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


@created
def test_equality_and_hash_never_raise_on_arrays(way: Way) -> None:
    x, y = arrays(way), arrays(way)
    assert x != y and x == x and x in [y, x] and len({x, y, x, same(x)}) == 3
    assert isinstance(hash(x), int)


@created
def test_repr_is_that_of_its_fields(way: Way) -> None:
    x = arrays(way)
    short = FLOAT.replace("loat", "")
    assert repr(x) == f"{way.cls.__name__}(weight={short}[3], bias={short}[3], name='n')"
    nested = repr(replace(x, weight=x, bias=[x, x]))
    assert len(nested.split("\n")) > 2 and max(map(len, nested.split("\n"))) <= 100
    assert "".join(nested.split()) == "".join(f"{way.cls.__name__}(weight={x!r},bias=[{x!r},{x!r}],name='n')".split())


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
