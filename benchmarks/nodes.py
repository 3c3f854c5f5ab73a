"""A node's cost beside its peers': how often the time of treekit's fits in theirs, on a nested tree.

Run `python -m benchmarks.nodes` (QUICK=1 for a short look).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import treekit as tk
from benchmarks._timing import QUICK, Ratio, compare, setting, table

# One layer of eight fields, two of them static, and a group of children, written in each library. A named tuple has no
# static fields, so its layer has six; what it costs is the limit.


@tk.node
class TreekitLayer:
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    var: jax.Array
    name: str = tk.field(static=True)
    size: int = tk.field(static=True)


@tk.node
class TreekitGroup:
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    children: tuple[Any, ...]


class EquinoxLayer(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    var: jax.Array
    name: str = eqx.field(static=True)
    size: int = eqx.field(static=True)


class EquinoxGroup(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    children: tuple[Any, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DataclassLayer:
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    var: jax.Array
    name: str = field(metadata={"static": True})
    size: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DataclassGroup:
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    children: tuple[Any, ...]


class TupleLayer(NamedTuple):
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    var: jax.Array


class TupleGroup(NamedTuple):
    weight: jax.Array
    bias: jax.Array
    scale: jax.Array
    shift: jax.Array
    mean: jax.Array
    children: tuple[Any, ...]


X = jnp.zeros(())
LAYERS: dict[str, Callable[[], Any]] = {
    "treekit": lambda: TreekitLayer(X, X, X, X, X, X, name="layer", size=64),
    "eqx.Module": lambda: EquinoxLayer(X, X, X, X, X, X, name="layer", size=64),
    "register_dataclass": lambda: DataclassLayer(X, X, X, X, X, X, name="layer", size=64),
    "NamedTuple": lambda: TupleLayer(X, X, X, X, X, X),
}
GROUPS: dict[str, Callable[..., Any]] = {
    "treekit": TreekitGroup,
    "eqx.Module": EquinoxGroup,
    "register_dataclass": DataclassGroup,
    "NamedTuple": TupleGroup,
}


def nested(kind: str, groups: int) -> Any:
    """A group of groups of ten layers; of nine groups, it has 100 nodes and 590 leaves."""

    def group(children: tuple[Any, ...]) -> Any:
        return GROUPS[kind](X, X, X, X, X, children)

    return group(tuple(group(tuple(LAYERS[kind]() for _ in range(10))) for _ in range(groups)))


def flatten(tree: Any) -> Callable[[], object]:
    return lambda: jax.tree.flatten(tree)


def unflatten(tree: Any) -> Callable[[], object]:
    leaves, treedef = jax.tree.flatten(tree)
    return lambda: jax.tree.unflatten(treedef, leaves)


def tree_map(tree: Any) -> Callable[[], object]:
    return lambda: jax.tree.map(lambda leaf: leaf, tree)


def measure(trees: dict[str, Any]) -> dict[str, dict[str, Ratio]]:
    """Each operation's column of ratios to treekit's time."""
    return {
        operation.__name__: compare({kind: operation(tree) for kind, tree in trees.items()}, base="treekit")
        for operation in (flatten, unflatten, tree_map)
    }


def main() -> None:
    print(setting("treekit", "jax", "equinox"))
    for groups in (9,) if QUICK else (1, 9, 90):
        trees = {kind: nested(kind, groups) for kind in LAYERS}
        leaves = len(jax.tree.leaves(trees["treekit"]))
        print(f"\n{1 + 11 * groups} nodes, {leaves} leaves: time of each / time of treekit, median (quartiles)")
        print(table(measure(trees)))
    print("\ncreation of one layer of 8 fields")
    print(table({"create": compare(LAYERS, base="treekit")}))


if __name__ == "__main__":
    main()
