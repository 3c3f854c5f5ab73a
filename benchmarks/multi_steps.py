"""MultiSteps compared with Optax's, and with the least that gradient accumulation can cost.

The least: the gradients are accumulated in place on every step, and the bare inner step runs on each k-th. All add what
a step returns to the params, as programs do, also where it is zero.

Run `python -m benchmarks.multi_steps` for 20M parameters (QUICK=1 for 2M, and a tenth of the arrays).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import treekit.optax as tko
from benchmarks._timing import QUICK, Ratio, Section, measure, show
from treekit import training

K = 8
SIZE = 2_000_000 if QUICK else 20_000_000
ARRAYS = 20 if QUICK else 200
MATRICES = 10 if QUICK else 100
ROUNDS = 2 if QUICK else 12

Step = Callable[[Any, Any, Any], tuple[Any, Any]]  # from params, state and gradients to new params and a new state


class Accumulation(NamedTuple):
    """What makes the state from params, a step that only accumulates, and the last step of a round of K."""

    init: Callable[[Any], Any]
    hold: Step
    run: Step


def least(inner: optax.GradientTransformation) -> Accumulation:
    """The least that a round can do. The compiler is not to know that what it adds in other steps is zero."""

    def init(params: Any) -> Any:
        return inner.init(params), jax.tree.map(jnp.zeros_like, params), jnp.array(False)

    def mean(acc: Any, grads: Any) -> Any:
        return jax.tree.map(lambda a, g: a + (g - a) / K, acc, grads)

    def hold(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        inner_state, acc, never = state
        acc = mean(acc, grads)
        return jax.tree.map(lambda p, a: p + jnp.where(never, a, 0), params, acc), (inner_state, acc, never)

    def run(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        inner_state, acc, never = state
        acc = mean(acc, grads)
        updates, inner_state = inner.update(acc, inner_state, params)
        return optax.apply_updates(params, updates), (inner_state, acc, never)

    return Accumulation(init, hold, run)


def by_update(library: Any, optimizer: Any) -> Step:
    """A step in two calls."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return library.apply_updates(params, updates), state

    return step


def by_apply_gradients(optimizer: Any) -> Step:
    """A step of treekit's in one call."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        return training.apply_gradients(optimizer, grads, state, params)

    return step


def ways(inner: optax.GradientTransformation) -> dict[str, Accumulation]:
    ours, theirs = (library.MultiSteps(inner, K) for library in (tko, optax))
    steps = {
        "treekit": (ours, by_update(tko, ours)),
        "treekit, apply_gradients": (ours, by_apply_gradients(ours)),
        "Optax": (theirs, by_update(optax, theirs)),
    }
    found = {name: Accumulation(optimizer.init, step, step) for name, (optimizer, step) in steps.items()}
    return {**found, "the lower bound": least(inner)}


def arrays(number: int, *shape: int) -> list[jax.Array]:
    return [jnp.ones(shape) for _ in range(number)]


WORKLOADS: dict[str, tuple[optax.GradientTransformation, Callable[[], Any]]] = {
    "adamw, 1 array": (optax.adamw(1e-3), lambda: arrays(1, SIZE)),
    f"adamw, {ARRAYS} arrays": (optax.adamw(1e-3), lambda: arrays(ARRAYS, SIZE // ARRAYS)),
    f"muon, {MATRICES} matrices": (optax.contrib.muon(1e-3), lambda: arrays(MATRICES, 128, 128)),
}


def round_of(way: Accumulation, params: Any) -> Callable[[], object]:
    """A call that runs a round of K steps, with the params and the state donated."""
    hold, run = (jax.jit(step, donate_argnums=(0, 1)) for step in (way.hold, way.run))
    grads = jax.tree.map(lambda x: x * 0.1, params)
    carry: list[Any] = [jax.tree.map(jnp.copy, params), way.init(params)]

    def call() -> None:
        for step in [hold] * (K - 1) + [run]:
            carry[:] = step(*carry, grads)
        for x in jax.tree.leaves(carry):
            x.block_until_ready()

    call()
    return call


def temporary(way: Accumulation, params: Any) -> float:
    """Megabytes that the last step of a round needs besides its arguments and results, as the compiler counts them."""
    step = jax.jit(way.run, donate_argnums=(0, 1))
    memory: Any = step.lower(params, jax.eval_shape(way.init, params), params).compile().memory_analysis()
    return float(memory.temp_size_in_bytes / 1e6)


def sections() -> Iterator[Section]:
    table: dict[str, dict[str, Ratio]] = {}
    megabytes: dict[str, dict[str, str]] = {}
    for title, (inner, make) in WORKLOADS.items():
        params = make()
        times = measure({name: round_of(way, params) for name, way in ways(inner).items()}, rounds=ROUNDS, tries=1)
        table[title] = {name: times.ratio("treekit", name) for name in times if name != "treekit"}
        megabytes[title] = {name: f"{temporary(way, params):.0f}" for name, way in ways(inner).items()}
    text = f"A round of k = {K} micro-steps, params and state donated; {SIZE:,} parameters for adamw. For CPUs only."
    yield Section("MultiSteps, against Optax's and the lower bound", text, table)
    text = f"Megabytes that a donated step needs, besides its arguments and results; {SIZE:,} parameters for adamw."
    yield Section("Temporary memory of MultiSteps", text, megabytes)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "optax", "jax")
