"""Functions of trees: tree_at and filters compared with Equinox's, dtype_preserving_tree_map with jax.tree.map.

Run `python -m benchmarks.trees` (QUICK=1 for a short look).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import treekit as tk
from benchmarks._timing import QUICK, Section, compare, show
from treekit._base.jax import untyped

LEAVES = 400 if QUICK else 4_000  # of the trees
LISTED = 100  # of the list that is mapped over
FIELDS = ("weight", "bias", "scale", "shift", "activation")
X = jnp.zeros(())

Calls = dict[str, Callable[[], object]]  # by library


class Layer(eqx.Module):
    """Five leaves, one of them a function, and a static field."""

    weight: Any
    bias: Any
    scale: Any
    shift: Any
    activation: Any
    name: str = eqx.field(static=True)


@tk.node
class Dense:
    """The same as a node of treekit's."""

    weight: Any
    bias: Any
    scale: Any
    shift: Any
    activation: Any
    name: str = tk.field(static=True)


LAYERS: dict[str, Callable[[], Any]] = {
    "Equinox modules": lambda: Layer(X, X, X, X, jax.nn.relu, "layer"),
    "treekit nodes": lambda: Dense(X, X, X, X, jax.nn.relu, "layer"),
    "dicts": lambda: dict.fromkeys(FIELDS, X),
}


def trees(leaves: int = LEAVES) -> dict[str, Any]:
    """A list of layers of each kind."""
    return {kind: [layer() for _ in range(leaves // len(FIELDS))] for kind, layer in LAYERS.items()}


def replacing(tree: Any) -> dict[str, Calls]:
    """`tree_at`, by what is replaced and by library, on a list of layers."""
    middle = len(tree) // 2

    def get(layer: Any, name: str) -> Any:
        return layer[name] if isinstance(layer, dict) else getattr(layer, name)

    made: dict[str, Callable[[Any], Any]] = {
        "a leaf": lambda lib: lib.tree_at(lambda t: get(t[middle], "weight"), tree, 0),
        "two leaves": lambda lib: lib.tree_at(lambda t: (get(t[middle], "weight"), get(t[0], "bias")), tree, (0, 1)),
        "a layer": lambda lib: lib.tree_at(lambda t: t[middle], tree, 0),
        "a fifth of all": lambda lib: lib.tree_at(
            lambda t: [get(layer, "weight") for layer in t], tree, replace_fn=lambda x: x
        ),
    }
    return {what: {"treekit": partial(f, tk), "Equinox": partial(f, eqx)} for what, f in made.items()}


def filtering(tree: Any) -> dict[str, Calls]:
    """By verb and library."""
    left, right = tk.partition(tree)
    return {
        "partition": {"treekit": lambda: tk.partition(tree), "Equinox": lambda: eqx.partition(tree, eqx.is_array)},
        "filter_arrays": {"treekit": lambda: tk.filter_arrays(tree), "Equinox": lambda: eqx.filter(tree, eqx.is_array)},
        "combine": {"treekit": lambda: tk.combine(left, right), "Equinox": lambda: eqx.combine(left, right)},
    }


# On a list of arrays in bf16. A factor in f32 makes results in f32.
Map = Callable[..., Any]
MAPS: dict[str, Map] = {
    "treekit": tk.dtype_preserving_tree_map,
    "jax.tree.map": jax.tree.map,
    "jax.tree.map, and a cast in f": lambda f, tree: jax.tree.map(lambda x: f(x).astype(x.dtype), tree),
}


def mapping(tree_map: Map) -> Calls:
    """By what is done."""
    xs, factor = [jnp.ones(8, jnp.bfloat16)] * LISTED, jnp.float32(2)

    def widen(xs: Any) -> Any:
        return tree_map(lambda x: x * factor, xs)

    jitted = jax.jit(widen)
    return {
        "f gives the leaf": lambda: tree_map(lambda x: x, xs),
        "f gives f32 for bf16": lambda: untyped.block_until_ready(widen(xs)),
        "that, traced": lambda: jax.make_jaxpr(lambda xs: widen(xs))(xs),  # a new f: JAX keeps what it has traced
        "that, jitted": lambda: untyped.block_until_ready(jitted(xs)),
    }


def sections() -> Iterator[Section]:
    calls = {name: mapping(tree_map) for name, tree_map in MAPS.items()}
    table = {what: compare({name: calls[name][what] for name in calls}, ours="treekit") for what in calls["treekit"]}
    text = f"A list of {LISTED} bf16 leaves. The plain map does not preserve their dtype."
    yield Section("dtype_preserving_tree_map, against jax.tree.map", text, table)

    text = f"On trees of {LEAVES:,} leaves: treekit's time divided by Equinox's."
    for title, make in (("Filtering", filtering), ("tree_at", replacing)):
        columns: dict[str, dict[str, object]] = {}
        for kind, tree in trees().items():
            each = make(tree)
            columns[kind] = {what: compare(libraries, ours="treekit")["Equinox"] for what, libraries in each.items()}
        yield Section(f"{title}, against Equinox", text, columns)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "equinox", "jax")
