"""Gradient accumulation: Optax's MultiSteps and treekit's against the least that it can cost, in one run.

The least: the gradients are accumulated in place on every step, and the bare inner step runs on each k-th.

    python -m benchmarks.multi_steps             20M parameters
    QUICK=1 python -m benchmarks.multi_steps     2M
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import treekit.optax as tko
from benchmarks._timing import compare, setting, table

K = 8
QUICK = "QUICK" in os.environ
SIZE = 2_000_000 if QUICK else 20_000_000

Step = Any  # a jitted function from params, state and gradients to new params and a new state


def least(inner: optax.GradientTransformation, params: Any) -> tuple[Any, list[Step]]:
    """The state, and one round of steps: K that accumulate, the last of which runs the inner step too."""

    def accumulate(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        inner_state, acc = state
        return params, (inner_state, jax.tree.map(lambda a, g: a + (g - a) / K, acc, grads))

    def run(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        params, (inner_state, acc) = accumulate(params, state, grads)
        updates, inner_state = inner.update(acc, inner_state, params)
        return optax.apply_updates(params, updates), (inner_state, acc)

    jitted = [jax.jit(step, donate_argnums=(0, 1)) for step in (accumulate, run)]
    return (inner.init(params), jax.tree.map(jnp.zeros_like, params)), [jitted[0]] * (K - 1) + [jitted[1]]


def accumulating(multi_steps: Any, params: Any) -> tuple[Any, list[Step]]:
    """The state, and one round of steps of a MultiSteps."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = multi_steps.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return multi_steps.init(params), [jax.jit(step, donate_argnums=(0, 1))] * K


def round_of(make: Callable[[Any], tuple[Any, list[Step]]], params: Any) -> tuple[Callable[[], object], float]:
    """A call that runs a round of K steps, and the megabytes that the step needs besides its arguments."""
    grads = jax.tree.map(lambda x: x * 0.1, params)
    carry: list[Any] = [jax.tree.map(jnp.copy, params)]
    state, steps = make(carry[0])
    carry.append(state)
    compiled = steps[-1].lower(*carry, grads).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes / 1e6

    def run() -> object:
        for step in steps:
            carry[:] = step(*carry, grads)
        for x in jax.tree.leaves(carry):
            x.block_until_ready()
        return carry

    run()
    return run, temporary


def main() -> None:
    """Print ratios for one large array and for 200."""
    print(setting("jax", "optax", "treekit"))
    inner = optax.adamw(1e-3)
    makers = {
        "the least": lambda params: least(inner, params),
        "Optax": lambda params: accumulating(optax.MultiSteps(inner, K), params),
        "treekit": lambda params: accumulating(tko.MultiSteps(inner, K), params),
    }
    for arrays in (1, 200):
        params = [jnp.ones(SIZE // arrays) for _ in range(arrays)]
        rounds = {name: round_of(make, params) for name, make in makers.items()}
        print(f"\nadamw, {SIZE:,} parameters in {arrays} arrays, k = {K}: time of a round / time of the least")
        print(table({"round": compare({name: run for name, (run, _) in rounds.items()}, base="the least")}))
        print("temporary MB: " + ", ".join(f"{name} {mb:.0f}" for name, (_, mb) in rounds.items()))


if __name__ == "__main__":
    main()
