"""check_types: classes of other libraries, generic classes, and nodes that are checked at creation."""

import copy
import dataclasses
import pickle
import types
import typing
from typing import Any, Generic, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

import treekit as tk
from tests.check_types.nodes import FIVE, ONE, ONES, WORD, Linear, T, linear, refused
from tests.trees import FLOAT
from treekit import check_types


class Plain:
    """A class that treekit is given."""

    scale: float
    name: str

    def __init__(self, scale: Any) -> None:
        self.scale, self.name, self.extra = scale, "plain", object()


tk.register_node(Plain, data_fields=["scale", "extra"], meta_fields=["name"])


class Module(eqx.Module):
    weight: Float[Array, "n n"]
    size: int = eqx.field(static=True, default=3)


@tk.register_node
@dataclasses.dataclass
class Given:
    weight: Float[Array, "n n"]
    size: dataclasses.InitVar[int] = 3
    shared: typing.ClassVar[int] = 3


@dataclasses.dataclass
class Config:
    """A dataclass that is a leaf to JAX."""

    rate: float
    name: str = dataclasses.field(init=False)


# a tree, and the first line about it
FIRST: list[tuple[Any, str]] = [
    ({"a": Module(jnp.ones((2, 3)))}, f"a.weight   {FLOAT}[2,3]   is not Float[Array, 'n n']"),
    ({"a": Given(jnp.ones((2, 3)))}, f"a.weight   {FLOAT}[2,3]   is not Float[Array, 'n n']"),
    (Module(jnp.ones((1, 1)), WORD), "size   str   is not int   (n=1)"),
    (Plain("1"), "scale   str   is not float"),
    (Config(WORD), "rate   str   is not float"),
]


@pytest.mark.parametrize("tree, line", FIRST)
def test_fields_of_any_class_are_checked(tree: Any, line: str) -> None:
    assert refused(tree).splitlines()[1] == line


def test_others_pass() -> None:
    check_types({"module": Module(jnp.ones((2, 2))), "given": Given(jnp.ones((2, 2))), "plain": Plain(1.0)})
    check_types(Config(1.0))  # a field that is not set has no value to check
    check_types([Config(WORD), Plain, Linear, 3, None, "a", object()])
    check_types(eqx.nn.MLP(2, 2, 4, 2, key=jax.random.key(0)))


def test_a_node_that_each_flattening_makes_anew_is_named_by_its_class() -> None:
    class Lazy: ...

    jax.tree_util.register_pytree_node(Lazy, lambda x: ([Linear(FIVE)], None), lambda aux, children: Lazy())
    assert "\nLinear.weight " in refused(Lazy())


@tk.node
class Box(Generic[T]):
    item: T
    items: list[T]
    same: Self | None = None


@tk.node
class Arrays(Box[Float[Array, "n"]]):
    other: Float[Array, "n"] = tk.field(default_factory=lambda: jnp.ones(2))


@tk.node
class Lists(Box[list[T]], Generic[T]):
    pass


@tk.node
class Words(Lists["Word"]):
    pass


Word = str

GENERIC: dict[str, tuple[Any, str | None]] = {
    "an argument is not known to an instance": (Box(ONE, ["a", None]), None),
    "a subclass gives it": (Arrays(ONES, [ONES], other=ONES), None),
    "the field inherited": (Arrays(ONE, [ONES]), "item   int 1   is not Float[Array, 'n']"),
    "through two classes": (Words(["a"], [["b"]]), None),
    "with strings": (Words([ONE], [["b"]]), "item.0   int 1   is not str"),
    "Self of a subclass": (Words(["a"], [], WORD), "same   str   is not Words | None"),
}


@pytest.mark.parametrize("tree, line", GENERIC.values(), ids=GENERIC.keys())
def test_generic_classes(tree: Any, line: str | None) -> None:
    if line is None:
        check_types(tree)
    else:
        assert " ".join(refused(tree).splitlines()[1].split()) == " ".join(line.split())


def test_a_base_whose_argument_cannot_be_resolved_is_an_error_that_names_it() -> None:
    box: Any = Box
    Lost: Any = tk.node(types.new_class("Lost", (box["Nowhere"],)))
    with pytest.raises(
        TypeError, match=r"the base .*Box\[.*Nowhere.*\] of .*Lost cannot be resolved: name 'Nowhere' is"
    ):
        check_types(Lost(ONE, []))


@tk.node
class Named:
    values: "list[int]"

    def list(self) -> "list[int]":
        return self.values


def test_a_method_may_have_the_name_of_a_builtin() -> None:
    check_types(Named([1]))
    assert "values" in refused(Named([WORD]))


# node(check=True): fields are checked when a node is created.


def two_zeros(x: Any) -> Any:
    return jnp.zeros(2) if x is ONE else x


@tk.node(check=True)
class Checked:
    weight: Float[Array, "dout din"]
    bias: Float[Array, "dout"] = tk.field(default_factory=lambda: ONE, converter=two_zeros)
    rate: float = 0.5

    def __check_init__(self) -> None:
        assert self.weight.shape[0] == self.bias.shape[0], "checked before"


def test_creation_checks_defaults_and_what_converters_and_init_store() -> None:
    made = Checked(jnp.ones((2, 3)))
    assert made.bias.shape == (2,)
    with pytest.raises(TypeError, match=rf"^creating Checked: 1 field is .*:\nbias   {FLOAT}\[2\]   is not Float"):
        Checked(jnp.ones((3, 3)))
    with pytest.raises(TypeError, match=r"creating Checked: 1 field is not .*:\nrate   str   is not float   \(dout=2"):
        Checked(jnp.ones((2, 3)), rate=WORD)

    @tk.node(check=True)
    class Written:
        total: Float[Array, ""]

        def __init__(self, values: Array) -> None:
            self.total = values

    with pytest.raises(TypeError, match=rf"total   {FLOAT}\[2\]   is not Float\[Array, ''\]$"):
        Written(ONES)


def test_rebuilding_checks_nothing() -> None:
    made = Checked(jnp.ones((2, 3)))
    assert tk.tree_at(lambda c: c.bias, made, None).bias is None
    assert jax.vmap(lambda x: Checked(x))(jnp.ones((4, 2, 3))).weight.shape == (4, 2, 3)
    wrong = tk.replace(made, bias=FIVE)
    for again in (copy.copy(wrong), copy.deepcopy(wrong), pickle.loads(pickle.dumps(wrong))):
        assert again.bias.shape == (5,)


def test_nodes_inside_are_checked_with_it_and_subclasses_ask_for_themselves() -> None:
    @tk.node(check=True)
    class Outer:
        inner: Any

    Outer(linear())
    with pytest.raises(TypeError, match=r"creating .*Outer: 1 field .*:\ninner\.bias"):
        Outer(Linear(jnp.ones((5, 3)), ONES))

    @tk.node
    class Loose(Checked):
        pass

    @tk.node(check=True)
    class Strict(Loose):
        pass

    assert Loose(jnp.ones((2, 3)), rate=WORD).rate is WORD
    with pytest.raises(TypeError, match=r"creating .*Strict: "):
        Strict(jnp.ones((2, 3)), rate=WORD)
