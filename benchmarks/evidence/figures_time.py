"""Figures that depend on time: ratios of two things that run in turn, shown with their goals and never an error."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

import treekit.optax as tko
from benchmarks import nodes, wrappers
from benchmarks._timing import QUICK, Ratio, compare, measure, measure_once_each
from benchmarks.evidence.figure import Figure
from treekit._base.jax import untyped

LEAVES = 100 if QUICK else 1_000  # of which tracing is measured
ROUNDS = 3 if QUICK else 6
ARRAYS = 60  # of an update that is not compiled


def figures() -> Iterator[Figure]:
    """Each when it is measured, since all of them take minutes."""
    for name, make in {**wrappers.PAIRS, STACK: stack}.items():
        calls = {library.__name__: wrappers.lowering(make(library, LEAVES), LEAVES) for library in (optax, tko)}
        times = measure(calls, rounds=ROUNDS, tries=1)
        ratio = times.ratio(tko.__name__, optax.__name__)
        yield of_time(f"trace and lower {LEAVES:,} leaves, treekit / Optax: {name}", ratio, 1.05)
    calls = {library.__name__: eager(library) for library in (optax, tko)}
    ratio = compare(calls, base=optax.__name__)[tko.__name__]
    yield of_time(f"eager adam of {ARRAYS} arrays, treekit / Optax", ratio, 1.05)
    yield from of_init()
    yield from of_nodes()


def of_init() -> Iterator[Figure]:
    """Of `init` for many small arrays: traced and lowered, compiled, and not jitted."""
    params = [jnp.full(2, 0.5, jnp.float32) for _ in range(LEAVES)]
    for name in ("adam", "inject_hyperparams", "MultiSteps"):
        made = {library.__name__: wrappers.PAIRS[name](library, LEAVES) for library in (optax, tko)}
        lower, run = ({key: partial(f, tx, params) for key, tx in made.items()} for f in (lower_init, eager_init))
        compiling = {key: partial(compile_init, tx, params) for key, tx in made.items()}
        found = {
            "trace and lower": (measure(lower, ROUNDS, tries=1), 1.5),
            "compile": (measure_once_each(compiling, ROUNDS), 1.5),
            "eager": (measure(run, ROUNDS, tries=1), 1.1),
        }
        for way, (times, goal) in found.items():
            ratio = times.ratio(tko.__name__, optax.__name__)
            yield of_time(f"init for {LEAVES:,} leaves, {way}, treekit / Optax: {name}", ratio, goal)


def lower_init(tx: Any, params: Any) -> Any:
    """A jitted init, traced and lowered; in a function of its own, since JAX keeps what it has traced."""

    def init(params: Any) -> Any:
        return tx.init(params)

    return jax.jit(init).lower(params)


def compile_init(tx: Any, params: Any) -> Callable[[], object]:
    """A call that compiles a jitted init that has been lowered."""
    compiling: Callable[[], object] = lower_init(tx, params).compile
    return compiling


def eager_init(tx: Any, params: Any) -> object:
    return untyped.block_until_ready(tx.init(params))


STACK = "MultiSteps(masked(inject_hyperparams(adamw)))"


def stack(library: Any, leaves: int) -> Any:
    """All of them around one optimizer; every second leaf is masked."""
    masked = library.masked(library.inject_hyperparams(library.adamw)(1e-3), [i % 2 == 0 for i in range(leaves)])
    return library.MultiSteps(masked, 4).gradient_transformation()


def eager(library: Any) -> Callable[[], object]:
    """A call that updates many small arrays without jit, and waits for it."""
    params = [jnp.full(2, 0.5, jnp.float32) for _ in range(ARRAYS)]
    tx = library.adam(1e-3)
    state = tx.init(params)
    return lambda: untyped.block_until_ready(tx.update(params, state, params))


def of_nodes() -> Iterator[Figure]:
    """Trees of 100 nodes of eight fields, two of them static, compared with the peers that are installed."""
    kinds = {name: library.kind() for name, library in nodes.installed()}
    trees = {name: kind.tree(nodes.SHOWN) for name, kind in kinds.items()}
    flatten = nodes.columns(trees, nodes.flatten)["flatten"]["register_dataclass"]
    inverse = Ratio(1 / flatten.median, 1 / flatten.high, 1 / flatten.low)
    yield of_time("nodes: flatten, treekit / register_dataclass", inverse, 1.35)
    for operation, goal in ((nodes.tree_map, 1.6), (nodes.unflatten, 2.0)):
        (ratios,) = nodes.columns(trees, operation).values()
        peer = min(ratios.keys() - {"treekit"}, key=lambda name: ratios[name].median)
        title = f"nodes: {operation.__name__}, fastest peer / treekit"
        yield of_time(title, ratios[peer], goal, at_least=True, note=peer)
    created = compare({name: kinds[name].layer for name in ("treekit", "eqx.Module")}, base="treekit")
    yield of_time("nodes: create, Equinox / treekit", created["eqx.Module"], 2.0, at_least=True)


def of_time(name: str, ratio: Ratio, goal: float, *, at_least: bool = False, note: str = "") -> Figure:
    """A ratio as a figure, with its quartiles."""
    spread = f"{ratio.low:.2f} to {ratio.high:.2f}" + (f", {note}" if note else "")
    return Figure(name, round(ratio.median, 2), goal, at_least=at_least, of_time=True, note=spread)
