"""The bytes that compiled steps move: on TPUs where libtpu is installed, on GPUs where JAX's CUDA plugin is.

`make accelerators` installs the first, and GPU=1 both.
"""

import importlib.util
from collections.abc import Iterator
from typing import Any

from benchmarks._compiled import Step, can_compile_for_gpus, compile_step, h100s, in_units, tpus
from benchmarks._figure import Figure
from benchmarks.accelerators import ACCUMULATED, WRAPPERS, multi_steps, square, steps

# By dtype and whether the arguments are donated: of an update, and of a whole step, which does not touch the params.
Goals = dict[tuple[str, bool], dict[str, float]]
GOALS: Goals = {
    ("float32", True): {"treekit": 5, "apply_gradients": 3},
    ("float32", False): {"treekit": 11, "apply_gradients": 9},
    ("bfloat16", True): {"treekit": 9, "apply_gradients": 5},
    ("bfloat16", False): {"treekit": 17, "apply_gradients": 11},
}
GOALS_ON_GPUS: Goals = {
    **GOALS,
    ("bfloat16", True): {"treekit": 7, "apply_gradients": 5},
    ("bfloat16", False): {"treekit": 15, "apply_gradients": 11},
}
WAYS = {"treekit": "update", "apply_gradients": "apply_gradients"}


def is_possible() -> bool:
    """Whether this Python can compile for a TPU."""
    return importlib.util.find_spec("libtpu") is not None


def figures() -> Iterator[Figure]:
    """Bytes in units of those of the params."""
    yield from figures_of("TPU", tpus("v5e:2x2")[0], GOALS)
    if can_compile_for_gpus():
        yield from figures_of("H100", h100s(1)[0], GOALS_ON_GPUS)
    else:
        print("H100 bytes: not measured, since JAX's CUDA plugin is not installed (make accelerators GPU=1)")


def figures_of(machine: str, device: Any, goals_of: Goals) -> Iterator[Figure]:
    """Those of one machine."""
    accumulating = steps({"MultiSteps(adamw)": multi_steps(ACCUMULATED["adamw"])})["MultiSteps(adamw)"]
    for (dtype, donated), goals in goals_of.items():
        for way, goal in goals.items():
            name = f"{machine} bytes, MultiSteps(adamw), {dtype}, {'donated' if donated else 'kept'}, {WAYS[way]}"
            yield Figure(name, moved(device, *accumulating[way], dtype, donated), goal)
    for wrapper, ways in steps({name: WRAPPERS[name] for name in ("adamw", "partition")}).items():
        of_optax = moved(device, *ways["Optax"], "float32", donated=True)
        for way, title in WAYS.items():
            name = f"{machine} bytes, {wrapper}, float32, donated, {title}"
            value = moved(device, *ways[way], "float32", donated=True)
            yield Figure(name, value, of_optax, note="goal: Optax's own")


def moved(device: Any, optimizer: Any, step: Step, dtype: str, donated: bool) -> float:
    """What one step moves, params first, of one large array."""
    params = square(dtype)
    compiled = compile_step(step, optimizer.init, params, donated=donated, state_first=False, device=device)
    return round(in_units(params, compiled)[0], 2)
