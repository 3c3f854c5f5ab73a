"""Random programs until the time is over: `python -m tests.fuzz` with MINUTES and SEED in the environment."""

import collections
import os
import random
import sys
import tempfile
import time

from tests.trees import untyped

from .rules import check_programs

PROGRAMS = 100  # after which what JAX has compiled is forgotten; it is kept on disk


def fuzz(cache: str) -> int:
    """Print each failure that has no reason with a program that reproduces it, and at the end how many ran."""
    untyped.config.update("jax_compilation_cache_dir", os.environ.get("CACHE", cache))
    untyped.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    untyped.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    untyped.config.update("jax_traceback_in_locations_limit", 0)
    minutes = float(os.environ.get("MINUTES", "1"))
    seed = int(os.environ["SEED"]) if "SEED" in os.environ else random.SystemRandom().randrange(10**9)
    seen, failed, start = collections.Counter[str](), 0, time.monotonic()
    while time.monotonic() - start < 60 * minutes:
        try:
            check_programs(seed, PROGRAMS, seen)
        except AssertionError as error:
            failed += 1
            print(f"\n{error}", flush=True)
        seed += 1
    print(f"\nin {(time.monotonic() - start) / 60:.1f} minutes:")
    for name, n in seen.most_common():
        print(f"  {n:6} {name}")
    return 1 if failed else 0


with tempfile.TemporaryDirectory() as folder:
    sys.exit(fuzz(folder))
