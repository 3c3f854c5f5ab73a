"""Many threads at once: they create and rebuild nodes, register classes, and share a jitted function."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from tests.node.ways import WAYS, parts, structure
from treekit import replace


@pytest.mark.slow
def test_sixteen_threads_create_map_register_and_search_one_cache_of_jit() -> None:
    # JAX compares treedefs while it searches the cache: Python code there, interrupted, crashed the process.
    shared = jax.jit(lambda t: t.weight + t.name)
    start = threading.Barrier(16)

    def work(number: int) -> None:
        start.wait()
        mine = [way.local() for way in WAYS.values()]
        for turn in range(20):
            name = number + turn
            for way, cls in zip(WAYS.values(), mine, strict=True):
                for x in (way.cls(turn, 0, name), cls(2 * turn, 0, name)):
                    doubled = jax.tree.map(lambda leaf: leaf * 2, x)
                    assert parts(doubled) == (4 * turn, 0, name)
                    assert structure(doubled) == structure(x)
                    assert structure(replace(x, name=(turn, number))) != structure(x)
                assert shared(way.cls(turn, 0, name)) == 2 * turn + name

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))  # which raises what one of them raises
    finally:
        sys.setswitchinterval(interval)
