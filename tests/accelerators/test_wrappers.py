"""Wrappers, compiled for a TPU: a step moves the bytes, needs the memory and communicates as that of Optax."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.evidence.accelerators import ACCUMULATED, FINITE, SIZE, WRAPPERS, cell, square, steps
from benchmarks.evidence.compiled import compile_sharded, compile_step, in_units, tpus, unit_of
from benchmarks.evidence.hlo import collectives, of_accepted
from treekit._base.jax import untyped

STEPS: dict[str, Callable[[Any], Any]] = {
    **WRAPPERS,
    **{f"MultiSteps, {name}": make for name, make in ACCUMULATED.items()},
}


@pytest.mark.parametrize("name", STEPS)
def test_no_collective_is_added(name: str) -> None:
    params = [untyped.ShapeDtypeStruct((SIZE, SIZE), "float32")]
    counted = {
        way: collectives(compile_sharded(step, optimizer.init, params).as_text())
        for way, (optimizer, step) in steps({name: STEPS[name]})[name].items()
    }
    optax = counted["Optax"]
    assert optax or name != "clip, adamw"  # the norm of sharded gradients needs some
    for way in ("treekit", "apply_gradients"):
        assert all(count <= optax.get(kind, 0) for kind, count in counted[way].items()), counted


@pytest.mark.parametrize("donated", [True, False], ids=["donated", "kept"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_moves_what_optax_moves(name: str, donated: bool) -> None:
    params = [untyped.ShapeDtypeStruct((SIZE, SIZE), "float32")]
    measured = {
        way: in_units(params, compile_step(step, optimizer.init, params, donated=donated, state_first=False))
        for way, (optimizer, step) in steps({name: WRAPPERS[name]})[name].items()
    }
    moved, temporary = measured["Optax"]
    assert moved > 3
    assert measured["treekit"] == pytest.approx((moved, temporary), abs=0.01)
    assert all(x < y + 0.01 for x, y in zip(measured["apply_gradients"], (moved, temporary), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_that_is_accepted_moves_what_optax_moves(dtype: str) -> None:
    """Of adamw in `apply_if_finite`, in which XLA would otherwise write the updates in f32."""
    name, device = "apply_if_finite of adamw", tpus("v5e:2x2")[0]
    found = {
        way: cell(device, optimizer, step, dtype, True, unit_of(square(dtype)), False, of_accepted)
        for way, (optimizer, step) in steps({name: FINITE[name]})[name].items()
    }
    assert len(set(found.values())) == 1, found
