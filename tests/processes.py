"""What treekit does with arrays that span several processes, in a program that each of them runs.

    python -m tests.processes 127.0.0.1:1234 2 0 FOLDER     the first of two processes, with a folder for both

Each process has two virtual devices. It prints a line of JSON for each check: its name, what went wrong ("" if nothing
did), and an answer, which has to be the same in all processes. `test_processes.py` starts the processes.
"""

import importlib
import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

import treekit as tk
from tests.releases import P
from treekit import optax as tko
from treekit import training

ShapeDtypeStruct: Any = jax.ShapeDtypeStruct
PARAMS = {
    "w": np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16),
    "b": np.linspace(1, 2, 16, dtype=np.float32),
}
GRADS = {"w": np.sin(PARAMS["w"] * 9), "b": np.cos(PARAMS["b"] * 9)}
SPECS = {"w": P("data", "model"), "b": P(("data", "model"))}
# XLA's threads on a CPU, by default as many as cores. In several processes, each program that waits for the others
# holds one; on two cores, small programs that follow each other can take all and wait forever, with plain Optax too.
THREADS = "16"
LAYERS = {"layers": [PARAMS, GRADS]}


class Place:
    """A mesh over all devices, of which the first axis has a place for each process."""

    def __init__(self, kind: AxisType = AxisType.Auto, names: tuple[str, str] = ("data", "model")) -> None:
        self.mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), names, axis_types=(kind, kind))

    def sharding(self, spec: Any) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def put(self, x: Any, spec: Any) -> jax.Array:
        """Put an array on all devices; each process makes its own part."""
        values = np.asarray(x)
        return jax.make_array_from_callback(values.shape, self.sharding(spec), lambda index: values[index])

    def tree(self, tree: Any) -> Any:
        """The same of each array, which is sharded as a weight or a bias."""
        return jax.tree.map(lambda x: self.put(x, SPECS["w" if x.ndim == 2 else "b"]), tree)


def check_same(tree: Any, want: Any) -> None:
    """Compare the shards of this process with whole arrays."""
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(want), strict=True):
        for shard in x.addressable_shards:
            np.testing.assert_allclose(shard.data, np.asarray(y)[shard.index], rtol=2e-6, atol=2e-6)


def check_sharded(tree: Any, like: Any) -> None:
    """There is an array of the shape of a param, and each is sharded as the param."""
    shardings = {x.shape: x.sharding for x in jax.tree.leaves(like)}
    found = [(path, x) for path, x in jax.tree_util.tree_leaves_with_path(tree) if x.shape in shardings]
    assert found
    for path, x in found:
        assert not x.is_fully_replicated, jax.tree_util.keystr(path)
        assert x.sharding.is_equivalent_to(shardings[x.shape], x.ndim), (jax.tree_util.keystr(path), x.sharding)


def train(tx: Any, place: Place | None) -> tuple[Any, Any]:
    """Take three steps from a jitted init, on all devices, or with whole arrays in this process."""
    params, grads = (place.tree(tree) if place else jax.tree.map(jnp.asarray, tree) for tree in (PARAMS, GRADS))
    state = jax.jit(tx.init)(params)
    step = jax.jit(lambda grads, state, params: training.apply_gradients(tx, grads, state, params))
    for _ in range(3):
        params, state = step(grads, state, params)
    return params, state


def eager(place: Place) -> None:
    """Without jit, in which counts and flags are on one device of each process."""
    inner = tko.chain(tko.clip_by_global_norm(1.0), tko.adamw(0.1))
    tx = tko.apply_if_finite(tko.MultiSteps(inner, 2).gradient_transformation(), 2)
    (params, grads), whole = map(place.tree, (PARAMS, GRADS)), train(tx, None)[0]
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(grads, state, params)
        params = tko.apply_updates(params, updates)
    check_same(params, whole)
    check_sharded(state, params)


def summary(place: Place) -> str:
    tx = tko.chain(tko.clip_by_global_norm(1.0), tko.adamw(0.1, mask={"w": True, "b": False}))
    text = str(training.summary(tx, place.tree(PARAMS)))
    assert text == str(training.summary(tx, PARAMS))
    return text


def graft_states(place: Place) -> str:
    """The moments of another optimizer, and params in another order of layers."""
    old = train(tko.adam(0.1), place)[1]
    params = place.tree({**PARAMS, "head": PARAMS["w"]})
    grafted, report = tk.graft(tko.chain(tko.clip(1.0), tko.adamw(0.1)).init(params), old, fresh="**.head")
    moments: Any = tko.tree.get(grafted, "mu")
    check_same({"w": moments["w"], "b": moments["b"]}, tko.tree.get(train(tko.adam(0.1), None)[1], "mu"))
    check_sharded(grafted, params)
    return str(report)


def stack_rows(place: Place) -> None:
    """Layers are stacked and unstacked while they are grafted."""
    stacked = {"layers": {"w": place.put(np.zeros((2, 8, 16), np.float32), P(None, "data", "model"))}}
    layers = place.tree({"layers": [{"w": PARAMS["w"]}, {"w": GRADS["w"]}]})
    one, _ = tk.graft(stacked, layers, rename={"layers.*.**": "layers.**"})
    check_same(one, {"layers": {"w": np.stack([PARAMS["w"], GRADS["w"]])}})
    two, _ = tk.graft(layers, one, rename={"layers.**": "layers.*.**"})
    check_same(two, {"layers": [{"w": PARAMS["w"]}, {"w": GRADS["w"]}]})


def orbax(place: Place) -> None:
    """A trained state is saved, and restored onto another mesh."""
    checkpoint: Any = importlib.import_module("orbax.checkpoint")  # has no types
    tx, folder = tko.MultiSteps(tko.adamw(0.1), 2).gradient_transformation(), Path(sys.argv[4]) / "state"
    params, state = train(tx, place)
    check_same((params, state), train(tx, None))
    target = Place(names=("model", "data")).tree(PARAMS)
    shardings = jax.jit(tx.init).lower(target).compile().output_shardings
    shapes = jax.tree.map(lambda x, s: ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(folder, shapes)
    check_sharded(state, params)
    check_sharded(restored, target)
    check_same((restored,), (train(tx, None)[1],))
    assert {d.kind for d in tk.tree_diff(state, restored, values=False)} == {"sharding"}


def differ(place: Place) -> str:
    """Arrays of which a process has only parts are compared without their values, and the difference says so."""
    a, again, other = (place.tree(tree) for tree in (PARAMS, PARAMS, GRADS))
    assert not tk.tree_diff(a, dict(a)) and not tk.tree_diff(a, again, values=False)
    diff = tk.tree_diff(a, again)
    assert [(d.path, d.kind, d.largest_absolute) for d in diff] == [("b", "value", None), ("w", "value", None)]
    assert "spans processes" in diff[0].left and "spans processes" in diff[0].right
    assert str(tk.tree_diff(a, other)) == str(diff)
    on_host, half = tk.tree_diff(a["w"], PARAMS["w"]), jax.tree.map(lambda x: x.astype(jnp.bfloat16), a)
    assert [(d.kind, d.right) for d in on_host] == [("value", "f32[8,16](numpy)")]
    assert {d.kind for d in tk.tree_diff(a, half)} == {"dtype"}
    moved = place.put(PARAMS["w"], P("model", "data"))
    assert [d.kind for d in tk.tree_diff(a["w"], moved)] == ["sharding", "value"]
    return str(diff)


def differ_here(place: Place) -> list[str]:
    """Arrays that are whole in this process, sharded over its devices or replicated over all, are compared in full."""
    tree = {**PARAMS, "n": np.arange(16), "k": np.arange(8 * 16).reshape(8, 16) % 2 == 0, "c": GRADS["w"] * 1j}
    tree |= {"h": PARAMS["w"].astype(jnp.bfloat16), "e": np.zeros((0, 16), np.float32)}
    other = {name: np.array(x) for name, x in tree.items()}
    for x in (other["w"], other["h"], other["c"]):
        x[-1, -1] += 1
    other["b"][-2:] = np.nan, np.inf
    other["n"][-1] = -5
    other["k"][-1, -1] ^= True
    here = Mesh(np.array(jax.local_devices()), "x", axis_types=(AxisType.Auto,))
    diffs = []
    for sharding in (NamedSharding(here, P("x")), place.sharding(P())):
        a, again, b = (
            {name: jax.make_array_from_callback(x.shape, sharding, x.__getitem__) for name, x in values.items()}
            for values in (tree, tree, other)
        )
        assert not tk.tree_diff(a, again) and not tk.tree_diff(a, tree)
        assert not tk.tree_diff(a["w"], b["w"], atol=1.0)
        diffs.append(tk.tree_diff(a, b))
    assert rows(diffs[0]) == rows(diffs[1]) == rows(tk.tree_diff(tree, other))
    return list(map(str, diffs))


def rows(diff: Any) -> list[Any]:
    return [(d.path, d.left, d.right, d.largest_absolute, d.largest_relative) for d in diff if d.kind == "value"]


def no_array_is_gathered(place: Place) -> None:
    """To measure for a summary, devices exchange single numbers."""
    from treekit.training._effects import _sizes_on_device

    x: Any = place.put(np.ones((64, 32), np.float32), SPECS["w"])
    exchanged = re.findall(
        r" = (\S+|\(.*?\)) (?:all-|collective-|reduce-scatter)", _sizes_on_device.lower(x, x).compile().as_text()
    )
    assert exchanged and not any(re.search(r"\[\d", shape) for shape in exchanged), exchanged


def stacking(place: Place) -> None:
    trees = [place.tree(PARAMS), place.tree(GRADS)]
    stacked = tk.tree_stack(trees)
    check_same(stacked, tk.tree_stack([PARAMS, GRADS]))
    for name, x in stacked.items():
        assert x.sharding.is_equivalent_to(place.sharding(P(None, *SPECS[name])), x.ndim), (name, x.sharding)
    for got, want in zip(tk.tree_unstack(stacked), (PARAMS, GRADS), strict=True):
        check_same(got, want)
        check_sharded(got, trees[0])
    for kind in (AxisType.Auto, AxisType.Explicit):
        members = tk.tree_unstack(Place(kind).put(PARAMS["w"], P("data", "model")))  # sharded along the first axis too
        for row, want in zip(members, PARAMS["w"], strict=True):
            check_same(row, want)
            assert row.sharding.is_equivalent_to(Place(kind).sharding(P("model")), 1)
    flat, unravel = tk.tree_ravel(trees[0])
    check_same([flat, unravel(flat)], [tk.tree_ravel(PARAMS)[0], PARAMS])


def state_dict(place: Place) -> list[str]:
    """Arrays that span processes stay where they are."""
    params = place.tree(LAYERS)
    found = tk.to_state_dict(params)
    check_same(found, {f"layers.{i}.{name}": x[name] for i, x in enumerate(LAYERS["layers"]) for name in ("b", "w")})
    assert all(isinstance(x, jax.Array) for x in found.values())
    check_same(tk.graft(params, found)[0], LAYERS)
    return list(found)


def table(place: Place) -> str:
    values = {**PARAMS, "n": np.array([1, np.nan, np.inf, 3] * 4, np.float32)}
    text = str(tk.tree_summary(place.tree(values), stats=True))
    assert "nan" in text.lower()
    return text


FUNCTIONS = [eager, summary, graft_states, stack_rows, orbax, differ, differ_here, no_array_is_gathered]
FUNCTIONS += [stacking, state_dict, table]
CHECKS: dict[str, Callable[[Place], object]] = {check.__name__: check for check in FUNCTIONS}


def main() -> None:
    address, count, process, _ = sys.argv[1:]
    jax.distributed.initialize(address, int(count), int(process))
    assert jax.process_count() == int(count) and jax.device_count() == 2 * int(count)
    place = Place()
    for name, check in CHECKS.items():
        error, answer = "", None
        try:
            answer = check(place)
        except Exception:
            error = traceback.format_exc()
        print(json.dumps([name, error, answer]), flush=True)


if __name__ == "__main__":
    main()
