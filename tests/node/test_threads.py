"""Many threads at once: they create and rebuild nodes, register classes, and share jitted functions."""

import sys
import threading

import jax
import pytest

from tests.node.ways import WAYS, parts, structure
from treekit import replace

pytestmark = pytest.mark.slow


def test_sixteen_threads_create_map_register_and_jit() -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(16)
    shared = jax.jit(lambda t: t.weight + (1 if isinstance(t.name, bool) else 2))

    def work(number: int) -> None:
        try:
            start.wait()
            mine = [way.local() for way in WAYS.values()]
            for turn in range(20):
                for way, cls in zip(WAYS.values(), mine, strict=True):
                    for x in (way.make(turn, 0, turn % 7), cls(2 * turn, 0, turn % 7)):
                        doubled = jax.tree.map(lambda leaf: leaf * 2, x)
                        assert parts(doubled) == (4 * turn, 0, turn % 7)
                        assert structure(doubled) == structure(x)
                        assert structure(replace(x, name=(turn, number))) != structure(x)
                    x = way.make(turn, 0, turn % 2 == 0)
                    assert shared(x) == 2 * turn + 1 and shared(replace(x, name=turn % 2)) == 2 * turn + 2
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_sixteen_threads_search_one_cache_of_jit() -> None:
    # JAX compares treedefs while it searches the cache: Python code there, interrupted, crashed the process.
    shared = jax.jit(lambda t: t.weight + 1)
    make = next(iter(WAYS.values())).make
    start = threading.Barrier(16)
    results: list[bool] = []

    def work(number: int) -> None:
        start.wait()
        for turn in range(100):
            results.append(bool(shared(make(turn, 0, (number + turn) % 60)) == 2 * turn + 1))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == [True] * 1600
