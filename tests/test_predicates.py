"""The predicates agree with Equinox's on every object."""

from collections.abc import Callable
from typing import Any, assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import treekit as tk
from tests.trees import Box, Twig, trees, untyped

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
    "old key": jax.random.PRNGKey(0),
    "numpy object": np.array([None, 1]),
    "numpy strings": np.array(["a"]),
    "numpy bytes": np.array([b"a"]),
    "numpy dates": np.array(["2020-01-01"], "datetime64[D]"),
    "numpy date": np.datetime64("2020-01-01"),
    "numpy str": np.str_("a"),
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
    "list": [jnp.ones(2)],
    "ShapeDtypeStruct": untyped.ShapeDtypeStruct((2,), jnp.float32),
    "dtype": jnp.dtype("float32"),
    "scalar type": jnp.float32,
    "numpy scalar type": np.float32,
    "jax.Array": jax.Array,
    "function": len,
    "activation": jax.nn.relu,
    "jitted": jax.jit(jnp.sin),
    "module": Box(jnp.ones(2)),
    "node": Twig(jnp.ones(2)),
    "__jax_array__": HasArray(),
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


@pytest.mark.parametrize("name", OBJECTS)
def test_predicates_agree_with_equinox(name: str) -> None:
    x = OBJECTS[name]
    assert tk.is_array(x) is eqx.is_array(x)
    assert tk.is_inexact_array(x) is eqx.is_inexact_array(x)


@given(trees())
def test_predicates_agree_with_equinox_on_nodes_and_leaves(tree: Any) -> None:
    for x in (tree, *jax.tree.leaves(tree)):
        assert tk.is_array(x) is eqx.is_array(x)
        assert tk.is_inexact_array(x) is eqx.is_inexact_array(x)


def test_both_answers_occur_in_the_table() -> None:
    """Agreeing on a table of one answer would prove nothing."""
    answers = {(tk.is_array(x), tk.is_inexact_array(x)) for x in OBJECTS.values()}
    assert answers == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize("x", [jnp.ones(2), np.ones(2), np.float32(1)])
def test_is_array_narrows_the_type(x: object) -> None:
    assert tk.is_array(x)
    assert_type(x, jax.Array | np.ndarray[Any, Any] | np.number[Any] | np.bool_)
