"""MultiSteps, compiled for a TPU: the bytes that a step moves which only accumulates, and its temporary memory."""

from collections.abc import Callable
from typing import Any

import optax
import pytest

from benchmarks.evidence.compiled import compile_step, in_units
from benchmarks.evidence.hlo import bytes_moved
from treekit import optax as tko
from treekit._base.jax import untyped

INNER: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adamw": lambda: optax.adamw(1e-3),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
}
# Bytes moved and temporary memory, in units of the bytes of the params. Donated: gradients, params and accumulator are
# read, and the latter two written; the accumulator is in f32. Kept: all of the state is copied, the accumulator twice.
LIMITS = {
    ("float32", True): (5, 0),
    ("float32", False): (11, 1),
    ("bfloat16", True): (9, 0),
    ("bfloat16", False): (17, 2),
}


def params(dtype: str, size: int = 8192) -> list[Any]:
    return [untyped.ShapeDtypeStruct((size, size), dtype)]  # too large for the memory of the chip itself


def by_update(library: Any, multi_steps: Any) -> Any:
    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = multi_steps.update(grads, state, params)
        return library.apply_updates(params, updates), state

    return step


@pytest.mark.parametrize("state_first", [False, True], ids=["params_first", "state_first"])
@pytest.mark.parametrize("dtype, donated", LIMITS, ids=str)
@pytest.mark.parametrize("name", INNER)
def test_a_step_that_accumulates_is_within_the_figures(name: str, dtype: str, donated: bool, state_first: bool) -> None:
    measured = {}
    for library in (tko, optax):
        multi_steps = library.MultiSteps(INNER[name](), 8)
        step = by_update(library, multi_steps)
        compiled = compile_step(step, multi_steps.init, params(dtype), donated=donated, state_first=state_first)
        measured[library] = in_units(params(dtype), compiled)
        if library is tko:
            check_program(compiled.as_text())
    (moved, temporary), (moved_by_optax, temporary_of_optax) = measured[tko], measured[optax]
    limit, temporary_limit = LIMITS[dtype, donated]
    assert moved < limit + 0.01
    assert temporary < temporary_limit + 0.01
    if donated:
        assert moved < moved_by_optax
        assert temporary < temporary_of_optax + 0.01


def check_program(text: str) -> None:
    """No f64, and nothing that the host is asked for."""
    assert "f64[" not in text
    assert not any(name in text for name in ("outfeed", "infeed", "host_callback", "xla_python_cpu_callback", "recv("))


# The same by `apply_gradients`: what is donated, the gradients and the accumulator are read, and the latter is written.
LIMITS_OF_WHOLE_STEPS = {
    ("float32", True): 3,
    ("float32", False): 9,
    ("bfloat16", True): 5,
    ("bfloat16", False): 11,
}


@pytest.mark.parametrize("state_first", [False, True], ids=["params_first", "state_first"])
@pytest.mark.parametrize("dtype, donated", LIMITS_OF_WHOLE_STEPS, ids=str)
@pytest.mark.parametrize("name", INNER)
def test_a_whole_step_that_accumulates_does_not_touch_the_params(
    name: str, dtype: str, donated: bool, state_first: bool
) -> None:
    multi_steps = tko.MultiSteps(INNER[name](), 8)

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        return tko.apply_gradients(multi_steps, grads, state, params)

    compiled = compile_step(step, multi_steps.init, params(dtype), donated=donated, state_first=state_first)
    moved, temporary = in_units(params(dtype), compiled)
    assert moved < LIMITS_OF_WHOLE_STEPS[dtype, donated] + 0.01
    assert temporary < 0.01


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: tko.chain(tko.clip(1.0), tx),
    "named_chain": lambda tx: tko.named_chain(("clip", tko.clip(1.0)), ("tx", tx)),
    "masked": lambda tx: tko.masked(tx, [True]),
    "nested": lambda tx: tko.chain(tko.clip(1.0), tko.chain(tko.clip(1.0), tx)),
}


# Nested, MultiSteps returns zeros, which are added to the params: two units more, and two for what a clip returns.
LIMITS_OF_NESTED = {
    ("masked", True): (5, 0),
    ("masked", False): (11, 1),
    ("chain", True): (7, 1),
    ("chain", False): (13, 2),
}


@pytest.mark.parametrize("donated", [True, False], ids=["donated", "kept"])
@pytest.mark.parametrize("name", WRAPPED)
def test_nested_multi_steps_moves_no_more_than_recorded(name: str, donated: bool) -> None:
    tx = WRAPPED[name](tko.MultiSteps(optax.adamw(1e-3), 8).gradient_transformation())

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        return tko.apply_gradients(tx, grads, state, params)

    compiled = compile_step(step, tx.init, params("float32"), donated=donated, state_first=False)
    moved, temporary = in_units(params("float32"), compiled)
    limit, temporary_limit = LIMITS_OF_NESTED["masked" if name == "masked" else "chain", donated]
    assert moved < limit + 0.01
    assert temporary < temporary_limit + 0.01


@pytest.mark.parametrize("make", [lambda: optax.adamw(1e-3), lambda: optax.sgd(0.1, momentum=0.9)])
def test_the_bytes_counted_are_those_that_the_compiler_counts(make: Callable[[], optax.GradientTransformation]) -> None:
    tx = optax.with_extra_args_support(make())
    compiled = compile_step(by_update(optax, tx), tx.init, params("float32"), donated=True, state_first=False)
    assert bytes_moved(compiled.as_text()) == pytest.approx(compiled.cost_analysis()["bytes accessed"], rel=1e-3)


def test_many_arrays_move_no_more_than_one() -> None:
    """And no array is left out by the counter."""
    multi_steps = tko.MultiSteps(optax.adamw(1e-3), 8)
    many = params("float32") * 4
    compiled = compile_step(by_update(tko, multi_steps), multi_steps.init, many, donated=True, state_first=True)
    assert in_units(many, compiled)[0] == pytest.approx(5, rel=1e-3)
