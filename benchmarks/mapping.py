"""dtype_preserving_tree_map compared with jax.tree.map.

Run `python -m benchmarks.mapping` (QUICK=1 for a short look).
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import treekit as tk
from benchmarks._page import Chart, Section, show
from benchmarks._timing import QUICK, measure
from treekit._base.jax import untyped

SIZES = (10, 100, 1_000) if QUICK else (10, 100, 1_000, 10_000)
SHOWN = 100  # leaves of the tree in the table
MAPS: dict[str, Callable[..., Any]] = {
    "treekit": tk.dtype_preserving_tree_map,
    "jax.tree.map": jax.tree.map,
    "jax.tree.map, and a cast in f": lambda f, tree: jax.tree.map(lambda x: f(x).astype(x.dtype), tree),
}


def tree(leaves: int) -> list[jax.Array]:
    return [jnp.ones(8, jnp.bfloat16)] * leaves


def identity(leaves: int, tree_map: Callable[..., Any]) -> Callable[[], object]:
    xs = tree(leaves)
    return lambda: tree_map(lambda x: x, xs)


def widening(leaves: int, tree_map: Callable[..., Any]) -> Callable[[], object]:
    """Results in f32 for leaves in bf16, one operation each."""
    xs, factor = tree(leaves), jnp.float32(2)
    return lambda: untyped.block_until_ready(tree_map(lambda x: x * factor, xs))


def tracing(leaves: int, tree_map: Callable[..., Any]) -> Callable[[], object]:
    """The same, traced."""
    xs, factor = tree(leaves), jnp.float32(2)
    return lambda: jax.make_jaxpr(lambda xs: tree_map(lambda x: x * factor, xs))(xs)


def compiled(leaves: int, tree_map: Callable[..., Any]) -> Callable[[], object]:
    """The same, jitted."""
    xs, factor = tree(leaves), jnp.float32(2)
    jitted = jax.jit(lambda xs: tree_map(lambda x: x * factor, xs))
    return lambda: untyped.block_until_ready(jitted(xs))


OPERATIONS = {
    "f gives the leaf": identity,
    "f gives f32 for bf16": widening,
    "that, traced": tracing,
    "that, jitted": compiled,
}


def sections() -> Iterator[Section]:
    table: dict[str, dict[str, object]] = {}
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for what, make in OPERATIONS.items():
        sizes = SIZES if make is identity else (SHOWN,)
        times = measure({(name, size): make(size, tree_map) for name, tree_map in MAPS.items() for size in sizes})
        table[what] = {name: times.ratio((name, SHOWN), ("treekit", SHOWN)) for name in MAPS if name != "treekit"}
        if len(sizes) > 1:
            panels[what] = {name: {size: 1e6 * times.median((name, size)) for size in sizes} for name in MAPS}
    text = f"A list of {SHOWN} bf16 leaves. The plain map does not preserve their dtype."
    yield Section("dtype_preserving_tree_map, against jax.tree.map", text, table, Chart("leaves", "µs", panels))


if __name__ == "__main__":
    show(sections(), "treekit-jax", "jax")
