"""to_state_dict: names and arrays for files, which graft takes back."""

import itertools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax import nnx
from hypothesis import given

import treekit as tk
from tests.releases import needs, new_ref, nnx_list
from tests.trees import Point, Twig, trees, untyped
from treekit import optax as tko

PARAMS: Any = {"layers": [{"w": jnp.full((2, 3), i, jnp.float32), "b": jnp.full(3, i + 0.5)} for i in range(12)]}
EQX: Any = eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(0))


class Net(nnx.Module):
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.layers = nnx_list([nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(2, rngs=rngs)


def opt_state(tx: Any, params: Any) -> Any:
    """A state in which no two arrays are equal."""
    number = itertools.count(1)
    return jax.tree.map(lambda x: x + jnp.asarray(next(number), x.dtype), tx.init(params))


SCHEDULE = optax.linear_schedule(0.1, 0.0, 100)
MASK = tk.path_mask("**.w")
TREES: dict[str, Any] = {
    "params": PARAMS,
    "a node": Twig(Point(jnp.ones(2), np.arange(6.0, dtype=np.float32).reshape(2, 3).T)),
    "Equinox": EQX,
    "Equinox with a state": eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="batch"),
    "NNX": nnx.state(Net(0)),
    "a model of NNX": Net(0),
    "adam": opt_state(optax.adamw(SCHEDULE), PARAMS),
    "noise": tko.noisy_sgd(0.1, 0.1, 0.1, key=jax.random.key(0)).init(PARAMS),  # it has a key
    "model and state": {"model": EQX, "state": opt_state(tko.adam(0.1), EQX), "step": jnp.int32(3)},
    "two": {name: (opt_state(tko.adam(0.1), EQX), {"w": jnp.ones(2)}) for name in ("gen", "critic")},
}


def through_npz(arrays: dict[str, Any], path: Path) -> Any:
    np.savez(path.with_suffix(".npz"), **arrays)
    return np.load(path.with_suffix(".npz"))


def through_safetensors(arrays: dict[str, Any], path: Path) -> Any:
    safetensors.numpy.save_file(arrays, path)
    return safetensors.numpy.load_file(path)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("through", [through_npz, through_safetensors])
def test_graft_takes_it_back(name: str, through: Any, tmp_path: Path) -> None:
    tree = TREES[name]
    new = jax.tree.map(lambda x: 0 * x if tk.is_array(x) and jnp.issubdtype(x.dtype, jnp.number) else x, tree)
    got, report = tk.graft(new, through(tk.to_state_dict(tree), tmp_path / "file"))
    assert untyped.tree.structure(got) == untyped.tree.structure(tree)
    saved, loaded = tk.to_state_dict(tree), tk.to_state_dict(got)
    assert list(saved) == list(loaded) and len(report.kept) == len(saved)
    for x, y in zip(saved.values(), loaded.values(), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@given(trees())
def test_it_has_the_arrays_of_any_tree_in_order(tree: Any) -> None:
    leaves = filter(tk.is_array, jax.tree.leaves(tree))
    arrays = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool]
    found = tk.to_state_dict(tree)
    assert len(found) == len(arrays) and all(isinstance(x, np.ndarray) for x in found.values())
    for x, y in zip(found.values(), arrays, strict=True):
        np.testing.assert_array_equal(x, y)


def test_names_are_those_of_patterns() -> None:
    names = list(tk.to_state_dict(TREES["adam"]))
    assert names[0] == "0.count" and "0.mu.layers.11.b" in names
    assert list(tk.to_state_dict(PARAMS)) == [f"layers.{i}.{x}" for i in range(12) for x in "bw"]
    assert "norm.mean" in tk.to_state_dict(Net(0)) and list(tk.to_state_dict(jnp.ones(2))) == [""]


@pytest.mark.parametrize("last", [[jax.nn.relu], [None], [0.5], [{"f": jax.nn.relu, "n": None}]])
def test_a_list_that_does_not_end_in_an_array_has_its_length(last: Any) -> None:
    """No warning that the file has fewer entries; warnings are errors here. A list with fewer arrays still warns."""
    tree = {"layers": [{"w": jnp.ones(2)}, jax.nn.relu, {"w": jnp.ones(3)}, *last]}
    got, _ = tk.graft(tree, tk.to_state_dict(tree))
    assert untyped.tree.structure(got) == untyped.tree.structure(tree)
    back, _ = tk.graft(tk.to_state_dict(tree), tree, strict=False)
    assert list(back) == ["layers.0.w", "layers.2.w"]
    with pytest.warns(UserWarning, match=r"lengths of lists differ: layers \(new 3, old 1\)"):
        tk.graft(tree, {"layers.0.w": jnp.ones(2)}, strict=False)


def test_what_files_do_not_have_is_left_out() -> None:
    tree = {"f": jax.nn.relu, "k": jax.random.key(0), "n": 1, "none": None, "p": 0.5, "s": "x", "w": jnp.ones(2)}
    assert list(tk.to_state_dict(tree)) == ["w"]
    got, report = tk.graft(tree, tk.to_state_dict(tree))
    assert [row.path for row in report.fresh] == ["k", "n", "p"] and got["p"] == 0.5


@needs("jax.new_ref")
def test_a_reference_is_the_array_that_it_refers_to() -> None:
    tree: dict[str, Any] = {"r": new_ref(jnp.arange(3.0)), "w": jnp.ones(2)}
    for old in (tree, tk.to_state_dict(tree)):
        news: list[Any] = [{"r": x, "w": jnp.zeros(2)} for x in (jnp.zeros(3), new_ref(jnp.zeros(3)))]
        for new in news:
            got, report = tk.graft(new, old)
            assert type(got["r"]) is type(new["r"]) and len(report.kept) == 2
            np.testing.assert_array_equal(got["r"][...], np.arange(3.0))
            assert not new["r"][...].any()


def test_values_must_not_be_traced() -> None:
    with pytest.raises(TypeError, match=r"to_state_dict needs values, but a\.w is traced: call it outside of jit"):
        jax.jit(lambda x: tk.to_state_dict({"a": {"w": x}}))(jnp.ones(2))


def test_every_array_is_in_the_order_of_c() -> None:
    x = np.arange(6.0).reshape(2, 3)
    found = tk.to_state_dict({"a": x.T, "b": jnp.asarray(x).T, "bf16": jnp.ones((2, 3), jnp.bfloat16).T})
    assert all(y.flags.c_contiguous for y in found.values())


def test_shapes_and_dtypes() -> None:
    shapes = jax.eval_shape(lambda: {"a": jnp.ones(2)})
    assert tk.to_state_dict(shapes) == shapes


def test_two_arrays_of_one_name() -> None:
    with pytest.raises(ValueError, match=r"a different name for each array, but two arrays are called a\.b\. Rename"):
        tk.to_state_dict({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)})
