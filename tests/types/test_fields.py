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
from tests.types.nodes import FIVE, ONE, ONES, WORD, Linear, T, linear, ones, refused
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


@tk.node
class Box(Generic[T]):
    item: T
    items: list[T]
    same: Self | None = None


@tk.node
class Arrays(Box[Float[Array, "n"]]):
    other: Float[Array, "n"] = tk.field(default_factory=lambda: ONES)


@tk.node
class Lists(Box[list[T]], Generic[T]): ...


@tk.node
class Words(Lists["Word"]): ...


Word = str


@tk.node
class Named:
    values: "list[int]"

    def list(self) -> "list[int]":
        return self.values


# A tree that passes, another one, and what the message says of that.
CASES: dict[str, tuple[Any, Any, str]] = {
    "of Equinox": (Module(ones(2, 2)), {"a": Module(ones(2, 3))}, "a.weight"),
    "a static field": (Module(ones(1, 1)), Module(ones(1, 1), WORD), "size   str   is not int   (n=1)"),
    "a registered dataclass": (Given(ones(2, 2)), {"a": Given(ones(2, 3))}, "a.weight"),
    "a registered class": (Plain(1.0), Plain("1"), "scale   str   is not float"),
    "a leaf, with a field that is not set": (Config(1.0), Config(WORD), "rate   str   is not float"),
    "a subclass says what T is": (Arrays(ONES, [ONES]), Arrays(ONE, [ONES]), "item   int 1   is not Float[Array, 'n']"),
    "with other fields": (Arrays(ONES, [ONES]), Arrays(ONES, [FIVE]), "items.0"),
    "through two classes": (Words(["a"], [["b"]]), Words([ONE], [["b"]]), "item.0   int 1   is not str"),
    "Self of a subclass": (Words([], [], Words([], [])), Words([], [], WORD), "same   str   is not Words | None"),
    "a method named as a builtin": (Named([1]), Named([WORD]), "values.0"),
}


@pytest.mark.parametrize("case", CASES)
def test_fields_of_any_class_are_checked(case: str) -> None:
    right, wrong, words = CASES[case]
    check_types(right)
    assert f"\n{words}" in refused(wrong)


def test_others_pass() -> None:
    check_types([Config(WORD), Plain, Linear, 3, None, "a", object()])
    check_types(Box(ONE, ["a", None]))  # an instance does not know what T is
    check_types(eqx.nn.MLP(2, 2, 4, 2, key=jax.random.key(0)))


def test_a_node_that_each_flattening_makes_again_is_named_by_its_class() -> None:
    class Lazy: ...

    jax.tree_util.register_pytree_node(Lazy, lambda x: ([Linear(FIVE)], None), lambda aux, children: Lazy())
    assert "\nLinear.weight " in refused(Lazy())


def test_a_base_whose_argument_cannot_be_resolved_is_named() -> None:
    box: Any = Box
    Lost: Any = tk.node(types.new_class("Lost", (box["Nowhere"],)))
    with pytest.raises(TypeError, match=r"Box\[.*Nowhere.*\] of .*Lost"):
        check_types(Lost(ONE, []))


# node(check=True): fields are checked when a node is created.


def zeros(x: Any) -> Any:
    return jnp.zeros(2) if x is ONE else x


@tk.node(check=True)
class Checked:
    weight: Float[Array, "dout din"]
    bias: Float[Array, "dout"] = tk.field(default_factory=lambda: ONE, converter=zeros)
    rate: float = 0.5
    inner: Any = None

    def __check_init__(self) -> None:
        assert self.weight.shape[0] == self.bias.shape[0], "checked before"


@tk.node(check=True)
class Written:
    total: Float[Array, ""]

    def __init__(self, values: Array) -> None:
        self.total = values


@tk.node
class Loose(Checked): ...


@tk.node(check=True)
class Strict(Loose): ...


def test_creation_checks_defaults_what_converters_and_init_store_and_nodes_inside() -> None:
    weight = ones(2, 3)
    Checked(weight, inner=linear())
    assert Loose(weight, rate=WORD).rate is WORD, "a subclass asks for itself"
    for create, words in (
        (lambda: Checked(ones(3, 3)), "Checked: 1 field .*\nbias"),
        (lambda: Checked(weight, rate=WORD), "Checked: 1 field .*\nrate"),
        (lambda: Checked(weight, inner=[Linear(ones(5, 3), ONES)]), r"Checked: 1 field .*\ninner\.0\.bias"),
        (lambda: Strict(weight, rate=WORD), "Strict: 1 field .*\nrate"),
        (lambda: Written(ONES), "Written: 1 field .*\ntotal"),
    ):
        with pytest.raises(TypeError, match=f"^creating {words} "):
            create()


def test_rebuilding_checks_nothing() -> None:
    made = Checked(ones(2, 3))
    assert tk.tree_at(lambda c: c.bias, made, None).bias is None
    assert jax.vmap(lambda x: Checked(x))(ones(4, 2, 3)).weight.shape == (4, 2, 3)
    wrong = tk.replace(made, bias=FIVE)
    assert pickle.loads(pickle.dumps(wrong)).bias.shape == copy.deepcopy(wrong).bias.shape == (5,)
