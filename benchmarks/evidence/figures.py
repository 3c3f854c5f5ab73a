"""Each figure that treekit is measured by, next to its goal and to the last that was recorded.

python -m benchmarks.evidence.figures         those that do not depend on time; exits with 1 where one has got worse
python -m benchmarks.evidence.figures --times  those that do as well, which are only shown (minutes; QUICK=1 for less)
python -m benchmarks.evidence.figures --types  those of mypy and pyright as well (a minute)
python -m benchmarks.evidence.figures --record  writes what was measured into benchmarks/evidence/figures.json
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks._timing import setting
from benchmarks.evidence import figures_compiled as _figures_compiled
from benchmarks.evidence import figures_eager as _figures_eager
from benchmarks.evidence import figures_source as _figures_source
from benchmarks.evidence import figures_time as _figures_time
from benchmarks.evidence import figures_trace as _figures_trace
from benchmarks.evidence import figures_types as _figures_types
from benchmarks.evidence.figure import Figure
from treekit._base.jax import untyped

RECORD = Path(__file__).parent / "figures.json"
WIDTH = 86  # of a name
Recorded = Mapping[str, float]


def figures(times: bool, types: bool) -> Iterator[Figure]:
    """Each when it is measured."""
    yield from _figures_source.figures()
    yield from _figures_trace.figures()
    yield from _figures_eager.figures()
    yield from _figures_compiled.figures()
    if types:
        yield from _figures_types.figures()
    if times:
        yield from _figures_time.figures()


def line(figure: Figure, recorded: Recorded) -> str:
    """One figure, as a line of a table."""
    last = recorded.get(figure.name)
    verdict = "WORSE" if last is not None and figure.is_worse(last) else "" if figure.is_reached else "not reached"
    goal = "-" if figure.goal is None else f"{'>=' if figure.at_least else '<='} {figure.goal:g}"
    cells = f"{figure.value:>9g}  {goal:>8}  {'-' if last is None else f'{last:g}':>9}  {verdict:11}"
    return f"{figure.name:{WIDTH}}{cells}  {figure.note}".rstrip()


def worse(measured: Sequence[Figure], recorded: Recorded) -> list[Figure]:
    """Those that do not depend on time and are worse than they were."""
    return [figure for figure in measured if figure.name in recorded and figure.is_worse(recorded[figure.name])]


def record(measured: Sequence[Figure], recorded: Recorded, path: Path) -> None:
    """Write what was measured; what was not, such as TPU bytes without libtpu, is left as it was."""
    found = {**recorded, **{figure.name: figure.value for figure in measured}}
    path.write_text(json.dumps(found, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the status to exit with."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence.figures", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--times", action="store_true", help="measure what depends on time as well")
    parser.add_argument("--types", action="store_true", help="run the type checkers as well")
    parser.add_argument("--record", action="store_true", help="write what was measured, and exit with 0")
    parser.add_argument("--file", type=Path, default=RECORD, help="where figures are recorded")
    options = parser.parse_args(arguments)
    recorded: Recorded = json.loads(options.file.read_text()) if options.file.exists() else {}

    untyped.config.update("jax_platforms", "cpu")  # with libtpu installed, JAX would look for a TPU to run on
    print(setting("treekit-jax", "jax", "optax", "libtpu"))
    print(f"{'':{WIDTH}}{'now':>9}  {'goal':>8}  {'recorded':>9}")
    measured: list[Figure] = []
    for figure in figures(options.times, options.types):
        print(line(figure, recorded), flush=True)
        measured.append(figure)
    if options.record:
        record(measured, recorded, options.file)
        return 0
    for figure in worse(measured, recorded):
        print(f"worse: {figure.name} is {figure.value:g}, and was {recorded[figure.name]:g}", file=sys.stderr)
    return 1 if worse(measured, recorded) else 0


if __name__ == "__main__":
    sys.exit(main())
