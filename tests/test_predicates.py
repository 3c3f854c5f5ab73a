"""The predicates agree with Equinox's on every object."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import treekit as tk
from tests.trees import Box, Twig, trees, untyped

untyped_eqx: Any = eqx
DTYPES = (
    *("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"),
    *("complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz"),
)


WIDE_DTYPES = ("int64", "uint64", "float64", "complex128")


class HasArray:
    """Duck typing is not enough to be an array."""

    dtype = np.dtype("float32")
    shape = ()

    def __jax_array__(self) -> jax.Array:
        return jnp.ones(())


def _x64(dtype: str) -> jax.Array:
    with jax.enable_x64(True):
        return jnp.ones(2, dtype)


class Stands:
    """Returns what it is given from `__jax_array__`."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __jax_array__(self) -> object:
        return self.value


class OnInstance:
    """Has `__jax_array__` on the instance only."""

    def __init__(self) -> None:
        self.__jax_array__ = lambda: jnp.ones(2)


class Fails:
    """Equinox lets errors of `__jax_array__` through."""

    def __jax_array__(self) -> object:
        raise ValueError("cannot be an array")


class MyFloat(float):
    """A float."""


OBJECTS: dict[str, object] = {
    **{f"jax {dtype}": jnp.ones(2, dtype) for dtype in DTYPES},
    **{f"jax {dtype}": _x64(dtype) for dtype in WIDE_DTYPES},
    **{f"numpy {dtype}": np.ones(2, jnp.dtype(dtype)) for dtype in (*DTYPES, *WIDE_DTYPES)},
    **{f"numpy scalar {dtype}": jnp.dtype(dtype).type(1) for dtype in (*DTYPES, *WIDE_DTYPES)},
    "weak": jnp.asarray(1.0),
    "empty": jnp.zeros((0, 3)),
    "key": jax.random.key(0),
    "keys": jax.random.split(jax.random.key(0)),
    "key of another kind": jax.random.key(0, impl="rbg"),
    "numpy object": np.array([None, 1]),
    "numpy strings": np.array(["a"]),
    "numpy dates": np.array(["2020-01-01"], "datetime64[D]"),
    "numpy longdouble": np.longdouble(1),
    "numpy structured": np.zeros(2, [("a", "f4")]),
    "numpy masked": np.ma.masked_array([1.0], [True]),
    "float0": np.zeros(2, jax.dtypes.float0),
    "bool": True,
    "int": 1,
    "float": 1.0,
    "complex": 1j,
    "str": "a",
    "None": None,
    "ShapeDtypeStruct": untyped.ShapeDtypeStruct((2,), jnp.float32),
    "scalar type": jnp.float32,
    "function": len,
    "jitted": jax.jit(jnp.sin),
    "module": Box(jnp.ones(2)),
    "node": Twig(jnp.ones(2)),
    "__jax_array__": HasArray(),
    **{f"__jax_array__ returns {x!r}": Stands(x) for x in (1, 1.0, 1j, True, None, "a", np.float32(1), np.int32(1))},
    "__jax_array__ returns NumPy floats": Stands(np.ones(2)),
    "__jax_array__ returns NumPy bf16": Stands(np.ones(2, jnp.bfloat16)),
    "__jax_array__ twice": Stands(HasArray()),
    "__jax_array__ of an instance": OnInstance(),
    "__jax_array__ fails": Fails(),
    "a class with __jax_array__": HasArray,
    "float of a subclass": MyFloat(1),
    "numpy float64, a float": np.float64(1),
    "Fraction": Fraction(1, 2),
    "ref": jax.new_ref(jnp.ones(2)),
}


def tracers() -> dict[str, object]:
    """Tracers of every transformation, leaked on purpose: a predicate asks for the type and dtype only."""
    found: dict[str, object] = {}

    def see(name: str) -> Callable[..., Any]:
        def keep(x: Any) -> Any:
            found[name] = x
            return x

        return keep

    x = jnp.ones(2)
    jax.jit(see("jit"))(x)
    jax.jit(see("jit int"))(jnp.arange(2))
    jax.jit(see("jit key"))(jax.random.key(0))
    jax.vmap(see("vmap"))(x)
    jax.grad(lambda x: see("grad")(x).sum())(x)
    jax.jvp(see("jvp"), (x,), (x,))
    jax.eval_shape(see("eval_shape"), untyped.ShapeDtypeStruct((2,), jnp.bfloat16))
    return found


with jax.check_tracer_leaks(False):
    OBJECTS |= {f"tracer of {name}": x for name, x in tracers().items()}


def answer(predicate: Callable[[object], bool], x: object) -> object:
    """What a predicate returns, or the type and message of the error that it raises."""
    try:
        return predicate(x)
    except Exception as error:
        return type(error), str(error)


def check_agreement(x: object) -> None:
    assert tk.is_array(x) is eqx.is_array(x)
    assert tk.is_inexact_array(x) is eqx.is_inexact_array(x)
    assert tk.is_array_like(x) is eqx.is_array_like(x)
    assert answer(tk.is_inexact_array_like, x) == answer(untyped_eqx.is_inexact_array_like, x)


@pytest.mark.parametrize("name", OBJECTS)
def test_predicates_agree_with_equinox(name: str) -> None:
    check_agreement(OBJECTS[name])


@given(trees())
def test_predicates_agree_with_equinox_on_nodes_and_leaves(tree: Any) -> None:
    for x in (tree, *jax.tree.leaves(tree)):
        check_agreement(x)


def test_both_answers_occur_in_the_table() -> None:
    """Agreeing on a table of one answer would prove nothing."""
    answers = {(tk.is_array(x), tk.is_inexact_array(x)) for x in OBJECTS.values()}
    assert answers == {(True, True), (True, False), (False, False)}
    likes = {(tk.is_array_like(x), answer(tk.is_inexact_array_like, x)) for x in OBJECTS.values()}
    assert likes > {(True, True), (True, False), (False, False), (True, (ValueError, "cannot be an array"))}
