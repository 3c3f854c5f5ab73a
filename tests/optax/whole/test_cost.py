"""Where nothing has to be cast, the compiled program is that of Optax: raw models and kept dtypes are free."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko
from treekit import training


def arrays() -> Any:
    """The arrays of the raw model in a plain dict, in the same order."""
    return dict(enumerate(cases.inexact(cases.model())))


NAMES = ("sgd_scheduled", "adafactor", "novograd", "clipped", "lbfgs_no_search", "prodigy")
TRANSFORMATIONS: dict[str, Callable[[Any], Any]] = {
    **{name: cases.OPTIMIZERS[name] for name in NAMES},
    "store_state": lambda o: optax.adam(0.1) if o is optax else training.store_state(optax.adam(0.1)),
    "masked": lambda o: o.masked(o.adam(0.1), cases.mask_of),
    "partition": lambda o: o.partition({True: o.adam(0.1), False: o.sgd(0.1)}, cases.mask_of),
    "inject": lambda o: o.inject_hyperparams(o.adamw)(0.1),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adam(0.1), 3),
}


# XLA's own values of what tests/conftest.py sets, since here the compiled program is what is tested.
USUAL: dict[str, str | bool] = {"xla_backend_optimization_level": "3", "xla_cpu_parallel_codegen_split_count": "32"}


def operations(tx: optax.GradientTransformation, params: Any) -> Counter[tuple[str, str]]:
    """How often the compiled update has which operation with which result."""
    dynamic, static = eqx.partition(params, eqx.is_array)

    def update(grads: Any, state: Any, dynamic: Any) -> Any:
        return tx.update(grads, state, eqx.combine(dynamic, static))

    text = jax.jit(update).lower(dynamic, tx.init(params), dynamic).compile(compiler_options=USUAL).as_text()
    assert text is not None
    return Counter(re.findall(r"= (\S+) ([\w-]+)\(", text))


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_wrapped_update_adds_no_operation(name: str) -> None:
    make = TRANSFORMATIONS[name]
    theirs = operations(make(optax), arrays())
    assert sum(theirs.values()) > 5
    for params in (cases.model(), arrays()):
        ours = operations(make(tko), params)
        assert (ours - theirs, theirs - ours) == (Counter(), Counter())


def test_a_raw_model_adds_no_operation_to_multi_steps() -> None:
    """Whose program is another one than Optax's on purpose."""
    tx = tko.MultiSteps(tko.adam(0.1), 3).gradient_transformation()
    assert operations(tx, cases.model()) == operations(tx, arrays())


def compile_step(step: Any, *arguments: Any, donated: tuple[int, ...] = (0, 1)) -> Any:
    return jax.jit(step, donate_argnums=donated).lower(*arguments).compile(compiler_options=USUAL)


def temporary(compiled: Any) -> int:
    """The bytes that a compiled step needs beside its arguments and its results."""
    return int(compiled.memory_analysis().temp_size_in_bytes)


INNER: dict[str, Any] = {"adamw": optax.adamw(0.1), "sgd": optax.sgd(0.1, momentum=0.9)}


@pytest.mark.table
@pytest.mark.parametrize("applied", [True, False], ids=["applied", "returned"])
@pytest.mark.parametrize("arrays", [1, 3, 10])
@pytest.mark.parametrize("name", INNER)
def test_multi_steps_needs_hardly_more_memory_than_optax(name: str, arrays: int, applied: bool) -> None:
    """If nothing is donated, up to a third of the params more, for results that XLA does not write in their place."""
    params = [jnp.ones(10_000, jnp.float32) for _ in range(arrays)]  # Optax accumulates f64 in f32 too

    def needed(o: Any, donated: tuple[int, ...]) -> int:
        multi_steps = o.MultiSteps(INNER[name], 4)

        def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
            updates, state = multi_steps.update(grads, state, params)
            return optax.apply_updates(params, updates) if applied else updates, state

        return temporary(compile_step(step, params, multi_steps.init(params), params, donated=donated))

    for donated, more in (((0, 1), 1 / 2), ((), (arrays + 1) / 3)):
        # Tables of addresses take a few hundred bytes.
        assert needed(tko, donated) < needed(optax, donated) + more * params[0].nbytes


@pytest.mark.parametrize("state_first", [True, False], ids=["state first", "params first"])
def test_a_donated_step_of_multi_steps_needs_no_temporary_memory(state_first: bool) -> None:
    """Without `in_own_memory`, the loop would start from a copy."""
    multi_steps = tko.MultiSteps(optax.adamw(0.1), 2)
    params: Any = [jnp.ones((200, 200), jnp.float32)] * 3
    order = slice(None, None, -1 if state_first else 1)

    def step(first: Any, second: Any, grads: Any) -> Any:
        params, state = (first, second)[order]
        return training.apply_gradients(multi_steps, grads, state, params)[order]

    compiled = compile_step(step, *(params, jax.eval_shape(multi_steps.init, params))[order], params)
    assert temporary(compiled) < params[0].nbytes / 10
    assert not re.findall(r"= f32\[200,200\]\S* copy\(", compiled.as_text().partition("ENTRY")[2])
