"""Wrappers, compiled for a TPU: a step moves the bytes, and needs the temporary memory, that Optax's does."""

import pytest

from benchmarks.evidence.accelerators import SIZE, WRAPPERS, steps
from benchmarks.evidence.compiled import compile_step, in_units
from treekit._base.jax import untyped


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
