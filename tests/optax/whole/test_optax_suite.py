"""Optax's own tests, which its wheel carries, pass with treekit.optax in its place if they pass with Optax."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import optax
import pytest

from benchmarks.compile_fast import COMPILE_FAST

ROOT = Path(__file__).parents[3]
OPTAX = Path(optax.__file__).parent
# Functions of arrays alone: their tests use no transformations, and would take a third of the time.
OF_ARRAYS = ("assignment", "losses", "microbatching", "perturbations", "projections")
FILES = sorted(
    path.relative_to(OPTAX).as_posix() for path in OPTAX.rglob("*_test.py") if path.parent.name not in OF_ARRAYS
)

# What treekit.optax changes on purpose: numbers are stored in f32 at least, since b2 = 0.999 is 1 in bf16; params of
# integers alone, which would not be trained, raise in `init`; and so does None for all updates in `update`.
EXCEPTIONS = [
    "schedules/_inject_test.py::InjectHyperparamsTest::test_hyperparam_default_dtype_bf16",
    "_src/combine_test.py::PartitionTest::test_extra_args",
    "transforms/_combining_test.py::PartitionTest::test_extra_args",
    "transforms/_adding_test.py::AddingTest::test_none_argument",
]

# These ask for words of an error of JAX, which JAX 0.10.0 has and later versions have not: there they fail with Optax.
OF_WORDS = {
    "transforms/_freezing_test.py::FreezeTest::test_bad_structure_raises",
    "transforms/_freezing_test.py::SelectiveTransformTest::test_selective_bad_structure",
}

# The files that ask most of the wrappers, in half a minute.
FAST = ["_src/combine_test.py", "_src/update_test.py", "schedules/_inject_test.py", "transforms"]
FAST += ["tree_utils/_state_utils_test.py"]
# The others, in parts of some minutes at most. The largest files take longest, so each part has one of them.
OTHERS = sorted(
    (name for name in FILES if not name.startswith(tuple(FAST))), key=lambda name: -(OPTAX / name).stat().st_size
)
PARTS = 6


def failures(tests: Iterable[str], *options: str) -> set[str]:
    """Run some of Optax's tests in a process of their own, and return the ids of those that fail."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "--tb=short", "-rfE", "-W", "ignore", "-c", os.devnull]
    command += ["--rootdir", ".", "--import-mode=importlib", "-p", "no:cacheprovider", *options, *tests]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": f"{COMPILE_FAST} {os.environ.get('XLA_FLAGS', '')}"}
    ran = subprocess.run(command, cwd=OPTAX, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr  # 1 if a test failed; else pytest itself did
    return set(re.findall(r"^(?:FAILED|ERROR|SUB\S+) (\S+)", ran.stdout, re.MULTILINE))


def check(tests: list[str]) -> None:
    """Compare the tests that fail, alone, since some of Optax's fail only after others."""
    in_place = ("-p", "tests.optax.whole.in_optax_tests")
    failed = failures(tests, *in_place)
    lost = failures(failed, *in_place) - failures(failed) if failed else set()
    lost = {re.sub(r"__with(out)?_[a-z]+$", "", test) for test in lost}  # the variants that Optax 0.2.5 tests
    assert lost - OF_WORDS == {test for test in EXCEPTIONS if test.startswith(tuple(tests)) and exists(test)}


def exists(test: str) -> bool:
    """Whether the release of Optax that is installed has a test, whose name may end in that of a case."""
    file, *_, name = test.split("::")
    return name.startswith(tuple(re.findall(r"def (test_\w+)\(", (OPTAX / file).read_text())))


def test_those_that_ask_most() -> None:
    check([test for test in FAST if (OPTAX / test).exists()])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_others(part: int) -> None:
    check(OTHERS[part::PARTS])
