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


def by_name(leaves: int = 1_000) -> Section:
    """tree_at and tree_find by pattern and by class, against tree_at by function."""

    def ratios(kind: str) -> dict[str, object]:
        tree = layers(kind, leaves)
        middle = len(tree) // 2
        cls = type(tree[0])

        def weights(t: Any) -> Any:
            return [get(layer, "weight") for layer in t]

        def keep(x: Any) -> Any:
            return x

        # By what is selected: with a function, and in other ways.
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "tree_at, a leaf by name": (
                lambda: tk.tree_at(lambda t: get(t[middle], "weight"), tree, 0),
                lambda: tk.tree_at(f"{middle}.weight", tree, 0),
            ),
            "tree_at, **.weight": (
                lambda: tk.tree_at(weights, tree, replace_fn=keep),
                lambda: tk.tree_at("**.weight", tree, replace_fn=keep),
            ),
            "tree_at, all layers by class": (
                lambda: tk.tree_at(lambda t: list(t), tree, replace_fn=keep),
                lambda: tk.tree_at(cls, tree, replace_fn=keep),
            ),
            "tree_find, a leaf by name": (
                lambda: tk.tree_at(lambda t: get(t[middle], "weight"), tree, 0),
                lambda: tk.tree_find(tree, f"{middle}.weight"),
            ),
            "tree_find, **.weight": (
                lambda: tk.tree_at(weights, tree, replace_fn=keep),
                lambda: tk.tree_find(tree, "**.weight"),
            ),
        }
        return {
            what: compare({"function": function, "name": name}, base="function")["name"]
            for what, (function, name) in pairs.items()
        }

    text = f"On trees of {leaves:,} leaves: the time by name or class / the time of tree_at with a function."
    return Section("tree_at and tree_find by name, against functions", text, {kind: ratios(kind) for kind in TREES})


def summaries(leaves: int = 10_000) -> Section:
    """tree_summary of many leaves."""
    calls = {(kind, depth): _summary_of(layers(kind, leaves), depth) for kind in TREES for depth in (None, 1)}
    times = measure(calls, rounds=max(2, ROUNDS // 8))
    return Section(
        "tree_summary",
        f"Milliseconds for {leaves:,} leaves, without statistics.",
        {kind: {f"depth={depth}": f"{1e3 * times.median((kind, depth)):.0f}" for depth in (None, 1)} for kind in TREES},
    )


def _summary_of(tree: Any, depth: int | None) -> Callable[[], object]:
    return lambda: tk.tree_summary(tree, depth=depth)


def sections() -> Iterator[Section]:
    yield beside_equinox("tree_at, against Equinox", calls)
    yield by_name()
    yield summaries()


if __name__ == "__main__":
    show(sections(), "treekit-jax", "equinox", "jax")
