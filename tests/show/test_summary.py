"""tree_summary: rows, totals of subtrees, notes, statistics, text and HTML."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from jax.sharding import NamedSharding

import treekit as tk
from tests.releases import P, needs, new_ref
from tests.trees import FLOAT, INT, deleted, trees, untyped

pytestmark = pytest.mark.usefixtures("nans")


def sizes(*rows: Any) -> tuple[int, ...]:
    return tuple(sum(getattr(row, name) for row in rows) for name in ("leaves", "numbers", "bytes"))


@given(trees())
def test_rows_are_those_of_tree_find_down_to_a_depth_and_add_up(tree: Any) -> None:
    leaves = jax.tree.leaves(tree)
    arrays = list(filter(tk.is_array, leaves))
    numbers = sum(x.size for x in arrays if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key))
    paths = [path for path, _ in untyped.tree_util.tree_flatten_with_path(tree)[0]]
    names = [untyped.tree_util.keystr(path, simple=True, separator=".").split(".") for path in paths]
    for depth in (0, 1, 2, 3, None):
        found = tk.tree_summary(tree, depth=depth)
        shown = [name[:depth] for name in names]
        assert [row.name for row in found.rows] == list(dict.fromkeys(map(".".join, shown)))
        above = [".".join(name[:level]) for name in shown for level in range(1, len(name))]
        assert [row.name for row in found.subtrees] == list(dict.fromkeys(above))
        assert sizes(found.total) == (len(leaves), numbers, sum(x.size * x.dtype.itemsize for x in arrays))
        assert sizes(found.total) == sizes(*found.rows)
        for row in found.subtrees:
            assert sizes(row) == sizes(*(x for x in found.rows if x.name.startswith(f"{row.name}.")))
        for row in found.rows:
            assert list(tk.tree_find(tree, re.compile(re.escape(row.name)))) == [row.name]


LEAVES: list[Any] = [  # leaf, type, dtype, numbers, bytes
    (jnp.ones((2, 3), jnp.bfloat16), "bf16[2,3]", "bfloat16", 6, 12),
    (untyped.ShapeDtypeStruct((2, 3), jnp.float32), "f32[2,3]", "float32", 6, 24),
    (jax.random.key(0), "key<fry>[]", "key<fry>", 0, 8),
    (np.ones(2, np.float64), "f64[2](numpy)", "float64", 2, 16),
    pytest.param(
        new_ref and new_ref(jnp.ones(2, jnp.float32)), "f32[2] (Ref)", "float32", 2, 8, marks=needs("jax.new_ref")
    ),
    (3, "int 3", INT, 0, 0),
    (True, "bool True", "bool", 0, 0),
    ("x" * 100, "'" + "x" * 38 + "…", None, 0, 0),
]


@pytest.mark.parametrize("leaf, kind, dtype, numbers, size", LEAVES)
def test_a_row_says_what_a_leaf_is(leaf: Any, kind: str, dtype: str | None, numbers: int, size: int) -> None:
    (row,) = tk.tree_summary({"x": leaf}, stats=True).rows
    assert (row.type, row.shape, row.dtype) == (kind, getattr(leaf, "shape", None), dtype)
    assert (row.leaves, row.numbers, row.bytes) == (1, numbers, size)
    assert str(tk.tree_summary(leaf)).splitlines()[-1].startswith(f"{kind}: 1 leaf, ")


def test_a_row_of_a_subtree_has_its_class_and_dtypes() -> None:
    tree = {"w": jnp.ones(2, jnp.bfloat16), "b": jnp.zeros(3), "b2": jnp.zeros(3), "n": 3}
    row = tk.tree_summary({"layer": tree}, depth=1).rows[0]
    assert (row.type, row.shape, row.dtype) == ("dict", None, f"{FLOAT}, bfloat16")


def test_a_variable_of_flax_and_its_value_have_one_row() -> None:
    linear: Any = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    for depth in (1, None):
        found = tk.tree_summary(nnx.state(linear), depth=depth)
        assert [(row.name, row.shape) for row in found.rows] == [("bias", (3,)), ("kernel", (2, 3))]
        assert found.subtrees == ()


class Unregistered:
    def __call__(self, x: Any) -> Any:
        return x


def test_notes_say_what_has_one_name_or_is_one_array_and_what_is_no_node() -> None:
    w = jnp.ones(2)
    no_notes = {"d": jnp.ones(2), "e": 1, "e2": 1, "f": jnp.tanh, "h": "x", "cls": Unregistered}
    found = tk.tree_summary({"a.b": w, "a": {"b": w}, "c": w, "g": Unregistered(), **no_notes})
    assert {(row.name, row.note) for row in found.rows if row.note} == {
        ("a.b", "2 leaves of this name"),
        ("a.b", "2 leaves of this name; the same array as a.b"),
        ("c", "the same array as a.b"),
        ("g", "not a node: never trained"),
    }
    assert "not a node: never trained" in str(found)


def test_sharding() -> None:
    over_two = NamedSharding(untyped.sharding.AbstractMesh((2,), ("data",)), P(None, "data"))
    x, y = (untyped.ShapeDtypeStruct((8, 2), dtype, sharding=over_two) for dtype in (jnp.float32, jnp.int32))
    found = tk.tree_summary({"m": {"x": x, "y": y}, "on one device": jnp.ones(2)}, stats=True)
    rows = {row.name: row.sharding for row in (*found.rows, *found.subtrees, found.total)}
    assert rows == dict.fromkeys(("m.x", "m.y", "m"), over_two) | dict.fromkeys(("on one device", ""), None)
    assert "'data')" in str(found)  # JAX before 0.7 writes PartitionSpec, which is folded


# ---------------------------------------------------------------------------------------------------------- statistics

with jax.debug_nans(False):
    VALUES: dict[str, Any] = {
        "not finite": jnp.array([1.0, jnp.nan, jnp.inf, 3.0, -jnp.inf]),
        "empty": jnp.zeros((0, 2)),
        "bf16": jnp.array([1, 2, 4], jnp.bfloat16),
        "f32 whose sum overflows": jnp.array([3e38, -1e38, 3e38], jnp.float32),
        "f32 whose squares vanish": jnp.array([1e-30, 3e-30], jnp.float32),
        "int4": jnp.array([1, 2, 6], jnp.int4),
        "complex": jnp.array([1 + 2j, 3 - 2j, complex(math.inf, math.nan), complex(math.inf, 0)]),
        "numpy f64": np.array([1e300, 2e300, np.nan]),
        "numpy number": np.float32(3),
    }


def check_stats(row: Any, *arrays: Any) -> None:
    """NumPy has the same statistics, in units of the largest number, since its squares overflow."""
    wide = [np.asarray(x).astype(np.complex128 if np.iscomplexobj(x) else np.float64).ravel() for x in arrays]
    values = np.concatenate(wide)
    finite = values[np.isfinite(values)]
    nans = int(np.isnan(values).sum())
    assert (row.nans, row.infs) == (nans, values.size - finite.size - nans)
    if not finite.size:
        assert row.mean is None and row.std is None
        return
    largest = max(np.abs(finite))
    assert row.mean == pytest.approx(largest * np.mean(finite / largest), rel=1e-5)
    assert row.std == pytest.approx(largest * np.std(finite / largest), rel=1e-5)


@pytest.mark.parametrize("name", VALUES)
def test_stats_agree_with_numpy(name: str) -> None:
    check_stats(tk.tree_summary({"x": VALUES[name]}, stats=True).rows[0], VALUES[name])


def test_stats_of_a_subtree_are_those_of_all_its_numbers() -> None:
    parts = [x for name, x in VALUES.items() if name not in ("numpy f64", "f32 whose sum overflows", "complex")]
    found = tk.tree_summary({"parts": parts, "name": "x"}, depth=1, stats=True)
    for row in (found.rows[1], found.total):
        check_stats(row, *parts)
    assert found.rows[0].nans is None


def test_values_that_are_not_known_have_no_stats() -> None:
    shape = untyped.ShapeDtypeStruct((2,), jnp.float32)
    tree = {"shape": shape, "gone": deleted(), "key": jax.random.key(0), "known": jnp.ones(2)}
    rows = {row.name: row for row in tk.tree_summary(tree, stats=True).rows}
    assert [name for name, row in rows.items() if row.nans is not None] == ["known"]
    assert rows["gone"].type.endswith("(deleted)")
    assert str(tk.tree_summary({"shape": shape}, stats=True)).endswith("1 leaf, 2 numbers, 8 bytes")


def test_traced_leaves_have_shapes_and_constants_have_values() -> None:
    constant = jnp.array([1.0, 3.0])
    rows: list[Any] = []
    jax.jit(lambda x: rows.extend(tk.tree_summary({"c": constant, "x": x}, stats=True).rows))(jnp.ones(3))
    assert [(row.shape, row.mean) for row in rows] == [((2,), 2.0), ((3,), None)]


# ------------------------------------------------------------------------------------------------------- text and HTML


def test_text_has_columns_for_what_there_is() -> None:
    tree = {"w": jnp.array([1.0, jnp.nan], jnp.float32)}
    assert str(tk.tree_summary(tree)).splitlines()[0].split() == ["name", "type", "numbers", "bytes"]
    text = str(tk.tree_summary(tree, stats=True))
    assert re.search(r"w +f32\[2\] +2 +8 +1 +0 +1 +0\n", text) and text.endswith("; mean 1, std 0, NaNs 1, infs 0")


def test_html_is_escaped_and_marks_subtrees() -> None:
    page = tk.tree_summary({"<b>": {"w": jnp.ones(2)}, "f": lambda: 0})._repr_html_()
    assert "&lt;b&gt;.w" in page and "<b>" not in page and "&lt;function" in page
    assert len(re.findall("<tr><th", page)) == 2 and page.count("<tr>") == 4


def test_long_tables_are_cut() -> None:
    found = tk.tree_summary([1.0] * 600)
    assert len(found.rows) == 600
    assert "… and 100 more rows: pass depth=1, or read .rows" in str(found)
    assert "100 more rows" in found._repr_html_()
