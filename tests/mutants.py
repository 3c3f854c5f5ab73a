"""How many small mistakes in treekit the tests notice: `make mutants` (COUNT=300 of each place, ONLY=_select for one).

Cosmic Ray makes the mistakes: `<` for `<=`, `and` for `or`, a loop that never runs. Each is made in a copy of the
sources, in which tests run that reach its line. What none of these notices is printed.
"""

import os
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parent.parent
PROCESSES = 2
FIRST, THEN = 60, 150  # so many tests try a mistake, and if none notices it, so many others
# In the end, a test that reads the sources.
LAST = ("tests/test_public_api.py::test_the_public_interface_is_what_its_file_says",)
TIMEOUT = 600  # seconds
PLACES = (
    "treekit/optax/_kernel/boundary.py",
    "treekit/optax/_kernel/crossing.py",
    "treekit/optax/_wrappers/select.py",
    "treekit/optax/_wrappers/multi_steps.py",
    "treekit/optax/_kernel/preserve.py",
    "treekit/_select/filter.py",
    "treekit/_node",
    "treekit/_graft",
)


class Reached(NamedTuple):
    """For each file and line the names of the tests that reach it, and how many lines of treekit each test reaches."""

    tests: dict[str, dict[int, set[str]]]
    lines: Counter[str]

    def by(self, file: str, line: int) -> tuple[list[str], list[str]]:
        """Tests that reach a line, or one shortly before it, where its statement may begin; first those to try first.

        A line that runs on import is reached by no test: then those that reach anything in the file.
        """
        of_file = self.tests.get(file, {})
        start = max((i for i in of_file if line - 5 < i <= line and of_file[i]), default=line)
        tests = sorted(
            of_file.get(start) or set[str]().union(*of_file.values()), key=lambda test: (self.lines[test], test)
        )
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in tests:
            by_file[file_of(test)].append(test)
        means = {file: mean(self.lines[test] for test in of) for file, of in by_file.items()}
        turns = {test: turn for of in by_file.values() for turn, test in enumerate(of)}
        # First of few files, since all are imported before a test runs.
        near = dict.fromkeys(sorted(tests, key=lambda test: means[file_of(test)])[:FIRST])
        return [*near], [test for test in sorted(tests, key=turns.__getitem__) if test not in near][:THEN]


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def cosmic_ray(name: str) -> Any:
    """A module of Cosmic Ray, which only `make mutants` installs, so that neither checkers nor tests have it."""
    return import_module(f"cosmic_ray.{name}")


def read_coverage() -> Reached:
    """What the last run of the tests with `--cov-context=test` reached."""
    data = CoverageData(str(ROOT / ".coverage"))
    data.read()
    tests: dict[str, dict[int, set[str]]] = {}
    lines = Counter[str]()
    for file in data.measured_files():
        of_file = defaultdict[int, set[str]](set)
        for line, contexts in data.contexts_by_lineno(file).items():
            of_file[line] = {context.rpartition("|")[0] for context in contexts if context}
            lines.update(of_file[line])
        tests[Path(file).relative_to(ROOT).as_posix()] = of_file
    return Reached(tests, lines)


def is_tried(mutation: Any) -> bool:
    """Not `|`, which mostly joins types, nor `strict=True` in a zip of what the code has made equally long."""
    line, column = mutation.start_pos
    before = (ROOT / mutation.module_path).read_text().splitlines()[line - 1][:column]
    return "BitOr" not in mutation.operator_name and not before.endswith("strict=")


def mutations_of(place: str, count: int) -> list[Any]:
    """A sample of the mistakes that can be made in a place, the same each time; each place once, before one twice."""
    path = ROOT / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    with tempfile.TemporaryDirectory() as folder:
        work_db = cosmic_ray("work_db").WorkDB
        database = work_db(Path(folder) / "mutants.sqlite", work_db.Mode.create)
        cosmic_ray("commands.init").init([file.relative_to(ROOT) for file in files], database, {})
        found = [item.mutations[0] for item in database.work_items]
        database.close()
    found = sorted(filter(is_tried, found), key=repr)
    random.Random(0).shuffle(found)
    seen = Counter[object]()

    def how_often(mutation: Any) -> int:
        where = mutation.module_path, mutation.operator_name.split("_")[0], mutation.start_pos
        seen[where] += 1
        return seen[where]

    return sorted(found, key=how_often)[:count]


class InOrder(NamedTuple):
    """A plugin of pytest that runs these tests alone, in this order."""

    tests: list[str]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[test] for test in self.tests if test in found]


def run(copy: str, tests: list[str], cache: Path) -> None:
    """In a process of its own: exit with 0 if the tests pass on these sources."""
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": copy, "CI": "1"}
    sys.path.insert(0, copy)
    sys.modules.pop("tests", None)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    files = dict.fromkeys(map(file_of, tests))
    options = "-x", "-q", f"-ocache_dir={cache}", "-Wignore:Module already imported"
    sys.exit(pytest.main([*options, *files], plugins=[InOrder(tests)]))


def change(copy: str, mutation: Any) -> str:
    """Make a mistake in these sources, and return it as a diff."""
    operator = cosmic_ray("plugins").get_operator(mutation.operator_name)(**mutation.operator_args)
    path = Path(copy) / mutation.module_path
    before, after = cosmic_ray("mutating").apply_mutation(path, operator, mutation.occurrence)
    return "\n".join(unified_diff(before.splitlines(), after.splitlines(), str(mutation.module_path), lineterm="", n=1))


class Mutants(NamedTuple):
    """Tries mistakes, each in a copy of the sources and a process that has imported JAX and others."""

    reached: Reached
    folder: Path

    def unnoticed(self, mutation: Any) -> str:
        """A mistake as a diff, if all tests that try it pass, else nothing."""
        with tempfile.TemporaryDirectory(dir=self.folder) as copy:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "dist", "site"), dirs_exist_ok=True)
            diff = change(copy, mutation)
            rounds = (*self.reached.by(mutation.module_path.as_posix(), mutation.start_pos[0]), [*LAST])
            return diff if all(self.passes(copy, tests) for tests in rounds if tests) else ""

    def passes(self, copy: str, tests: list[str]) -> bool:
        """Whether tests pass on these sources, in time: a loop without an end does not."""
        process = get_context("forkserver").Process(target=run, args=(copy, tests, self.folder / "cache"))
        process.start()
        process.join(TIMEOUT)
        process.kill()
        process.join()
        return process.exitcode == 0

    def of(self, mutations: Iterable[Any]) -> list[str]:
        with ThreadPoolExecutor(PROCESSES) as pool:
            return list(pool.map(self.unnoticed, mutations))


def main() -> None:
    count, only = int(os.environ.get("COUNT", "300")), os.environ.get("ONLY", "")
    get_context("forkserver").set_forkserver_preload(
        ["beartype", "equinox", "flax.nnx", "hypothesis", "optax", "pytest"]
    )
    with tempfile.TemporaryDirectory() as folder:
        mutants = Mutants(read_coverage(), Path(folder))
        if not mutants.passes(str(ROOT), [*mutants.reached.lines][:FIRST]):
            sys.exit("tests fail without a mistake")
        for place in PLACES:
            if only in place:
                diffs = mutants.of(mutations_of(place, count))
                print(f"{place}: {diffs.count('')} of {len(diffs)}")
                print(*filter(None, diffs), sep="\n", flush=True)


if __name__ == "__main__":
    main()
