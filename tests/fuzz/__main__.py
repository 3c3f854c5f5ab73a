"""Random programs until the time is over: `python -m tests.fuzz` with MINUTES and SEED in the environment."""

import collections
import os
import random
import sys
import tempfile
import time
from typing import Any

import jax

from treekit._jax import untyped

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
    """Run, print each failure that has no reason with a program that reproduces it, and tell how many ran."""
    minutes = float(os.environ.get("MINUTES", "1"))
    first = int(os.environ["SEED"]) if "SEED" in os.environ else random.SystemRandom().randrange(10**9)
    count, start = 0, time.monotonic()
    asked, explained, found = collections.Counter[str](), collections.Counter[str](), collections.Counter[str]()
    while time.monotonic() - start < 60 * minutes:
        seed = first + count
        case = case_of(seed)
        failed, laws = failures(case)
        asked.update(laws)
        for failure in failed:
            why = reason(case, failure)
            if why is not None:
                explained[why] += 1
                continue
            found[failure.key] += 1
            if found[failure.key] == 1:  # the others are of the same cause, as far as it can be told
                print(f"\nseed {seed}: {failure.law}\n{program(shrink(case, failure), failure)}", flush=True)
            else:
                print(f"\nseed {seed}: {failure.key}", flush=True)
        count += 1
        if count % CLEAR_EVERY == 0:
            untyped.clear_caches()
    report(first, count, time.monotonic() - start, asked, explained, found)
    return 1 if found else 0


def report(first: int, count: int, seconds: float, *counters: collections.Counter[str]) -> None:
    """Print what ran."""
    print(f"\n{count} programs, seeds {first} to {first + count - 1}, in {seconds / 60:.1f} minutes")
    for title, counter in zip(("laws asked", "differences with a reason", "failures"), counters, strict=True):
        print(f"{title}:")
        for name, n in counter.most_common():
            print(f"  {n:6} {name}")


main()
