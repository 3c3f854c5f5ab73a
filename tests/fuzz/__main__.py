"""Random programs until the time is over: `python -m tests.fuzz` with MINUTES and SEED in the environment."""

import collections
import os
import random
import sys
import tempfile
import time
from typing import Any

import hypothesis
from hypothesis import strategies as st

from tests.trees import untyped

from .cases import case_of
from .laws import described, failures
from .rules import reason

PROGRAMS = 100  # after which what JAX has compiled is forgotten; it is kept on disk


def fuzz(cache: str) -> int:
    """Print each failure that has no reason with a program that reproduces it, and at the end how many ran."""
    untyped.config.update("jax_compilation_cache_dir", os.environ.get("CACHE", cache))
    untyped.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    untyped.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    untyped.config.update("jax_traceback_in_locations_limit", 0)
    minutes = float(os.environ.get("MINUTES", "1"))
    seed = int(os.environ["SEED"]) if "SEED" in os.environ else random.SystemRandom().randrange(10**9)
    counts, failed, start = collections.Counter[str](), 0, time.monotonic()
    while time.monotonic() - start < 60 * minutes:
        try:
            hypothesis.seed(seed)(programs(counts))()
        except AssertionError as error:
            failed += 1
            print(f"\nseed {seed}: {error}", flush=True)
        seed += 1
        untyped.clear_caches()
    print(f"\nin {(time.monotonic() - start) / 60:.1f} minutes:")
    for name, n in counts.most_common():
        print(f"  {n:6} {name}")
    return 1 if failed else 0


def programs(counts: collections.Counter[str]) -> Any:
    """A test of many programs, which Hypothesis draws and, if one fails, makes smaller."""

    @hypothesis.settings(max_examples=PROGRAMS, database=None, deadline=None)
    @hypothesis.given(st.randoms(use_true_random=False))
    def test(rng: random.Random) -> None:
        case = case_of(rng)
        found, laws = failures(case)
        counts.update(["programs", *laws])
        for failure in found:
            why = reason(case, failure)
            counts.update([why or failure.law])
            assert why is not None, described(case, failure)

    return test


with tempfile.TemporaryDirectory() as folder:
    sys.exit(fuzz(folder))
