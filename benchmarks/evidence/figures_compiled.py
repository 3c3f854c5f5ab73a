"""The bytes that compiled steps move: on TPUs where libtpu is installed, on GPUs where JAX's CUDA plugin is.

`make accelerators` installs the first, and GPU=1 both.
"""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.evidence.accelerators import (
    ACCUMULATED,
    FINITE,
    GPU,
    NESTED,
    TPU,
    WRAPPERS,
    eight_bit_rows,
    multi_steps,
    of_accepted,
    square,
    steps,
)
from benchmarks.evidence.compiled import Step, compile_step, in_units, unit_of
from benchmarks.evidence.figure import Figure
from benchmarks.evidence.hlo import bytes_moved

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
# Whole steps that do not touch the params, as of MultiSteps alone; apply_if_finite reads the gradients first.
GOALS_OF_NESTED = {
    "clip, MultiSteps": 3,
    "masked MultiSteps": 3,
    "apply_if_finite of MultiSteps": 4,
    "apply_if_finite of adamw": 8,
}
EIGHT_BITS = {"mu int8, nu uint8, bfloat16": 10.1, "mu int8, nu uint8, float32": 16.1}
WAYS = {"treekit": "update", "apply_gradients": "apply_gradients"}


def figures() -> Iterator[Figure]:
    """Bytes in units of those of the params."""
    for name, machine, goals in (("TPU", TPU, GOALS), ("H100", GPU, GOALS_ON_GPUS)):
        if machine.is_possible():
            yield from figures_of(name, machine.device(), goals)
            yield from figures_of_eight_bits(name, machine.device())
        else:
            print(f"{name} bytes: not measured, since what compiles for it is not installed (make accelerators)")


def figures_of(machine: str, device: Any, goals_of: Goals) -> Iterator[Figure]:
    """Those of one machine."""
    accumulating = steps({"MultiSteps(adamw)": multi_steps(ACCUMULATED["adamw"])})["MultiSteps(adamw)"]
    for (dtype, donated), goals in goals_of.items():
        for way, goal in goals.items():
            name = f"{machine} bytes, MultiSteps(adamw), {dtype}, {'donated' if donated else 'kept'}, {WAYS[way]}"
            yield Figure(name, moved(device, *accumulating[way], dtype, donated), goal)
    for wrapper, ways in steps({**NESTED, **FINITE}).items():
        name = f"{machine} bytes, {wrapper}, float32, donated, apply_gradients"
        count = of_accepted if wrapper in FINITE else bytes_moved
        value = moved(device, *ways["apply_gradients"], "float32", donated=True, count=count)
        yield Figure(name, value, GOALS_OF_NESTED[wrapper])
    for wrapper, ways in steps({name: WRAPPERS[name] for name in ("adamw", "partition")}).items():
        of_optax = moved(device, *ways["Optax"], "float32", donated=True)
        for way, title in WAYS.items():
            name = f"{machine} bytes, {wrapper}, float32, donated, {title}"
            value = moved(device, *ways[way], "float32", donated=True)
            yield Figure(name, value, of_optax, note="goal: Optax's own")


def figures_of_eight_bits(machine: str, device: Any) -> Iterator[Figure]:
    """Bytes per parameter, and temporary memory in the same unit, of a donated step of adamw."""
    for name, goal in EIGHT_BITS.items():
        dtype, optimizer, step = eight_bit_rows()[name]
        params = square(dtype) * 2
        compiled = compile_step(step, optimizer.init, params, donated=True, state_first=False, device=device)
        bytes_each, temporary = (round(x * params[0].dtype.itemsize, 2) for x in in_units(params, compiled))
        yield Figure(f"{machine} bytes a parameter, adamw, {name}", bytes_each, goal)
        yield Figure(f"{machine} temporary bytes a parameter, adamw, {name}", temporary, 0.01)


def moved(
    device: Any,
    optimizer: Any,
    step: Step,
    dtype: str,
    donated: bool,
    *,
    count: Callable[[str], int] = bytes_moved,
) -> float:
    """What one step moves, params first, of one large array."""
    params = square(dtype)
    compiled = compile_step(step, optimizer.init, params, donated=donated, state_first=False, device=device)
    return round(count(compiled.as_text()) / unit_of(params), 2)
