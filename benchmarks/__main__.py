"""All benchmarks but `growth` and `matrix`: printed, and written as results/benchmarks.md.

python -m benchmarks             more than an hour; writes the page
QUICK=1 python -m benchmarks     some minutes; prints only
"""

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

On a CPU, treekit's nodes are rebuilt and mapped faster than those of every peer except NamedTuple, and flattened more
slowly than dataclasses registered in C++. An optimizer or wrapper is traced and lowered in 0.7 to 1.2 times the time of
Optax's, and its compiled step is as fast. `MultiSteps` takes a tenth of the time of Optax's here, close to the least
that accumulation can cost; on GPUs and TPUs, where XLA fuses most of that work, expect a much smaller difference.

Written by `make bench` on {datetime.date.today()}: {setting(*PACKAGES)}.

Unless a table says otherwise, its figures are ratios of time, *the other / treekit*: above 1, treekit is faster. Both
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
