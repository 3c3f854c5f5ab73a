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

from tests.node.ways import COPIES, RUNS, Holder, Made, arrays, created, parts, same, structure
from tests.trees import FLOAT
from treekit import field, node, replace


@created
def test_code_runs_once_at_creation(cls: Any) -> None:
    runs = len(RUNS)
    assert parts(cls(1, 2, "n")) == (2, 2, "n")
    assert RUNS[runs:] == [cls.__name__]


@created
def test_frozen_after_creation_and_after_rebuilding(cls: Any) -> None:
    x = cls(1, 2, "n")
    for y in (x, same(x), replace(x, bias=1), *(duplicate(x) for duplicate in COPIES.values())):
        for name in ("weight", "name", "other"):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"{name} was set"):
                setattr(y, name, 3)
        with pytest.raises(dataclasses.FrozenInstanceError, match="weight was deleted"):
            del y.weight
    with pytest.raises(dataclasses.FrozenInstanceError, match="weight was set"):
        jax.jit(lambda t: setattr(t, "weight", 0))(arrays(cls))
    with pytest.raises(dataclasses.FrozenInstanceError, match="finished once it is created, and cannot be init"):
        cls.__init__(x, 3, 4, "b")
    assert parts(x) == (2, 2, "n")


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


def test_an_instance_shows_its_fields_alone_and_may_be_flattened_while_it_is_created() -> None:
    @node
    class Early:
        x: Any
        name: str = field(static=True)
        size: int = field(init=False)

        def __post_init__(self) -> None:
            assert vars(self) == {"x": [1, 2], "name": "a"}
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

    made = Derived(1)
    assert (made.x, made.y) == (1, 2)
    assert ran == ["derived", "base", "mixin"]


def test_functions_that_carry_no_arrays_of_a_node_can_be_stored() -> None:
    holder = Holder("no array")

    def wraps_itself() -> None: ...

    typing.cast(Any, wraps_itself).__wrapped__ = wraps_itself
    fine: list[Any] = [holder.method, jax.jit(holder.method), functools.partial(abs, 1), jax.nn.relu, Holder]
    for f in [*fine, wraps_itself]:
        assert Holder(f).x is f and Made(1, 2, f).name is f
    for f in (functools.partial(jnp.add, jnp.ones(2)), jnp.ones(2).sum):
        assert Holder(f).x is f


@node
class Forgets:
    weight: Any
    bias: Any = field(converter=len)

    def __init__(self) -> None:
        self.weight = 1


@node
class SetsMore:
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


class Undecorated(Made): ...


def another(call_of: Callable[[Any], Any]) -> Callable[[], Any]:
    """Create a node that stores a function of the method of another one, which has an array."""
    return lambda: Holder(call_of(Stores(jnp.ones((2, 3)), lambda _: abs).double))


OWN = "Stores stored a method of itself.* in call.*Store a"
OF_ANOTHER = "creating Holder stored a function in x that captures a Stores.*no gradient"
BEING_CREATED = "creating Holder stored a method of the Stores that is being created.* in x"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "forgotten": (Forgets, "Forgets left bias unset"),
    "undeclared": (lambda: SetsMore(1), "SetsMore set extra, which is not a field.*`extra: int`"),
    "own method": (lambda: Stores(1, lambda x: x.double), OWN),
    "method of another": (another(lambda method: method), OF_ANOTHER),
    "in a dict in a tuple": (another(lambda method: ({"abs": abs, "method": method},)), OF_ANOTHER),
    "as an argument": (another(lambda method: functools.partial(map, method)), OF_ANOTHER),
    "mapped": (another(jax.vmap), OF_ANOTHER),
    "of one being created": (lambda: Stores(1, lambda x: Holder(x.double)), BEING_CREATED),
    "module": (
        lambda: Holder(functools.partial(eqx.nn.Linear(1, 1, key=jax.random.key(0)))),
        "Holder .* captures a Linear",
    ),
    "undecorated": (lambda: Undecorated(1, 2, "a"), "Undecorated extends a node.* @node"),
}


@pytest.mark.parametrize("create, message", REFUSED.values(), ids=REFUSED)
def test_creation_refuses(create: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        create()


@created
def test_equality_and_hash_never_raise_on_arrays(cls: Any) -> None:
    x, y = arrays(cls), arrays(cls)
    assert x != y and x == x and x in [y, x] and len({x, y, x, same(x)}) == 3
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

    @node
    class Hides:
        x: int
        y: int = field(repr=False, default=0)

    @node(repr=False)
    class Quiet:
        x: int

    assert repr(Hides(1)).endswith("Hides(x=1)") and "object at" in repr(Quiet(1))
