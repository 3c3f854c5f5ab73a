"""Stochastic rounding, compiled for a TPU: a step moves the bytes of plain bf16, half of those of f32, or fewer."""

import pytest

from benchmarks.evidence.accelerators import SIZE, rounded
from benchmarks.evidence.compiled import compile_step, in_units
from treekit._base.jax import untyped

BYTES = {  # per parameter
    "Optax, float32": 28,
    "Optax, bfloat16": 14,
    'rounding="stochastic", bfloat16': 14,
    "state_dtype=float32, bfloat16": 22,
    "mu int8, nu uint8, bfloat16": 10,
    "mu int8, nu uint8, bfloat16, params to nearest": 10,
    "mu int8, nu uint8, float32": 16,
    "mu int8, nu bfloat16, bfloat16": 12,
    "mu int8, nu bfloat16, float32": 18,
}


@pytest.mark.parametrize("name", BYTES)
def test_a_step_moves_so_many_bytes(name: str) -> None:
    dtype, optimizer, step = rounded()[name]
    params = [untyped.ShapeDtypeStruct((SIZE, SIZE), dtype)]
    compiled = compile_step(step, optimizer.init, params, donated=True, state_first=False)
    moved, temporary = (x * params[0].dtype.itemsize for x in in_units(params, compiled))
    assert moved == pytest.approx(BYTES[name], abs=0.01)
    assert temporary < 0.01
