"""Optimizers and wrappers of treekit and of Optax in one run: tracing and lowering, compiling, a step.

The params are many small arrays, so that what is done for each leaf in Python is all that counts.

    python -m benchmarks.wrappers             100, 1,000 and 5,000 leaves
    QUICK=1 python -m benchmarks.wrappers     20 and 100
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

import treekit.optax as tko
from benchmarks._page import Chart, Section, show
from benchmarks._timing import QUICK, Ratio, measure, measure_once_each
from treekit._base.jax import untyped

LEAVES = (20, 100) if QUICK else (100, 1_000, 5_000)  # of which tracing and lowering is measured
COMPILED = 20 if QUICK else 100  # leaves of what is compiled and run: compiling 1,000 takes a quarter of a minute
WORK = 60 if QUICK else 6_000  # leaves times rounds, about

Make = Callable[[Any, int], optax.GradientTransformation]  # from the module, Optax's or ours, and the number of leaves


def _bare(o: Any, _: int) -> Any:
    """Any transformation of the user's own, wrapped, and the same as it is."""
    tx = optax.adam(1e-3)
    return tx if o is optax else tko.dtype_preserving(tko.filtered(tx))


# Half of the leaves are masked; a tree, since what a function of the user's costs is not ours.
PAIRS: dict[str, Make] = {
    "adam": lambda o, n: o.adam(1e-3),
    "dtype_preserving(filtered(adam))": _bare,
    "masked": lambda o, n: o.masked(o.adam(1e-3), [i % 2 == 0 for i in range(n)]),
    "partition": lambda o, n: o.partition({"a": o.adam(1e-3), "b": o.sgd(1e-3)}, ["ab"[i % 2] for i in range(n)]),
    "inject_hyperparams": lambda o, n: o.inject_hyperparams(o.adam)(1e-3),
    "apply_if_finite": lambda o, n: o.apply_if_finite(o.adam(1e-3), 3),
    "MultiSteps": lambda o, n: o.MultiSteps(o.adam(1e-3), 4).gradient_transformation(),
}


def arguments(tx: optax.GradientTransformation, leaves: int) -> tuple[Any, Any, Any]:
    """Gradients, state and params for an update."""
    params = [jnp.full(2, 0.5, jnp.float32) for _ in range(leaves)]  # without a dtype, their type would be weak
    return params, tx.init(params), params


def lowering(tx: optax.GradientTransformation, leaves: int) -> Callable[[], object]:
    """A call that traces and lowers an update."""
    args = arguments(tx, leaves)
    return lambda: lower(tx, args)


def lower(tx: optax.GradientTransformation, args: tuple[Any, Any, Any]) -> Any:
    """An update, traced and lowered: in a function of its own, since JAX keeps what it has traced."""

    def update(grads: Any, state: Any, params: Any) -> Any:
        return tx.update(grads, state, params)

    return jax.jit(update).lower(*args)


def compiling(tx: optax.GradientTransformation, leaves: int) -> Callable[[], object]:
    """A call that compiles an update that has been lowered; only the first call does, since JAX keeps the result."""
    lowered = lower(tx, arguments(tx, leaves))
    return lambda: lowered.compile()


def compile_ratios(leaves: int, rounds: int) -> dict[str, Ratio]:
    """Treekit's time to compile divided by Optax's, for each pair."""
    out: dict[str, Ratio] = {}
    for name, make in PAIRS.items():
        prepare = {o.__name__: partial(compiling, make(o, leaves), leaves) for o in (optax, tko)}
        out[name] = measure_once_each(prepare, rounds).ratio(tko.__name__, optax.__name__)
    return out


def stepping(tx: optax.GradientTransformation, leaves: int) -> Callable[[], object]:
    """A call that runs an update, and waits for it."""
    args = arguments(tx, leaves)
    compiled = lower(tx, args).compile()
    return lambda: untyped.block_until_ready(compiled(*args))


def ratios(
    prepare: Callable[[Any, int], Callable[[], object]], leaves: int, names: Sequence[str] = tuple(PAIRS)
) -> dict[str, Ratio]:
    """Treekit's time divided by Optax's, for each pair."""
    out: dict[str, Ratio] = {}
    for name in names:
        calls = {o.__name__: prepare(PAIRS[name](o, leaves), leaves) for o in (optax, tko)}
        times = measure(calls, rounds=max(2, min(10, WORK // leaves)), tries=1)
        out[name] = times.ratio(tko.__name__, optax.__name__)
    return out


def sections() -> Iterator[Section]:
    traced = {leaves: ratios(lowering, leaves) for leaves in LEAVES}
    lines = {name: {leaves: row[name].median for leaves, row in traced.items()} for name in PAIRS}
    columns = {f"trace and lower, {leaves:,} leaves": row for leaves, row in traced.items()}
    columns[f"compile, {COMPILED} leaves"] = compile_ratios(COMPILED, 2 if QUICK else 10)
    columns[f"a step, {COMPILED} leaves"] = ratios(stepping, COMPILED)
    text = "treekit's time / Optax's, on many small arrays, where the time in Python counts most."
    chart = Chart("leaves", "treekit's time / Optax's", {"trace and lower": lines})
    yield Section("Optimizers and wrappers, against Optax's own", text, columns, chart)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "optax", "jax")
