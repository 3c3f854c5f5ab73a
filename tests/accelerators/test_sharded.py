"""A step on params that are sharded over eight chips of a TPU communicates as Optax's does, and not more."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.evidence.accelerators import ACCUMULATED, SIZE, WRAPPERS, steps
from benchmarks.evidence.compiled import compile_sharded
from benchmarks.evidence.hlo import collectives
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
    for way in ("treekit", "apply_gradients"):
        assert all(count <= optax.get(kind, 0) for kind, count in counted[way].items()), counted


def test_collectives_are_counted() -> None:
    """The norm of sharded gradients needs one at least."""
    optimizer, step = steps({"clip": WRAPPERS["clip, adamw"]})["clip"]["Optax"]
    params = [untyped.ShapeDtypeStruct((SIZE, SIZE), "float32")]
    assert collectives(compile_sharded(step, optimizer.init, params).as_text())
