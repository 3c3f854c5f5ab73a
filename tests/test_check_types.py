"""check_types, node(check=True) and Typed: what is checked, when, and how an error reads."""

import abc
import copy
import dataclasses
import importlib.metadata
import operator
import pickle
import subprocess
import sys
import types
import typing
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NewType,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
)

import beartype
import equinox as eqx
import flax.linen
import flax.struct
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from jaxtyping import AnnotationError, Array, Bool, Float, Key, PRNGKeyArray, PyTree, TypeCheckError, jaxtyped
from typing_extensions import TypeAliasType

import treekit as tk
from tests.trees import untyped
from treekit import check_types
from treekit.typing import Typed

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")
untyped_field: Any = flax.struct.field
Small = TypeVar("Small", bound=float)
Some = TypeVar("Some", int, str)
Later = TypeVar("Later", bound="Linear")

old_alias: Any = TypeAliasType
old: Any = typing  # for how types were written once
Ts = old.Unpack[old.TypeVarTuple("Ts")]
checked = jaxtyped(typechecker=beartype.beartype)


@tk.node
class Linear:
    weight: Float[Array, "dout din"]
    bias: Float[Array, "dout"] | None = None


def linear(dout: int = 5, din: int = 3) -> Linear:
    return Linear(jnp.ones((dout, din)), jnp.ones(dout))


@tk.node
class Network:
    layers: list[Linear]
    head: Linear
    by_name: dict[str, Linear | None]
    activation: Callable[[Array], Array] = tk.field(default=jnp.tanh, static=True)


def network() -> Network:
    return Network([linear(), linear(2, 5)], linear(1, 2), {"a": linear(), "b": None})


def holder(**hints: Any) -> Any:
    """A node class with these fields and annotations."""
    own = {"__module__": __name__, "__annotations__": hints}
    return tk.node(types.new_class("Holder", exec_body=lambda body: body.update(own)))


def fits(x: Any, hint: Any) -> bool:
    return isinstance(x, hint)


def refused(tree: Any) -> str:
    """What check_types says of a tree."""
    with pytest.raises(TypeError, match="what") as caught:
        check_types(tree)
    return str(caught.value)


class Pair(Generic[T]): ...


class Ask(Protocol):
    def ask(self) -> int: ...


@typing.runtime_checkable
class Asked(Protocol):
    def ask(self) -> int: ...


class Once:
    def __iter__(self) -> Iterator[str]:
        raise AssertionError("iterated over")


class Options(TypedDict):
    depth: int


UserId = NewType("UserId", int)
Numbers = TypeAliasType("Numbers", int | list[int])
Twice = TypeAliasType("Twice", tuple[T, T], type_params=(T,))
Recursive: Any = old_alias("Recursive", old.Union[float, "list[Recursive]"])
Nested = old.Union[str, "list[Nested]"]

F = Float[Array, "n"]
ONES, FIVE, KEY = jnp.ones(2), jnp.ones(5), jax.random.key(0)

# Annotations with a value that fits and one that does not; some have only one of the two.
NO_VALUE: Any = object()
WORD: Any = "word"  # and a number, which checkers take for right where they are wrong
ONE: Any = 1
CASES: dict[str, tuple[Any, Any, Any]] = {
    "array": (F, ONES, jnp.arange(2)),
    "another rank": (F, ONES, jnp.ones((2, 2))),
    "NumPy is not JAX": (F, ONES, np.ones(2, np.float32)),
    "NumPy": (Float[np.ndarray, "n"], np.ones(2), ONES),
    "flags": (Bool[Array, "..."], jnp.ones(3, bool), ONES),
    "key": (Key[Array, ""], KEY, ONES),
    "either sort of key": (PRNGKeyArray, jax.random.PRNGKey(0), jnp.ones(2, int)),
    "jax.Array": (jax.Array, ONES, 1.0),
    "jaxtyping's Array": (Array, ONES, [1.0]),
    "fixed size": (Float[Array, "2"], ONES, FIVE),
    "int": (int, 3, 3.0),
    "a bool is an int": (int, True, "3"),
    "float": (float, 3.0, "3"),
    "an int is a float": (float, 3, 3j),
    "NumPy's float": (float, np.float32(3), np.complex64(3)),
    "complex": (complex, 3.0, "3"),
    "bool": (bool, True, 1),
    "str": (str, "a", 1),
    "None": (None, None, 0),
    "Any": (Any, ONES, NO_VALUE),
    "object": (object, ONES, NO_VALUE),
    "union": (int | str, "a", 1.5),
    "typing's union": (old.Union[int, str], 1, None),
    "optional": (old.Optional[F], None, "a"),
    "empty tuple": (tuple[()], (), (1,)),
    "literal": (Literal["same", 1], "same", True),
    "annotated": (Annotated[int, "positive"], 1, "1"),
    "final": (Final[int], 1, "1"),
    "new type": (UserId, 1, "1"),
    "alias": (Numbers, [1, 2], [1, "2"]),
    "alias of arrays": (Numbers, jnp.array(1), ONES),
    "alias with an argument": (Twice[int], (1, 2), (1, "2")),
    "recursive alias": (Recursive, [1.0, [2.0]], "a"),
    "recursive union": (Nested, ["a", ["b"]], 1),
    "callable": (Callable[[int], str], str, "str"),
    "plain callable": (Callable, jnp.sin, 3),
    "class": (type, int, 3),
    "class of": (type[int], bool, str),
    "class of any": (type[Any], str, "str"),
    "class of a union": (type[int | str], bool, float),
    "class of a generic class": (type[Pair[int]], Pair, int),
    "class of an abstract class": (type[Sequence[int]], list, int),
    "class of a protocol that cannot be asked": (type[Ask], int, "int"),
    "list": (list[int], [1, 2], [1, "2"]),
    "typing's list": (old.List[int], [1, 2], (1, 2)),
    "plain list": (list, [1, "a"], (1,)),
    "typing's plain list": (old.List, [1, "a"], (1,)),
    "tuple": (tuple[int, str], (1, "a"), (1, 2)),
    "tuple of another length": (tuple[int, str], (1, "a"), (1,)),
    "tuple of any length": (tuple[int, ...], (1, 2, 3), (1, "a")),
    "tuple of any types": (old.Tuple[Ts], (1, "a"), 1),
    "a tuple in a tuple": (tuple[int, *tuple[str, ...]], (1, "a", "b"), 1),
    "dict": (dict[str, int], {"a": 1}, {"a": "1"}),
    "keys": (dict[str, int], {}, {1: 1}),
    "mapping": (Mapping[str, F], {"a": ONES, "b": ONES}, {"a": ONES, "b": FIVE}),
    "ordered": (OrderedDict[str, int], OrderedDict(a=1), {"a": 1}),
    "default": (defaultdict[str, list[int]], defaultdict(list, a=[1]), defaultdict(list, a=["1"])),
    "deque": (deque[int], deque([1]), deque(["1"])),
    "set": (frozenset[int], frozenset({1}), frozenset({"1"})),
    "sequence": (Sequence[F], (ONES, ONES), (ONES, FIVE)),
    "iterable": (Iterable[int], [1], ["1"]),
    "what has no length is not used up": (Iterable[int], Once(), 1),
    "tree": (PyTree[F], {"a": [ONES]}, {"a": [ONES, "b"]}),
    "any tree": (PyTree, ["a"], NO_VALUE),
    "a tree and all that is in it": (PyTree[Any], ["a"], NO_VALUE),
    "tree of numbers": (PyTree[float], {"a": 1.0, "b": jnp.ones(())}, {"a": ONES}),
    "tree of unions": (PyTree[int | str], {"a": 1, "b": "a"}, {"a": 1.5}),
    "tree of an optional": (PyTree[operator.or_(F, None)], [ONES, None], [ONES, "a"]),
    "tree of lists of an optional": (PyTree[list[old.Optional[F]]], [[ONES, None]], [["a"]]),
    "tree of optionals in a structure": (PyTree[old.Optional[F], "T"], [ONES, None], [ONES, "a"]),
    "with a tree of Optax": (tuple[int, optax.OptState], (1, object), ("a", object)),
    "tree of quoted": (PyTree["Linear"], [linear()], [1]),
    "node": (Linear, linear(), network),
    "quoted": ("Linear", linear(), 1),
    "quoted inside": (list["Linear"], [linear()], [1]),
    "nodes": (dict[str, Linear | None], {"a": linear(), "b": None}, {"a": 1}),
    "generic node": (eqx.nn.StateIndex[Array], NO_VALUE, 1),
    "protocol": (Asked, types.SimpleNamespace(ask=1), 1),
    "a protocol that cannot be asked": (Ask, 1, NO_VALUE),
    "a TypedDict that cannot be asked": (Options, {"depth": 3}, NO_VALUE),
    "type variable": (T, "a", NO_VALUE),
    "bound": (Small, 1.0, "a"),
    "bound in quotes": (Later, linear(), 1),
    "constraints": (Some, "a", 1.5),
    "list of a bound": (old.List[Small], [1.0], ["a"]),
}


@pytest.mark.parametrize("hint, right, wrong", CASES.values(), ids=CASES.keys())
def test_a_field_is_what_its_annotation_says(hint: Any, right: Any, wrong: Any) -> None:
    Holder = holder(field=hint)
    if right is not NO_VALUE:
        check_types(Holder(right))
    if wrong is not NO_VALUE:
        assert "\n.field" in refused(Holder(wrong))


# The annotations of several fields with values that fit together, and with values that do not.
TOGETHER: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a name is one size": ({"a": F, "b": F}, [ONES, ONES], [ONES, FIVE]),
    "also inside containers": ({"a": F, "b": list[F]}, [ONES, [ONES, ONES]], [ONES, [ONES, FIVE]]),
    "and in trees": ({"a": F, "b": PyTree[F]}, [ONES, {"b": ONES}], [ONES, {"b": FIVE}]),
    "several": ({"a": Float[Array, "*s n"], "b": Float[Array, "*s"]}, [jnp.ones((1, 2)), jnp.ones(1)], [ONES, ONES]),
    "structures": ({"a": PyTree[int, "T"], "b": PyTree[int, "T"]}, [[1, 2], [3, 4]], [[1, 2], [3]]),
    "by leaf": (
        {"a": PyTree[Float[Array, "?n"], "T"], "b": PyTree[Float[Array, "?n"], "T"]},
        [[ONES, FIVE], [ONES, FIVE]],
        [[ONES, FIVE], [FIVE, ONES]],
    ),
    "arithmetic": ({"a": F, "b": Float[Array, "n+3"]}, [ONES, FIVE], [ONES, ONES]),
    "arithmetic before its name": ({"b": Float[Array, "n+3"], "a": F}, [FIVE, ONES], [ONES, ONES]),
    "arithmetic in a chain": (
        {"c": Float[Array, "m+3"], "b": Float[Array, "n+3 m"], "a": F},
        [FIVE, jnp.ones((5, 2)), ONES],
        [ONES, jnp.ones((5, 2)), ONES],
    ),
    "an attribute": ({"n": int, "a": Float[Array, "{self.n}"]}, [5, FIVE], [5, ONES]),
    "an attribute that comes later": ({"a": Float[Array, "2*{self.n}"], "n": int}, [ONES, 1], [ONES, 2]),
    "a union binds what it takes": ({"a": list[F] | F, "b": F}, [ONES, ONES], [[ONES], FIVE]),
    "a union forgets what it tried": ({"a": list[F] | list[Any], "b": F}, [[ONES, FIVE], FIVE], [[ONES, ONES], FIVE]),
}


@pytest.mark.parametrize("hints, right, wrong", TOGETHER.values(), ids=TOGETHER.keys())
def test_names_are_bound_across_the_fields_of_a_node(hints: Any, right: Any, wrong: Any) -> None:
    Holder = holder(**hints)
    check_types(Holder(*right))
    refused(Holder(*wrong))


def test_each_node_has_names_of_its_own_and_a_shared_one_is_told_once() -> None:
    check_types(network())
    bad = Linear(jnp.ones((5, 3)), jnp.ones(9))
    assert refused([bad, bad]).count("bias") == 1


def test_the_message_names_each_key_path_the_value_the_annotation_and_what_is_bound() -> None:
    bad = tk.tree_at(
        lambda n: (n.layers[1].bias, n.head.weight, n.by_name["a"]),
        network(),
        (jnp.ones(9, jnp.bfloat16), None, "no layer"),
    )
    assert refused({"net": bad}).splitlines() == [
        "3 fields are not what their classes say:",
        "['net'].by_name['a']     str           is not Linear | None",
        "['net'].layers[1].bias   bfloat16[9]   is not Float[Array, 'dout'] | None   (dout=2, din=5)",
        "['net'].head.weight      None          is not Float[Array, 'dout din']",
        "Stacked, filtered, masked and abstract models fail by design: check before, or inside vmap or eval_shape.",
    ]
    Holder = holder(a=Float[Array, "*batch n"], b=Float[Array, "{self.size} n"], size=int)
    text = refused(Holder(jnp.ones((1, 2, 3)), np.ones(3, np.float32), 2))
    assert text.splitlines()[:2] == [
        "1 field is not what its class says:",
        ".b   float32[3](numpy)   is not Float[Array, '{self.size} n']   (n=3, batch=(1, 2))",
    ]


def test_models_that_are_stacked_filtered_or_masked_fail_and_the_message_says_so() -> None:
    model = network()
    others = {
        "stacked": jax.tree.map(lambda *xs: jnp.stack(xs), model, model),
        "filtered": tk.filter(model, lambda x: x.ndim == 1),
        "masked": jax.tree.map(lambda x: True, model),
        "shapes": jax.eval_shape(network),
    }
    for other in others.values():
        assert "Stacked, filtered, masked and abstract models fail by design" in refused(other)
    jax.vmap(check_types)(others["stacked"])


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


@flax.struct.dataclass
class Struct:
    weight: Float[Array, "n n"]
    size: int = untyped_field(pytree_node=False, default=3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weight: Float[Array, "n n"]
    size: int = dataclasses.field(metadata={"static": True}, default=3)


@tk.register_node
@dataclasses.dataclass
class Given:
    weight: Float[Array, "n n"]
    size: dataclasses.InitVar[int] = 3
    shared: typing.ClassVar[int] = 3


@pytest.mark.parametrize("cls", [Module, Struct, Registered, Given])
def test_classes_of_others_are_checked_too(cls: Any) -> None:
    check_types({"a": cls(jnp.ones((2, 2)))})
    assert refused({"a": cls(jnp.ones((2, 3)))}).splitlines()[1].startswith("['a'].weight   float32[2,3]   is not")


def test_static_fields_are_checked() -> None:
    assert refused(Registered(jnp.ones((1, 1)), WORD)).splitlines()[1] == ".size   str   is not int   (n=1)"


def test_of_a_class_that_was_registered_the_annotated_attributes_are_checked() -> None:
    check_types(Plain(1.0))
    assert refused(Plain("1")).splitlines()[1] == ".scale   str   is not float"


@dataclasses.dataclass
class Config:
    """A dataclass that is a leaf to JAX."""

    rate: float
    name: str = dataclasses.field(init=False)


def test_other_leaves_pass() -> None:
    check_types([Config(WORD), Plain, Linear, 3, None, "a", object()])
    check_types(eqx.nn.MLP(2, 2, 4, 2, key=KEY))


def test_a_dataclass_that_is_a_leaf_to_jax_is_checked_itself() -> None:
    check_types(Config(1.0))  # a field that is not set has no value to check
    assert refused(Config(WORD)).splitlines()[1] == ".rate   str   is not float"


def test_of_many_wrong_fields_fifty_are_listed() -> None:
    One = holder(x=int)
    lines = refused([One(WORD) for _ in range(60)]).splitlines()
    assert lines[0] == "60 fields are not what their classes say:"
    assert len(lines) == 53
    assert lines[51] == "and 10 more"


@tk.node
class Trained:
    params: optax.Params
    state: optax.OptState
    step: int


def module_of_aliases() -> Any:
    module: Any = types.ModuleType("elsewhere")
    sys.modules["elsewhere"] = module
    exec('from typing import *\nclass Foo: ...\nSeveral = List["Foo"]\nKind = Type["Foo"]', vars(module))
    module.array = np.ones(2)  # not an alias
    return module


elsewhere = module_of_aliases()


def test_a_class_that_is_defined_again_is_the_one_in_its_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook; `typing` shares one `Optional["Again"]`."""
    for _ in range(2):
        Again = holder(child=old.Optional["Again"])
        monkeypatch.setitem(globals(), "Again", Again)
        check_types(Again(Again(None)))


def test_trees_of_optax_are_not_checked_since_their_type_names_itself() -> None:
    check_types(Trained(linear(), optax.adam(1.0).init({"w": ONES}), 0))
    check_types(flax.linen.RNN(flax.linen.LSTMCell(3)))  # an alias of Flax contains a name of its module
    check_types(holder(field=elsewhere.Several)([elsewhere.Foo()]))
    refused(holder(field=elsewhere.Several)([elsewhere.Foo(), 1][1]))
    check_types(holder(field=elsewhere.Kind)(elsewhere.Foo))
    with pytest.raises(TypeError, match="'ArrayTree' is not defined"):  # written by the user, who does not import it
        check_types(holder(field="ArrayTree")(3))
    assert refused(Trained(linear(), (), WORD)).splitlines()[1] == ".step   str   is not int"


@pytest.mark.parametrize("slip", [jnp.array, any, [int], (int, str), 3, ...], ids=lambda x: type(x).__name__)
def test_what_is_no_type_is_an_error_that_names_class_and_field(slip: Any) -> None:
    with pytest.raises(TypeError, match=r"annotation of Holder.field, .* is a .*, not a type"):
        check_types(holder(field=slip)(1))


def test_a_scalar_type_of_jax_has_no_instances() -> None:
    with pytest.raises(TypeError, match=r"annotation of Holder.field, .*float32.* has no instances.*Float32\[Array"):
        check_types(holder(field=jnp.float32)(jnp.float32(1)))


def test_an_array_without_values_is_called_abstract() -> None:
    abstract: Any = untyped.ShapeDtypeStruct((2,), jnp.float32)
    assert (
        refused(holder(field=F)(abstract)).splitlines()[1] == ".field   float32[2](abstract)   is not Float[Array, 'n']"
    )


# A field's annotation, a value, and the line of the message: the innermost part that does not fit.
PARTS: dict[str, tuple[Any, Any, str]] = {
    "item": (list[int], [1, WORD], "[1]   str   is not int"),
    "sizes before it": (list[Float[Array, "n"]], [ONES, FIVE], "[1]   float32[5]   is not Float[Array, 'n']   (n=2)"),
    "value": (dict[str, tuple[float, int]], {"a": (1.0, 2), "b": (1.0, WORD)}, "['b'][1]   str   is not int"),
    "key": (dict[str, int], {2: 3}, ", key 2   int 2   is not str"),
    "optional": (list[float] | None, [1.0, WORD], "[1]   str   is not float"),
    "which of two is unknown": (list[int] | list[str], [1, "a"], "   list   is not list[int] | list[str]"),
    "an item of a set": (set[int], {WORD}, ", an item   str   is not int"),
    "another container": (dict[str, int], [1], "   list   is not dict[str, int]"),
    "another length": (tuple[int, int], (1, 2, 3), "   tuple   is not tuple[int, int]"),
    "leaf": (
        PyTree[Float[Array, "n"]],
        {"a": [ONES, FIVE]},
        "['a'][1]   float32[5]   is not Float[Array, 'n']   (n=2)",
    ),
    "leaf alone": (PyTree[int], WORD, "   str   is not PyTree[int]"),
    "a node among leaves": (PyTree[Linear], [linear(), WORD], "[1]   str   is not Linear"),
    "structure": (PyTree[int, "T"], [1, WORD], "   list   is not PyTree[int, 'T']"),
}


@pytest.mark.parametrize("hint, value, line", PARTS.values(), ids=PARTS.keys())
def test_the_message_names_the_part_of_a_container_that_is_wrong(hint: Any, value: Any, line: str) -> None:
    assert refused(holder(field=hint)(value)).splitlines()[1] == f".field{line}"


def test_a_size_in_braces_that_jit_has_traced() -> None:
    Rows = holder(n=int, rows=Float[Array, "{self.n}"])
    with pytest.raises(TypeError, match="inside jit, make its field static"):
        jax.jit(check_types)(Rows(5, FIVE))


def test_a_node_that_each_flattening_makes_anew_is_named_by_its_class() -> None:
    class Lazy:
        pass

    jax.tree_util.register_pytree_node(Lazy, lambda x: ([Linear(FIVE)], None), lambda aux, children: Lazy())
    assert refused(Lazy()).splitlines()[1].startswith("Linear.weight   float32[5]   is not")


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
    "the field inherited": (Arrays(ONE, [ONES]), ".item   int 1   is not Float[Array, 'n']"),
    "and inside of it": (Arrays(ONES, [FIVE]), ".items[0]   float32[5]    is not Float[Array, 'n']   (n=2)"),
    "through two classes": (Words(["a"], [["b"]]), None),
    "with strings": (Words([ONE], [["b"]]), ".item[0]   int 1   is not str"),
    "Self": (Words(["a"], [], Words(["a"], [])), None),
    "Self of a subclass": (Words(["a"], [], WORD), ".same   str   is not Words | None"),
}


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
    assert ".values" in refused(Named([WORD]))


@pytest.mark.parametrize("tree, line", GENERIC.values(), ids=GENERIC.keys())
def test_generic_classes(tree: Any, line: str | None) -> None:
    if line is None:
        check_types(tree)
    else:
        assert " ".join(refused(tree).splitlines()[1].split()) == " ".join(line.split())


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
        TypeError, match=r"\.weight   float32\[1,2\]   is not Float\[Array, '{self.n} d'\]\n\.after    int 3"
    ):
        module.Layer(2, jnp.ones((1, 2)), 3)


def test_an_annotation_that_is_defined_later_is_found_then(monkeypatch: pytest.MonkeyPatch) -> None:
    Holder = holder(field="DefinedLater")
    with pytest.raises(TypeError, match=r"Holder\.field, 'DefinedLater', cannot be resolved"):
        check_types(Holder(1))
    monkeypatch.setitem(globals(), "DefinedLater", int)
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
    assert ".field" not in refused(holder(first=F, field=Float[Array, "n+1"])("a", ONES))


NUMBERS = holder(size=int, rate=float, flag=bool, phase=complex, rates=PyTree[float], table=dict[str, float])


def test_numbers_may_be_arrays_as_jit_makes_them() -> None:
    numbers = NUMBERS(3, 0.5, True, 1j, [1, 0.5], {"a": 1.0})
    check_types(numbers)
    jax.jit(check_types)(numbers)
    check_types(jax.jit(lambda x: x)(numbers))
    check_types(jax.tree.map(np.asarray, numbers))
    floats = jax.tree.map(lambda x: jnp.float32(1), numbers)
    assert [line.split()[0] for line in refused(floats).splitlines()[1:-1]] == [".size", ".flag"]
    vectors = jax.tree.map(lambda x: jnp.ones(2), numbers)
    assert refused(vectors).startswith("6 fields")


def test_it_works_while_tracing() -> None:
    jax.jit(check_types)(network())
    jax.eval_shape(check_types, network())

    def loss(model: Network) -> Array:
        check_types(model)
        return model.head.weight.sum()

    jax.grad(loss)(network())
    with pytest.raises(TypeError, match=r"\.bias   float32\[9\]   is not"):
        jax.jit(check_types)(Linear(jnp.ones((5, 3)), jnp.ones(9)))


# At creation


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
    with pytest.raises(TypeError, match=r"^creating Checked: 1 field is not .*:\n\.bias   float32\[2\]   is not Float"):
        Checked(jnp.ones((3, 3)))
    with pytest.raises(
        TypeError, match=r"creating Checked: 1 field is not .*:\n\.rate   str   is not float   \(dout=2"
    ):
        Checked(jnp.ones((2, 3)), rate=WORD)

    @tk.node(check=True)
    class Written:
        total: Float[Array, ""]

        def __init__(self, values: Array) -> None:
            self.total = values

    with pytest.raises(TypeError, match=r"\.total   float32\[2\]   is not Float\[Array, ''\]$"):
        Written(ONES)


def test_rebuilding_checks_nothing() -> None:
    made = Checked(jnp.ones((2, 3)))
    leaves: list[Any] = [None, True, FIVE, object()]
    for leaf in leaves:
        assert jax.tree.map(lambda _, leaf=leaf: leaf, made).bias is leaf
    assert tk.replace(made, bias="a").bias == "a"
    assert tk.tree_at(lambda c: c.bias, made, None).bias is None
    assert jax.eval_shape(lambda: made).bias.shape == (2,)
    assert jax.vmap(lambda x: Checked(x))(jnp.ones((4, 2, 3))).weight.shape == (4, 2, 3)
    assert jax.jit(lambda x: Checked(x))(jnp.ones((2, 3))).weight.shape == (2, 3)
    wrong = tk.replace(made, bias=FIVE)
    for again in (copy.copy(wrong), copy.deepcopy(wrong), pickle.loads(pickle.dumps(wrong))):
        assert again.bias.shape == (5,)


def test_nodes_inside_are_checked_with_it_and_subclasses_ask_for_themselves() -> None:
    @tk.node(check=True)
    class Outer:
        inner: Any

    Outer(linear())
    with pytest.raises(TypeError, match=r"creating .*Outer: 1 field .*:\n\.inner\.bias"):
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


def test_jaxtyped_below_node_is_an_error_and_above_it_works() -> None:
    way_out = r"has @jaxtyped below @node, where it checks nothing.*Write it above @node"
    with pytest.raises(TypeError, match=way_out):

        @tk.node
        @jaxtyped(typechecker=beartype.beartype)
        class Bare:
            x: int

    with pytest.raises(TypeError, match=way_out):

        @tk.node(
            eq=True,
        )
        @jaxtyping.jaxtyped(typechecker=beartype.beartype)
        class Called(Linear):
            x: int = 3

    @jaxtyped(typechecker=beartype.beartype)
    @tk.node
    class Above:
        x: int

    with pytest.raises(TypeCheckError, match="Above"):
        Above(WORD)

    @tk.node
    @typing.final  # jaxtyped goes above node
    class Commented:
        x: int

    assert Commented(1).x == 1

    class Undecorated:
        x: int

    tk.node(Undecorated)

    @jaxtyped(typechecker=beartype.beartype)
    @dataclasses.dataclass
    class Next:
        x: int

    made: Any = tk.node(types.new_class("Elsewhere", exec_body=lambda body: body.update(__module__="no.such.module")))
    assert made().__module__ == "no.such.module"
    scope: dict[str, Any] = {"__name__": "typed_in", "tk": tk}
    exec(
        compile("jaxtyped = 0\n@tk.node(check=True)\nclass TypedIn:\n    x: int", "", "exec", dont_inherit=True), scope
    )
    assert scope["TypedIn"](1).x == 1


# In signatures


@checked
def apply(layer: Typed[Linear], x: Float[Array, "din"]) -> Float[Array, "dout"]:
    return layer.weight @ x if layer.bias is None else layer.weight @ x + layer.bias


def test_the_fields_of_an_argument_are_checked_in_the_scope_of_the_call() -> None:
    assert apply(linear(), jnp.ones(3)).shape == (5,)
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        apply(linear(), jnp.ones(4))
    with pytest.raises(TypeCheckError, match="parameter 'layer'") as caught:
        apply(Linear(jnp.ones((5, 3)), jnp.ones(9)), jnp.ones(3))
    cause: Any = caught.value.__cause__
    assert ".bias   float32[9]   is not Float[Array, 'dout'] | None   (dout=5, din=3)" in str(cause.__cause__)
    with pytest.raises(TypeCheckError, match="parameter 'layer'") as caught:
        apply(WORD, jnp.ones(3))
    cause = caught.value.__cause__
    assert "a str is not a Linear" in str(cause.__cause__)


@tk.node
class Cache:
    keys: Float[Array, "length+1 d"]
    inner: Linear


def test_shapes_of_fields_may_use_the_sizes_of_the_call() -> None:
    @checked
    def extend(x: Float[Array, "length d"], cache: Typed[Cache]) -> None: ...

    extend(jnp.ones((2, 3)), Cache(jnp.ones((3, 3)), linear()))
    for wrong in (Cache(jnp.ones((4, 3)), linear()), Cache(jnp.ones((3, 3)), Linear(jnp.ones((5, 3)), jnp.ones(9)))):
        with pytest.raises(TypeCheckError, match="parameter 'cache'"):
            extend(jnp.ones((2, 3)), wrong)


def test_an_array_that_comes_first_binds_what_the_fields_must_be() -> None:
    @checked
    def late(x: Float[Array, "din"], layer: Typed[Linear]) -> Float[Array, "dout"]:
        return jnp.ones(7) if x[0] else layer.weight @ x

    with pytest.raises(TypeCheckError, match="parameter 'layer'"):
        late(jnp.ones(4), linear())
    with pytest.raises(TypeCheckError, match="the return value"):
        late(jnp.ones(3), linear())
    assert late(jnp.zeros(3), linear()).shape == (5,)


def test_a_typed_argument_works_in_every_transformation() -> None:
    layer, x = linear(), jnp.ones(3)
    assert jax.jit(apply)(layer, x).shape == (5,)
    assert jax.eval_shape(apply, layer, x).shape == (5,)
    assert jax.vmap(apply, in_axes=(None, 0))(layer, jnp.ones((4, 3))).shape == (4, 5)
    layers = jax.tree.map(lambda *xs: jnp.stack(xs), layer, layer)
    assert jax.vmap(apply)(layers, jnp.ones((2, 3))).shape == (2, 5)
    assert jax.grad(lambda layer: apply(layer, x).sum())(layer).weight.shape == (5, 3)
    for transform in (jax.jit, lambda f: jax.vmap(f, in_axes=(None, None), axis_size=2), lambda f: f):
        with pytest.raises(TypeCheckError, match="parameter 'x'"):
            transform(apply)(layer, jnp.ones(4))


@tk.node
class Attention:
    query: Float[Array, "head d"]
    inner: Linear
    size: int = tk.field(static=True)
    table: Float[Array, "{self.size}"]

    @checked
    def __call__(self: Typed["Attention"], x: Float[Array, "d"], size: int = 9) -> Float[Array, "head"]:
        return self.query @ x

    @checked
    def wide(self: Typed["Attention"], x: Float[Array, "{size}"], size: int = 9) -> None: ...


def test_methods_and_nodes_inside() -> None:
    inner = linear(7, 7)  # its names are its own
    attention = Attention(jnp.ones((2, 3)), inner, 4, jnp.ones(4))
    assert attention(jnp.ones(3)).shape == (2,)
    attention.wide(jnp.ones(9))  # the arguments of the call stay what they were
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        attention(jnp.ones(4))
    with pytest.raises(TypeCheckError, match="parameter 'self'") as caught:
        tk.tree_at(lambda a: a.inner.bias, attention, jnp.ones(3))(jnp.ones(3))
    cause: Any = caught.value.__cause__
    assert ".inner.bias   float32[3]   is not" in str(cause.__cause__)
    with pytest.raises(TypeCheckError, match="parameter 'self'"):
        tk.replace(attention, size=5)(jnp.ones(3))


@tk.node
class Rows:
    rows: Float[Array, "n k"]
    also: Float[Array, "k"]


@tk.node
class Grid(Generic[T]):
    shape: PyTree[int, "T"]
    values: Float[Array, "*batch k"]


def test_unions_optionals_generics_and_structures() -> None:
    @checked
    def either(a: Typed[Rows] | Typed[Linear] | None, x: Float[Array, "k"]) -> None: ...

    either(None, ONES)
    either(Rows(jnp.ones((3, 2)), ONES), ONES)
    either(linear(), ONES)
    with pytest.raises(TypeCheckError, match="parameter 'a'"):
        either(Rows(jnp.ones((3, 2)), FIVE), ONES)
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        either(Rows(jnp.ones((3, 2)), ONES), FIVE)

    @checked
    def both(grid: Typed[Grid[int]], tree: PyTree[int, "T"], x: Float[Array, "*batch"]) -> None: ...

    grid: Grid[int] = Grid([1, 2], jnp.ones((3, 4, 5)))
    both(grid, [0, 0], jnp.ones((3, 4)))
    with pytest.raises(TypeCheckError, match="parameter 'tree'"):
        both(grid, [0], jnp.ones((3, 4)))
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        both(grid, [0, 0], jnp.ones(3))


def test_what_fails_binds_nothing() -> None:
    @jaxtyped(typechecker=None)
    def look(layer: Any, other: Any) -> list[bool]:
        return [fits(x, Typed[Linear]) for x in (layer, other, layer)]

    assert look(Linear(jnp.ones((5, 3)), jnp.ones(9)), linear(2, 2)) == [False, True, False]
    assert look(linear(), linear(2, 2)) == [True, False, True]
    assert look(linear(), linear()) == [True, True, True]


def test_outside_of_a_call_each_question_is_its_own() -> None:
    assert fits(linear(), Typed[Linear])
    assert fits(linear(2, 2), Typed[Linear])
    assert not fits(Linear(jnp.ones((5, 3)), jnp.ones(9)), Typed["Linear"])


class Base(abc.ABC):
    @abc.abstractmethod
    def size(self) -> int: ...


@tk.node
class Sized(Base):
    x: int

    def size(self) -> int:
        return self.x


NAMES: dict[str, tuple[Any, Any, bool]] = {
    "a base class": (Sized(1), Base, True),
    "whose subclass has wrong fields": (tk.replace(Sized(1), x="1"), Base, False),
    "by name": (Sized(1), "Sized", True),
    "the name of a base": (Sized(1), "Base", True),
    "another name": (Sized(1), "Linear", False),
    "a generic in quotes": (Grid([1], ONES), "Grid[int]", True),
    "a dataclass that is not a pytree": (dataclasses.make_dataclass("Data", [("x", int)])("1"), object, False),
    "None": (None, Sized, False),
    "a number": (3, int, False),
}


@pytest.mark.parametrize("x, of, right", NAMES.values(), ids=NAMES.keys())
def test_of_which_class(x: Any, of: Any, right: bool) -> None:
    typed: Any = Typed
    assert isinstance(x, typed[of]) is right


def test_typed_without_a_class_checks_any_node() -> None:
    bare: Any = Typed
    assert isinstance(linear(), bare)
    assert not isinstance(Linear(FIVE, None), bare)
    assert not isinstance(3, bare)


@pytest.mark.parametrize("of", [Sized | None, old.Union[Sized, Linear], Annotated[Sized, 1], T, 3, None])
def test_typed_takes_one_class(of: Any) -> None:
    typed: Any = Typed
    with pytest.raises(TypeError, match=r"Typed takes one class, or its name in quotes, found .* Write Typed\[A\] \|"):
        typed[of]


@pytest.mark.parametrize("of", ["Sized | None", "Optional[Sized]", "Union[Sized, Linear]", "list[Sized"])
def test_typed_takes_the_name_of_one_class(of: Any) -> None:
    typed: Any = Typed
    with pytest.raises(TypeError, match=r"Typed takes the name of one class in quotes, found .*\[\.\.\.\] \| None"):
        typed[of]


def test_an_annotation_that_cannot_be_resolved_is_told_by_a_call_too() -> None:
    with pytest.raises(TypeError, match=r"annotation of Unresolved\.x, 'Fraction', cannot be resolved"):
        use(Unresolved(ONE))


@tk.node
class Unresolved:
    x: "Fraction"


@checked
def use(x: Typed[Unresolved]) -> None: ...


def test_typeguard_checks_typed_arguments_as_well() -> None:
    typeguard = pytest.importorskip("typeguard")
    if not importlib.metadata.version("typeguard").startswith("2."):
        pytest.skip("jaxtyping works with typeguard 2.13.3, and not with what came after it")
    function: Any = apply
    guarded: Any = jaxtyped(typechecker=typeguard.typechecked)(function.__wrapped__)
    assert guarded(linear(), jnp.ones(3)).shape == (5,)
    for layer, x in ((linear(), jnp.ones(4)), (Linear(jnp.ones((5, 3)), jnp.ones(9)), jnp.ones(3))):
        with pytest.raises(TypeCheckError, match="checking the parameters"):
            guarded(layer, x)


def test_neither_beartype_nor_typeguard_is_needed() -> None:
    code = "import sys\nsys.modules.update(beartype=None, typeguard=None)  # importing either fails\n"
    code += "import jax.numpy as jnp, treekit as tk, jaxtyping as jt\n"
    code += "@tk.node(check=True)\nclass A:\n    x: jt.PyTree[jt.Float[jt.Array, 'n'] | int]\n"
    code += "A([jnp.ones(2), 3])\ntry:\n    A('a')\nexcept TypeError as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == [".x   str   is not PyTree[Float[Array, 'n'] | int]"]
