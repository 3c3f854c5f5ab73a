"""tree_at beside Equinox's: how often the time of ours fits in theirs, and how it grows with the tree.

Run `python -m benchmarks.tree_at` (QUICK=1 for a short look).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import treekit as tk
from benchmarks._timing import QUICK, compare, setting

SIZES = (400, 4_000) if QUICK else (400, 4_000, 40_000)
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


def calls(tree: Any) -> dict[str, Callable[[Any], Callable[[], object]]]:
    """What is replaced, by name: each takes a library and gives what to time."""
    middle = len(tree) // 2

    def leaf(t: Any) -> Any:
        return get(t[middle], "weight")

    def two(t: Any) -> Any:
        return get(t[middle], "weight"), get(t[0], "bias")

    def all_weights(t: Any) -> Any:
        return [get(layer, "weight") for layer in t]

    return {
        "a leaf": lambda lib: lambda: lib.tree_at(leaf, tree, 0),
        "two leaves": lambda lib: lambda: lib.tree_at(two, tree, (0, 1)),
        "a layer": lambda lib: lambda: lib.tree_at(lambda t: t[middle], tree, 0),
        "a fifth of all": lambda lib: lambda: lib.tree_at(all_weights, tree, replace_fn=lambda x: x),
    }


def main() -> None:
    print(setting("treekit", "equinox", "jax"))
    print("\ntime of equinox.tree_at / time of treekit.tree_at, median (quartiles)")
    for size in SIZES:
        print(f"\n{size} leaves{'':17}" + "".join(f"{name:>20}" for name in calls([X])))
        for kind in TREES:
            tree = layers(kind, size)
            ratios = [
                compare({"ours": call(tk), "theirs": call(eqx)}, base="ours")["theirs"] for call in calls(tree).values()
            ]
            print(f"{kind:28}" + "".join(f"{ratio!s:>20}" for ratio in ratios))

    print(f"\ngrowth from {SIZES[0]} leaves to {SIZES[-1]}: time for a leaf in the larger / in the smaller tree")
    for kind in TREES:
        small, large = (layers(kind, size) for size in (SIZES[0], SIZES[-1]))
        grown = {
            "tree_at": compare({"small": calls(small)["a leaf"](tk), "large": calls(large)["a leaf"](tk)}, "small"),
            "tree.map": compare({"small": _map(small), "large": _map(large)}, "small"),
        }
        figures = {name: found["large"].median * SIZES[0] / SIZES[-1] for name, found in grown.items()}
        print(f"{kind:18}" + ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items()))


def _map(tree: Any) -> Callable[[], object]:
    return lambda: jax.tree.map(lambda leaf: leaf, tree)


if __name__ == "__main__":
    main()
