"""All benchmarks but `growth` and `matrix`: printed, and written as results/benchmarks.md (QUICK=1: printed only)."""

import datetime
from pathlib import Path

from benchmarks import import_time, multi_steps, nodes, precision, trees, wrappers
from benchmarks._timing import QUICK, ROUNDS, setting
from treekit._base.jax import untyped

# In the order of the page. Each has `sections()`, and can be run alone.
MODULES = (nodes, trees, wrappers, multi_steps, import_time, precision)
PACKAGES = ("treekit-jax", "jax", "optax", "equinox", "flax", "chex", "jax_dataclasses", "penzai")

# Read the first paragraph against the figures after each run.
HEAD = f"""# Benchmarks

Slower than a peer: nodes are flattened in 1.4 times the time of dataclasses registered in C++, and created in 8 times
that of dataclasses that check nothing; outside of `jit`, `dtype_preserving_tree_map` takes 1.6 to 5 times the time of a
plain map; a `MultiSteps` is traced in 0.9 to 1.3 times Optax's time, everything else in 0.9 to 1.1, and what runs
outside of `jit` takes 1.0 to 1.3 times Optax's. As fast or faster: a compiled step takes Optax's time, and a donated
round of `MultiSteps` 0.09 to 0.12 times that, though not on GPUs and TPUs, where XLA fuses most of that work; nodes are
rebuilt and mapped faster than those of every peer but NamedTuple.

Written by `make bench` on {datetime.date.today()}: {setting(*PACKAGES)}.

Unless a table says otherwise, a figure is treekit's time divided by that of the other: below 1, treekit is faster. Both
run alternately in one process. Each figure is the median of {ROUNDS} rounds, with the quartiles in brackets. To run one
part and print it: `python -m benchmarks.NAME`, where NAME is one of
{", ".join(module.__name__.partition(".")[2] for module in MODULES)}.
"""


def main() -> None:
    """Run them in turn."""
    page = [HEAD]
    print(HEAD)
    for module in MODULES:
        for section in module.sections():
            print(section, flush=True)
            page.append(str(section))
        untyped.clear_caches()
    if not QUICK:
        (Path(__file__).parent / "results" / "benchmarks.md").write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
