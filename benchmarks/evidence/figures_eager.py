"""How many programs JAX compiles in one step that is not jitted, once warm."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import monitoring

import treekit
import treekit.optax as tko
from benchmarks.evidence.figure import Figure

WARM, STEPS = 8, 8
COMPILED = "/jax/core/compile/backend_compile_duration"  # the event that JAX records for each program
recorded: list[str] = []
Call = Callable[[], object]


def record(event: str, duration_secs: float, **_: str | int) -> None:
    recorded.append(event)


monitoring.register_event_duration_secs_listener(record)


def figures() -> Iterator[Figure]:
    """Programs a call, for steps in which JAX would compile in each."""
    for name, call in calls().items():
        for _ in range(WARM):
            call()
        before = recorded.count(COMPILED)
        for _ in range(STEPS):
            call()
        yield Figure(f"eager {name}: programs compiled in a step", (recorded.count(COMPILED) - before) / STEPS, goal=0)


def calls() -> dict[str, Call]:
    x, key = jnp.full((2, 3), 0.3, jnp.float32), jax.random.key(0)
    narrow = x.astype(jnp.bfloat16)
    return {
        "stochastic_round": lambda: treekit.stochastic_round(x, jnp.bfloat16, key),
        "apply_updates(key=)": lambda: tko.apply_updates([narrow], [x], key=key),
        'dtype_preserving(rounding="stochastic")': step(tko.dtype_preserving(tko.adam(0.1), rounding="stochastic")),
        "MultiSteps": step(tko.MultiSteps(tko.adam(0.1), 3)),
        "apply_if_finite": step(tko.apply_if_finite(tko.adam(0.1), 3)),
        "conditionally_mask": step(tko.conditionally_mask(tko.adam(0.1), lambda i: i % 2 == 0)),
        "conditionally_transform": step(tko.conditionally_transform(tko.adam(0.1), lambda i: i % 2 == 0)),
    }


def step(optimizer: Any) -> Call:
    """A call that updates params and state, which it keeps."""
    params = [jnp.full((2, 3), 0.5, jnp.bfloat16)]
    state = optimizer.init(params)

    def call() -> None:
        nonlocal params, state
        updates, state = optimizer.update(params, state, params)
        params = tko.apply_updates(params, updates)

    return call
