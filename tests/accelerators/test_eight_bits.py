"""Stochastic rounding and state in 8 bits, compiled for a TPU: one pass over memory, sharded as the params."""

from typing import Any

import jax
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

CODES: Any = {"mu": jnp.int8, "nu": jnp.uint8}


def eight_bit(tx: Any, names: Any = CODES) -> Any:
    return training.store_state(tx, names, rounding="stochastic")


def matrices(dtype: str, *shapes: tuple[int, int]) -> list[Any]:
    return [untyped.ShapeDtypeStruct(shape, dtype) for shape in shapes]


BYTES = {  # per parameter
    'rounding="stochastic", bfloat16': 14,  # as many as with Optax
    "state_dtype=float32, bfloat16": 22,
    "mu int8, nu uint8, bfloat16": 10,
    "mu int8, nu uint8, bfloat16, params to nearest": 10,
    "mu int8, nu uint8, float32": 16,
    "mu int8, nu bfloat16, bfloat16": 12,
    "mu int8, nu bfloat16, float32": 18,
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
    ("inner", "names", "limit"),
    [
        (optax.sgd(1e-3, momentum=0.9), {"trace": jnp.int8}, 8),
        (optax.rmsprop(1e-3), {"nu": jnp.uint8}, 8),
        (optax.amsgrad(1e-3), {**CODES, "nu_max": jnp.uint8}, 12),
    ],
)
def test_other_optimizers_move_each_array_once(inner: Any, names: Any, limit: float) -> None:
    """Gradients, params and the codes are read, and the latter two written."""
    tx = eight_bit(inner, names)
    params = matrices("bfloat16", (SIZE, SIZE))
    compiled = compile_step(by_update(tko, tx), tx.init, params, donated=True)
    assert in_units(params, compiled)[0] * 2 < limit + 0.1


@pytest.mark.parametrize("along_model", [2, 4])
def test_codes_are_sharded_as_their_params_and_need_no_communication(along_model: int) -> None:
    mesh = mesh_of(tpus("v5e:2x4"), along_model=along_model)
    params = matrices("bfloat16", (1408, 88), (4096, 11008))
    tx = eight_bit(optax.adamw(1e-3))
    state = jax.eval_shape(tx.init, params)
    assert {str(x.dtype) for x in jax.tree.leaves(state)} == {"int8", "uint8", "int32", "uint32"}
    sharded, like_params = sharded_state(tx.init, params, mesh)
    assert sharded == like_params == 4
    compiled = compile_sharded(by_update(tko, tx), tx.init, params, mesh)
    assert collectives(compiled.as_text()) == {}
    assert compiled.memory_analysis().temp_size_in_bytes < 0.01 * 4096 * 11008
