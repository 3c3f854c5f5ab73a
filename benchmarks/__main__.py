"""All benchmarks but `growth` and `matrix`: printed, and written as results/benchmarks.md.

python -m benchmarks             more than half an hour; writes the page and its pictures
QUICK=1 python -m benchmarks     about two minutes; prints only
python -m benchmarks FOLDER      writes them there
"""

import datetime
import sys
from pathlib import Path
from types import ModuleType

from benchmarks import (
    filtering,
    import_time,
    mapping,
    mixed_precision,
    multi_steps,
    nodes,
    tree_at,
    wrappers,
)
from benchmarks._page import as_markdown, as_text
from benchmarks._timing import QUICK, ROUNDS, setting
from treekit._base.jax import untyped

# In the order of the page. Each has `sections()`, and can be run alone.
MODULES: tuple[ModuleType, ...] = (
    nodes,
    mapping,
    filtering,
    tree_at,
    wrappers,
    multi_steps,
    import_time,
    mixed_precision,
)
PACKAGES = ("treekit-jax", "jax", "optax", "equinox", "flax", "chex", "jax_dataclasses", "penzai")

# Read it against the figures after each run.
CONCLUSION = """
On a CPU, treekit's nodes are rebuilt and mapped faster than those of every peer except NamedTuple, and flattened more
slowly than dataclasses registered in C++. An optimizer or wrapper is traced and lowered in 0.7 to 1.2 times the time of
Optax's, and its compiled step is as fast. `MultiSteps` takes a tenth of the time of Optax's here, close to the least
that accumulation can cost; on GPUs and TPUs, where XLA fuses most of that work, expect a much smaller difference.
""".strip()


def head() -> str:
    """The conclusion, the setting, and how to read the page."""
    note = "\n**A short look (QUICK=1): do not quote these.**\n" if QUICK else ""
    return f"""# Benchmarks

{CONCLUSION}

Written by `make bench` on {datetime.date.today()}: {setting(*PACKAGES)}.
{note}
Unless a table says otherwise, its figures are ratios of time, *the other / treekit*: above 1, treekit is faster. Both
run alternately in one process. Each figure is the median of {ROUNDS} rounds, with the quartiles in brackets. The charts
show microseconds; look at their slope. To run one part and print it: `python -m benchmarks.NAME`, where NAME is one of
{", ".join(map(_name, MODULES))}.
"""


def main(folder: Path | None) -> None:
    """Run them in turn; `folder` is where the page goes, if it goes anywhere."""
    print(setting(*PACKAGES))
    page = [head()]
    for module in MODULES:
        for number, section in enumerate(module.sections(), start=1):
            print(as_text(section), flush=True)
            if folder:
                page.append(as_markdown(section, folder / "benchmarks" / f"{_name(module)}_{number}.svg"))
        untyped.clear_caches()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "benchmarks.md").write_text("\n".join(page), encoding="utf-8")


def _name(module: ModuleType) -> str:
    return module.__name__.partition(".")[2]


if __name__ == "__main__":
    default = None if QUICK else Path(__file__).with_name("results")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
