"""Misuse that the checkers must catch: the files of typing_bad, never run, with `# E: code` on each wrong line."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import optax
import pytest

import treekit.optax

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "typing_bad"
FILES = sorted(FOLDER.glob("*.py"))
MARKER = re.compile(r"# E: ([a-z-]+(?:, [a-z-]+)*)$")


# Of Optax, these have no stubs: to a checker they are Any.
UNKNOWN = (
    "assignment experimental microbatch microbatching multi_normal perturbations projections second_order tree_utils"
).split()


def run(*command: str) -> str:
    """What a checker prints; 1 is the exit status of one that found errors."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def marked() -> set[tuple[str, int, str]]:
    """(file, line, code) of every marker."""
    return {
        (file.name, number, code)
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for codes in MARKER.findall(line)
        for code in codes.split(", ")
    }


def test_every_file_has_a_marker() -> None:
    assert FILES
    assert {file for file, _, _ in marked()} == {file.name for file in FILES}


def test_mypy_finds_what_is_marked_and_nothing_else() -> None:
    pytest.importorskip("mypy")
    output = run("mypy", "--strict", "--output", "json", *map(str, FILES))
    found = [json.loads(line) for line in output.splitlines()]
    errors = {
        (Path(e["file"]).name, e["line"], e["code"])
        for e in found
        if e["severity"] == "error" and (ROOT / e["file"]).parent == FOLDER  # of the package itself, `make check` tells
    }
    assert errors == marked()


def test_pyright_finds_an_error_on_each_marked_line_and_on_no_other() -> None:
    pytest.importorskip("pyright")
    # The folder has a configuration of its own: the project's leaves it out, even where a command names its files.
    output = run("pyright", "--project", str(FOLDER), "--pythonpath", sys.executable, "--outputjson")
    found = json.loads(output)["generalDiagnostics"]
    errors = {
        (Path(e["file"]).name, e["range"]["start"]["line"] + 1)  # pyright counts lines from 0
        for e in found
        if e["severity"] == "error"
    }
    assert errors == {(file, line) for file, line, _ in marked()}


def imported(module: str) -> set[str]:
    """What a file imports as a public name."""
    tree = ast.parse((Path(treekit.optax.__file__).parent / f"{module}.py").read_text())
    found = (alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names)
    return {name for name in found if name and not name.startswith("_")}


@pytest.mark.parametrize("name", ["", "contrib", "schedules", "transforms"])
def test_the_checkers_are_told_of_every_name_of_optax(name: str) -> None:
    module = getattr(optax, name) if name else optax
    told = imported(name) if name else imported("__init__") | imported("_names") | {"multi_transform"}
    names = {key for key in dir(module) if not key.startswith("_")}
    assert names - told == (set() if name else set(UNKNOWN))
    assert all(hasattr(treekit.optax, key) for key in UNKNOWN)
