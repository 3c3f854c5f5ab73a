"""What XLA makes of a step for a TPU: the bytes it moves and the memory it needs, of treekit beside Optax.

Nothing runs here but the compiler. Run `make accelerators`, which writes docs/accelerators.md.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optax

import treekit.optax as tko
from benchmarks._compiled import Step, collectives, compile_sharded, compile_step, in_units
from benchmarks._page import Section, as_markdown, as_text
from benchmarks._timing import setting
from treekit._jax import untyped

PAGE = Path(__file__).parent.parent / "docs" / "accelerators.md"
SIZE = 8192  # a square array that does not fit into the memory of a chip itself
K = 8

Make = Callable[[Any], Any]  # from a module with Optax's names to a transformation
WRAPPERS: dict[str, Make] = {
    "adamw": lambda o: o.chain(o.adamw(1e-3)),
    "clip, adamw": lambda o: o.chain(o.clip_by_global_norm(1.0), o.adamw(1e-3)),
    "masked": lambda o: o.masked(o.adamw(1e-3), [True]),
    "partition": lambda o: o.partition({"a": o.adamw(1e-3)}, ["a"]),
    "inject_hyperparams": lambda o: o.inject_hyperparams(o.adamw)(1e-3),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adamw(1e-3), 3),
    "lbfgs": lambda o: o.lbfgs(1e-3, linesearch=None),
}
ACCUMULATED: dict[str, Callable[[], Any]] = {
    "adamw": lambda: optax.adamw(1e-3),
    "clip, adamw": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
}


def by_update(library: Any, optimizer: Any) -> Step:
    """A step in two calls."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return library.apply_updates(params, updates), state

    return step


def by_apply_gradients(optimizer: Any) -> Step:
    """A step in one call."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        return tko.apply_gradients(optimizer, grads, state, params)

    return step


def steps(wrappers: dict[str, Callable[[Any], Any]]) -> dict[str, dict[str, tuple[Any, Step]]]:
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


def multi_steps(make: Callable[[], Any]) -> Make:
    return lambda o: o.MultiSteps(make(), K)


def cell(optimizer: Any, step: Step, dtype: str, donated: bool) -> str:
    """The bytes moved, and the temporary memory, of both orders of arguments where they differ."""
    params = [untyped.ShapeDtypeStruct((SIZE, SIZE), dtype)]
    cells: list[str] = []
    for state_first in (False, True):
        compiled = compile_step(step, optimizer.init, params, donated=donated, state_first=state_first)
        moved, temporary = in_units(params, compiled)
        cells.append(f"{moved:.3g}" + (f" ({temporary:.2g})" if temporary >= 0.005 else ""))
    return " or ".join(dict.fromkeys(cells))


def sharded_cell(optimizer: Any, step: Step) -> str:
    """The collectives of a sharded step."""
    params = [untyped.ShapeDtypeStruct((SIZE, SIZE), "float32")]
    counts = collectives(compile_sharded(step, optimizer.init, params).as_text())
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


def sharded_columns(wrappers: dict[str, Callable[[Any], Any]]) -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {}
    for name, ways in steps(wrappers).items():
        for column, (optimizer, step) in ways.items():
            table.setdefault(column, {})[name] = sharded_cell(optimizer, step)
    return table


def by_rounding(optimizer: Any) -> Step:
    """A step that rounds state and params stochastically."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        key = untyped.random.fold_in(untyped.random.key(0), state.rounding_count)
        return tko.apply_gradients(optimizer, grads, state, params, key=key)

    return step


def rounded() -> dict[str, tuple[str, Any, Step]]:
    """Ways to train in 16 bits and in 32: the dtype of params and gradients, an optimizer, and its step."""
    adamw = optax.adamw(1e-3)
    stochastic = tko.dtype_preserving(adamw, rounding="stochastic")
    in_float32 = tko.dtype_preserving(adamw, state_dtype="float32")
    return {
        "Optax, float32": ("float32", adamw, by_update(optax, optax.with_extra_args_support(adamw))),
        "Optax, bfloat16": ("bfloat16", adamw, by_update(optax, optax.with_extra_args_support(adamw))),
        'rounding="stochastic", bfloat16': ("bfloat16", stochastic, by_rounding(stochastic)),
        "state_dtype=float32, bfloat16": ("bfloat16", in_float32, by_apply_gradients(in_float32)),
    }


def rounded_columns() -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {}
    for name, (dtype, optimizer, step) in rounded().items():
        params = [untyped.ShapeDtypeStruct((SIZE, SIZE), dtype)]
        compiled = compile_step(step, optimizer.init, params, donated=True, state_first=False)
        bytes_each = [x * params[0].dtype.itemsize for x in in_units(params, compiled)]
        for column, found in zip(("moved", "temporary"), bytes_each, strict=True):
            table.setdefault(column, {})[name] = f"{found:.3g}"
    return table


def columns(wrappers: dict[str, Callable[[Any], Any]], dtype: str) -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {}
    for name, ways in steps(wrappers).items():
        for column, (optimizer, step) in ways.items():
            for donated in (True, False):
                title = f"{column}, {'donated' if donated else 'kept'}"
                table.setdefault(title, {})[name] = cell(optimizer, step, dtype, donated)
    return table


def sections() -> Iterator[Section]:
    """Each table as it is compiled."""
    unit = "In units of the bytes of the params; in parentheses the temporary memory, where there is some."
    for dtype in ("float32", "bfloat16"):
        accumulated = {name: multi_steps(make) for name, make in ACCUMULATED.items()}
        text = f"A step that only accumulates, params and gradients in {dtype}, the accumulator in float32. {unit}"
        yield Section(f"MultiSteps, {dtype}", text, columns(accumulated, dtype))
    yield Section(
        "Wrappers, float32",
        f"Outside of loops and branches: what apply_if_finite and lbfgs do inside of them is not counted. {unit}",
        columns(WRAPPERS, "float32"),
    )
    accumulated = {f"MultiSteps, {name}": multi_steps(make) for name, make in ACCUMULATED.items()}
    yield Section(
        "Sharded over eight chips",
        "How often a step communicates, params, gradients and state sharded over both axes of a v5e 2x4, donated.",
        sharded_columns({**WRAPPERS, **accumulated}),
    )
    yield Section(
        "16 bits",
        "Bytes per parameter of one step of adamw, donated; dtype_preserving, with a key where it rounds at random.",
        rounded_columns(),
    )


INTRODUCTION = """# On TPUs

JAX compiles for a TPU on a machine that has none. This page says what XLA makes of one step of an optimizer on one chip
of a TPU v5e, for one array of {size} x {size}: the bytes that the program moves between the chip and its memory, which
bound its time, and the temporary memory that it needs. "Donated" means that the step may overwrite params and state,
"kept" that it may not. Two figures stand where the order of the arguments decides. Nothing was timed.

The figures are made by `make accelerators`; {setting}.
"""


def main() -> None:
    parts = [INTRODUCTION.format(size=SIZE, setting=setting("optax", "jax", "libtpu"))]
    for section in sections():
        print(as_text(section), flush=True)
        parts.append(as_markdown(section, PAGE.with_suffix("") / "unused.svg"))
    PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
