"""dtype_preserving_tree_map: every result in the dtype of its leaf, untouched where it has it, or a TypeError."""

import contextlib
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import treekit as tk
from tests.releases import enable_x64
from tests.trees import FLOAT, LEAVES, Point, trees, untyped

NUMPY = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
ALL = (*NUMPY, "float8_e4m3fn", "float8_e5m2", "bfloat16", "int4", "uint4")  # and those that NumPy does not know
PAIRS = [(have, want) for have in ALL for want in ALL]
KINDS = ("bool", "uint", "int", "float", "complex")

tree_map = tk.dtype_preserving_tree_map


def kind(dtype: str) -> int:
    return next(i for i, name in enumerate(KINDS) if dtype.removeprefix("b").startswith(name.removeprefix("b")))


def may_cast(have: str, want: str) -> bool:
    """The rule as documented: NumPy's same_kind, its kinds taken to hold for the dtypes it lacks, and real to bool."""
    if want == "bool":
        return kind(have) < kind("complex64")
    if have in NUMPY and want in NUMPY:
        return np.can_cast(have, want, "same_kind")
    return kind(have) <= kind(want)


def cast(result: Any, leaf: Any, casting: Literal["same_kind", "unsafe"] = "same_kind") -> Any:
    return tree_map(lambda _: result, {"at": leaf}, casting=casting)["at"]


def array(dtype: str) -> jax.Array:
    return jnp.array([0, 1, 2], dtype)


def test_arrays_that_do_not_fit_lose_information_and_python_ints_raise() -> None:
    for x, leaf, want in ((np.int32(300), array("int8"), 44), (np.float32(1e10), array("float16"), np.inf)):
        assert cast(jnp.asarray(x), leaf) == want
    with pytest.raises(OverflowError, match=r"^at at: .*300"):
        cast(300, array("int8"))


@pytest.mark.parametrize("casting", ["same_kind", "unsafe"])
def test_all_pairs_of_dtypes(casting: Literal["same_kind", "unsafe"]) -> None:
    """Unsafe casts what same_kind refuses, but no complex result of a real leaf; the message tells the two apart."""

    def check(arrays: dict[str, jax.Array]) -> None:
        for have, want in PAIRS:
            result, leaf = arrays[have], arrays[want]
            never = kind(have) == kind("complex64") != kind(want)
            if may_cast(have, want) or (casting == "unsafe" and not never):
                out = cast(result, leaf, casting)
                assert out.dtype == want and not jax.typeof(out).weak_type, (have, want)
                assert (out is result) == (have == want)
            else:
                with pytest.raises(TypeError, match=rf" {have} .* {want}{'$' if never else '.*unsafe'}"):
                    cast(result, leaf, casting)

    with enable_x64(True):
        jax.eval_shape(check, {dtype: array(dtype) for dtype in ALL})  # traced, so that nothing is compiled for a pair


@pytest.mark.parametrize(("have", "want"), [("float32", "bfloat16"), ("float32", "bool"), ("uint8", "int4")])
def test_the_values_are_those_of_astype(have: str, want: str) -> None:
    result = array(have)
    np.testing.assert_array_equal(np.asarray(cast(result, array(want))), np.asarray(result).astype(jnp.dtype(want)))


LEAVES_OF_NUMPY = [make(jnp.dtype(d)) for d in ALL for make in (lambda d: np.array([0, 1, 2], d), lambda d: d.type(1))]


@pytest.mark.parametrize("x64", [False, True])
def test_a_leaf_stands_for_the_dtype_jax_gives_it(x64: bool) -> None:
    with enable_x64(x64):
        for leaf in (*LEAVES_OF_NUMPY, True, 1, 1.5, 1.5j):
            want = jnp.asarray(leaf).dtype
            out, same = cast(array("bool"), leaf), cast(leaf, leaf)
            assert out.dtype == want and not out.weak_type
            assert same is leaf if getattr(leaf, "dtype", want) == want else same.dtype == want
        with pytest.raises(TypeError):
            cast(jnp.ones((), jnp.asarray(1.0).dtype), 3)  # NumPy takes None, the dtype that a number lacks, for f64


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int4", "int32", "bfloat16", "float32", "complex64"])
def test_python_numbers_as_results(dtype: str) -> None:
    for number, of in ((True, "bool"), (1, "uint8"), (1.0, "float32"), (1j, "complex64")):
        with contextlib.nullcontext() if may_cast(of, dtype) else pytest.raises(TypeError):
            out = cast(number, array(dtype))
            assert isinstance(out, jax.Array) and complex(out) == number
            assert out.dtype == dtype and not out.weak_type


@pytest.mark.parametrize("number", [1, 1.5, 1j])
def test_weak_types(number: Any) -> None:
    weak = jnp.asarray(number)
    strong = jnp.asarray(number, weak.dtype)
    assert cast(weak, weak) is weak and cast(strong, strong) is strong
    assert not cast(weak, strong).weak_type
    assert {cast(x, leaf).dtype for x in (weak, strong) for leaf in (strong, weak, number)} == {weak.dtype}


@pytest.mark.parametrize(
    ("leaf", "result"),
    [(jnp.ones(2, jnp.bfloat16), jnp.ones(2)), (jnp.ones(2), jnp.asarray(1.0)), (jnp.ones(2), jnp.arange(2))],
)
def test_a_result_that_does_not_fit_costs_one_cast(leaf: jax.Array, result: jax.Array) -> None:
    jaxpr = jax.make_jaxpr(lambda r: tree_map(lambda _: r, leaf))(result)
    assert [str(e.primitive) for e in jaxpr.eqns] == ["convert_element_type"]
    assert jaxpr.out_avals[0].dtype == leaf.dtype and not jaxpr.out_avals[0].weak_type


KEY = jax.random.key(0)
FLOAT0 = np.zeros(2, jax.dtypes.float0)

REFUSED: dict[str, tuple[Any, Any]] = {  # a result, and a leaf; complex results of real leaves are among the pairs
    "number for a key": (1.0, KEY),
    "key for a number": (KEY, jnp.ones(2)),
    "key of another kind": (jax.random.key(0, impl="rbg"), KEY),
    "float0 for a float": (FLOAT0, jnp.ones(2)),
    "string for a number": ("1.0", jnp.ones(2)),
}


@pytest.mark.parametrize("casting", ["same_kind", "unsafe"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_never_cast(name: str, casting: Literal["same_kind", "unsafe"]) -> None:
    for x64 in (False, True):
        with enable_x64(x64), pytest.raises(TypeError, match="at at"):
            cast(*REFUSED[name], casting)


@pytest.mark.parametrize("leaf", [len, "text", object(), np.array(["a"]), np.array([None]), Point])
def test_a_leaf_without_a_dtype_asks_nothing(leaf: Any) -> None:
    for result in (1, jnp.ones(2), "other", KEY, None):
        assert cast(result, leaf) is result


def test_none_is_mapped_where_it_is_taken_for_a_leaf() -> None:
    tree: dict[str, Any] = {"a": None, "b": jnp.ones(2, jnp.bfloat16)}
    assert tree_map(lambda x: x + 1, {"a": None})["a"] is None
    out = tree_map(lambda x: 1.0 if x is None else x * 2, tree, is_leaf=lambda x: x is None)
    assert out["a"] == 1.0 and out["b"].dtype == jnp.bfloat16


@given(trees((*LEAVES, FLOAT0)))
def test_the_identity_gives_back_every_leaf_that_has_its_dtype(tree: Any) -> None:
    out = tree_map(lambda x: x, tree)
    assert untyped.tree.structure(out) == untyped.tree.structure(tree)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(out), strict=True):
        assert x is y or (x.dtype == np.float64 and y.dtype == FLOAT)


def test_rest_trees() -> None:
    tree = {"w": jnp.ones(2, jnp.bfloat16), "n": jnp.arange(2)}
    grads = {"w": jnp.full(2, 0.5), "n": jnp.arange(2)}
    # As with jax.tree.map, what lies deeper than `tree` comes as it is.
    deeper = {"w": {"lr": 2.0}, "n": [1, 2]}
    out = tree_map(lambda p, g, d: g.astype(jnp.float32) * len(d), tree, grads, deeper, casting="unsafe")
    assert out["w"].dtype == jnp.bfloat16 and out["n"].dtype == tree["n"].dtype
    assert out["w"].tolist() == [0.5, 0.5] and out["n"].tolist() == [0, 2]


def test_shapes_without_values() -> None:
    leaf = untyped.ShapeDtypeStruct((2,), jnp.bfloat16)
    assert cast(leaf, leaf) is leaf
    assert cast(jnp.ones(2), leaf).dtype == jnp.bfloat16
    assert cast(untyped.ShapeDtypeStruct((3,), jnp.float32), leaf) == untyped.ShapeDtypeStruct((3,), jnp.bfloat16)


def test_where_a_class_cannot_be_rebuilt_the_error_has_the_text_of_jax() -> None:
    class Vector:
        def __init__(self, w: Any) -> None:
            self.w, self.size = w, len(w)

    jax.tree_util.register_pytree_node(Vector, lambda vector: ((vector.w,), None), lambda _, ws: Vector(*ws))
    with pytest.raises(ValueError, match=r"rest\[0\]: .*Vector"):
        tree_map(lambda x, _: x, Vector("ab"), {"w": 1.0})


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "c8"])
def test_a_numpy_array_in_the_other_byte_order_has_numbers_of_the_same_kind(dtype: str) -> None:
    """Files from other machines have them; JAX knows none of them."""
    native = np.arange(3).astype(dtype)
    other: Any = native.astype(native.dtype.newbyteorder())
    want = tree_map(lambda x: 2 * x, native)
    for f, leaf in (
        (lambda x: 2 * x, other),
        (lambda x: jnp.asarray(2 * native), other),
        (lambda x: 2 * other, native),
    ):
        got = tree_map(f, leaf)
        assert got.dtype == want.dtype and np.array_equal(got, want)
