"""Creation: the class's own code runs once, the fields are checked, and the instance is frozen."""

import dataclasses
import functools
import typing
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from tests.node.ways import COPIES, Holder, Made, arrays, parts, rebuilt, structure
from tests.trees import FLOAT
from treekit import field, node, replace

frozen = pytest.raises(dataclasses.FrozenInstanceError)


def test_frozen_after_creation_and_after_rebuilding() -> None:
    x = Made(1, 2, "n")
    for y in (x, rebuilt(x), replace(x, bias=1), *(duplicate(x) for duplicate in COPIES.values())):
        for name in ("weight", "name", "other"):
            with frozen:
                setattr(y, name, 3)
        with frozen:
            del y.weight
    with frozen:
        jax.jit(lambda t: setattr(t, "weight", 0))(arrays(Made))
    with frozen:
        Made.__init__(x, 3, 4, "b")
    assert parts(x) == (2, 2, "n")
    assert parts(Made(**vars(x))) == (4, 2, "n"), "what is cached in x is not an argument"


def test_one_being_created_does_not_unfreeze_another() -> None:
    done = Made(1, 2, "a")
    leaked: list[Any] = []

    @node
    class Meddler:
        x: Any

        def __post_init__(self) -> None:
            leaked.append(self)
            done.weight = self.x

    with frozen:
        Meddler(3)
    with frozen:
        leaked[0].x = 2


def test_an_instance_shows_its_fields_alone_and_may_be_flattened_while_it_is_created() -> None:
    @node
    class Early:
        x: Any
        name: str = field(static=True)
        size: int = field(init=False)

        def __post_init__(self) -> None:
            assert vars(self) == {"x": [1, 2], "name": "a"}
            self.size = 0
            size = len(jax.tree.leaves(self))
            del self.size
            assert not hasattr(self, "size")
            self.size = size
            self.name = self.name + "!"

    made = Early([1, 2], "a")
    assert (made.x, made.name, made.size) == ([1, 2], "a!", 3)
    assert rebuilt(made).name == "a!"


def test_a_node_may_have_slots_that_nothing_is_stored_in() -> None:
    class Base:
        __slots__ = ("__weakref__", "cache")

        def __getattr__(self, name: str) -> Any:
            return f"no {name}"

    def keep(self: Any, cache: Any) -> None:
        self.x = 1
        if cache:
            self.cache = cache

    Slots: Any = node(type("Slots", (Base,), {"__annotations__": {"x": Any}, "__init__": keep}))
    assert rebuilt(Slots(None)).x == 1 and Slots(None).cache == "no cache"
    with pytest.raises(TypeError, match=r"Slots .*\bcache\b.*Base\b"):
        Slots(2)


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
            with frozen:
                self.x = 3

    @node
    class Derived(Base):
        y: int

        def __init__(self, y: int) -> None:
            super().__init__(y)
            self.y = self.x + 1

        def __check_init__(self) -> None:
            ran.append("derived")

    made = Derived(1)
    assert (made.x, made.y) == (1, 2)
    assert ran == ["derived", "base", "mixin"]


@node
class StoresIt:
    x: Any

    def __init__(self) -> None:
        self.x = Holder(self.__repr__)


def test_a_function_can_be_stored_unless_it_carries_arrays_of_a_node() -> None:
    def wraps_itself() -> None: ...

    typing.cast(Any, wraps_itself).__wrapped__ = wraps_itself
    method = Holder("no array").method
    for f in (method, jax.jit(method), functools.partial(abs, 1), jax.nn.relu, Holder, wraps_itself):
        assert Holder(f).x is f and Made(1, 2, f).name is f
    for f in (functools.partial(jnp.add, jnp.ones(2)), jnp.ones(2).sum):
        assert Holder(f).x is f

    method = Holder(jnp.ones((2, 3))).method
    module = functools.partial(eqx.nn.Linear(1, 1, key=jax.random.key(0)))
    wrong: list[Any] = [({"method": (abs, method)},), functools.partial(map, method), jax.vmap(method), module]
    for holding in wrong:
        with pytest.raises(TypeError, match=r"Holder .* x .*(Holder|Linear)"):
            Holder(holding)
    with pytest.raises(TypeError, match=r"Holder .* StoresIt .* x\b"):
        StoresIt()


def test_equality_and_hash_never_raise_on_arrays() -> None:
    x, y = arrays(Made), arrays(Made)
    assert x != y and x == x and x in [y, x] and len({x, y, x, rebuilt(x)}) == 3
    assert isinstance(hash(x), int)


@pytest.mark.usefixtures("leaks")
def test_repr() -> None:
    x = arrays(Made)
    short = FLOAT.replace("loat", "")
    assert repr(x) == f"Made(weight={short}[3], bias={short}[3], name='n')"
    nested = repr(replace(x, weight=x, bias=[x, x]))
    assert len(nested.split("\n")) > 2 and max(map(len, nested.split("\n"))) <= 100
    assert "".join(nested.split()) == "".join(f"Made(weight={x!r},bias=[{x!r},{x!r}],name='n')".split())
    assert "name='n'" in str(structure(x))
    held: list[Made] = []
    jax.jit(lambda v: held.append(Made(v, jax.nn.relu, "n")))(jnp.float32(1))
    assert repr(held[0]) == "Made(weight=f32[], bias=<custom_jvp relu>, name='n')"

    hints = {"__annotations__": {"x": int, "y": int}}
    hiding: Any = node(type("Hiding", (), {**hints, "y": field(repr=False)}))
    quiet: Any = node(repr=False)(type("Quiet", (), hints))
    assert repr(hiding(1, 2)) == "Hiding(x=1)" and "object at" in repr(quiet(1, 2))
