"""Gradient accumulation: what grows with the number of leaves, and with that of parameters.

Before a step first runs it is traced, lowered and compiled, all of which take time for each leaf. When it runs, the
time for each parameter should be flat once it outweighs the overhead.

Run `python -m benchmarks.multi_steps_growth` (QUICK=1 for a short look).
"""

import gc
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import jax
import optax

from benchmarks._page import Chart, Section, show
from benchmarks._timing import QUICK, measure
from benchmarks.multi_steps import Accumulation, K, arrays, round_of, ways
from treekit._base.jax import untyped

LEAVES = (1, 10) if QUICK else (1, 10, 100, 1_000)  # 10,000 take 23 minutes and more than 24 GB to compile
PARAMETERS = (10**4, 10**5, 10**6) if QUICK else (10**4, 10**5, 10**6, 10**7, 10**8)
PREPARED = 20 if QUICK else 1_000  # leaves, to trace, lower and compile
ROUNDS = 3
INNER = optax.adamw(1e-3)


def lowered(way: Accumulation, params: Any) -> Any:
    """The last step of a round, traced and lowered again."""
    untyped.clear_caches()
    return jax.jit(way.steps[-1], donate_argnums=(0, 1)).lower(params, jax.eval_shape(way.init, params), params)


def lowering(way: Accumulation, params: Any) -> Callable[[], object]:
    return lambda: lowered(way, params)


def compile_seconds(way: Accumulation, params: Any) -> float:
    """Once, since it takes longest, and varies least."""
    step = lowered(way, params)
    start = perf_counter()
    step.compile()
    return perf_counter() - start


def preparation(leaves: int) -> Section:
    params = arrays(leaves, 3)
    all_ways = ways(INNER)
    prepared = {
        name: all_ways[name] for name in ("treekit", "Optax", "the lower bound")
    }  # the rest end in the same steps
    times = measure({name: lowering(way, params) for name, way in prepared.items()}, ROUNDS)
    columns: dict[str, dict[str, object]] = {
        "trace and lower": {name: times.ratio(name, "treekit") for name in times if name != "treekit"},
        "the same, seconds": {name: f"{times.median(name):.2f}" for name in times},
        "compile, seconds": {name: f"{compile_seconds(way, params):.1f}" for name, way in prepared.items()},
    }
    text = (
        f"A step of adamw with its `apply_updates`, on {leaves:,} leaves, traced after JAX's caches were cleared. The "
        "ratio differs from that of `MultiSteps` in the table of wrappers, which is of adam's `update` alone, with "
        "caches."
    )
    return Section("MultiSteps, before the first step", text, columns)


def nanoseconds(leaves: int, parameters: int) -> dict[str, float]:
    """What a micro-step takes for each parameter, by the way to accumulate; without Optax's, which takes too long."""
    params = arrays(leaves, parameters // leaves)
    calls = {name: round_of(way, params) for name, way in ways(INNER).items() if name != "Optax"}
    times = measure(calls, ROUNDS)
    calls.clear()
    gc.collect()  # the largest of them fill the memory
    return {name: times.median(name) / K / parameters * 1e9 for name in times}


def growth(title: str, x: str, found: dict[int, dict[str, float]]) -> Section:
    columns: dict[str, dict[str, object]] = {
        f"{size:,}": {name: f"{ns:.2f}" for name, ns in row.items()} for size, row in found.items()
    }
    lines = {name: {size: row[name] for size, row in found.items()} for name in ("treekit", "the lower bound")}
    text = f"Nanoseconds per parameter and micro-step of adamw with k = {K}, by the number of {x}."
    return Section(title, text, columns, Chart(x, "ns", {"a micro-step": lines}))


def sections() -> Iterator[Section]:
    yield preparation(PREPARED)
    by_leaves = {leaves: nanoseconds(leaves, 10**6) for leaves in LEAVES}
    yield growth("MultiSteps: a million parameters in many leaves", "leaves", by_leaves)
    by_parameters = {parameters: nanoseconds(10, parameters) for parameters in PARAMETERS}
    yield growth("MultiSteps: many parameters in ten leaves", "parameters", by_parameters)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "optax", "jax")
