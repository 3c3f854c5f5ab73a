"""check_types: what each annotation says of a field's value."""

import sys
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Generic, Literal, NewType, Protocol, TypedDict, TypeVar

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import AnnotationError, Array, Float, PyTree
from typing_extensions import TypeAliasType

import treekit as tk
from tests.trees import FLOAT
from tests.types import nodes
from tests.types.nodes import FIVE, ONES, WORD, F, Linear, T, blamed, holder, linear, network, old, ones, refused
from treekit import check_types

Small = TypeVar("Small", bound=float)
Some = TypeVar("Some", int, str)
Later = TypeVar("Later", bound="Linear")
Ts = old.Unpack[old.TypeVarTuple("Ts")]
old_alias: Any = TypeAliasType


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

# Annotations with a value that fits and one that does not; some have only one of the two.
NO_VALUE: Any = object()
CASES: dict[str, tuple[Any, Any, Any]] = {
    "array": (F, ONES, jnp.arange(2)),
    "an int is a float": (float, 3, 3j),
    "NumPy's float": (float, np.float32(3), np.complex64(3)),
    "bool": (bool, True, 1),
    "None": (None, None, 0),
    "Any": (Any, ONES, NO_VALUE),
    "object": (object, ONES, NO_VALUE),
    "empty tuple": (tuple[()], (), (1,)),
    "literal": (Literal["same", 1], "same", True),
    "annotated": (Annotated[int, "positive"], 1, "1"),
    "new type": (UserId, 1, "1"),
    "alias": (Numbers, [1, 2], [1, "2"]),
    "alias with an argument": (Twice[int], (1, 2), (1, "2")),
    "recursive alias": (Recursive, [1.0, [2.0]], "a"),
    "callable": (Callable[[int], str], str, "str"),
    "class of": (type[int], bool, str),
    "class of a union": (type[int | str], bool, float),
    "class of a generic class": (type[Pair[int]], Pair, int),
    "class of a protocol that cannot be asked": (type[Ask], int, "int"),
    "list": (list[int], [1, 2], [1, "2"]),
    "tuple": (tuple[int, str], (1, "a"), (1, 2)),
    "tuple of another length": (tuple[int, str], (1, "a"), (1,)),
    "tuple of any length": (tuple[int, ...], (1, 2, 3), (1, "a")),
    "tuple of any types": (old.Tuple[Ts], (1, "a"), 1),
    "a tuple in a tuple": (tuple[int, *tuple[str, ...]], (1, "a", "b"), 1),
    "key": (dict[str, int], {"a": 1}, {2: 3}),
    "default": (defaultdict[str, list[int]], defaultdict(list, a=[1]), defaultdict(list, a=["1"])),
    "set": (frozenset[int], frozenset({1}), frozenset({"1"})),
    "what has no length is not used up": (Iterable[int], Once(), 1),
    "optional list": (list[float] | None, None, [1.0, "3"]),
    "tree": (PyTree[F], {"a": [ONES]}, {"a": [ONES, FIVE]}),
    "a tree and all that is in it": (PyTree[Any], ["a"], NO_VALUE),
    "tree of numbers": (PyTree[float], {"a": 1.0, "b": jnp.ones(())}, {"a": ONES}),
    "tree of optionals in a structure": (PyTree[old.Optional[F], "T"], [ONES, None], [ONES, "a"]),
    "with a tree of Optax": (tuple[int, optax.OptState], (1, object), ("a", object)),
    "tree of quoted": (PyTree["Linear"], [linear()], [1]),
    "node": (Linear, linear(), network),
    "generic node": (eqx.nn.StateIndex[Array], NO_VALUE, 1),
    "protocol": (Asked, types.SimpleNamespace(ask=1), 1),
    "a protocol that cannot be asked": (Ask, 1, NO_VALUE),
    "a TypedDict that cannot be asked": (Options, {"depth": 3}, NO_VALUE),
    "type variable": (T, "a", NO_VALUE),
    "bound": (Small, 1.0, "a"),
    "bound in quotes": (Later, linear(), 1),
    "constraints": (Some, "a", 1.5),
}


# What the message says of some of them: the innermost part that does not fit.
LINES = {
    "list": ".1   str   is not int",
    "tuple of another length": "   tuple   is not tuple[int, str]",
    "key": ", key 2   int 2   is not str",
    "default": ".a.0   str   is not int",
    "set": ", an item   str   is not int",
    "optional list": ".1   str   is not float",
    "tree": f".a.1   {FLOAT}[5]   is not Float[Array, 'n']   (n=2)",
    "tree of quoted": ".0   int 1   is not Linear",
    "tree of optionals in a structure": "   list   is not PyTree[Float[Array, 'n'] | None, 'T']",
}


@pytest.mark.parametrize("name", CASES)
def test_a_field_is_what_its_annotation_says(name: str) -> None:
    hint, right, wrong = CASES[name]
    Holder = holder(__name__, field=hint)
    if right is not NO_VALUE:
        check_types(Holder(right))
    if wrong is not NO_VALUE:
        assert f"\nfield{LINES.get(name, '')}" in refused(Holder(wrong))


BY_LEAF: Any = PyTree[Float[Array, "?n"], "T"]
# The annotations of several fields with values that fit together, and with values that do not.
TOGETHER: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a name is one size": ({"a": F, "b": F}, [ONES, ONES], [ONES, FIVE]),
    "several": ({"a": Float[Array, "*s n"], "b": Float[Array, "*s"]}, [ones(1, 2), ones(1)], [ONES, ONES]),
    "structures": ({"a": PyTree[int, "T"], "b": PyTree[int, "T"]}, [[1, 2], [3, 4]], [[1, 2], [3]]),
    "by leaf": ({"a": BY_LEAF, "b": BY_LEAF}, [[ONES, FIVE], [ONES, FIVE]], [[ONES, FIVE], [FIVE, ONES]]),
    "arithmetic in a chain": (
        {"c": Float[Array, "m+3"], "b": Float[Array, "n+3 m"], "a": F},
        [FIVE, ones(5, 2), ONES],
        [ONES, ones(5, 2), ONES],
    ),
    "an attribute that comes later": ({"a": Float[Array, "2*{self.n}"], "n": int}, [ONES, 1], [ONES, 2]),
    "a union binds what it takes": ({"a": list[F] | F, "b": F}, [ONES, ONES], [[ONES], FIVE]),
    "a union forgets what it tried": ({"a": list[F] | list[Any], "b": F}, [[ONES, FIVE], FIVE], [[ONES, ONES], FIVE]),
}


@pytest.mark.parametrize("hints, right, wrong", TOGETHER.values(), ids=TOGETHER.keys())
def test_names_are_bound_across_the_fields_of_a_node(hints: Any, right: Any, wrong: Any) -> None:
    Holder = holder(**hints)
    check_types(Holder(*right))
    refused(Holder(*wrong))


def test_the_message_names_each_key_path_the_value_the_annotation_and_what_is_bound() -> None:
    bad = tk.tree_at(
        lambda n: (n.layers[1].bias, n.head.weight, n.by_name["a"]),
        network(),
        (jnp.ones(9, jnp.bfloat16), None, "no layer"),
    )
    assert refused({"net": bad}).splitlines()[1:-1] == [
        "net.by_name.a       str           is not Linear | None",
        "net.layers.1.bias   bfloat16[9]   is not Float[Array, 'dout']    (dout=2, din=5)",
        "                                  | None",
        "net.head.weight     None          is not Float[Array, 'dout",
        "                                  din']",
    ]
    Holder = holder(a=Float[Array, "*batch n"], b=Float[Array, "{self.size} n"], size=int)
    assert refused(Holder(ones(1, 2, 3), np.ones(3, np.float32), 2)).splitlines()[1:-1] == [
        "b   float32[3](numpy)   is not Float[Array, '{self.size}     (n=3, batch=(1, 2))",
        "                        n']",
    ]


def test_of_many_wrong_fields_fifty_are_listed() -> None:
    One = holder(x=int)
    title, *lines, more, _ = refused([One(WORD) for _ in range(60)]).splitlines()
    assert "60" in title and len(lines) == 50 and "10" in more


def test_of_fields_that_wait_for_a_wrong_one_only_that_is_told() -> None:
    assert "\nfield" not in refused(holder(first=F, field=Float[Array, "n+1"])("a", ONES))


def test_models_that_are_stacked_filtered_or_masked_fail_and_the_message_says_so() -> None:
    model = network()
    check_types(model)
    stacked = tk.tree_stack([model, model])
    filtered, masked = tk.filter(model, lambda x: x.ndim == 1), jax.tree.map(lambda x: True, model)
    for other in (stacked, filtered, masked, jax.eval_shape(network)):
        assert all(kind in refused(other).lower() for kind in ("stacked", "filtered", "masked", "abstract"))
    assert "(abstract)" in refused(jax.eval_shape(network))
    jax.vmap(check_types)(stacked)
    jax.eval_shape(check_types, model)
    with pytest.raises(TypeError, match=rf"bias   {FLOAT}\[9\]"):
        jax.jit(check_types)(Linear(ones(5, 3), ones(9)))


NUMBERS = holder(size=int, rate=float, flag=bool, phase=complex, rates=PyTree[float], table=dict[str, float])


def test_numbers_may_be_arrays_as_jit_makes_them() -> None:
    numbers = NUMBERS(3, 0.5, True, 1j, [1, 0.5], {"a": 1.0})
    check_types(numbers)
    jax.jit(check_types)(numbers)
    check_types(jax.jit(lambda x: x)(numbers))
    check_types(jax.tree.map(np.asarray, numbers))
    floats = jax.tree.map(lambda x: jnp.float32(1), numbers)
    assert [line.split()[0] for line in refused(floats).splitlines()[1:-1]] == ["size", "flag"]
    vectors = jax.tree.map(lambda x: jnp.ones(2), numbers)
    assert refused(vectors).startswith("6 fields")


# Annotations that cannot be resolved, or not yet, or not by the names in the module of the class.

elsewhere: Any = types.ModuleType("elsewhere")
sys.modules["elsewhere"] = elsewhere
exec('from typing import *\nclass Foo: ...\nSeveral = List["Foo"]\nKind = Type["Foo"]', vars(elsewhere))
elsewhere.array = np.ones(2)  # not an alias


def test_trees_of_optax_are_not_checked_since_their_type_names_itself() -> None:
    Trained = holder(params=optax.Params, state=optax.OptState, step=int)
    check_types(Trained(linear(), optax.adam(1.0).init({"w": ONES}), 0))
    check_types(flax.linen.RNN(flax.linen.LSTMCell(3)))  # an alias of Flax contains a name of its module
    check_types(holder(field=elsewhere.Several)([elsewhere.Foo()]))
    refused(holder(field=elsewhere.Several)(1))
    check_types(holder(field=elsewhere.Kind)(elsewhere.Foo))
    assert "\nstep   str" in refused(Trained(linear(), (), WORD))


# Optax defines ArrayTree, and the user's module does not.
NOT_CHECKABLE: list[Any] = ["list[Local]", "ArrayTree", any, [int], (int, str), 3, ..., Float[Array, "{self.size}"]]


@pytest.mark.parametrize("hint", [*NOT_CHECKABLE, Float[Array, "?n"]], ids=str)
def test_an_annotation_that_cannot_be_checked_is_an_error_that_names_class_and_field(hint: Any) -> None:
    with pytest.raises(AnnotationError, match=r"Holder\.field"):  # which jaxtyping raises as it is
        check_types({"a": holder(field=hint)(ONES)})


def test_an_annotation_that_is_defined_later_is_found_then(monkeypatch: pytest.MonkeyPatch) -> None:
    Holder = holder(field="DefinedLater")
    with pytest.raises(TypeError, match="DefinedLater"):
        check_types(Holder(1))
    monkeypatch.setitem(vars(nodes), "DefinedLater", int)
    check_types(Holder(1))


def test_a_class_that_is_defined_again_is_the_one_in_its_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook; `typing` shares one `Optional["Again"]`."""
    for _ in range(2):
        Again = holder(child=old.Optional["Again"])
        monkeypatch.setitem(vars(nodes), "Again", Again)
        check_types(Again(Again(None)))


FUTURE = """
from __future__ import annotations
import beartype, treekit as tk
from jaxtyping import Array, Float, jaxtyped
from treekit.typing import Typed
from typing import ClassVar, Final


@tk.node(check=True)
class Layer:
    n: Final[int]
    weight: Float[Array, "{self.n} d"]
    after: Layer | None = None
    limit: ClassVar[int] = 3

    @jaxtyped(typechecker=beartype.beartype)
    def __call__(self: Typed["Layer"], x: Float[Array, "d"]) -> Float[Array, "{self.n}"]:
        return self.weight @ x
"""


def test_annotations_that_are_all_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("future_nodes")
    monkeypatch.setitem(sys.modules, "future_nodes", module)
    exec(FUTURE, vars(module))
    layer = module.Layer(2, ones(2, 3), module.Layer(1, ones(1, 5)))
    assert layer(ones(3)).shape == (2,)
    assert blamed(layer, ones(4))[0] == "x"
    with pytest.raises(TypeError, match=r"\nweight .*\nafter    int 3"):
        module.Layer(2, ones(1, 2), 3)
