"""tree_stack, tree_unstack and tree_ravel: whole models, and the functions, strings and static fields in them."""

import itertools
from collections import deque
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.errors.mistake import unchecked
from tests.releases import enable_x64, keys
from tests.trees import EXAMPLES, INT, Twig, untyped
from treekit.testing import assert_trees_same

KEYS = jax.random.split(jax.random.key(0), 3)


def mlp(key: Any) -> Any:
    return eqx.nn.MLP(1, 1, 8, depth=1, key=key)


def arrays_of(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if tk.is_array(x)]


def varied(tree: Any, by: int) -> Any:
    """The tree with other values in its arrays."""
    arrays, others = tk.partition(tree)
    return tk.combine(jax.tree.map(lambda x: x + np.asarray(by, x.dtype), arrays), others)


# ------------------------------------------------------------------------------------------------------ stack, unstack


@pytest.mark.parametrize("name", [name for name in EXAMPLES if arrays_of(EXAMPLES[name])])
def test_unstack_undoes_stack(name: str) -> None:
    trees = [varied(EXAMPLES[name], i) for i in range(3)]
    stacked = tk.tree_stack(trees)
    assert untyped.tree.structure(stacked) == untyped.tree.structure(trees[0])
    for x, y in zip(arrays_of(stacked), arrays_of(trees[0]), strict=True):
        assert x.shape == (3, *y.shape) and x.dtype == y.dtype
    for got, tree in zip(tk.tree_unstack(stacked), trees, strict=True):
        assert_trees_same(tk.filter(got, tk.is_array, inverse=True), tk.filter(tree, tk.is_array, inverse=True))
        assert_trees_same(tk.filter_arrays(got), jax.tree.map(jnp.asarray, tk.filter_arrays(tree)))


WIDE = ("int64", "float64", "complex128")
DTYPES = ("bool", "int4", "bfloat16", "float32", "float8_e4m3fn")
with enable_x64(True):
    LEAVES: dict[str, Any] = {
        **{f"jax {dtype}": jnp.ones(2, dtype) for dtype in (*DTYPES, "float64")},
        **{f"numpy {dtype}": np.ones((2, 3), jnp.dtype(dtype)) for dtype in (*DTYPES, *WIDE)},
        **{f"numpy {dtype}": np.zeros(2, dtype) for dtype in (">f4", "U3", "datetime64[D]", "O")},
        **{f"numpy scalar {dtype}": np.dtype(dtype).type(1) for dtype in ("bool", "float32", "int64")},
        **{f"shape {dtype}": untyped.ShapeDtypeStruct((2, 3), jnp.dtype(dtype)) for dtype in DTYPES},
        "float0": np.zeros(2, jax.dtypes.float0),
        "key": KEYS[0],
        "shape of a key": jax.eval_shape(lambda: KEYS[0]),
    }


@pytest.mark.parametrize("name", keys(LEAVES, {"jax float64": "jax>=0.7.2"}))  # before, JAX narrows it
def test_every_kind_of_leaf_gets_an_axis_and_keeps_its_dtype_and_kind(name: str) -> None:
    leaf = LEAVES[name]
    for n in (1, 3):
        stacked: Any = tk.tree_stack([{"x": leaf}] * n)["x"]
        assert stacked.shape == (n, *leaf.shape) and stacked.dtype == leaf.dtype
        for kind in (jax.Array, untyped.ShapeDtypeStruct, (np.ndarray, np.generic)):
            assert isinstance(stacked, kind) is isinstance(leaf, kind)
        members: Any = tk.tree_unstack({"x": stacked})
        assert [(x["x"].shape, x["x"].dtype) for x in members] == [(leaf.shape, leaf.dtype)] * n


@pytest.mark.parametrize("weak", [(True, True), (True, False), (False, False)])
def test_the_shape_of_a_stack_is_the_stack_of_the_shapes(weak: tuple[bool, bool]) -> None:
    trees = [{"w": jnp.asarray(1.0) if w else jnp.float32(1), "f": jnp.ones(2), "k": KEYS[0]} for w in weak]
    shapes = [jax.eval_shape(lambda tree=tree: tree) for tree in trees]
    stacked: Any = tk.tree_stack(shapes)
    assert stacked == jax.eval_shape(lambda: tk.tree_stack(trees))
    assert tk.tree_unstack(stacked) == jax.eval_shape(lambda: tk.tree_unstack(tk.tree_stack(trees)))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    sharded = jax.tree.map(lambda x: untyped.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)
    assert jax.tree.leaves(tk.tree_stack(sharded))[0].sharding is None


def test_members_share_no_memory_with_the_stack() -> None:
    stacked = {"x": np.zeros((2, 3))}
    for member in tk.tree_unstack(stacked):
        member["x"][:] = 1
    assert not stacked["x"].any()


def test_a_dict_of_transformations_is_a_tree() -> None:
    tree = {"tx": optax.sgd(1.0)}
    assert tk.tree_stack([tree, tree]) == tree
    assert tk.filter_scan(lambda x, _: (x, None), jnp.ones(()), tree, length=2)[0] == 1


def test_no_members_may_come_out_of_a_stack() -> None:
    assert tk.tree_unstack({"w": jnp.ones((0, 2))}) == ()


def test_they_work_under_jit_and_grad() -> None:
    @jax.jit
    def total(ws: Any) -> Any:
        stacked = tk.tree_stack([{"w": w, "f": jax.nn.relu} for w in ws])
        return sum(tree["w"].sum() for tree in tk.tree_unstack(stacked))

    assert jax.tree.map(float, jax.grad(total)([jnp.float32(1), jnp.float32(2)])) == [1.0, 1.0]


# Leaves that do not stack, in any order. Some differ in what tree_diff does not compare.
UNEQUAL: dict[str, tuple[Any, Any]] = {
    "keys of a dict": ({"w": jnp.ones(2)}, {"v": jnp.ones(2)}),
    "static fields": (Twig(1, name="a"), Twig(1, name="b")),
    "functions": (len, max),
    "a number and an array": (1.0, jnp.ones(())),
    "dtypes of NumPy": (np.ones(2, np.int64), np.ones(2, np.int32)),
    "dtypes of JAX and of NumPy": (jnp.ones(2, jnp.float32), np.ones(2, np.float64)),
}


@pytest.mark.parametrize("case", UNEQUAL)
def test_what_is_unequal_is_not_stacked(case: str) -> None:
    for a, b in itertools.permutations(UNEQUAL[case]):
        with pytest.raises(ValueError, match=r"\bx\b") as caught:
            tk.tree_stack([{"x": a}, {"x": a}, {"x": b}])
        lines = str(caught.value).splitlines()
        assert len(set(lines)) == len(lines), "a difference of the structure is not listed again for the leaves"


# --------------------------------------------------------------------------------------------------------------- ravel


@pytest.mark.parametrize("name", EXAMPLES)
def test_unravel_undoes_ravel(name: str) -> None:
    tree = EXAMPLES[name]
    flat, unravel = tk.tree_ravel(tree)
    inexact = tk.filter(tree, tk.is_inexact_array)
    assert flat.shape == (sum(x.size for x in jax.tree.leaves(inexact)),)
    kept, others = tk.partition(unravel(flat), tk.is_inexact_array)
    assert_trees_same(kept, jax.tree.map(jnp.asarray, inexact))
    assert_trees_same(others, tk.filter(tree, tk.is_inexact_array, inverse=True))


FLOATS = ["float8_e8m0fnu", "float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32"]


@pytest.mark.parametrize("second", FLOATS)
@pytest.mark.parametrize("first", FLOATS)
def test_the_vector_holds_the_numbers_of_both_dtypes(first: str, second: str) -> None:
    tree = [jnp.array([untyped.numpy.finfo(dtype).max, 1.0], dtype) for dtype in (first, second)]
    flat, unravel = tk.tree_ravel(tree)
    assert_trees_same(unravel(flat), tree)


def test_dtypes_are_kept() -> None:
    tree = [jnp.ones(2, jnp.bfloat16), jnp.ones(3, jnp.float16), jnp.arange(2), 1.5]
    flat, unravel = tk.tree_ravel(tree)
    assert flat.dtype == jnp.float32 and flat.shape == (5,)
    for given in (flat, flat.astype(jnp.bfloat16), np.ones(5, int)):
        out = unravel(given)
        assert [jnp.asarray(x).dtype.name for x in out[:3]] == ["bfloat16", "float16", INT]
        assert out[3] == 1.5
    assert tk.tree_ravel([jnp.ones(2, jnp.bfloat16)])[0].dtype == jnp.bfloat16
    assert tk.tree_ravel([1, "a"])[0].shape == (0,)


def test_real_arrays_beside_complex_ones() -> None:
    flat, unravel = tk.tree_ravel([jnp.ones(1), jnp.full(1, 2j)])
    assert jnp.issubdtype(flat.dtype, jnp.complexfloating)
    real, imaginary = unravel(flat * jnp.asarray(1j, flat.dtype))
    assert real.dtype == jnp.ones(1).dtype and float(real[0]) == 0 and complex(imaginary[0]) == -2


def test_the_arrays_may_be_donated() -> None:
    x = jnp.ones(2)
    flat, unravel = tk.tree_ravel({"w": x, "f": "relu"})
    x.delete()
    np.testing.assert_array_equal(unravel(flat)["w"], [1, 1])


@pytest.mark.parametrize("tree", [{"w": jnp.ones(2)}, "abc", jnp.ones((2, 3)), mlp(KEYS[0]), None, 3, Twig])
def test_a_tree_for_a_list_of_trees_raises(tree: Any) -> None:
    with pytest.raises(TypeError, match="tree_stack"):
        unchecked(tk.tree_stack)(tree)


def test_any_iterable_of_trees_is_stacked() -> None:
    trees = [Twig(jnp.ones(2)), Twig(jnp.zeros(2))]
    for given in (deque(trees), (tree for tree in trees), dict(enumerate(trees)).values()):
        assert tk.tree_stack(given).left.shape == (2, 2)
