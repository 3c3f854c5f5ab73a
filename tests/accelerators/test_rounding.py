"""Stochastic rounding, compiled for a TPU: one pass over memory, sharded as the params."""

from typing import Any

import jax.numpy as jnp
import optax
import pytest

from benchmarks.evidence.accelerators import SIZE, rounded
from benchmarks.evidence.compiled import compile_sharded, compile_step, in_units, mesh_of, sharded_state, tpus
from benchmarks.evidence.hlo import collectives
from benchmarks.multi_steps import by_update
from treekit import optax as tko
from treekit import training
from treekit._base.jax import untyped


def in_bf16(tx: Any) -> Any:
    return training.store_state(tx, jnp.bfloat16, rounding="stochastic")


def matrices(dtype: str, *shapes: tuple[int, int]) -> list[Any]:
    return [untyped.ShapeDtypeStruct(shape, dtype) for shape in shapes]


BYTES = {  # per parameter
    'rounding="stochastic", bfloat16': 14,  # as many as with Optax
    "state_dtype=float32, bfloat16": 22,
    "state_dtype=bfloat16, float32": 20,
}


@pytest.mark.parametrize("state_first", [False, True], ids=["params_first", "state_first"])
@pytest.mark.parametrize("name", BYTES)
def test_a_step_moves_so_many_bytes(name: str, state_first: bool) -> None:
    dtype, optimizer, step = rounded()[name]
    params = matrices(dtype, (SIZE, SIZE))
    compiled = compile_step(step, optimizer.init, params, donated=True, state_first=state_first)
    moved, temporary = (x * params[0].dtype.itemsize for x in in_units(params, compiled))
    assert moved == pytest.approx(BYTES[name], abs=0.01)
    assert temporary < 0.01


@pytest.mark.parametrize(
    ("inner", "limit"),
    [(optax.sgd(1e-3, momentum=0.9), 10), (optax.rmsprop(1e-3), 10), (optax.amsgrad(1e-3), 18)],
)
def test_other_optimizers_move_each_array_once(inner: Any, limit: float) -> None:
    """Gradients, params and the state are read, and the latter two written."""
    params = matrices("bfloat16", (SIZE, SIZE))
    tx = in_bf16(inner)
    compiled = compile_step(by_update(tko, tx), tx.init, params, donated=True)
    assert in_units(params, compiled)[0] * 2 < limit + 0.1


@pytest.mark.parametrize("along_model", [2, 4])
def test_state_is_sharded_as_its_params_and_needs_no_communication(along_model: int) -> None:
    mesh = mesh_of(tpus("v5e:2x4"), along_model=along_model)
    params = matrices("bfloat16", (1408, 88), (4096, 11008))
    tx = in_bf16(optax.adamw(1e-3))
    sharded, like_params = sharded_state(tx.init, params, mesh)
    assert sharded == like_params == 4
    compiled = compile_sharded(by_update(tko, tx), tx.init, params, mesh)
    assert collectives(compiled.as_text()) == {}
    assert compiled.memory_analysis().temp_size_in_bytes < 0.01 * 4096 * 11008
