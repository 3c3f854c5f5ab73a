"""Random programs until the time is over: `python -m tests.fuzz` with MINUTES and SEED in the environment."""

import collections
import contextlib
import dataclasses
import os
import random
import signal
import sys
import tempfile
import time
from typing import Any

import jax

from treekit._base.jax import untyped

from .cases import case_of
from .laws import failures
from .rules import reason
from .shrink import program, shrink

CLEAR_EVERY = 100  # programs, after which what JAX has compiled is forgotten


def main() -> None:
    """Run programs. What has been compiled once is kept on disk, since it is forgotten now and then."""
    config: Any = jax.config
    with tempfile.TemporaryDirectory() as cache:
        config.update("jax_compilation_cache_dir", os.environ.get("CACHE", cache))
        config.update("jax_persistent_cache_min_compile_time_secs", 0)
        config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        config.update("jax_traceback_in_locations_limit", 0)
        sys.exit(fuzz())


def fuzz() -> int:
    """Print each failure that has no reason with a program that reproduces it, and at the end how many ran."""
    minutes = float(os.environ.get("MINUTES", "1"))
    first = int(os.environ["SEED"]) if "SEED" in os.environ else random.SystemRandom().randrange(10**9)
    tally, start = Tally(), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() - start < 60 * minutes:
            ask(first + tally.count, tally)
            if tally.count % CLEAR_EVERY == 0:
                untyped.clear_caches()
    report(first, tally, time.monotonic() - start)
    return 1 if tally.failures else 0


@dataclasses.dataclass
class Tally:
    """How many programs ran, which laws they were asked about, and what became of it."""

    count: int = 0
    laws: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


def ask(seed: int, tally: Tally) -> None:
    """Run the program of a seed."""
    case = case_of(seed)
    failed, laws = failures(case)
    tally.count += 1
    tally.laws.update(laws)
    for failure in failed:
        why = reason(case, failure)
        if why is not None:
            tally.reasons[why] += 1
            continue
        tally.failures[failure.key] += 1
        if tally.failures[failure.key] == 1:  # the others are of the same cause, as far as it can be told
            print(f"\nseed {seed}: {failure.law}\n{program(case, failure)}", flush=True)
            print(f"and smaller:\n{program(shrink(case, failure), failure)}", flush=True)
        else:
            print(f"\nseed {seed}: {failure.key}", flush=True)


def report(first: int, tally: Tally, seconds: float) -> None:
    """Print what ran."""
    print(f"\n{tally.count} programs, seeds {first} to {first + tally.count - 1}, in {seconds / 60:.1f} minutes")
    counters = {"laws asked": tally.laws, "differences with a reason": tally.reasons, "failures": tally.failures}
    for title, counter in counters.items():
        print(f"{title}:")
        for name, n in counter.most_common():
            print(f"  {n:6} {name}")


main()
