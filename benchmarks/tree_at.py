"""tree_at compared with Equinox's.

Run `python -m benchmarks.tree_at` (QUICK=1 for a short look).
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import treekit as tk
from benchmarks._page import Chart, Section, show
from benchmarks._timing import QUICK, ROUNDS, compare, measure

SIZES = (40, 400, 4_000) if QUICK else (40, 400, 4_000, 40_000)
SHOWN = 4_000  # leaves of the trees in the table
FIELDS = ("weight", "bias", "scale", "shift")
X = jnp.zeros(())


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


def _dict() -> dict[str, Any]:
    return dict.fromkeys((*FIELDS, "activation"), X)


TREES: dict[str, Callable[[], Any]] = {
    "Equinox modules": lambda: Layer(X, X, X, X, jax.nn.relu, "layer"),
    "treekit nodes": lambda: Dense(X, X, X, X, jax.nn.relu, "layer"),
    "dicts": _dict,
}


def layers(kind: str, leaves: int) -> list[Any]:
    """A list of so many leaves in layers of five."""
    return [TREES[kind]() for _ in range(leaves // 5)]


def get(layer: Any, name: str) -> Any:
    """A field of a layer of any kind."""
    return layer[name] if isinstance(layer, dict) else getattr(layer, name)


def calls(kind: str, leaves: int) -> dict[str, dict[str, Callable[[], object]]]:
    """By what is replaced and by library, on one kind of tree."""
    tree = layers(kind, leaves)
    middle = len(tree) // 2

    def leaf(t: Any) -> Any:
        return get(t[middle], "weight")

    def two(t: Any) -> Any:
        return get(t[middle], "weight"), get(t[0], "bias")

    def all_weights(t: Any) -> Any:
        return [get(layer, "weight") for layer in t]

    made: dict[str, Callable[[Any], Callable[[], object]]] = {
        "a leaf": lambda lib: lambda: lib.tree_at(leaf, tree, 0),
        "two leaves": lambda lib: lambda: lib.tree_at(two, tree, (0, 1)),
        "a layer": lambda lib: lambda: lib.tree_at(lambda t: t[middle], tree, 0),
        "a fifth of all": lambda lib: lambda: lib.tree_at(all_weights, tree, replace_fn=lambda x: x),
    }
    return {what: {"treekit": make(tk), "Equinox": make(eqx)} for what, make in made.items()}


def beside_equinox(title: str, calls: Callable[[str, int], dict[str, dict[str, Callable[[], object]]]]) -> Section:
    """A table over operations and kinds of trees, and the growth of each operation on Equinox modules."""
    ratios = {
        kind: {what: compare(each, base="treekit")["Equinox"] for what, each in calls(kind, SHOWN).items()}
        for kind in TREES
    }
    kind = "Equinox modules"
    by_size = {size: calls(kind, size) for size in SIZES}
    panels = {}
    for what in by_size[SIZES[0]]:
        grown = {(lib, size): each[what][lib] for size, each in by_size.items() for lib in each[what]}
        times = measure(grown, rounds=max(2, ROUNDS // 8))  # the chart is for the slope
        panels[what] = {
            lib: {size: 1e6 * times.median((lib, size)) for size in SIZES} for lib in ("treekit", "Equinox")
        }
    text = f"On trees of {SHOWN:,} leaves: Equinox's time / treekit's. The chart is for {kind}."
    return Section(title, text, ratios, Chart("leaves", "µs", panels))


def sections() -> Iterator[Section]:
    yield beside_equinox("tree_at, against Equinox", calls)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "equinox", "jax")
