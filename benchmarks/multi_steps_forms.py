"""Gradient accumulation in each form that programs give a step: its arguments in either order, donated or kept.

And in a Flax `TrainState`, in `eqx.filter_jit(donate="all")`, and in a `lax.scan` over the micro-batches of a round.

Run `python -m benchmarks.multi_steps_forms` (QUICK=1 for a short look).
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import treekit.optax as tko
from benchmarks._page import Section, show
from benchmarks._timing import QUICK, measure
from benchmarks.multi_steps import SIZE, K, arrays
from treekit._base.jax import untyped

ROUNDS = 2 if QUICK else 12
INNER = optax.adamw(1e-3)

Step = Callable[[Any, Any, Any], tuple[Any, Any]]  # from params, state and gradients to new params and a new state
Round = Callable[[Any], Any]  # K micro-steps, of all that travels from one to the next


def by_update(library: Any) -> tuple[optax.GradientTransformation, Step]:
    tx = library.MultiSteps(INNER, K).gradient_transformation()

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params)
        return library.apply_updates(params, updates), state

    return tx, step


def by_apply_gradients() -> tuple[optax.GradientTransformation, Step]:
    tx = tko.MultiSteps(INNER, K).gradient_transformation()

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        return tko.apply_gradients(tx, grads, state, params)

    return tx, step


WAYS: dict[str, tuple[optax.GradientTransformation, Step]] = {
    "treekit": by_update(tko),
    "treekit, apply_gradients": by_apply_gradients(),
    "Optax": by_update(optax),
}


def repeated(step: Callable[[Any], Any]) -> Round:
    def run(carry: Any) -> Any:
        for _ in range(K):
            carry = step(carry)
        return carry

    return run


def params_first(step: Step, grads: Any, donated: bool) -> Round:
    jitted = untyped.jit(step, donate_argnums=(0, 1) if donated else ())
    return repeated(lambda carry: jitted(*carry, grads))


def state_first(step: Step, grads: Any, donated: bool) -> Round:
    def swapped(state: Any, params: Any, grads: Any) -> tuple[Any, Any]:
        params, state = step(params, state, grads)
        return state, params

    jitted = untyped.jit(swapped, donate_argnums=(0, 1) if donated else ())

    def once(carry: Any) -> Any:
        state, params = jitted(carry[1], carry[0], grads)
        return params, state

    return repeated(once)


def filter_jitted(step: Step, grads: Any) -> Round:
    """Equinox donates the gradients too, so each step makes its own, as a program does."""

    @eqx.filter_jit(donate="all")
    def jitted(carry: Any, scale: Any) -> Any:
        return step(carry[0], carry[1], jax.tree.map(lambda x: x * scale, carry[0]))

    del grads
    return repeated(lambda carry: jitted(carry, jnp.float32(0.1)))


def scanned(step: Step, grads: Any) -> Round:
    """Micro-batches whose gradients are made from the params, so that no stack of gradients is needed."""

    def run(carry: Any, scales: Any) -> Any:
        def one(carry: Any, scale: Any) -> tuple[Any, None]:
            return step(carry[0], carry[1], jax.tree.map(lambda g: g * scale, grads)), None

        return jax.lax.scan(one, carry, scales)[0]

    jitted = jax.jit(run, donate_argnums=0)
    scales = jnp.linspace(0.1, 1.0, K)
    return lambda carry: jitted(carry, scales)


FORMS: dict[str, Callable[[Step, Any], Round]] = {
    "params first, donated": lambda step, grads: params_first(step, grads, donated=True),
    "state first, donated": lambda step, grads: state_first(step, grads, donated=True),
    "params first, kept": lambda step, grads: params_first(step, grads, donated=False),
    "state first, kept": lambda step, grads: state_first(step, grads, donated=False),
    "filter_jit, donated": filter_jitted,
    "scan, donated": scanned,
}


def running(run: Round, carry: Any) -> Callable[[], object]:
    """A call that runs a round, and waits for it."""
    held = [run(carry)]

    def call() -> object:
        held[0] = untyped.block_until_ready(run(held[0]))
        return held[0]

    return call


def in_train_state(tx: optax.GradientTransformation, params: Any, grads: Any) -> Callable[[], object]:
    """A round of Flax's `TrainState.apply_gradients`, donated."""

    def apply_fn(_: Any) -> None: ...

    def step(state: Any, grads: Any) -> Any:
        return state.apply_gradients(grads=grads)

    jitted = jax.jit(step, donate_argnums=0)
    make: Any = TrainState.create
    state = make(apply_fn=apply_fn, params=params, tx=tx)
    return running(repeated(lambda state: jitted(state, grads)), state)


def milliseconds(calls: dict[str, Callable[[], object]]) -> dict[str, object]:
    """Of one micro-step."""
    times = measure(calls, rounds=ROUNDS, tries=1)
    return {name: f"{times.median(name) / K * 1e3:.1f}" for name in times}


def sections() -> Iterator[Section]:
    params = arrays(1, SIZE)
    grads = jax.tree.map(lambda x: x * 0.1, params)

    def fresh() -> Any:
        return jax.tree.map(jnp.copy, params)

    columns: dict[str, dict[str, object]] = {}
    for title, form in FORMS.items():
        columns[title] = milliseconds(
            {name: running(form(step, grads), (own := fresh(), tx.init(own))) for name, (tx, step) in WAYS.items()}
        )
    in_two = {name: tx for name, (tx, _) in WAYS.items() if name != "treekit, apply_gradients"}  # TrainState's own
    columns["TrainState, donated"] = milliseconds(
        {name: in_train_state(tx, fresh(), grads) for name, tx in in_two.items()}
    )
    text = (
        f"Milliseconds for a micro-step of adamw on {SIZE:,} parameters, k = {K}, the mean of a round. For CPUs only."
    )
    yield Section("MultiSteps, in each form of a step", text, columns)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "optax", "jax", "flax", "equinox")
