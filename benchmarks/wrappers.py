"""Optimizers and wrappers of treekit and of Optax in one run: traced and lowered, outside of jit, and compiled.

The params are small arrays, so that what is done for each leaf in Python is all that counts.

    python -m benchmarks.wrappers     4, 60 and 1,000 leaves (QUICK=1: 4 and 60)
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import treekit as tk
import treekit.optax as tko
from benchmarks._timing import QUICK, Ratio, Section, measure, show
from treekit import training
from treekit._base.jax import untyped

LEAVES = (4, 60) if QUICK else (4, 60, 1_000)
COMPILED = 60  # leaves at most: compiling 1,000 takes a quarter of a minute
WORK = 60 if QUICK else 6_000  # leaves times rounds, about

Make = Callable[[Any, int], optax.GradientTransformation]  # from the module, Optax's or ours, and the number of leaves


def _stack(o: Any, n: int) -> Any:
    """All of them around one optimizer."""
    masked = o.masked(o.inject_hyperparams(o.adamw)(1e-3), [i % 2 == 0 for i in range(n)])
    return o.MultiSteps(masked, 4).gradient_transformation()


STACK = "MultiSteps(masked(inject_hyperparams(adamw)))"
# Half of the leaves are masked; a tree, since what a function of the user's costs is not ours.
PAIRS: dict[str, Make] = {
    "adam": lambda o, n: o.adam(1e-3),
    "masked": lambda o, n: o.masked(o.adam(1e-3), [i % 2 == 0 for i in range(n)]),
    "partition": lambda o, n: o.partition({"a": o.adam(1e-3), "b": o.sgd(1e-3)}, ["ab"[i % 2] for i in range(n)]),
    "inject_hyperparams": lambda o, n: o.inject_hyperparams(o.adam)(1e-3),
    "apply_if_finite": lambda o, n: o.apply_if_finite(o.adam(1e-3), 3),
    "MultiSteps": lambda o, n: o.MultiSteps(o.adam(1e-3), 4).gradient_transformation(),
    STACK: _stack,
}


WAYS = ("trace and lower", "jitted init", "eager init", "eager update", "a step")


def ways(tx: optax.GradientTransformation, leaves: int) -> dict[str, Callable[[], object]]:
    """What is timed, by name. JAX keeps what it has traced, so what is traced each time is a new function."""
    return _ways_of(tx, [jnp.full(2, 0.5, jnp.float32) for _ in range(leaves)])  # or else their type would be weak


def _ways_of(tx: optax.GradientTransformation, params: Any) -> dict[str, Callable[[], object]]:
    args = params, tx.init(params), params
    jitted = jax.jit(tx.update)
    return {
        "trace and lower": lambda: jax.jit(lambda *args: tx.update(*args)).lower(*args),
        "jitted init": lambda: jax.jit(lambda params: tx.init(params)).lower(params),
        "eager init": lambda: untyped.block_until_ready(tx.init(params)),
        "eager update": lambda: untyped.block_until_ready(tx.update(*args)),
        "a step": lambda: untyped.block_until_ready(jitted(*args)),
    }


def ratios(way: str, leaves: int) -> dict[str, Ratio]:
    """Treekit's time divided by Optax's, for each pair."""
    rounds = max(2, min(40, WORK // leaves))
    out: dict[str, Ratio] = {}
    for name, make in PAIRS.items():
        times = measure({o.__name__: ways(make(o, leaves), leaves)[way] for o in (optax, tko)}, rounds, tries=1)
        out[name] = times.ratio(tko.__name__, optax.__name__)
    return out


GROUPS = ((100, 28),) if QUICK else ((400, 28), (400, 100), (4_000, 28))  # leaves, and groups
KINDS: dict[str, Callable[[Any, Any], optax.GradientTransformation]] = {
    "adamw": lambda o, grouped: grouped(o.adamw, 1e-3),
    "adamw(mask=)": lambda o, grouped: grouped(o.adamw, 1e-3, mask=tk.path_mask("**.w1")),
    "muon": lambda o, grouped: grouped(o.contrib.muon, 1e-3),
}


def groups(leaves: int, number: int) -> Iterator[tuple[str, dict[str, Ratio]]]:
    """`param_groups` with a rate for each of many layers, against one optimizer of plain Optax."""
    arrays = [jnp.full((2, 2) if i % 2 else 2, 0.5, jnp.float32) for i in range(leaves // number)]
    params = {"layers": [{f"w{i}": x for i, x in enumerate(arrays)} for _ in range(number)]}
    table = {f"layers.{i}.**": {"learning_rate": training.times(0.9**i)} for i in range(number)}
    found: dict[str, dict[str, Ratio]] = {"trace and lower": {}, "eager init": {}}
    for name, make in KINDS.items():
        if name == "muon" and leaves > 1_000:  # it traces a loop for each matrix
            continue
        plain = make(optax, lambda factory, *args, **options: factory(*args, **options))
        grouped = make(tko, lambda factory, *args, **options: training.param_groups(factory, table, *args, **options))
        timed = {tx: _ways_of(tx, params) for tx in (plain, grouped)}
        for way in found:
            times = measure({"plain": timed[plain][way], "groups": timed[grouped][way]}, max(2, 800 // leaves), tries=1)
            found[way][name] = times.ratio("groups", "plain")
    yield from found.items()


def sections() -> Iterator[Section]:
    text = "treekit's time divided by Optax's. The arrays are small, so the time in Python is all that counts."
    for leaves in LEAVES:
        columns = {way: ratios(way, leaves) for way in WAYS if leaves <= COMPILED or way != "a step"}
        yield Section(f"Optimizers and wrappers of {leaves:,} leaves, against Optax's own", text, columns)
    text = "The time of an optimizer with a rate for each group / that of one of plain Optax for all."
    for leaves, number in GROUPS:
        yield Section(f"param_groups of {leaves:,} leaves in {number} groups", text, dict(groups(leaves, number)))


if __name__ == "__main__":
    show(sections(), "treekit-jax", "optax", "jax")
