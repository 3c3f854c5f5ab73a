"""Where nothing has to be cast, the compiled program is that of Optax: raw models and kept dtypes are free."""

import functools
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


def model() -> Any:
    """A raw model, whose leaves are arrays and functions."""
    return eqx.nn.MLP(2, 1, 4, depth=1, activation=jnp.tanh, key=jax.random.key(0))


def arrays() -> Any:
    """The arrays of that model in a plain dict, in the same order."""
    return dict(enumerate(jax.tree.leaves(eqx.filter(model(), eqx.is_array))))


def bare(o: Any, params: Any) -> Any:
    """A transformation of Optax's own, wrapped by hand."""
    tx = optax.adam(0.1)
    return tx if o is optax else tko.dtype_preserving(tko.filtered(tx))


def named(name: str, o: Any, params: Any) -> Any:
    return cases.OPTIMIZERS[name](o)


NAMES = ("sgd_scheduled", "adafactor", "novograd", "clipped", "lbfgs_no_search", "prodigy")
TRANSFORMATIONS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: functools.partial(named, name) for name in NAMES},
    "filtered": bare,
    "masked": lambda o, params: o.masked(o.adam(0.1), cases.mask_of(params)),
    "partition": lambda o, params: o.partition({True: o.adam(0.1), False: o.sgd(0.1)}, cases.mask_of(params)),
    "inject": lambda o, params: o.inject_hyperparams(o.adamw)(0.1),
    "apply_if_finite": lambda o, params: o.apply_if_finite(o.adam(0.1), 3),
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


@functools.cache
def operations_of_optax(name: str) -> Counter[tuple[str, str]]:
    return operations(TRANSFORMATIONS[name](optax, arrays()), arrays())


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("params", [model, arrays], ids=["raw", "dict"])
def test_a_wrapped_update_adds_no_operation(name: str, params: Callable[[], Any]) -> None:
    ours, theirs = operations(TRANSFORMATIONS[name](tko, params()), params()), operations_of_optax(name)
    assert sum(theirs.values()) > 5
    assert (ours - theirs, theirs - ours) == (Counter(), Counter())


def test_a_raw_model_adds_no_operation_to_multi_steps() -> None:
    """Whose program is another one than Optax's on purpose."""
    tx = tko.MultiSteps(tko.adam(0.1), 3).gradient_transformation()
    assert operations(tx, model()) == operations(tx, arrays())


def temporary(step: Any, *arguments: Any, donated: tuple[int, ...]) -> int:
    """The bytes that a compiled step needs beside its arguments and its results."""
    compiled = jax.jit(step, donate_argnums=donated).lower(*arguments).compile(compiler_options=USUAL)
    memory: Any = compiled.memory_analysis()
    return int(memory.temp_size_in_bytes)


@pytest.mark.table
@pytest.mark.parametrize("donated", [(), (0, 1)], ids=["kept", "donated"])
@pytest.mark.parametrize("applied", [True, False], ids=["applied", "returned"])
@pytest.mark.parametrize("arrays", [1, 3, 10])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_multi_steps_needs_no_more_memory_than_optax(
    name: str, arrays: int, applied: bool, donated: tuple[int, ...]
) -> None:
    """If nothing is donated, up to a third of the params more, for results that XLA does not write in their place."""
    make: Any = {"adamw": lambda: optax.adamw(0.1), "sgd": lambda: optax.sgd(0.1, momentum=0.9)}[name]
    params = [jnp.ones(10_000, jnp.float32) for _ in range(arrays)]  # Optax accumulates f64 in f32 too

    def needed(o: Any) -> int:
        multi_steps = o.MultiSteps(make(), 4)

        def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
            updates, state = multi_steps.update(grads, state, params)
            return optax.apply_updates(params, updates) if applied else updates, state

        return temporary(step, params, multi_steps.init(params), params, donated=donated)

    more = params[0].nbytes / 2 if donated else params[0].nbytes * (arrays + 1) / 3
    assert needed(tko) < needed(optax) + more  # tables of addresses take a few hundred bytes


@pytest.mark.parametrize("state_first", [True, False], ids=["state first", "params first"])
def test_a_donated_step_of_multi_steps_needs_no_temporary_memory(state_first: bool) -> None:
    """Without `in_own_memory`, the loop would start from a copy."""
    multi_steps = tko.MultiSteps(optax.adamw(0.1), 2)
    params: Any = [jnp.ones((200, 200), jnp.float32)] * 3

    def step(params: Any, state: Any, grads: Any) -> Any:
        return tko.apply_gradients(multi_steps, grads, state, params)

    def state_first_step(state: Any, params: Any, grads: Any) -> Any:
        return step(params, state, grads)[::-1]

    carry = (params, jax.eval_shape(multi_steps.init, params))
    arguments = carry[::-1] if state_first else carry
    lowered = jax.jit(state_first_step if state_first else step, donate_argnums=(0, 1)).lower(*arguments, params)
    compiled: Any = lowered.compile(compiler_options=USUAL)
    assert compiled.memory_analysis().temp_size_in_bytes < params[0].nbytes / 10
    assert not re.findall(r"= f32\[200,200\]\S* copy\(", compiled.as_text().partition("ENTRY")[2])
