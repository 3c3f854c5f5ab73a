"""Each figure that treekit is measured by, next to its goal and to the last that was recorded.

python -m benchmarks.evidence.figures           those that do not depend on time; exits with 1 where one has got worse
python -m benchmarks.evidence.figures --times   those that do as well, which are only shown (minutes; QUICK=1 for less)
python -m benchmarks.evidence.figures --record  writes what was measured into benchmarks/evidence/figures.json

The bytes that compiled steps move are measured for TPUs where libtpu is installed, and for GPUs where JAX's CUDA plugin
is: `make accelerators` installs the first, and GPU=1 both. tests/test_typing.py counts what type checkers know.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import monitoring

import treekit as tk
import treekit.optax as tko
from benchmarks import trees, wrappers
from benchmarks._timing import QUICK, compare, measure, setting
from benchmarks.evidence.accelerators import ACCUMULATED, FINITE, NESTED, WRAPPERS, rounded, square, steps
from benchmarks.evidence.compiled import GPU, TPU, compile_step, in_units, unit_of
from benchmarks.evidence.hlo import bytes_moved, of_accepted
from benchmarks.multi_steps import Step
from treekit import training
from treekit._base.jax import untyped

RECORD = Path(__file__).parent / "figures.json"
WIDTH = 86  # of a name
Recorded = Mapping[str, float]


class Figure(NamedTuple):
    """A number, and what it should be.

    Attributes:
        name: unique, and the key under which it is recorded.
        value: what was measured.
        goal: what it should be at most, if there is a goal.
        of_time: whether it depends on time, so differs from run to run, and is only shown.
        note: what it is made up of.
    """

    name: str
    value: float
    goal: float | None = None
    of_time: bool = False
    note: str = ""


# --- Programs compiled in steps that are not jitted -------------------------------------------------------------------

WARM, STEPS = 8, 8
programs: list[str] = []


def record_program(event: str, duration_secs: float, **_: str | int) -> None:
    """Keep what JAX records for each program that it compiles."""
    if event == "/jax/core/compile/backend_compile_duration":
        programs.append(event)


monitoring.register_event_duration_secs_listener(record_program)


def of_eager() -> Iterator[Figure]:
    """Programs a step, once warm: JAX would compile in each where functions are made again."""
    x, key = jnp.full((2, 3), 0.3, jnp.float32), jax.random.key(0)
    calls: dict[str, Callable[[], object]] = {
        "stochastic_round": lambda: training.stochastic_round(x, jnp.bfloat16, key),
        "apply_updates(key=)": lambda: tko.apply_updates([x.astype(jnp.bfloat16)], [x], key=key),
        'store_state(rounding="stochastic")': stepping(training.store_state(tko.adam(0.1), rounding="stochastic")),
        "MultiSteps": stepping(tko.MultiSteps(tko.adam(0.1), 3)),
        "apply_if_finite": stepping(tko.apply_if_finite(tko.adam(0.1), 3)),
        "conditionally_mask": stepping(tko.conditionally_mask(tko.adam(0.1), lambda i: i % 2 == 0)),
        "conditionally_transform": stepping(tko.conditionally_transform(tko.adam(0.1), lambda i: i % 2 == 0)),
    }
    for name, call in calls.items():
        for _ in range(WARM):
            call()
        before = len(programs)
        for _ in range(STEPS):
            call()
        yield Figure(f"eager {name}: programs compiled in a step", (len(programs) - before) / STEPS, 0)


def stepping(optimizer: Any) -> Callable[[], object]:
    """A call that updates params and state, which it keeps."""
    params = [jnp.full((2, 3), 0.5, jnp.bfloat16)]
    state = optimizer.init(params)

    def call() -> None:
        nonlocal params, state
        updates, state = optimizer.update(params, state, params)
        params = tko.apply_updates(params, updates)

    return call


# --- Calls of functions, which say what grows and what is slow, whatever the machine ----------------------------------

SIZE = 400


def of_calls() -> Iterator[Figure]:
    """Calls that Python makes: for each leaf; and by how much more for twice the layers."""
    for kind, tree in trees.trees(SIZE).items():
        for what, libraries in {**trees.filtering(tree), **trees.replacing(tree)}.items():
            ours, theirs = (round(calls_of(libraries[name]) / SIZE, 2) for name in ("treekit", "Equinox"))
            call = what if what in trees.filtering(tree) else f"tree_at of {what}"
            yield Figure(f"calls a leaf, {call}, {kind}", ours, theirs, note="goal: Equinox's")
    once, twice = (calls_of(partial(renaming, layers)) for layers in (SIZE, 2 * SIZE))
    yield Figure("calls, graft with a rename for each layer, for twice the layers", round(twice / once, 2), 2)


def renaming(layers: int) -> None:
    """Rename each layer."""
    new, old = ({name: [{"w": trees.X} for _ in range(layers)]} for name in ("layers", "blocks"))
    tk.graft(new, old, rename={f"blocks.{i}.**": f"layers.{i}.**" for i in range(layers)})


def calls_of(f: Callable[[], object]) -> int:
    """Count the calls that Python makes while a function runs, once what is cached is there."""
    f()
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return count


# --- Bytes that compiled steps move -----------------------------------------------------------------------------------

# In bytes of the params, by dtype and whether the arguments are donated: of `update`, and of `apply_gradients`.
GOALS: dict[tuple[str, bool], float] = {
    ("float32", True): 5,
    ("float32", False): 11,
    ("bfloat16", True): 7,
    ("bfloat16", False): 15,
}
GOALS_OF_NESTED = {
    "clip, MultiSteps": 7,
    "masked MultiSteps": 5,
    "apply_if_finite of MultiSteps": 8,
    "apply_if_finite of adamw": 11,
}
SIXTEEN_BITS = {'rounding="stochastic", bfloat16': 14.1, "state_dtype=bfloat16, float32": 20.1}
WAYS = {"treekit": "update", "apply_gradients": "apply_gradients"}


def of_bytes() -> Iterator[Figure]:
    """Of each machine that JAX can compile for here."""
    for machine, target in (("TPU", TPU), ("H100", GPU)):
        if not target.is_possible:
            print(f"{machine} bytes: not measured, since what compiles for it is not installed (make accelerators)")
            continue
        device = target.device()
        accumulating = steps(ACCUMULATED)["adamw"]
        for (dtype, donated), goal in GOALS.items():
            for way, title in WAYS.items():
                name = f"{machine} bytes, MultiSteps(adamw), {dtype}, {'donated' if donated else 'kept'}, {title}"
                yield Figure(name, moved(device, *accumulating[way], dtype, donated), goal)
        for wrapper, ways in steps({**NESTED, **FINITE}).items():
            name = f"{machine} bytes, {wrapper}, float32, donated, apply_gradients"
            count = of_accepted if wrapper in FINITE else bytes_moved
            yield Figure(name, moved(device, *ways["apply_gradients"], count=count), GOALS_OF_NESTED[wrapper])
        for wrapper, ways in steps({name: WRAPPERS[name] for name in ("adamw", "partition")}).items():
            of_optax = moved(device, *ways["Optax"])
            for way, title in WAYS.items():
                name = f"{machine} bytes, {wrapper}, float32, donated, {title}"
                yield Figure(name, moved(device, *ways[way]), of_optax, note="goal: Optax's own")
        for name, goal in SIXTEEN_BITS.items():
            dtype, optimizer, step = rounded()[name]
            params = square(dtype) * 2
            compiled = compile_step(step, optimizer.init, params, donated=True, device=device)
            each, temporary = (round(x * params[0].dtype.itemsize, 2) for x in in_units(params, compiled))
            yield Figure(f"{machine} bytes a parameter, adamw, {name}", each, goal)
            yield Figure(f"{machine} temporary bytes a parameter, adamw, {name}", temporary, 0.01)


def moved(
    device: Any,
    optimizer: Any,
    step: Step,
    dtype: str = "float32",
    donated: bool = True,
    count: Callable[[str], int] = bytes_moved,
) -> float:
    """What one step moves, params first, of one large array."""
    params = square(dtype)
    compiled = compile_step(step, optimizer.init, params, donated=donated, device=device)
    return round(count(compiled.as_text()) / unit_of(params), 2)


# --- Time -------------------------------------------------------------------------------------------------------------

LEAVES, FEW = 100 if QUICK else 1_000, 4  # many, and so few that each call is all overhead
TIMES = [
    ("trace and lower", LEAVES, 1.1),
    ("jitted init", LEAVES, 1.2),
    ("trace and lower", FEW, 1.15),
    ("eager init", FEW, 1.15),
    ("eager update", FEW, 1.15),
]


def of_times() -> Iterator[Figure]:
    """Treekit's time divided by Equinox's or Optax's."""
    for leaves, goals in ((SIZE, {"combine": 0.85, "a leaf": 0.4}), (trees.LEAVES, {}), (40_000, {"combine": 0.85})):
        for kind, tree in trees.trees(leaves).items():
            for what, calls in {**trees.filtering(tree), **trees.replacing(tree)}.items():
                if leaves == trees.LEAVES or what in goals:
                    ratio = compare(calls, ours="treekit")["Equinox"]
                    title = f"{what} of {kind}, {leaves:,} leaves, treekit / Equinox"
                    note = f"{ratio.low:.2f} to {ratio.high:.2f}"
                    yield Figure(title, round(ratio.median, 2), goals.get(what, 1), of_time=True, note=note)
    layers = (500, 4_000)
    few, many = (min(times) for times in measure({n: partial(renaming, n) for n in layers}, rounds=3).values())
    exponent = math.log(many / few) / math.log(layers[1] / layers[0])
    yield Figure("graft with a rename for each layer, exponent of growth", round(exponent, 2), 1.1, of_time=True)
    for way, leaves, goal in TIMES:
        for name, ratio in wrappers.ratios(way, leaves).items():
            title = f"{way}, {leaves:,} leaves, treekit / Optax: {name}"
            yield Figure(title, round(ratio.median, 2), goal, of_time=True, note=f"{ratio.low:.2f} to {ratio.high:.2f}")


# --- The table --------------------------------------------------------------------------------------------------------


def figures(times: bool) -> Iterator[Figure]:
    """Each when it is measured."""
    for of in (of_eager, of_calls, of_bytes, *([of_times] if times else [])):
        yield from of()


def is_worse(figure: Figure, recorded: Recorded) -> bool:
    """Whether it is larger than it was, and does not depend on time."""
    return not figure.of_time and figure.value > recorded.get(figure.name, figure.value)


def line(figure: Figure, recorded: Recorded) -> str:
    """One figure, as a line of a table."""
    last, goal = recorded.get(figure.name), figure.goal
    is_reached = goal is None or figure.value <= goal
    verdict = "WORSE" if is_worse(figure, recorded) else "" if is_reached else "not reached"
    cells = [f"{'-' if number is None else f'{number:g}':>9}" for number in (figure.value, goal, last)]
    return f"{figure.name:{WIDTH}}{'  '.join(cells)}  {verdict:11}  {figure.note}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the status to exit with."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence.figures", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--times", action="store_true", help="measure what depends on time as well")
    parser.add_argument("--record", action="store_true", help="write what was measured, and exit with 0")
    parser.add_argument("--file", type=Path, default=RECORD, help="where figures are recorded")
    options = parser.parse_args(arguments)
    recorded: Recorded = json.loads(options.file.read_text()) if options.file.exists() else {}

    untyped.config.update("jax_platforms", "cpu")  # with libtpu installed, JAX would look for a TPU to run on
    print(setting("treekit-jax", "jax", "optax", "libtpu"))
    print(f"{'':{WIDTH}}{'now':>9}  {'at most':>9}  {'recorded':>9}")
    measured: list[Figure] = []
    for figure in figures(options.times):
        print(line(figure, recorded), flush=True)
        measured.append(figure)
    if options.record:  # what was not measured, such as TPU bytes without libtpu, is left as it was
        found = {**recorded, **{figure.name: figure.value for figure in measured}}
        options.file.write_text(json.dumps(found, indent=2) + "\n")
        return 0
    worse = [figure for figure in measured if is_worse(figure, recorded)]
    for figure in worse:
        print(f"worse: {figure.name} is {figure.value:g}, and was {recorded[figure.name]:g}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
