"""`make figures` runs, and tells what is worse than it was."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.evidence import figures, figures_source
from benchmarks.evidence.figure import Figure

ROOT = Path(__file__).parent.parent
SOURCE = """
from typing import Any, TypeAlias
Loose: TypeAlias = Any
Params = Any

def f(a: Any, b: int, *args: "Any", c: Loose, d: Params, **kwargs: list[Any]) -> Any:
    return a
"""


def test_the_script_prints_each_figure_and_records_it(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.evidence.figures", "--record", "--file", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    recorded = json.loads(file.read_text())
    assert all(name in run.stdout for name in recorded)
    (crossings,) = (value for name, value in recorded.items() if name.endswith("crossings of the boundary"))
    assert crossings >= 1
    assert recorded.keys() <= json.loads(figures.RECORD.read_text()).keys()


def test_what_is_worse_than_recorded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    measured = [
        Figure("equal", 3, goal=2),
        Figure("less of what should be more", 1, goal=2, at_least=True),
        Figure("slower", 9, goal=1, of_time=True),
        Figure("new", 5),
    ]
    monkeypatch.setattr(figures, "figures", lambda times, types: iter(measured))
    file.write_text(json.dumps({"equal": 3, "less of what should be more": 2, "slower": 1, "not measured": 7}))
    assert figures.main(["--file", str(file)]) == 1
    assert capsys.readouterr().err == "worse: less of what should be more is 1, and was 2\n"

    assert figures.main(["--file", str(file), "--record"]) == 0
    recorded = {"equal": 3, "less of what should be more": 1, "slower": 9, "not measured": 7, "new": 5}
    assert json.loads(file.read_text()) == recorded
    assert figures.main(["--file", str(file)]) == 0


def test_a_bare_any_is_counted_under_its_aliases_too(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE)
    percent, modules, lines, width, longest = figures_source.figures(tmp_path)
    assert percent.value == 50.0  # a, args and c; Params is a name that may be one
    assert modules.value == 0
    assert (lines.value, width.value) == (0, 1)  # nothing is in optax/
    assert longest.value == 2
    (tmp_path / "long.py").write_text("x = 1\n" * 251)
    assert [figure.value for figure in figures_source.figures(tmp_path)] == [50.0, 1, 0, 2, 2]
