"""Misuse that the checkers must catch: the files of typing_bad, never run, with `# E: code` on each wrong line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import optax
import pytest

import treekit.optax
from tests import optax_names

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "typing_bad"
FILES = sorted(FOLDER.glob("*.py"))
MARKER = re.compile(r"# E: ([a-z-]+(?:, [a-z-]+)*)$")


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


@pytest.mark.parametrize("module", optax_names.MODULES)
def test_the_lists_of_names_are_what_the_script_makes_of_optax(module: str) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    name = optax_names.file(module).name
    made = optax_names.text(module)
    for command in (["check", "--fix", "--quiet", "--select", "I"], ["format"]):
        done = subprocess.run(
            [*ruff, *command, "--stdin-filename", f"treekit/optax/{name}", "-"],
            cwd=ROOT,
            input=made,
            capture_output=True,
            text=True,
            check=True,
        )
        made = done.stdout
    assert optax_names.file(module).read_text() == made


@pytest.mark.parametrize("module", optax_names.MODULES)
def test_the_checkers_are_told_of_every_name_of_optax(module: str) -> None:
    ours, theirs = (getattr(top, module) if module else top for top in (treekit.optax, optax))
    listed = re.findall(r"(?:as |^)([^\W_]\w*)(?:$|: Final)", optax_names.file(module).read_text(), re.MULTILINE)
    names = {name for name in dir(theirs) if not name.startswith("_")}
    assert names - set(vars(ours)) == set(listed)
    assert all(hasattr(ours, name) for name in names)
