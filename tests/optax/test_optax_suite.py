"""Optax's own tests, which its wheel carries, pass with treekit.optax in its place if they pass with Optax."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import optax
import pytest

from benchmarks.compile_fast import COMPILE_FAST

ROOT = Path(__file__).parents[2]
OPTAX = Path(optax.__file__).parent
# Functions of arrays alone, which treekit.optax returns as they are, or in a wrapper that only calls them. Their tests
# use none of its transformations, and would take a third of the time.
OF_ARRAYS = ("assignment", "losses", "microbatching", "perturbations", "projections")
FILES = sorted(
    path.relative_to(OPTAX).as_posix() for path in OPTAX.rglob("*_test.py") if path.parent.name not in OF_ARRAYS
)

# Tests of what treekit.optax changes on purpose, with the reason.
EXCEPTIONS = {
    "schedules/_inject_test.py::InjectHyperparamsTest::test_hyperparam_default_dtype_bf16": (
        "numbers are stored in f32 at least, since b2 = 0.999 is 1 in bf16"
    ),
}

# The files that ask most of the wrappers, in half a minute.
FAST = [
    "_src/combine_test.py",
    "_src/update_test.py",
    "schedules/_inject_test.py",
    "transforms",
    "tree_utils/_state_utils_test.py",
]
# The others, in parts of some minutes at most. The largest files take longest, so each part has one of them.
OTHERS = sorted(
    (name for name in FILES if not name.startswith(tuple(FAST))), key=lambda name: -(OPTAX / name).stat().st_size
)
PARTS = 6


def failures(tests: Iterable[str], file: Path, *options: str) -> set[str]:
    """Run some of Optax's tests in a process of their own, and return the ids of those that fail."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-W", "ignore"]
    command += ["-c", os.devnull, "--rootdir", str(OPTAX), "--import-mode=importlib", "-p", "no:cacheprovider"]
    command += ["-p", "tests.optax.in_optax_tests", "--failed", str(file), *options]
    command += [str(OPTAX / test) for test in tests]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": f"{COMPILE_FAST} {os.environ.get('XLA_FLAGS', '')}"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr  # 1 if a test failed; else pytest itself did
    return set(file.read_text().splitlines())


def check(tests: list[str], folder: Path) -> None:
    """Compare the tests that fail, alone, since some of Optax's fail only after others."""
    failed = failures(tests, folder / "all", "--in-place")
    lost = failures(failed, folder / "ours", "--in-place") - failures(failed, folder / "plain") if failed else set()
    assert lost == {test for test in EXCEPTIONS if test.startswith(tuple(tests))}


def test_those_that_ask_most(tmp_path: Path) -> None:
    check([test for test in FAST if (OPTAX / test).exists()], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_others(part: int, tmp_path: Path) -> None:
    check(OTHERS[part::PARTS], tmp_path)
