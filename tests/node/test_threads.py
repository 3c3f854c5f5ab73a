"""Many threads at once: they create and rebuild nodes, register classes, and share jitted functions."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from tests.node.ways import WAYS, Made, parts, structure
from treekit import replace

pytestmark = pytest.mark.slow


def in_sixteen_threads(work: Callable[[int], None], interval: float) -> None:
    """Start them at one moment, interrupt them at this interval, and raise what one of them raises."""
    start = threading.Barrier(16)

    def run(number: int) -> None:
        start.wait()
        work(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(run, range(16)))
    finally:
        sys.setswitchinterval(before)


def test_threads_create_map_register_and_jit() -> None:
    shared = jax.jit(lambda t: t.weight + (1 if isinstance(t.name, bool) else 2))

    def work(number: int) -> None:
        mine = [way.local() for way in WAYS.values()]
        for turn in range(20):
            for way, cls in zip(WAYS.values(), mine, strict=True):
                for x in (way.cls(turn, 0, turn % 7), cls(2 * turn, 0, turn % 7)):
                    doubled = jax.tree.map(lambda leaf: leaf * 2, x)
                    assert parts(doubled) == (4 * turn, 0, turn % 7)
                    assert structure(doubled) == structure(x)
                    assert structure(replace(x, name=(turn, number))) != structure(x)
                x = way.cls(turn, 0, turn % 2 == 0)
                assert shared(x) == 2 * turn + 1 and shared(replace(x, name=turn % 2)) == 2 * turn + 2

    in_sixteen_threads(work, sys.getswitchinterval())


def test_threads_search_one_cache_of_jit() -> None:
    # JAX compares treedefs while it searches the cache: Python code there, interrupted, crashed the process.
    shared = jax.jit(lambda t: t.weight + 1)

    def work(number: int) -> None:
        for turn in range(100):
            assert shared(Made(turn, 0, (number + turn) % 60)) == 2 * turn + 1

    in_sixteen_threads(work, 1e-6)
