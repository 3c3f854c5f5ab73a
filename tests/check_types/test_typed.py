"""Typed: fields are checked in the signature of a function, with the shapes of the call."""

import dataclasses
import importlib.metadata
import subprocess
import sys
from typing import Annotated, Any, Generic

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PyTree, TypeCheckError, jaxtyped

import treekit as tk
from tests.check_types.nodes import FIVE, ONES, WORD, Linear, T, blamed, checked, fits, linear, old
from tests.trees import FLOAT
from treekit.typing import Typed


@checked
def apply(layer: Typed[Linear], x: Float[Array, "din"]) -> Float[Array, "dout"]:
    return layer.weight @ x if layer.bias is None else layer.weight @ x + layer.bias


WRONG = Linear(jnp.ones((5, 3)), jnp.ones(9))


def test_the_fields_of_an_argument_are_checked_in_the_scope_of_the_call() -> None:
    assert apply(linear(), jnp.ones(3)).shape == (5,)
    assert blamed(apply, linear(), jnp.ones(4))[0] == "x"
    parameter, why = blamed(apply, WRONG, jnp.ones(3))
    assert parameter == "layer" and f"bias   {FLOAT}[9]   is not Float[Array, 'dout'] | None   (dout=5, din=3)" in why
    parameter, why = blamed(apply, WORD, jnp.ones(3))
    assert parameter == "layer" and "str is not Linear" in why


@tk.node
class Cache:
    keys: Float[Array, "length+1 d"]
    inner: Linear


def test_shapes_of_fields_may_use_the_sizes_of_the_call_and_the_reverse() -> None:
    @checked
    def extend(x: Float[Array, "length d"], cache: Typed[Cache]) -> None: ...

    extend(jnp.ones((2, 3)), Cache(jnp.ones((3, 3)), linear()))
    for wrong in (Cache(jnp.ones((4, 3)), linear()), Cache(jnp.ones((3, 3)), WRONG)):
        assert blamed(extend, jnp.ones((2, 3)), wrong)[0] == "cache"

    @checked
    def wrong_size(layer: Typed[Linear]) -> Float[Array, "dout"]:
        return jnp.ones(7)

    assert blamed(wrong_size, linear())[0] == "the return value"


def test_a_typed_argument_works_in_every_transformation() -> None:
    layer, x = linear(), jnp.ones(3)
    assert jax.vmap(apply, in_axes=(None, 0))(layer, jnp.ones((4, 3))).shape == (4, 5)
    assert jax.vmap(apply)(tk.tree_stack([layer, layer]), jnp.ones((2, 3))).shape == (2, 5)
    assert jax.grad(lambda layer: apply(layer, x).sum())(layer).weight.shape == (5, 3)
    for transform in (jax.jit, lambda f: jax.vmap(f, in_axes=(None, None), axis_size=2)):
        assert blamed(transform(apply), layer, jnp.ones(4))[0] == "x"


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
    assert blamed(attention, jnp.ones(4))[0] == "x"
    for wrong in (tk.replace(attention, inner=WRONG), tk.replace(attention, size=5)):
        assert blamed(wrong, jnp.ones(3))[0] == "self"


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

    for a in (None, Rows(jnp.ones((3, 2)), ONES), linear()):
        either(a, ONES)
    assert blamed(either, Rows(jnp.ones((3, 2)), FIVE), ONES)[0] == "a"
    assert blamed(either, Rows(jnp.ones((3, 2)), ONES), FIVE)[0] == "x"

    @checked
    def both(grid: Typed[Grid[int]], tree: PyTree[int, "T"], x: Float[Array, "*batch"]) -> None: ...

    grid: Grid[int] = Grid([1, 2], jnp.ones((3, 4, 5)))
    both(grid, [0, 0], jnp.ones((3, 4)))
    assert blamed(both, grid, [0], jnp.ones((3, 4)))[0] == "tree"
    assert blamed(both, grid, [0, 0], jnp.ones(3))[0] == "x"


def test_what_fails_binds_nothing() -> None:
    @jaxtyped(typechecker=None)
    def look(layer: Any, other: Any) -> list[bool]:
        return [fits(x, Typed[Linear]) for x in (layer, other, layer)]

    assert look(WRONG, linear(2, 2)) == [False, True, False]
    assert look(linear(), linear(2, 2)) == [True, False, True]
    assert look(linear(), linear()) == [True, True, True]


@tk.node
class Wide(Linear): ...


typed: Any = Typed
OF_A_CLASS: dict[str, tuple[Any, Any, bool]] = {
    "a base class": (linear(), typed[object], True),
    "by name": (linear(), typed["Linear"], True),
    "the name of a base": (Wide(jnp.ones((1, 1))), typed["Linear"], True),
    "a generic in quotes": (Grid([1], ONES), typed["Grid[int]"], True),
    "a dataclass that is not a pytree": (dataclasses.make_dataclass("Data", [("x", int)])("1"), typed[object], False),
    "None": (None, typed[Linear], False),
    "any node": (linear(), typed, True),
    "any node with wrong fields": (WRONG, typed, False),
    "no node": (3, typed, False),
}


@pytest.mark.parametrize("x, hint, right", OF_A_CLASS.values(), ids=OF_A_CLASS.keys())
def test_of_which_class(x: Any, hint: Any, right: bool) -> None:
    assert fits(x, hint) is right


ONE_CLASS = r"one class, or its name in quotes, found .* Write Typed\[A\] \|"
ONE_NAME = r"the name of one class in quotes, found .*\[\.\.\.\] \| None"
NOT_ONE: list[Any] = [Wide | None, old.Union[Wide, Linear], Annotated[Wide, 1], T, 3, None]
NOT_ONE += ["Wide | None", "Optional[Wide]", "Union[Wide, Linear]", "list[Wide"]


@pytest.mark.parametrize("of", NOT_ONE)
def test_typed_takes_one_class(of: Any) -> None:
    with pytest.raises(TypeError, match=f"Typed takes {ONE_NAME if isinstance(of, str) else ONE_CLASS}"):
        typed[of]


def test_typeguard_checks_typed_arguments_as_well() -> None:
    typeguard = pytest.importorskip("typeguard")
    if not importlib.metadata.version("typeguard").startswith("2."):
        pytest.skip("jaxtyping works with typeguard 2.13.3, and not with what came after it")
    function: Any = apply
    guarded: Any = jaxtyped(typechecker=typeguard.typechecked)(function.__wrapped__)
    assert guarded(linear(), jnp.ones(3)).shape == (5,)
    for layer, x in ((linear(), jnp.ones(4)), (WRONG, jnp.ones(3))):
        with pytest.raises(TypeCheckError, match="checking the parameters"):
            guarded(layer, x)


def test_neither_beartype_nor_typeguard_is_needed() -> None:
    code = "import sys\nsys.modules.update(beartype=None, typeguard=None)  # importing either fails\n"
    code += "import jax.numpy as jnp, treekit as tk, jaxtyping as jt\n"
    code += "@tk.node(check=True)\nclass A:\n    x: jt.PyTree[jt.Float[jt.Array, 'n'] | int]\n"
    code += "A([jnp.ones(2), 3])\ntry:\n    A('a')\nexcept TypeError as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["x   str   is not PyTree[Float[Array, 'n'] | int]"]
