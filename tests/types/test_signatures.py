"""Typed and Batched: fields are checked in the signature of a function, with the shapes of the call."""

import dataclasses
import importlib.metadata
import subprocess
import sys
from typing import Annotated, Any, Generic

import jax
import numpy as np
import pytest
from jaxtyping import Array, Float, Key, PyTree, TypeCheckError, jaxtyped

import treekit as tk
from tests.trees import FLOAT
from tests.types.nodes import Linear, T, blamed, checked, fits, linear, network, old, ones
from treekit.typing import Batched, Typed

typed: Any = Typed
batched: Any = Batched
WRONG = Linear(ones(5, 3), ones(9))


def wide(n: int) -> Linear:
    return tk.tree_stack([linear()] * n)


@tk.node
class Cache:
    keys: Float[Array, "length+1 d"]
    inner: Linear


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


@tk.node
class Grid(Generic[T]):
    shape: PyTree[int, "T"]
    values: Float[Array, "*batch k"]


@checked
def apply(layer: Typed[Linear], x: Float[Array, "din"]) -> Float[Array, "dout"]:
    return layer.weight @ x


@checked
def ensemble(models: Batched[Linear, "n"], x: Float[Array, "n din"]) -> Float[Array, "n dout"]:
    return jax.vmap(apply)(models, x)


@checked
def extend(x: Float[Array, "length d"], cache: Typed[Cache]) -> None: ...


@checked
def seven(layer: Typed[Linear]) -> Float[Array, "dout"]:
    return ones(7)


@checked
def either(a: Typed[Grid[Any]] | Typed[Linear] | None, x: Float[Array, "k"]) -> None: ...


@checked
def both(grid: Typed[Grid[int]], tree: PyTree[int, "T"], x: Float[Array, "*batch"]) -> None: ...


ATTENTION = Attention(ones(2, 3), linear(7, 7), 4, ones(4))  # the names of a node inside are its own
GRID: Grid[int] = Grid([1, 2], ones(3, 4, 5))
RIGHT = ""
# A function, the parameter that the error names, and arguments.
CALLS: list[tuple[Any, str, list[Any]]] = [
    (apply, RIGHT, [linear(), ones(3)]),
    (apply, "x", [linear(), ones(4)]),
    (extend, RIGHT, [ones(2, 3), Cache(ones(3, 3), linear())]),
    (extend, "cache", [ones(2, 3), Cache(ones(4, 3), linear())]),
    (seven, RIGHT, [linear(7)]),
    (seven, "the return value", [linear()]),
    (either, RIGHT, [None, ones(2)]),
    (either, RIGHT, [GRID, ones(5)]),
    (either, "a", [WRONG, ones(5)]),
    (either, "x", [GRID, ones(2)]),
    (both, RIGHT, [GRID, [0, 0], ones(3, 4)]),
    (both, "tree", [GRID, [0], ones(3, 4)]),
    (both, "x", [GRID, [0, 0], ones(3)]),
    (Attention.__call__, RIGHT, [ATTENTION, ones(3)]),
    (Attention.__call__, "x", [ATTENTION, ones(4)]),
    (Attention.__call__, "self", [tk.replace(ATTENTION, inner=WRONG), ones(3)]),
    (Attention.__call__, "self", [tk.replace(ATTENTION, size=5), ones(3)]),
    (Attention.wide, RIGHT, [ATTENTION, ones(9)]),  # the arguments of the call stay what they were
    (ensemble, RIGHT, [wide(7), ones(7, 3)]),
    (ensemble, "x", [wide(7), ones(6, 3)]),
    (ensemble, "x", [wide(7), ones(7, 4)]),
]


@pytest.mark.parametrize("function, parameter, args", CALLS)
def test_names_are_bound_in_fields_and_arguments_alike(function: Any, parameter: str, args: list[Any]) -> None:
    if parameter == RIGHT:
        function(*args)
        jax.eval_shape(lambda: function(*args))
    else:
        assert blamed(function, *args)[0] == parameter


def test_a_typed_argument_works_in_transformations() -> None:
    layer = linear()
    assert jax.grad(lambda layer: apply(layer, ones(3)).sum())(layer).weight.shape == (5, 3)
    for transform in (jax.jit, lambda f: jax.vmap(f, in_axes=(None, None), axis_size=2)):
        transform(apply)(layer, ones(3))
        assert blamed(transform(apply), layer, ones(4))[0] == "x"


def test_the_axis_is_gone_inside_vmap() -> None:
    @checked
    def copied(model: Typed[Linear]) -> Batched[Linear, "copies"]:
        return tk.tree_stack([model, model])

    @checked
    def again(model: Batched[Linear, "copies"]) -> Batched[Linear, "copies"]:
        return model

    assert jax.vmap(again)(jax.vmap(copied)(wide(3))).weight.shape == (3, 2, 5, 3)
    assert blamed(jax.vmap(again), wide(3))[0] == "model"


def test_what_fails_binds_nothing() -> None:
    @jaxtyped(typechecker=None)
    def look(layer: Any, other: Any) -> list[bool]:
        return [fits(x, Typed[Linear]) for x in (layer, other, layer)]

    assert look(WRONG, linear(2, 2)) == [False, True, False]
    assert look(linear(), linear(2, 2)) == [True, False, True]
    assert look(linear(), linear()) == [True, True, True]


@tk.node
class Wide(Linear): ...


@tk.node
class Mixed:
    """Leaves of several kinds, a size of its own, and a static field."""

    numpy: Float[np.ndarray, "n d"]
    key: Key[Array, ""]
    inner: Linear
    rate: float
    mean: float = 0.5
    n: int = tk.field(default=4, static=True)
    sized: Float[Array, "{self.n}"] | None = None


def mixed(*first: int) -> Mixed:
    keys = jax.random.split(jax.random.key(0), first)
    rate: Any = ones(*first)
    inner = Linear(ones(*first, 5, 3), ones(*first, 5))
    return Mixed(np.ones((*first, 2, 3)), keys, inner, rate, sized=ones(*first, 4))


DATA = dataclasses.make_dataclass("Data", [("x", int)])("1")
FITS: list[tuple[Any, Any, bool]] = [
    (linear(), typed[object], True),
    (linear(), typed["Linear"], True),
    (Wide(ones(1, 1)), typed["Linear"], True),  # the name of a base
    (GRID, typed["Grid[int]"], True),
    (DATA, typed[object], False),  # no pytree
    (None, typed[Linear], False),
    (linear(), typed, True),
    (WRONG, typed, False),
    (mixed(3), batched[Mixed, "a"], True),
    (mixed(2), batched[Mixed, "n"], True),  # a name that a field has too is one size
    (mixed(3), batched[Mixed, "n"], False),
    (mixed(3, 2), batched[Mixed, "a b"], True),
    (mixed(3, 2), batched[Mixed, "a a"], False),
    (mixed(3, 2), batched[Mixed, "4 _"], False),
    (mixed(3), batched[Mixed, "a b"], False),
    (mixed(0), batched[Mixed, "a"], True),
    (wide(2), batched["Linear", "a"], True),
    (wide(2), batched["Mixed", "a"], False),
    ({"w": ones(2)}, batched[dict, "a"], False),
    (tk.tree_stack([network()] * 2), batched[type(network()), "a"], True),
]


@pytest.mark.parametrize("x, hint, right", FITS)
def test_what_is_an_instance(x: Any, hint: Any, right: bool) -> None:
    assert fits(x, hint) is right
    assert fits(x, hint | None) is (right or x is None)


# An argument, and what the error says of it: fields, arrays without the first axes, sizes that are bound.
WORDS: list[tuple[Any, Any, str]] = [
    (apply, WRONG, f"bias   {FLOAT}[9]   is not Float[Array, 'dout'] | None   (dout=5, din=3)"),
    (ensemble, 3, "int is not Linear"),
    (ensemble, linear(), f"weight   {FLOAT}[3]   is not"),
    (ensemble, Linear(ones(2, 5, 3), ones(2, 4)), f"bias   {FLOAT}[4]   is not"),
    (ensemble, Linear(ones(2, 5, 3), ones(5)), f"bias, {FLOAT}[5], are not 'n'   (n=2)"),
    (ensemble, Linear(ones(2, 5, 3), ones()), f"bias, {FLOAT}[], are not 'n'   (n=2)"),
]


@pytest.mark.parametrize("function, model, words", WORDS)
def test_the_message_names_the_field(function: Any, model: Any, words: str) -> None:
    parameter, why = blamed(function, model, ones(3))
    assert parameter in ("layer", "models") and words in why


NO_CLASSES: list[Any] = [Wide | None, old.Union[Wide, Linear], Annotated[Wide, 1], T, 3, None]
NO_NAMES = ["Wide | None", "Optional[Wide]", "Union[Wide, Linear]", "list[Wide"]
NO_AXES: list[Any] = [Linear, (Linear,), (Linear, 3), (Linear, ""), (Linear, "*batch"), (Linear, "... n")]


def test_they_take_one_class_and_batched_its_first_axes() -> None:
    for of in [*NO_CLASSES, *NO_NAMES]:
        with pytest.raises(TypeError, match="Typed"):
            typed[of]
        with pytest.raises(TypeError, match="Batched"):
            batched[of, "batch"]
    for parts in NO_AXES:
        with pytest.raises(TypeError, match="Batched"):
            batched[parts]


def test_typeguard_checks_typed_arguments_as_well() -> None:
    typeguard = pytest.importorskip("typeguard")
    if not importlib.metadata.version("typeguard").startswith("2."):
        pytest.skip("jaxtyping works with typeguard 2.13.3, and not with what came after it")
    function: Any = apply
    guarded: Any = jaxtyped(typechecker=typeguard.typechecked)(function.__wrapped__)
    assert guarded(linear(), ones(3)).shape == (5,)
    for layer, x in ((linear(), ones(4)), (WRONG, ones(3))):
        with pytest.raises(TypeCheckError):
            guarded(layer, x)


def test_neither_beartype_nor_typeguard_is_needed() -> None:
    code = "import sys\nsys.modules.update(beartype=None, typeguard=None)  # importing either fails\n"
    code += "import jax.numpy as jnp, treekit as tk, jaxtyping as jt\n"
    code += "@tk.node(check=True)\nclass A:\n    x: jt.PyTree[jt.Float[jt.Array, 'n'] | int]\n"
    code += "A([jnp.ones(2), 3])\ntry:\n    A('a')\nexcept TypeError as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["x   str   is not PyTree[Float[Array, 'n'] | int]"]
