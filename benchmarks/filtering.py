"""partition, filter_arrays and combine beside Equinox's: how often the time of ours fits in theirs.

Run `python -m benchmarks.filtering` (QUICK=1 for a short look).
"""

import equinox as eqx

import treekit as tk
from benchmarks._timing import Ratio, compare, setting, table
from benchmarks.tree_at import SIZES, TREES, layers


def ratios(kind: str, size: int) -> dict[str, Ratio]:
    """Of each verb, on one kind of tree."""
    tree = layers(kind, size)
    left, right = tk.partition(tree)
    pairs = {
        "partition": (lambda: tk.partition(tree), lambda: eqx.partition(tree, eqx.is_array)),
        "filter_arrays": (lambda: tk.filter_arrays(tree), lambda: eqx.filter(tree, eqx.is_array)),
        "combine": (lambda: tk.combine(left, right), lambda: eqx.combine(left, right)),
    }
    return {
        verb: compare({"ours": ours, "theirs": theirs}, base="ours")["theirs"] for verb, (ours, theirs) in pairs.items()
    }


def main() -> None:
    print(setting("treekit", "equinox", "jax"))
    print("\ntime of Equinox's / time of treekit's, median (quartiles)")
    for size in SIZES:
        print(f"\n{size} leaves")
        print(table({kind: ratios(kind, size) for kind in TREES}))


if __name__ == "__main__":
    main()
