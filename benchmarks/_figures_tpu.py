"""The bytes that compiled TPU steps move, where libtpu is installed: `make accelerators` installs it."""

import importlib.util
from collections.abc import Iterator
from typing import Any

from benchmarks._compiled import Step, compile_step, in_units
from benchmarks._figure import Figure
from benchmarks.accelerators import ACCUMULATED, SIZE, WRAPPERS, multi_steps, steps
from treekit._jax import untyped

# By dtype and whether the arguments are donated: of an update, and of a whole step, which does not touch the params.
GOALS = {
    ("float32", True): {"treekit": 5, "apply_gradients": 3},
    ("float32", False): {"treekit": 11, "apply_gradients": 9},
    ("bfloat16", True): {"treekit": 9, "apply_gradients": 5},
    ("bfloat16", False): {"treekit": 17, "apply_gradients": 11},
}
WAYS = {"treekit": "update", "apply_gradients": "apply_gradients"}


def is_possible() -> bool:
    """Whether this Python can compile for a TPU."""
    return importlib.util.find_spec("libtpu") is not None


def figures() -> Iterator[Figure]:
    """Bytes in units of those of the params."""
    accumulating = steps({"MultiSteps(adamw)": multi_steps(ACCUMULATED["adamw"])})["MultiSteps(adamw)"]
    for (dtype, donated), goals in GOALS.items():
        for way, goal in goals.items():
            name = f"TPU bytes, MultiSteps(adamw), {dtype}, {'donated' if donated else 'kept'}, {WAYS[way]}"
            yield Figure(name, bytes_moved(*accumulating[way], dtype, donated), goal)
    for wrapper, ways in steps({name: WRAPPERS[name] for name in ("adamw", "partition")}).items():
        of_optax = bytes_moved(*ways["Optax"], "float32", donated=True)
        for way, title in WAYS.items():
            value = bytes_moved(*ways[way], "float32", donated=True)
            yield Figure(f"TPU bytes, {wrapper}, float32, donated, {title}", value, of_optax, note="goal: Optax's own")


def bytes_moved(optimizer: Any, step: Step, dtype: str, donated: bool) -> float:
    """What one step moves, params first, of one large array."""
    params = [untyped.ShapeDtypeStruct((SIZE, SIZE), dtype)]
    compiled = compile_step(step, optimizer.init, params, donated=donated, state_first=False)
    return round(in_units(params, compiled)[0], 2)
