"""to_state_dict, and other ways through a file: graft takes back what comes out."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from hypothesis import given

import treekit as tk
from tests.optax import old_states
from tests.releases import needs, new_ref
from tests.saved import Tensor, numbered, same, through_orbax, zeroed
from tests.trees import Point, Twig, trees, untyped
from treekit import optax as tko

serialization: Any = flax.serialization

PARAMS: Any = {"layers": [{"w": jnp.full((2, 3), i, jnp.float32), "b": jnp.full(3, i + 0.5)} for i in range(12)]}
NORM = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
EQX: Any = eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(0))
TREES: dict[str, Any] = {
    "params": PARAMS,
    "a node": Twig(Point(jnp.ones(2), jnp.ones((3, 2)))),
    "Equinox": {"model": EQX, "state": tko.adam(0.1).init(EQX), "step": jnp.int32(3)},
    "Equinox with a state": eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="batch"),
    "NNX": {"model": nnx.state(NORM), "state": nnx.Optimizer(NORM, tko.adam(0.1), wrt=nnx.Param).opt_state},
    "a model of NNX": NORM,
    "states": {name: old_states.start(name)[2] for name in ("accumulated", "groups", "line search")},
    "a named chain": tko.named_chain(("clip", tko.clip(1.0)), ("adam", tko.adam(0.1))).init(PARAMS),
    "a key": tko.noisy_sgd(0.1, 0.1, 0.1, key=jax.random.key(0)).init(PARAMS),
}


def through_npz(tree: Any, path: Path) -> Any:
    np.savez(path.with_suffix(".npz"), **tk.to_state_dict(tree))
    return np.load(path.with_suffix(".npz"))


def through_safetensors(tree: Any, path: Path) -> Any:
    safetensors.numpy.save_file(tk.to_state_dict(tree), path)
    return safetensors.numpy.load_file(path)


def through_flax(tree: Any, path: Path) -> Any:
    path.write_bytes(serialization.to_bytes(tree))
    return serialization.msgpack_restore(path.read_bytes())


# What Orbax restores without a target is dicts and lists, as what Flax does.
WAYS: list[tuple[str, Any]] = [(name, way) for name in TREES for way in (through_npz, through_safetensors)]
WAYS += [(name, through_orbax) for name in ("Equinox", "NNX", "states", "a named chain")]
WAYS += [(name, through_flax) for name in ("params", "states")]


@pytest.mark.parametrize(("name", "through"), WAYS)
def test_graft_takes_back_what_was_saved(name: str, through: Any, tmp_path: Path) -> None:
    tree = numbered(TREES[name])
    rename = {"**.value": "**"} if name == "NNX" and through is through_orbax else None  # variables become dicts
    got, report = tk.graft(zeroed(tree), through(tree, tmp_path / "file"), rename=rename)
    assert untyped.tree.structure(got) == untyped.tree.structure(tree)
    saved, loaded = tk.to_state_dict(tree), tk.to_state_dict(got)
    assert list(saved) == list(loaded) and len(report.kept) == len(saved)
    for x, y in zip(saved.values(), loaded.values(), strict=True):
        assert x.dtype == y.dtype
        same(x, y)


def is_number(x: Any) -> bool:
    """Whether a leaf is an array of numbers or bools."""
    return tk.is_array(x) and (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool)


@given(trees())
def test_it_has_the_arrays_of_any_tree_in_order(tree: Any) -> None:
    """And its Python numbers that are trained."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(tk.trainable(tree)), strict=True)
    arrays = [
        jnp.asarray(x) if isinstance(x, (float, complex)) else x for x, trained in pairs if trained or is_number(x)
    ]
    found = tk.to_state_dict(tree)
    assert len(found) == len(arrays) and all(isinstance(x, np.ndarray) for x in found.values())
    for x, y in zip(found.values(), arrays, strict=True):
        same(x, y)


def test_names_are_those_of_patterns() -> None:
    assert list(tk.to_state_dict(PARAMS)) == [f"layers.{i}.{x}" for i in range(12) for x in "bw"]
    assert list(tk.to_state_dict(jnp.ones(2))) == [""] and "mean" in tk.to_state_dict(NORM)


@pytest.mark.parametrize("last", [jax.nn.relu, None, 0.5, {"f": jax.nn.relu, "n": None}])
def test_a_list_that_does_not_end_in_an_array_has_its_length(last: Any) -> None:
    """No warning that the file has fewer entries; warnings are errors here."""
    tree = {"layers": [{"w": jnp.ones(2)}, jax.nn.relu, {"w": jnp.ones(3)}, last]}
    got, _ = tk.graft(tree, tk.to_state_dict(tree), strict=False)
    assert untyped.tree.structure(got) == untyped.tree.structure(tree)


def test_what_files_do_not_have_is_left_out() -> None:
    tree = {"f": jax.nn.relu, "k": jax.random.key(0), "n": 1, "none": None, "p": True, "s": "x", "w": jnp.ones(2)}
    assert list(tk.to_state_dict(tree)) == ["w"]


@needs("jax.new_ref")
def test_a_reference_is_the_array_that_it_refers_to() -> None:
    tree: dict[str, Any] = {"r": new_ref(jnp.arange(3.0)), "w": jnp.ones(2)}
    for old in (tree, tk.to_state_dict(tree)):
        news: list[Any] = [{"r": x, "w": jnp.zeros(2)} for x in (jnp.zeros(3), new_ref(jnp.zeros(3)))]
        for new in news:
            got, report = tk.graft(new, old)
            assert type(got["r"]) is type(new["r"]) and len(report.kept) == 2
            same(got["r"][...], np.arange(3.0))
            assert not new["r"][...].any()


def test_what_has_an_array_is_saved_as_that_array() -> None:
    """As tensors, and as the data sets in files that are not pytrees."""
    tree = {"a": MappingProxyType({"x": Tensor(np.ones(2))}), "s": np.array(["x"]), "t": Tensor(np.zeros(1))}
    assert list(tk.to_state_dict(tree)) == ["a.x", "t"]
    assert list(tk.to_state_dict(MappingProxyType({"w": np.ones(2)}))) == ["w"]
    same(tk.to_state_dict(tree)["a.x"], np.ones(2))


@pytest.mark.parametrize("x", [np.zeros(2, np.float32), jnp.zeros(2), Tensor(np.zeros(2, np.float32))])
def test_every_array_is_a_copy(x: Any) -> None:
    out = tk.to_state_dict({"w": x})["w"]
    out += 1
    assert not np.asarray(x).any()


def test_every_array_is_in_the_order_of_c() -> None:
    x = np.arange(6.0).reshape(2, 3)
    found = tk.to_state_dict({"a": x.T, "b": jnp.asarray(x).T, "bf16": jnp.ones((2, 3), jnp.bfloat16).T})
    assert all(y.flags.c_contiguous for y in found.values())


def test_shapes_and_dtypes() -> None:
    shapes = jax.eval_shape(lambda: {"a": jnp.ones(2)})
    assert tk.to_state_dict(shapes) == shapes
