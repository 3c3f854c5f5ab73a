"""check_types: how errors read, and which annotations cannot be checked."""

import sys
import types
from typing import Any

import flax.linen
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import AnnotationError, Array, Float

import treekit as tk
from tests.check_types import nodes
from tests.check_types.nodes import FIVE, ONES, WORD, F, Linear, blamed, holder, linear, refused
from tests.trees import FLOAT, untyped
from treekit import check_types


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
    assert refused(Trained(linear(), (), WORD)).splitlines()[1] == "step   str   is not int"


NOT_RESOLVED = r"annotation of Holder\.field, '{}', cannot be resolved: name .* is not defined\. Define"
NO_TYPE = r"annotation of Holder\.field, .* is a value of type {}, not a type"
NO_SENSE = r"Holder\.field cannot be checked against Float\[.*: (.|\n)*{}"
NOT_CHECKABLE: list[tuple[Any, str]] = [
    ("Fraction", NOT_RESOLVED.format("Fraction")),
    ("list[Local]", NOT_RESOLVED.format(r"list\[Local\]")),
    ("ArrayTree", NOT_RESOLVED.format("ArrayTree")),  # which Optax defines, and not the user's module
    (jnp.array, NO_TYPE.format("function")),
    (any, NO_TYPE.format("builtin_function_or_method")),
    ([int], NO_TYPE.format("list")),
    ((int, str), NO_TYPE.format("tuple")),
    (3, NO_TYPE.format("int")),
    (..., NO_TYPE.format("ellipsis")),
    (jnp.float32, r"annotation of Holder\.field, .*float32.* has no instances.*Float32\[Array"),
    (Float[Array, "m+1"], NO_SENSE.format("axis names have not been processed$")),
    (Float[Array, "{n}"], NO_SENSE.format(r"An attribute is written {self\.n}$")),
    (Float[Array, "{self.size}"], NO_SENSE.format("no attribute 'size'")),
    (Float[Array, "?n"], NO_SENSE.format("Cannot use `\\?` annotations")),
]


@pytest.mark.parametrize("hint, message", NOT_CHECKABLE)
def test_an_annotation_that_cannot_be_checked_is_an_error_that_names_class_and_field(hint: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        check_types({"a": holder(field=hint)(ONES)})
    assert isinstance(caught.value, AnnotationError)  # which jaxtyping raises as it is


def test_of_fields_that_wait_for_a_wrong_one_only_that_is_told() -> None:
    assert "\nfield" not in refused(holder(first=F, field=Float[Array, "n+1"])("a", ONES))


def test_what_has_no_values_to_check_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"^check_types takes an instance, found the class Linear"):
        check_types(Linear)
    with pytest.raises(TypeError, match="inside jit, make its field static"):
        jax.jit(check_types)(holder(n=int, rows=Float[Array, "{self.n}"])(5, FIVE))
    abstract = untyped.ShapeDtypeStruct((2,), jnp.float32)
    assert "field   float32[2](abstract)   is not Float[Array, 'n']" in refused(holder(field=F)(abstract))


def test_a_node_that_each_flattening_makes_anew_is_named_by_its_class() -> None:
    class Lazy:
        pass

    jax.tree_util.register_pytree_node(Lazy, lambda x: ([Linear(FIVE)], None), lambda aux, children: Lazy())
    assert refused(Lazy()).splitlines()[1].startswith(f"Linear.weight   {FLOAT}[5]   is not")


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
    assert blamed(layer, jnp.ones(4))[0] == "x"
    with pytest.raises(TypeError, match=rf"weight   {FLOAT}\[1,2\]   is not Float\[Array, .*\]\nafter    int 3"):
        module.Layer(2, jnp.ones((1, 2)), 3)


def test_an_annotation_that_is_defined_later_is_found_then(monkeypatch: pytest.MonkeyPatch) -> None:
    Holder = holder(field="DefinedLater")
    with pytest.raises(TypeError, match=r"Holder\.field, 'DefinedLater', cannot be resolved"):
        check_types(Holder(1))
    monkeypatch.setitem(vars(nodes), "DefinedLater", int)
    check_types(Holder(1))
