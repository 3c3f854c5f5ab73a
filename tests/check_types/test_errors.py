"""check_types: how errors read, and which annotations cannot be checked."""

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import flax.linen
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import AnnotationError, Array, Float, PyTree, TypeCheckError

import treekit as tk
from tests.check_types import nodes
from tests.check_types.nodes import FIVE, ONE, ONES, WORD, F, Linear, holder, linear, refused
from tests.trees import untyped
from treekit import check_types

if TYPE_CHECKING:
    from fractions import Fraction


@tk.node
class Trained:
    params: optax.Params
    state: optax.OptState
    step: int


elsewhere: Any = types.ModuleType("elsewhere")
sys.modules["elsewhere"] = elsewhere
exec('from typing import *\nclass Foo: ...\nSeveral = List["Foo"]\nKind = Type["Foo"]', vars(elsewhere))
elsewhere.array = np.ones(2)  # not an alias


def test_trees_of_optax_are_not_checked_since_their_type_names_itself() -> None:
    check_types(Trained(linear(), optax.adam(1.0).init({"w": ONES}), 0))
    check_types(flax.linen.RNN(flax.linen.LSTMCell(3)))  # an alias of Flax contains a name of its module
    check_types(holder(field=elsewhere.Several)([elsewhere.Foo()]))
    refused(holder(field=elsewhere.Several)(1))
    check_types(holder(field=elsewhere.Kind)(elsewhere.Foo))
    with pytest.raises(TypeError, match="'ArrayTree' is not defined"):  # written by the user, who does not import it
        check_types(holder(field="ArrayTree")(3))
    assert refused(Trained(linear(), (), WORD)).splitlines()[1] == "step   str   is not int"


@pytest.mark.parametrize("slip", [jnp.array, any, [int], (int, str), 3, ...], ids=lambda x: type(x).__name__)
def test_what_is_no_type_is_an_error_that_names_class_and_field(slip: Any) -> None:
    with pytest.raises(TypeError, match=r"annotation of Holder.field, .* is a .*, not a type"):
        check_types(holder(field=slip)(1))


# A field's annotation, a value, and the line of the message: the innermost part that does not fit.
PARTS: dict[str, tuple[Any, Any, str]] = {
    "item": (list[int], [1, WORD], ".1   str   is not int"),
    "key": (dict[str, int], {2: 3}, ", key 2   int 2   is not str"),
    "optional": (list[float] | None, [1.0, WORD], ".1   str   is not float"),
    "an item of a set": (set[int], {WORD}, ", an item   str   is not int"),
    "another container": (dict[str, int], [1], "   list   is not dict[str, int]"),
    "another length": (tuple[int, int], (1, 2, 3), "   tuple   is not tuple[int, int]"),
    "leaf": (PyTree[F], {"a": [ONES, FIVE]}, ".a.1   float32[5]   is not Float[Array, 'n']   (n=2)"),
    "a node among leaves": (PyTree[Linear], [linear(), WORD], ".1   str   is not Linear"),
    "structure": (PyTree[int, "T"], [1, WORD], "   list   is not PyTree[int, 'T']"),
}


@pytest.mark.parametrize("hint, value, line", PARTS.values(), ids=PARTS.keys())
def test_the_message_names_the_part_of_a_container_that_is_wrong(hint: Any, value: Any, line: str) -> None:
    assert refused(holder(field=hint)(value)).splitlines()[1] == f"field{line}"


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a size that jit has traced": (
        lambda: jax.jit(check_types)(holder(n=int, rows=Float[Array, "{self.n}"])(5, FIVE)),
        "inside jit, make its field static",
    ),
    "a scalar type of JAX": (
        lambda: check_types(holder(field=jnp.float32)(jnp.float32(1))),
        r"annotation of Holder.field, .*float32.* has no instances.*Float32\[Array",
    ),
    "a class": (lambda: check_types(Linear), "^check_types takes an instance, found the class Linear"),
    "an array without values": (
        lambda: check_types(holder(field=F)(untyped.ShapeDtypeStruct((2,), jnp.float32))),
        r"field   float32\[2\]\(abstract\)   is not Float\[Array, 'n'\]",
    ),
}


@pytest.mark.parametrize("call, message", MISTAKES.values(), ids=MISTAKES.keys())
def test_what_cannot_be_checked_raises(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_node_that_each_flattening_makes_anew_is_named_by_its_class() -> None:
    class Lazy:
        pass

    jax.tree_util.register_pytree_node(Lazy, lambda x: ([Linear(FIVE)], None), lambda aux, children: Lazy())
    assert refused(Lazy()).splitlines()[1].startswith("Linear.weight   float32[5]   is not")


def test_an_annotation_that_cannot_be_resolved_is_an_error_that_names_class_and_field() -> None:
    @tk.node
    class Local:
        x: int

    @tk.node
    class Outer:
        first: int
        inner: "list[Local]"

    @tk.node
    class Ratio:
        value: "Fraction"

    for tree, where in ((Outer(1, []), r"Outer\.inner, 'list\[Local\]'"), (Ratio(ONE), r"Ratio\.value, 'Fraction'")):
        with pytest.raises(TypeError, match=rf"of .*{where}, cannot be resolved: name .* is not defined\. Define"):
            check_types({"a": tree})
        with pytest.raises(AnnotationError, match=where):
            check_types(tree)


FUTURE = """
from __future__ import annotations
import beartype, treekit as tk
from jaxtyping import Array, Float, jaxtyped
from typing import ClassVar, Final


@tk.node(check=True)
class Layer:
    n: Final[int]
    weight: Float[Array, "{self.n} d"]
    after: Layer | None = None
    limit: ClassVar[int] = 3

    @jaxtyped(typechecker=beartype.beartype)
    def __call__(self: tk.Typed["Layer"], x: Float[Array, "d"]) -> Float[Array, "{self.n}"]:
        return self.weight @ x
"""


def test_annotations_that_are_all_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("future_nodes")
    monkeypatch.setitem(sys.modules, "future_nodes", module)
    exec(FUTURE, vars(module))
    layer = module.Layer(2, jnp.ones((2, 3)), module.Layer(1, jnp.ones((1, 5))))
    assert layer(jnp.ones(3)).shape == (2,)
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        layer(jnp.ones(4))
    with pytest.raises(
        TypeError, match=r"weight   float32\[1,2\]   is not Float\[Array, '{self.n} d'\]\nafter    int 3"
    ):
        module.Layer(2, jnp.ones((1, 2)), 3)


def test_an_annotation_that_is_defined_later_is_found_then(monkeypatch: pytest.MonkeyPatch) -> None:
    Holder = holder(field="DefinedLater")
    with pytest.raises(TypeError, match=r"Holder\.field, 'DefinedLater', cannot be resolved"):
        check_types(Holder(1))
    monkeypatch.setitem(vars(nodes), "DefinedLater", int)
    check_types(Holder(1))


@pytest.mark.parametrize(
    "hint, why",
    [
        (Float[Array, "m+1"], "axis names have not been processed$"),
        (Float[Array, "{n}"], r"An attribute is written {self\.n}$"),
        (Float[Array, "{self.size}"], "no attribute 'size'"),
        (Float[Array, "?n"], "Cannot use `\\?` annotations"),
    ],
)
def test_a_shape_that_makes_no_sense_is_an_error_that_names_class_and_field(hint: Any, why: str) -> None:
    with pytest.raises(TypeError, match=rf"Holder\.field cannot be checked against Float\[.*: (.|\n)*{why}"):
        check_types(holder(field=hint)(ONES))
    # What it waits for is wrong itself, so that alone is told.
    assert "\nfield" not in refused(holder(first=F, field=Float[Array, "n+1"])("a", ONES))
