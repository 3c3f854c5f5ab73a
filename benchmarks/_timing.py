"""Timing side by side: what is compared runs in turn within one process, so a busy machine slows all of it alike."""

import gc
import importlib.metadata
import os
import platform
import statistics
import sys
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

QUICK = bool(os.environ.get("QUICK"))
ROUNDS = 6 if QUICK else 40
SECONDS = 0.002  # that one measurement takes, about: so short that most are not interrupted by other processes
TRIES = 3


class Ratio(NamedTuple):
    """Another's time divided by the base's: the median over the rounds, and the quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:5.2f} ({self.low:.2f}-{self.high:.2f})"


class Times(dict[K, list[float]]):
    """By call, its seconds in each round."""

    def ratio(self, name: K, base: K) -> Ratio:
        """Of two calls: one ratio a round, so that what changes from round to round (the clock, a neighbour) is out."""
        low, median, high = statistics.quantiles([x / y for x, y in zip(self[name], self[base], strict=True)], n=4)
        return Ratio(median, low, high)

    def median(self, name: K) -> float:
        """The seconds of a call: for a look at its growth, since on another day all of them may differ."""
        return statistics.median(self[name])


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


def measure_once_each(prepare: Mapping[K, Callable[[], Callable[[], object]]], rounds: int) -> Times[K]:
    """Time calls that do their work only once, such as compiling: each is made again before it is timed.

    Args:
        prepare: by name, a function that returns the call to time.
        rounds: how many; one more, which is not counted, comes first.
    """
    times = Times[K]({name: [] for name in prepare})
    for number in range(rounds + 1):
        for name in list(prepare) if number % 2 == 0 else list(prepare)[::-1]:
            seconds = _time(prepare[name](), 1)
            if number:
                times[name].append(seconds)
    return times


def compare(calls: Mapping[K, Callable[[], object]], base: K) -> dict[K, Ratio]:
    """The ratio of each call's time to that of one of them; above 1 where that one is faster."""
    times = measure(calls)
    return {name: times.ratio(name, base) for name in calls}


def table(columns: Mapping[str, Mapping[str, object]]) -> str:
    """A table in text: one column an operation, one row a name; a cell may be missing."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    width = max(map(len, names))
    widths = {title: max(19, len(title), *(len(str(x)) for x in column.values())) for title, column in columns.items()}
    lines = [" " * width + "".join(f"  {title:>{widths[title]}}" for title in columns)]
    lines += [
        f"{name:{width}}" + "".join(f"  {column.get(name, '')!s:>{widths[title]}}" for title, column in columns.items())
        for name in names
    ]
    return "\n".join(lines)


def setting(*packages: str) -> str:
    """The versions and the machine that figures belong to, in one line."""
    versions = [f"{name} {_version(name)}" for name in packages]
    return ", ".join([*versions, f"Python {platform.python_version()}", f"{_cpu()}, {os.cpu_count()} cores"])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # a checkout that is run in place


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


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
