"""graft as a loader: state dicts of PyTorch and others, with names, layouts and layers of their own."""

import os
import re
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

import treekit as tk
from tests.saved import Tensor, same, zeroed
from treekit.testing import assert_trees_same

unflatten_dict: Any = traverse_util.unflatten_dict  # has no types
RNG = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def nested(names: dict[str, Any]) -> Any:
    """Nested dicts with the arrays of a flat dict."""
    return unflatten_dict(names, sep=".")


# -------------------------------------------------------------------------------------------------- convert and rename


W, SQUARE, B = array(2, 3), array(3, 3), array(3)
# The old arrays, arguments, and what the new leaves get.
CONVERTED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "new names, and the first pattern decides": (
        {"x": W, "z": B},
        {"rename": {"x": "y"}, "convert": {"y": jnp.transpose, "**": jnp.negative}},
        {"y": W.T, "z": -B},
    ),
    "before resize": (
        {"w": W},
        {"convert": {re.compile("w|v"): jnp.transpose}, "resize": lambda new, old: jnp.pad(old, ((0, 1), (0, 0)))},
        {"w": np.pad(W.T, ((0, 1), (0, 0)))},
    ),
    "patterns of targets": ({"x.w": W}, {"rename": {"x.**": ("a.**", "b.**")}}, {"a.w": W, "b.w": W}),
    "no target": ({"w": W, "a.b": B, "a.c": B}, {"rename": {"a.*": None}}, {"w": W}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_convert_and_rename(name: str) -> None:
    old, arguments, expected = CONVERTED[name]
    new = {name: jnp.zeros(x.shape) for name, x in expected.items()}
    for each in (new, nested(new)):
        got, report = tk.graft(each, old, **arguments)
        assert not report.fresh and not report.missing and len(report.kept) == len(new)
        traced = jax.jit(lambda old, each=each: tk.graft(each, old, **arguments)[0])(old)
        for tree in (got, traced):
            for (_, want), x in zip(sorted(expected.items()), jax.tree.leaves(tree), strict=True):
                same(x, want)


def test_what_convert_returns_is_cast_or_refused() -> None:
    new = {"w": jnp.zeros((3, 2), jnp.bfloat16), "n": jnp.zeros(3), "v": jnp.zeros(1)}
    old = {"w": W, "n": B, "v": B[:1]}
    convert: Any = {"w": np.transpose, "n": lambda x: x.astype(np.int16), "v": lambda x: x[None]}
    got, report = tk.graft(new, old, convert=convert, cast=True, strict=False)
    same(got["w"], W.T.astype(jnp.bfloat16))
    assert [row.path for row in report.refused] == ["v"]


def test_a_target_that_is_missing_is_reported_or_an_error() -> None:
    old, new = {"wte.weight": array(5, 2)}, {"embed.weight": jnp.zeros((5, 2))}
    rename = {"wte.weight": ["embed.weight", "haed.weight"]}
    _, report = tk.graft(new, old, rename=rename, strict=False)
    assert report.dropped == () and [row.path for row in report.missing] == ["haed.weight"]
    assert re.search(r"haed.weight +missing", str(report))
    with pytest.raises(ValueError, match=r"haed\.weight"):
        tk.graft(new, old, rename=rename)
    # A pattern may have targets that lack some of the leaves.
    _, report = tk.graft({"a.w": 0, "a.b": 0, "c.w": 0}, {"t.w": 1, "t.b": 1}, rename={"t.**": ["a.**", "c.**"]})
    assert [row.path for row in report.missing] == ["c.b"] and len(report.kept) == 3


# ------------------------------------------------------------------------------------------------------------- stacking


LAYERS = {f"layers.{i}.{name}": array(*shape) for i in range(12) for name, shape in {"w": (2, 3), "n.b": (3,)}.items()}
STACKED = {f"layers.{name}": np.stack([LAYERS[f"layers.{i}.{name}"] for i in range(12)]) for name in ("w", "n.b")}
STACK = {"layers.*.**": "layers.**"}
UNSTACK = {"layers.**": "layers.*.**"}


def test_stacking_and_unstacking_in_the_order_of_integers() -> None:
    """`convert` runs on each array before stacking, and on each part after unstacking."""
    turned = {name: x.T for name, x in sorted(LAYERS.items())}  # 0, 1, 10, 11, 2
    old = {name: x.astype(">f4") for name, x in turned.items()}  # the other byte order, which JAX does not take
    convert = {"**.w": jnp.transpose}
    got, report = tk.graft(nested(zeroed(STACKED)), old, rename=STACK, convert=convert)
    assert_trees_same(got, nested(STACKED))
    assert "| 12 stacked f32[3,2](numpy) at layers.*.w, converted" in " ".join(str(report).split())
    back, report = tk.graft(nested(zeroed(turned)), STACKED, rename=UNSTACK, convert=convert)
    assert_trees_same(back, nested(turned))
    assert "| entry 3 of f32[12,2,3](numpy) at layers.w, converted" in " ".join(str(report).split())


SHARDED = """
import jax, jax.numpy as jnp, treekit as tk
from jax.sharding import AxisType, NamedSharding, PartitionSpec
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
w = jax.device_put(jnp.arange(4.0).reshape(2, 2), NamedSharding(mesh, PartitionSpec("x")))
got, _ = tk.graft({"layers": [{"w": jnp.zeros(2)}] * 2}, {"layers.w": w}, rename={"layers.**": "layers.*.**"})
assert [x["w"].tolist() for x in got["layers"]] == w.tolist()
"""


def test_layers_that_are_sharded_on_an_explicit_axis_are_unstacked() -> None:
    """In a process of its own, which has two devices. JAX takes no entry out of such an axis."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    run = subprocess.run(
        [sys.executable, "-c", SHARDED], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("old", "fact"),
    [
        ({x: LAYERS[x] for x in LAYERS if ".4." not in x}, "without 4"),
        (LAYERS | {"layers.3.w": array(3, 3)}, "f32[3,3]"),
        (LAYERS | {"layers.1000000000.w": array(2, 3)}, "without 12, 13, 14, 15, 16"),
        # NumPy's wide numbers among layers of JAX are not wrapped.
        ({f"layers.{i}.w": np.full((2, 3), 1e300) if i else jnp.ones((2, 3)) for i in range(12)}, "f64[2,3]"),
        # Fewer entries than the new tree has layers, and more.
        ({"layers.w": STACKED["layers.w"][1:]}, "f32[11,2,3]"),
        ({"layers.w": np.ones((13, 2, 3), np.float32)}, "f32[13,2,3]"),
    ],
)
def test_layers_that_cannot_be_stacked_or_unstacked_are_refused_and_named(old: Any, fact: str) -> None:
    stacks = "layers.w" not in old
    new = zeroed(STACKED if stacks else LAYERS) | {"x": jnp.zeros(1)}
    got, report = tk.graft(new, old | {"x": array(1)}, rename=STACK if stacks else UNSTACK, strict=False)
    refused = ["layers.w"] if stacks else [f"layers.{i}.w" for i in range(12)]
    assert set(refused) <= {row.path for row in report.refused}
    assert any(fact in row.old for row in report.refused)
    assert not any(got[name].any() for name in refused) and got["x"].any()


def test_what_is_not_a_layer_is_renamed_before_the_layers_and_no_two_have_one_index() -> None:
    old, new = LAYERS | {"layers.norm.w": array(2, 3)}, zeroed(STACKED | {"norm.w": array(2, 3)})
    got, _ = tk.graft(new, old, rename={"layers.norm.**": "norm.**"} | STACK)
    same(got["norm.w"], old["layers.norm.w"])
    with pytest.raises(ValueError, match=r"layers\.1\.w and layers\.01\.w"):
        tk.graft(zeroed(STACKED), LAYERS | {"layers.01.w": array(2, 3)}, rename=STACK)


def test_a_stack_is_made_by_one_rule() -> None:
    old = {"a.0": jnp.ones(2), "b.1": jnp.ones(2)}
    for rename in ({"a.*": "s", "b.*": "s"}, {"b.*": "s", "a.*": "s"}):
        with pytest.raises(ValueError, match=r"b\.1 and a\.0"):
            tk.graft({"s": jnp.zeros((2, 2))}, old, rename=rename)


# ------------------------------------------------------------------------------------------------- what may be loaded


def test_tensors_in_mappings_that_are_no_pytrees() -> None:
    """As an h5py file has them, one in another."""
    files = MappingProxyType({"a": MappingProxyType({"w": Tensor(W)}), "b": [MappingProxyType({"w": Tensor(B)})]})
    new: Any = {"a": {"w": jnp.zeros((2, 3))}, "b": [{"w": jnp.zeros(3)}]}
    got, _ = tk.graft(new, files)
    assert isinstance(got["a"]["w"], jax.Array)
    assert_trees_same(jax.tree.map(np.asarray, got), {"a": {"w": W}, "b": [{"w": B}]})


def test_one_value_for_two_leaves_is_two_arrays() -> None:
    new: dict[str, Any] = {"embed": jnp.zeros(5), "head": jnp.zeros(5)}
    committed = jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), new)
    for target in (new, committed):
        tree, _ = tk.graft(target, {"wte": jnp.ones(5)}, rename={"wte": ["embed", "head"]})
        assert tree["embed"] is not tree["head"]
        jax.jit(lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0)(tree)
