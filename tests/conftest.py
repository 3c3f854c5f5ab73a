"""How every test runs: treekit's own annotations checked, and what JAX would promote silently an error."""

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, runtime_checkable
from unittest import mock

import hypothesis
import jax
import optax
import pytest
from jaxtyping import install_import_hook

from benchmarks.compile_fast import COMPILE_FAST
from tests.releases import has

# The programs of the tests are small and run a few times, so they are compiled fast rather than well. XLA reads its
# flags once, when the first device is asked for. Processes that a test starts do not inherit these, and
# tests/optax/whole/test_cost.py, which reads compiled programs, overrides them.
with mock.patch.dict(os.environ, XLA_FLAGS=f"{COMPILE_FAST} {os.environ.get('XLA_FLAGS', '')}"):
    jax.devices()

# Before anything imports treekit: from here on beartype checks each call of its functions against their annotations.
install_import_hook("treekit", "beartype.beartype")

# Optax's protocols are for reading only; beartype can ask about one, "is it callable?", when it is marked so.
for protocol in (
    optax.ShouldSkipUpdateFunction,
    optax.TransformInitFn,
    optax.TransformUpdateExtraArgsFn,
    optax.TransformUpdateFn,
    optax.transforms.ConditionFn,
):
    runtime_checkable(protocol)

# A deadline would make the first, compiling, example fail. CI tries the same examples each time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if "CI" in os.environ else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="a fifth of the cases of each test")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark two of three cells of each table as slow; in a sample, four of five cases of each test."""
    is_sample = config.getoption("--sample")
    base = 5 if is_sample else 3
    tables: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if is_sample or item.get_closest_marker("table"):
            tables[item.path, item.name.partition("[")[0]].append(item)
    for table in tables.values():
        for i, item in enumerate(table):
            # The digits of i, summed: with i alone, a parameter of `base` values would always have the first.
            if sum(i // base**n for n in range(9)) % base:
                item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs in pytest's cache, since the processes and modules of a run need many of them again."""
    set_option: Any = jax.config.update  # has no types
    if has("jax>=0.7"):  # from the cache of JAX 0.6.0, a line search returned the updates of another one
        set_option("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    set_option("jax_persistent_cache_min_compile_time_secs", 0)
    set_option("jax_persistent_cache_min_entry_size_bytes", -1)
    set_option("jax_traceback_in_locations_limit", 0)  # of operations in compiled programs; errors keep their own


def pytest_collection_finish() -> None:
    """Let garbage collections pass over what is imported: a million objects that stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def strict_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """No implicit promotion of ranks, nor of dtypes where no transformation runs: Optax's own arithmetic mixes them."""
    tests = Path(__file__).parent
    with_optax = ("accelerators", "optax", "training", "testing/test_transformation.py")
    of_optax = any(request.path.is_relative_to(tests / place) for place in with_optax)
    core = request.path.is_relative_to(tests) and not of_optax
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict" if core else "standard"):
        yield


@pytest.fixture(autouse=True, scope="module")
def free_programs() -> Iterator[None]:
    """Forget the compiled programs of a module when it is done: hundreds of modest ones are gigabytes."""
    yield
    clear: Any = jax.clear_caches  # has no types
    clear()
    gc.collect()


@pytest.fixture
def nans() -> Iterator[None]:
    """For a test that has NaN on purpose, or in Optax's own arithmetic, jax_debug_nans is off."""
    with jax.debug_nans(False):
        yield


@pytest.fixture
def leaks() -> Iterator[None]:
    """For a test that keeps a tracer on purpose, or whose library does, jax_check_tracer_leaks is off."""
    with jax.check_tracer_leaks(False):
        yield
