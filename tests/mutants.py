"""How many small mistakes in treekit the tests notice: `make mutants` (COUNT=300 of each place, ONLY=_select for one).

Cosmic Ray makes the mistakes: `<` for `<=`, `and` for `or`, a loop that never runs. Each is tried in a copy of the
sources, with the tests of that place. What no test notices is printed.
"""

import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROCESSES = 2
TIMEOUT = 300  # seconds
# For each place, the tests that would notice, those first that notice most.
PLACES = {
    "treekit/optax/_boundary.py": (
        "optax/test_boundary.py optax/test_boundary_missing.py optax/test_preserve.py optax/test_extra_args.py "
        "optax/test_apply.py optax/whole/test_declared.py optax/whole/test_same_as_optax.py"
    ),
    "treekit/optax/_select.py": (
        "optax/test_select.py optax/whole/test_path_mask.py optax/test_boundary.py optax/whole/test_same_as_optax.py"
    ),
    "treekit/optax/_multi_steps.py": (
        "optax/test_multi_steps.py optax/test_boundary_missing.py optax/whole/test_eager.py"
    ),
    "treekit/optax/_preserve.py": "optax/test_preserve.py optax/test_boundary.py optax/test_transformation.py",
    "treekit/_filter.py": "test_filter.py test_resolve_spec.py optax/test_select.py",
    "treekit/_node": "node check_types",
    "treekit/_graft": (
        "test_graft.py test_graft_load.py test_graft_strict.py test_state_dict.py optax/whole/test_graft_states.py"
    ),
}
OF_EACH = "test_errors.py"
NOT_TRIED = "BitOr"  # `|` mostly joins types, which have no other operators


def cosmic_ray(name: str) -> Any:
    """A module of Cosmic Ray, which only `make mutants` installs, so that neither checkers nor tests have it."""
    return import_module(f"cosmic_ray.{name}")


def mutations_of(place: str, count: int) -> list[Any]:
    """A sample of the mistakes that can be made in a place, the same each time; each place once, before one twice."""
    path = ROOT / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    with tempfile.TemporaryDirectory() as folder:
        work_db = cosmic_ray("work_db").WorkDB
        database = work_db(Path(folder) / "mutants.sqlite", work_db.Mode.create)
        cosmic_ray("commands.init").init([file.relative_to(ROOT) for file in files], database, {})
        found = [item.mutations for item in database.work_items if NOT_TRIED not in item.mutations[0].operator_name]
        database.close()
    found.sort(key=repr)
    random.Random(0).shuffle(found)
    seen = Counter[object]()

    def how_often(mutations: Any) -> int:
        operator, position = mutations[0].operator_name.split("_")[0], mutations[0].start_pos
        seen[mutations[0].module_path, operator, position] += 1
        return seen[mutations[0].module_path, operator, position]

    return sorted(found, key=how_often)[:count]


def enter_copy(folder: str) -> None:
    """A process of its own sources, which it changes."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in ("treekit", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md"):
        source = ROOT / name
        shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "CI": "1"}


def failures(command: str) -> str:
    """What tests print that fail without a mistake."""
    outcome, output = cosmic_ray("testing").run_tests(command, TIMEOUT)
    return "" if outcome.value == "survived" else output


def is_noticed(mutations: Any, command: str) -> tuple[bool, str]:
    """Whether a test fails, and the change as a diff."""
    result = cosmic_ray("mutating").mutate_and_test(mutations, command, TIMEOUT)
    return result.is_killed, result.diff or result.output


def report(place: str, count: int, pool: ProcessPoolExecutor, cache: Path) -> None:
    """Print how many mistakes in a place are noticed, and each that is not."""
    files = " ".join(f"tests/{name}" for name in [*PLACES[place].split(), OF_EACH])
    command = f"{sys.executable} -m pytest -x -q -o cache_dir={cache} {files}"
    if failed := pool.submit(failures, command).result():
        sys.exit(f"These tests fail without a mistake:\n{failed}")
    mutants = mutations_of(place, count)
    results = list(pool.map(is_noticed, mutants, [command] * len(mutants)))
    print(f"{place}: {sum(noticed for noticed, _ in results)} of {len(results)}")
    print(*(diff for noticed, diff in results if not noticed), sep="\n", flush=True)


def main() -> None:
    count, only = int(os.environ.get("COUNT", "300")), os.environ.get("ONLY", "")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(PROCESSES, initializer=enter_copy, initargs=(folder,)) as pool,
    ):
        for place in PLACES:
            if only in place:
                report(place, count, pool, Path(folder) / "cache")


if __name__ == "__main__":
    main()
