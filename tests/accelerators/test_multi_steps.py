"""MultiSteps, compiled for a TPU: the bytes that a step moves which only accumulates, and its temporary memory."""

from typing import Any

import optax
import pytest

from benchmarks.evidence.compiled import compile_step, in_units
from benchmarks.multi_steps import by_apply_gradients, by_update
from treekit import optax as tko
from treekit._base.jax import untyped


def clipped() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def measured(step: Any, init: Any, dtype: str = "float32", arrays: int = 1, **options: bool) -> tuple[float, float]:
    """The bytes moved and the temporary memory, in units of the bytes of the params."""
    params = [untyped.ShapeDtypeStruct((8192, 8192), dtype)] * arrays  # too large for the memory of the chip itself
    compiled = compile_step(step, init, params, **options)
    text = compiled.as_text()
    assert "f64[" not in text
    assert not any(name in text for name in ("outfeed", "infeed", "host_callback", "xla_python_cpu_callback", "recv("))
    return in_units(params, compiled)


# What is donated, gradients, params and the accumulator, is read, and the latter two are written; the accumulator is in
# f32. Kept: all of the state is copied, the accumulator twice.
LIMITS = {
    ("float32", True): (5, 0),
    ("float32", False): (11, 1),
    ("bfloat16", True): (7, 0),
    ("bfloat16", False): (15, 2),
}


@pytest.mark.parametrize("state_first", [False, True], ids=["params_first", "state_first"])
@pytest.mark.parametrize("dtype, donated", LIMITS, ids=str)
def test_a_step_that_accumulates_is_within_the_figures(dtype: str, donated: bool, state_first: bool) -> None:
    """Also around a clip by norm. `make figures` has adamw alone, and MultiSteps inside of other wrappers."""
    multi_steps, optaxs = (library.MultiSteps(clipped(), 8) for library in (tko, optax))
    options = {"donated": donated, "state_first": state_first}
    limit, temporary_limit = LIMITS[dtype, donated]
    of_optax = measured(by_update(optax, optaxs), optaxs.init, dtype, **options)
    for step in (by_update(tko, multi_steps), by_apply_gradients(multi_steps)):
        moved, temporary = measured(step, multi_steps.init, dtype, **options)
        assert moved < limit + 0.01
        assert temporary < temporary_limit + 0.01
        assert not donated or (moved < of_optax[0] and temporary < of_optax[1] + 0.01)


def test_many_arrays_move_no_more_than_one() -> None:
    """And no array is left out by the counter."""
    tx = tko.MultiSteps(optax.adamw(1e-3), 8)
    moved, _ = measured(by_update(tko, tx), tx.init, arrays=4, donated=True, state_first=True)
    assert moved == pytest.approx(5, rel=1e-3)
