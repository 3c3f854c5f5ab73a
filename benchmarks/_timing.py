"""Timing side by side, and the tables of what it finds.

What is compared runs in turn within one process, so a busy machine slows all of it alike. A module of benchmarks/ has
`sections()`, which measures and yields one `Section` after the other.
"""

import gc
import importlib.metadata
import os
import platform
import statistics
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

QUICK = bool(os.environ.get("QUICK"))
ROUNDS = 6 if QUICK else 40
SECONDS = 0.002  # that one measurement takes, about: so short that most are not interrupted by other processes
TRIES = 3


# --- Time -------------------------------------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """One time divided by another: the median over the rounds, and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> "Ratio":
        """From the ratio of each round."""
        low, median, high = statistics.quantiles(ratios, n=4)
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}\N{EN DASH}{self.high:.2f})"


class Times(dict[K, list[float]]):
    """By call, its seconds in each round."""

    def ratio(self, name: K, base: K) -> Ratio:
        """Of two calls: one ratio a round, so that what changes from round to round (the clock, a neighbour) is out."""
        return Ratio.of(x / y for x, y in zip(self[name], self[base], strict=True))


def measure(calls: Mapping[K, Callable[[], object]], rounds: int = ROUNDS, tries: int = TRIES) -> Times[K]:
    """Time some calls. In each round every call has its turn, in the next in the opposite order.

    Args:
        calls: what to time, by name. A call that starts work elsewhere must wait for it itself.
        rounds: how many.
        tries: measurements in a turn, of which the fastest counts.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}  # also warms up what is called
    times = Times[K]({name: [] for name in calls})
    for number in range(rounds):
        for name in list(calls) if number % 2 == 0 else list(calls)[::-1]:
            times[name].append(min(_time(calls[name], repeats[name]) for _ in range(tries)))
    return times


def compare(calls: Mapping[K, Callable[[], object]], ours: K) -> dict[K, Ratio]:
    """The time of one call divided by that of each other; below 1 where that one is faster."""
    times = measure(calls)
    return {name: times.ratio(ours, name) for name in calls if name != ours}


def _repeats(call: Callable[[], object]) -> int:
    repeats = 1
    while (seconds := _time(call, repeats) * repeats) < SECONDS / 4:
        repeats *= 4
    return max(1, round(repeats * SECONDS / seconds))


def _time(call: Callable[[], object], repeats: int) -> float:
    """Seconds for one call, collecting no garbage meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = perf_counter()
        for _ in range(repeats):
            call()
        return (perf_counter() - start) / repeats
    finally:
        if was_enabled:
            gc.enable()


# --- Tables -----------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """One thing that was measured. As text, a section of a page in Markdown.

    Attributes:
        title: of the section.
        text: what the figures are.
        table: by the column's title, then by the row's name; a cell may be missing.
    """

    title: str
    text: str
    table: Mapping[str, Mapping[str, object]]

    def __str__(self) -> str:
        names = dict.fromkeys(name for column in self.table.values() for name in column)
        rows = [[name, *(column.get(name, "") for column in self.table.values())] for name in names]
        return f"## {self.title}\n\n{self.text}\n\n{markdown(['', *self.table], rows)}\n"


def markdown(titles: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table that can be read in a terminal too."""
    cells = [[str(x).replace("|", "\\|") for x in line] for line in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    first, *others = ([x.ljust(width) for x, width in zip(line, widths, strict=True)] for line in cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in (first, ["-" * width for width in widths], *others))


def show(sections: Iterable[Section], *packages: str) -> None:
    """Print sections as they come, after the versions of packages and the machine."""
    print(setting(*packages))
    for section in sections:
        print(f"\n{section}", end="", flush=True)


def setting(*packages: str) -> str:
    """The versions and the machine that figures belong to, in one line."""
    versions = [f"{name} {_version(name)}" for name in packages]
    return ", ".join([*versions, f"Python {platform.python_version()}", f"{_cpu()}, {os.cpu_count()} cores"])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # a checkout that is run in place


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
