"""Timing side by side: what is compared runs in turn within one process, so a busy machine slows all of it alike."""

import gc
import importlib.metadata
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

QUICK = bool(os.environ.get("QUICK"))
ROUNDS = 6 if QUICK else 40
SECONDS = 0.002  # that one measurement takes, about: so short that most are not interrupted by other processes
TRIES = 3  # measurements in a turn, of which the fastest counts


class Ratio(NamedTuple):
    """Another's time divided by the base's: the median over the rounds, and the quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:5.2f} ({self.low:.2f}-{self.high:.2f})"


def compare(calls: Mapping[str, Callable[[], object]], base: str) -> dict[str, Ratio]:
    """Time some calls against one of them.

    In each round every call has its turn, in the next in the opposite order, and each round gives one ratio a call, so
    that what changes from round to round (the clock, a neighbour) does not enter.

    Args:
        calls: what to time, by name. A call that starts work elsewhere must wait for it itself.
        base: the name of the call that the others are divided by.

    Returns:
        The ratio of each call's time to the base's; above 1 where the base is faster.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}  # also warms up what is called
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        order = list(calls) if number % 2 == 0 else list(calls)[::-1]
        rounds.append({name: min(_time(calls[name], repeats[name]) for _ in range(TRIES)) for name in order})
    return {name: _ratio([times[name] / times[base] for times in rounds]) for name in calls}


def table(columns: Mapping[str, Mapping[str, Ratio]]) -> str:
    """A table in text: one column an operation, one row a name."""
    names = next(iter(columns.values()))
    width = max(map(len, names))
    lines = [" " * width + "".join(f"  {title:>19}" for title in columns)]
    lines += [f"{name:{width}}" + "".join(f"  {column[name]!s:>19}" for column in columns.values()) for name in names]
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


def _ratio(values: list[float]) -> Ratio:
    low, median, high = statistics.quantiles(values, n=4)
    return Ratio(median, low, high)


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
