"""What XLA makes of a step for TPUs and GPUs: the bytes it moves and the memory it needs, of treekit and of Optax.

Only the compiler runs. `make accelerators` writes the sections for TPUs of results/accelerators.md, and with GPU=1
those for GPUs too. `python -m benchmarks.evidence.accelerators H100 transformer` compiles only those with one of
these words in their title; all others stay as they are.
"""

import datetime
import functools
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optax
from jax.sharding import Mesh

import treekit.optax as tko
from benchmarks._timing import Section, setting
from benchmarks.evidence.compiled import (
    GPU,
    TPU,
    Machine,
    compile_sharded,
    compile_step,
    mesh_of,
    sharded_state,
    tpus,
    unit_of,
)
from benchmarks.evidence.hlo import bytes_copied, bytes_moved, bytes_moved_inside, collectives, difference, of_accepted
from benchmarks.multi_steps import K, Step, by_apply_gradients, by_update
from treekit import training
from treekit._base.jax import untyped

PAGE = Path(__file__).parents[1] / "results" / "accelerators.md"
SIZE = 8192  # a square array that does not fit into the memory of a chip itself; the page says so

Make = Callable[[Any], Any]  # from a module with Optax's names to a transformation
Wrappers = Mapping[str, Make]
Table = dict[str, dict[str, object]]  # by the column's title, then by the row's name
Count = Callable[[str], int]  # of the bytes that a program moves
WRAPPERS: Wrappers = {
    "adamw": lambda o: o.chain(o.adamw(1e-3)),
    "clip, adamw": lambda o: o.chain(o.clip_by_global_norm(1.0), o.adamw(1e-3)),
    "masked": lambda o: o.masked(o.adamw(1e-3), [True]),
    "partition": lambda o: o.partition({"a": o.adamw(1e-3)}, ["a"]),
    "inject_hyperparams": lambda o: o.inject_hyperparams(o.adamw)(1e-3),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adamw(1e-3), 3),
    "lbfgs": lambda o: o.lbfgs(1e-3, linesearch=None),
}
ACCUMULATED: Wrappers = {
    "adamw": lambda o: o.MultiSteps(optax.adamw(1e-3), K),
    "clip, adamw": lambda o: o.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), K),
}
COSTLY: Wrappers = {"muon": lambda o: o.MultiSteps(optax.contrib.muon(1e-3), K)}  # compiles for a minute
# MultiSteps inside of other wrappers; and apply_if_finite, which runs a loop or a branch where it accepts a step.
NESTED: Wrappers = {
    "clip, MultiSteps": lambda o: o.chain(o.clip(1.0), accumulating_adamw(o)),
    "masked MultiSteps": lambda o: o.masked(accumulating_adamw(o), [True]),
}
FINITE: Wrappers = {
    "apply_if_finite of MultiSteps": lambda o: o.apply_if_finite(accumulating_adamw(o), 3),
    "apply_if_finite of adamw": lambda o: o.apply_if_finite(o.adamw(1e-3), 3),
}


def accumulating_adamw(library: Any) -> Any:
    return ACCUMULATED["adamw"](library).gradient_transformation()


# The layers of a transformer, stacked: 32 of them, 4,096 wide, of 11,008 hidden units.
TRANSFORMER = {
    **{name: (32, 4096, 4096) for name in ("query", "key", "value", "out")},
    **{name: (32, 4096, 11008) for name in ("gate", "up")},
    "down": (32, 11008, 4096),
}


# --- Steps ------------------------------------------------------------------------------------------------------------


def steps(wrappers: Wrappers) -> dict[str, dict[str, tuple[Any, Step]]]:
    """For each wrapper, by column: an optimizer, and its step."""
    found: dict[str, dict[str, tuple[Any, Step]]] = {}
    for name, make in wrappers.items():
        theirs, ours = make(optax), make(tko)
        found[name] = {
            "Optax": (theirs, by_update(optax, theirs)),
            "treekit": (ours, by_update(tko, ours)),
            "apply_gradients": (ours, by_apply_gradients(ours)),
        }
    return found


def by_rounding(optimizer: Any) -> Step:
    """A step that rounds state and params stochastically."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        key = untyped.random.fold_in(untyped.random.key(0), state.rounding_count)
        return training.apply_gradients(optimizer, grads, state, params, key=key)

    return step


def rounded() -> dict[str, tuple[str, Any, Step]]:
    """Ways to train in 16 and 32 bits: the dtype of params and gradients, an optimizer, and its step."""
    jnp = untyped.numpy
    adamw = optax.with_extra_args_support(optax.adamw(1e-3))
    in_float32 = training.store_state(adamw, jnp.float32)
    stochastic = training.store_state(adamw, rounding="stochastic")
    in_bfloat16 = training.store_state(adamw, jnp.bfloat16, rounding="stochastic")
    return {
        "Optax, float32": ("float32", adamw, by_update(optax, adamw)),
        "Optax, bfloat16": ("bfloat16", adamw, by_update(optax, adamw)),
        'rounding="stochastic", bfloat16': ("bfloat16", stochastic, by_rounding(stochastic)),
        "state_dtype=float32, bfloat16": ("bfloat16", in_float32, by_apply_gradients(in_float32)),
        "state_dtype=bfloat16, float32": ("float32", in_bfloat16, by_apply_gradients(in_bfloat16)),
    }


# --- One device -------------------------------------------------------------------------------------------------------


def square(dtype: str) -> list[Any]:
    return [untyped.ShapeDtypeStruct((SIZE, SIZE), dtype)]


def cell(
    device: Any, optimizer: Any, step: Step, dtype: str, donated: bool, unit: float, both: bool, count: Count
) -> str:
    """The bytes moved, those that copies move and the temporary memory.

    Args:
        device: what to compile for.
        optimizer: whose step it is.
        step: the step.
        dtype: of params and gradients.
        donated: whether params and state are.
        unit: what to count in, in bytes.
        both: whether to compile both orders of the arguments. Two figures come out where they differ.
        count: counts the bytes that a program moves.
    """
    cells: list[str] = []
    for state_first in (False, True) if both else (False,):
        compiled = compile_step(
            step, optimizer.init, square(dtype), donated=donated, state_first=state_first, device=device
        )
        text = compiled.as_text()
        details = {"copied": bytes_copied(text), "temporary": compiled.memory_analysis().temp_size_in_bytes}
        shown = [f"{size / unit:.2g} {name}" for name, size in details.items() if size / unit >= 0.005]
        cells.append(f"{count(text) / unit:.3g}" + (f" ({', '.join(shown)})" if shown else ""))
    return " or ".join(dict.fromkeys(cells))


def columns(device: Any, wrappers: Wrappers, dtype: str, *, both: bool = True, count: Count = bytes_moved) -> Table:
    table: Table = {}
    for name, ways in steps(wrappers).items():
        for column, (optimizer, step) in ways.items():
            for donated in (True, False):
                title = f"{column}, {'donated' if donated else 'kept'}"
                unit = unit_of(square(dtype))
                found = cell(device, optimizer, step, dtype, donated, unit, both, count)
                table.setdefault(title, {})[name] = found
    return table


def nested_columns(device: Any, dtype: str) -> Table:
    accumulating = columns(device, NESTED, dtype, both=False)
    accepted = columns(device, FINITE, dtype, both=False, count=of_accepted)
    # Nested, `apply_gradients` is `update` and `apply_updates`, which "treekit" measures.
    kept = [title for title in accumulating if not title.startswith("apply_gradients")]
    return {title: {**accumulating[title], **accepted[title]} for title in kept}


def rounded_columns(device: Any) -> Table:
    table: Table = {}
    for name, (dtype, optimizer, step) in rounded().items():
        for donated in (True, False):
            found = cell(device, optimizer, step, dtype, donated, SIZE * SIZE, both=True, count=bytes_moved)
            table.setdefault("donated" if donated else "kept", {})[name] = found
    return table


def round_columns(device: Any) -> Table:
    """What a round of K steps moves, the last of which runs the inner transformation, in a loop of one turn."""
    table: Table = {}
    for dtype in ("float32", "bfloat16"):
        moved: dict[str, float] = {}
        for column, (optimizer, step) in steps(ACCUMULATED)["adamw"].items():
            text = compile_step(step, optimizer.init, square(dtype), donated=True, device=device).as_text()
            moved[column] = (K * bytes_moved(text) + bytes_moved_inside(text)) / unit_of(square(dtype))
        for column, found in moved.items():
            less = "" if column == "Optax" else f" ({found / moved['Optax']:.2f} of Optax's)"
            table.setdefault(column, {})[f"adamw, {dtype}"] = f"{found:.3g}{less}"
    return table


def differences(device: Any, wrappers: Wrappers, dtype: str) -> dict[str, object]:
    """For each wrapper, which operations its program has and Optax's has not, and the other way round."""
    found: dict[str, object] = {}
    for name, ways in steps(wrappers).items():
        texts = [
            compile_step(step, optimizer.init, square(dtype), donated=True, device=device).as_text()
            for optimizer, step in (ways["treekit"], ways["Optax"])
        ]
        found[name] = difference(*texts) or "none"
    return found


# --- Many devices -----------------------------------------------------------------------------------------------------


def counted(text: str) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in collectives(text).items()) or "none"


def sharded_columns(mesh: Mesh, wrappers: Wrappers) -> Table:
    """The collectives of a step, and how much of the state a jitted init shards."""
    table: Table = {}
    for name, ways in steps(wrappers).items():
        for column, (optimizer, step) in ways.items():
            text = compile_sharded(step, optimizer.init, square("float32"), mesh).as_text()
            table.setdefault(column, {})[name] = counted(text)
    for name, ways in steps(wrappers).items():
        for column in ("Optax", "treekit"):
            sharded, like_params = sharded_state(ways[column][0].init, square("float32"), mesh)
            table.setdefault(f"init, {column}", {})[name] = f"{sharded} of {like_params}"
    return table


def transformer_columns() -> Table:
    """Of the layers of a transformer on 256 chips, by the chip."""
    mesh = mesh_of(tpus("v5e:16x16"), along_model=16)
    params = {name: untyped.ShapeDtypeStruct(shape, "bfloat16") for name, shape in TRANSFORMER.items()}
    mask = dict.fromkeys(params, True)
    wrappers: Wrappers = {
        "adamw": WRAPPERS["adamw"],
        "clip, masked adamw in MultiSteps": lambda o: o.MultiSteps(
            o.chain(o.clip_by_global_norm(1.0), o.masked(o.adamw(1e-3), mask)), K
        ),
    }
    table: Table = {}
    for name, ways in steps(wrappers).items():
        for column, (optimizer, step) in ways.items():
            compiled = compile_sharded(step, optimizer.init, params, mesh)
            text, memory = compiled.as_text(), compiled.memory_analysis()
            table.setdefault(column, {}).update(
                {
                    f"{name}: MB moved": f"{bytes_moved(text) / 1e6:.0f}",
                    f"{name}: temporary MB": f"{memory.temp_size_in_bytes / 1e6:.1f}",
                    f"{name}: collectives": counted(text),
                }
            )
    return table


# --- The page ---------------------------------------------------------------------------------------------------------

UNIT = "In units of the bytes of the params."
ACCUMULATING = f"A step that only accumulates, params and gradients in {{}}, the accumulator in float32. {UNIT}"
OF_NESTED = (
    "A step that only accumulates, in {}, the accumulator in float32. For apply_if_finite, a step that it accepts, "
    f"with what its loop or branch moves; adamw accumulates nothing. {UNIT}"
)
OF_WRAPPERS = (
    "Outside of loops and branches: what apply_if_finite and lbfgs do inside of them is not counted. The last column "
    "has the operations that treekit's program has more or fewer of than Optax's, donated, in all of the program. "
    f"{UNIT}"
)
OF_SHARDED = (
    "How often a step communicates, params, gradients and state sharded over both axes of a mesh, donated; and how "
    "many of the arrays of the state that have the shape of the params a jitted init shards as the params."
)
OF_TRANSFORMER = (
    f"{sum(map(math.prod, TRANSFORMER.values())) / 1e9:.1f} billion params in seven stacked arrays, in bfloat16, on a "
    "TPU v5e 16x16, each matrix sharded over both axes of the mesh, donated. What one chip moves and needs."
)
Parts = dict[str, tuple[str, Callable[[], Table]]]  # by title: the text, and what compiles the table


def parts() -> Parts:
    """The sections of the page, in its order."""
    transformer = (OF_TRANSFORMER, transformer_columns)
    return {**parts_of(TPU), **parts_of(GPU), f"{TPU.name}: a transformer on 256 chips": transformer}


def parts_of(machine: Machine) -> Parts:
    """Those of one machine."""
    device = machine.device
    accumulated = {f"MultiSteps, {name}": make for name, make in ACCUMULATED.items()}

    def in_both(title: str, text: str, table: Callable[[str], Table]) -> Parts:
        return {f"{title}, {x}": (text.format(x), functools.partial(table, x)) for x in ("float32", "bfloat16")}

    found: Parts = {
        **in_both("MultiSteps", ACCUMULATING, lambda dtype: columns(device(), ACCUMULATED, dtype)),
        "MultiSteps of muon, float32": (
            ACCUMULATING.format("float32"),
            lambda: columns(device(), COSTLY, "float32", both=False),
        ),
        "MultiSteps, a round": (
            f"{K} steps, the last of which runs adamw, donated. {UNIT}",
            lambda: round_columns(device()),
        ),
        **in_both("nested", OF_NESTED, lambda dtype: nested_columns(device(), dtype)),
        **in_both(
            "wrappers",
            OF_WRAPPERS,
            lambda dtype: {
                **columns(device(), WRAPPERS, dtype),
                "operations": differences(device(), WRAPPERS, dtype),
            },
        ),
        "16 bits": (
            "Bytes per parameter of one step of adamw; store_state, with a key where it rounds stochastically.",
            lambda: rounded_columns(device()),
        ),
        "sharded over eight": (OF_SHARDED, lambda: sharded_columns(machine.mesh(), {**WRAPPERS, **accumulated})),
    }
    return {f"{machine.name}: {title}": part for title, part in found.items()}


# Read the first paragraph against the figures after each run.
INTRODUCTION = """# On TPUs and GPUs

In f32, a wrapper that adds no arithmetic compiles to Optax's own program, on TPUs and on GPUs. In bf16, it moves the
same bytes. A jitted `init` shards its state like the params, where Optax's puts all of it on every device.

- With params and state donated, a round of `MultiSteps(adamw)` moves 0.43 to 0.74 times the bytes of Optax's. Without
  donation it can move more, since it copies the state.
- In a step in f32 that only accumulates, `MultiSteps` moves 5 times the bytes of the params, also if it is masked, and
  7 after a clip in a chain. `apply_gradients` moves as many as `update` and `apply_updates`.
- `apply_if_finite` around `MultiSteps`, donated, moves 9 times the bytes of the params in f32 (Optax 10 on an H100, 15
  on a TPU).
- Stochastic rounding of bf16 params moves half the bytes of adamw in f32.

JAX compiles for TPUs and GPUs on a machine that has none. Nothing was timed. This page counts the bytes that the
program of one step moves between the chip and its memory, which bound its time: for one array of 8192 x 8192, on one
chip of a TPU v5e and on one H100.

- In parentheses are the bytes that copies move, which are included, and the temporary memory that the program needs.
- "Donated" means that the step may overwrite params and state; "kept" means that it may not.
- In a cell with "or", the first figure is for a step that takes the params first, the second for one that takes the
  state first.

`make accelerators GPU=1` compiles all of it. Each section has the date and the versions.
"""


def main(words: Sequence[str]) -> None:
    """Compile the sections with one of `words` in their title, or all, as far as this Python can; keep the others."""
    found = re.findall(r"^## (.*?)\n+(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    page = {title: f"## {title}\n\n{rest.rstrip()}\n" for title, rest in found}
    possible = tuple(machine.name for machine in (TPU, GPU) if machine.is_possible)
    versions = setting("optax", "jax", "libtpu", "jax-cuda12-plugin").partition(", Python")[0]
    everything = parts()
    for title, (text, table) in everything.items():
        if title.startswith(possible) and (not words or any(word in title for word in words)):
            text = f"{text} Compiled on {datetime.date.today()}, {versions}."
            page[title] = str(Section(title, text, table()))
            print(page[title], flush=True)
            PAGE.write_text("\n".join([INTRODUCTION, *(page[x] for x in everything if x in page)]))


if __name__ == "__main__":
    main(sys.argv[1:])
