"""partition, filter_arrays and combine compared with Equinox's.

Run `python -m benchmarks.filtering` (QUICK=1 for a short look).
"""

from collections.abc import Callable, Iterator

import equinox as eqx

import treekit as tk
from benchmarks._page import Section, show
from benchmarks.tree_at import beside_equinox, layers


def calls(kind: str, leaves: int) -> dict[str, dict[str, Callable[[], object]]]:
    """By verb and library, on one kind of tree."""
    tree = layers(kind, leaves)
    left, right = tk.partition(tree)
    return {
        "partition": {"treekit": lambda: tk.partition(tree), "Equinox": lambda: eqx.partition(tree, eqx.is_array)},
        "filter_arrays": {"treekit": lambda: tk.filter_arrays(tree), "Equinox": lambda: eqx.filter(tree, eqx.is_array)},
        "combine": {"treekit": lambda: tk.combine(left, right), "Equinox": lambda: eqx.combine(left, right)},
    }


def sections() -> Iterator[Section]:
    yield beside_equinox("Filtering, against Equinox", calls)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "equinox", "jax")
