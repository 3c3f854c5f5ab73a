"""What importing treekit adds to importing what it needs, in fresh processes.

Run `python -m benchmarks.import_time` (QUICK=1 for a short look).
"""

import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks._timing import QUICK, Ratio, Section, show

PROCESSES = 3 if QUICK else 30
# By name, what is imported and what it needs, which is imported first: the ratio is of times in one process.
IMPORTS = {
    "treekit": ("treekit", "jax, jaxtyping"),
    "treekit.optax": ("treekit.optax", "jax, jaxtyping, optax"),
    "Equinox": ("equinox", "jax, jaxtyping"),
    "Flax": ("flax", "jax, jaxtyping"),
}
# Without collections: one of what JAX has made, 60 ms long, would fall upon whichever import it happens in.
CODE = """
import gc, time
gc.disable()
start = time.perf_counter()
import {needs}
middle = time.perf_counter()
import {name}
print((time.perf_counter() - middle) / (middle - start))
"""


def ratio(name: str, needs: str) -> float:
    """Of the time to import `name` to the time to import what it needs, in one new process."""
    code = CODE.format(name=name, needs=needs)
    # What pip installs it compiles at once; a checkout that Python may not write into would be compiled every time.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    return float(run.stdout)


def sections() -> Iterator[Section]:
    for names in IMPORTS.values():
        ratio(*names)  # so that what Python compiles, and what the system reads from the disk, is there
    rounds = [{name: ratio(*names) for name, names in IMPORTS.items()} for _ in range(PROCESSES)]
    yield Section(
        "Import time",
        "The time of an import, divided by that of its dependencies: JAX and jaxtyping, and Optax for "
        f"`treekit.optax`. Each runs in a new process, {PROCESSES} times, in turn.",
        {"of its dependencies": {name: Ratio.of(each[name] for each in rounds) for name in IMPORTS}},
    )


if __name__ == "__main__":
    show(sections(), "treekit-jax", "equinox", "flax", "optax", "jax")
