"""MultiSteps compared with Optax's, and with the least that gradient accumulation can cost.

The least: the gradients are accumulated in place on every step, and the bare inner step runs on each k-th.

Run `python -m benchmarks.multi_steps` for 20M parameters (QUICK=1 for 2M, and a tenth of the arrays).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import treekit.optax as tko
from benchmarks._page import Section, show
from benchmarks._timing import QUICK, measure

K = 8
SIZE = 2_000_000 if QUICK else 20_000_000
ARRAYS = 20 if QUICK else 200
MATRICES = 10 if QUICK else 100
NEWTON_SCHULZ = 10 if QUICK else 100  # steps, which make an inner step costly
ROUNDS = 2 if QUICK else 12

Step = Any  # a function from params, state and gradients to new params and a new state
Transformation = optax.GradientTransformation


class Accumulation(NamedTuple):
    """A way to accumulate.

    Attributes:
        init: makes the state from params.
        steps: one round of K steps.
    """

    init: Callable[[Any], Any]
    steps: list[Step]


def least(inner: Transformation, adds: bool) -> Accumulation:
    """K steps that accumulate, the last of which runs the inner step too.

    Args:
        inner: the inner transformation.
        adds: whether the others add updates too, as a program does that applies what each step returns. These are zero,
            which the compiler is not to know.
    """

    def init(params: Any) -> Any:
        return inner.init(params), jax.tree.map(jnp.zeros_like, params), jnp.array(False)

    def accumulate(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        inner_state, acc, never = state
        acc = jax.tree.map(lambda a, g: a + (g - a) / K, acc, grads)
        if adds:
            params = jax.tree.map(lambda p, a: p + jnp.where(never, a, 0), params, acc)
        return params, (inner_state, acc, never)

    def run(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        inner_state, acc, never = state
        acc = jax.tree.map(lambda a, g: a + (g - a) / K, acc, grads)
        updates, inner_state = inner.update(acc, inner_state, params)
        return optax.apply_updates(params, updates), (inner_state, acc, never)

    return Accumulation(init, [accumulate] * (K - 1) + [run])


def multi_steps(library: Any, inner: Transformation, adds: bool) -> Accumulation:
    """As a MultiSteps does it.

    Args:
        library: whose MultiSteps.
        inner: the inner transformation.
        adds: whether the zeros of steps that only accumulate are added. A program that counts the steps can drop them.
    """
    wrapped = library.MultiSteps(inner, K)

    def run(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = wrapped.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def hold(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        _, state = wrapped.update(grads, state, params)
        return params, state

    return Accumulation(wrapped.init, [run if adds else hold] * (K - 1) + [run])


def ways(inner: Transformation) -> dict[str, Accumulation]:
    return {
        "treekit": multi_steps(tko, inner, adds=True),
        "treekit, without adding zeros": multi_steps(tko, inner, adds=False),
        "Optax": multi_steps(optax, inner, adds=True),
        "the lower bound": least(inner, adds=True),
        "the lower bound, without adding zeros": least(inner, adds=False),
    }


def arrays(number: int, *shape: int) -> list[jax.Array]:
    return [jnp.ones(shape) for _ in range(number)]


WORKLOADS: dict[str, tuple[Transformation, Callable[[], Any]]] = {
    "adamw, 1 array": (optax.adamw(1e-3), lambda: arrays(1, SIZE)),
    f"adamw, {ARRAYS} arrays": (optax.adamw(1e-3), lambda: arrays(ARRAYS, SIZE // ARRAYS)),
    f"muon, {MATRICES} matrices": (optax.contrib.muon(1e-3), lambda: arrays(MATRICES, 128, 128)),
    "a costly step": (optax.contrib.muon(1e-3, ns_steps=NEWTON_SCHULZ), lambda: arrays(5, 128, 128)),
}
MEASURED = list(WORKLOADS)[:2]  # of which the memory is


# --- Time -------------------------------------------------------------------------------------------------------------


def round_of(way: Accumulation, params: Any) -> Callable[[], object]:
    """A call that runs a round of K steps, with the params and the state donated."""
    compiled = {step: jax.jit(step, donate_argnums=(0, 1)) for step in way.steps}
    grads = jax.tree.map(lambda x: x * 0.1, params)
    carry: list[Any] = [jax.tree.map(jnp.copy, params), way.init(params)]

    def run() -> object:
        for step in way.steps:
            carry[:] = compiled[step](*carry, grads)
        for x in jax.tree.leaves(carry):
            x.block_until_ready()
        return carry

    run()
    return run


# --- Memory -----------------------------------------------------------------------------------------------------------


def temporary(way: Accumulation, params: Any) -> float:
    """Megabytes that the last step of a round needs besides its arguments and results, as the compiler counts them."""
    step = jax.jit(way.steps[-1], donate_argnums=(0, 1))
    memory: Any = step.lower(params, jax.eval_shape(way.init, params), params).compile().memory_analysis()
    return float(memory.temp_size_in_bytes / 1e6)


def sections() -> Iterator[Section]:
    table: dict[str, dict[str, object]] = {}
    for title, (inner, make) in WORKLOADS.items():
        params = make()
        times = measure({name: round_of(way, params) for name, way in ways(inner).items()}, rounds=ROUNDS, tries=1)
        table[title] = {name: times.ratio(name, "treekit") for name in times if name != "treekit"}
    text = f"A round of k = {K} micro-steps, params and state donated; {SIZE:,} parameters for adamw. For CPUs only."
    yield Section("MultiSteps, against Optax's and the lower bound", text, table)
    columns: dict[str, dict[str, object]] = {}
    for title in MEASURED:
        inner, make = WORKLOADS[title]
        columns[title] = {name: f"{temporary(way, make()):.0f}" for name, way in ways(inner).items()}
    text = f"Megabytes that a donated step needs for {SIZE:,} parameters, besides its arguments and results."
    yield Section("Temporary memory of MultiSteps", text, columns)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "optax", "jax")
