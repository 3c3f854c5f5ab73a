"""`make figures` runs, and tells what is worse than it was."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.evidence import figures
from benchmarks.evidence.figures import Figure

ROOT = Path(__file__).parent.parent


def test_the_script_prints_each_figure_and_records_it(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.evidence.figures", "--record", "--file", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    recorded = json.loads(file.read_text())
    assert all(name in run.stdout for name in recorded)
    assert len(recorded) > 5
    assert recorded.keys() <= json.loads(figures.RECORD.read_text()).keys()


def test_what_is_worse_than_recorded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    measured = [Figure("equal", 3, goal=2), Figure("more", 2, goal=3), Figure("slower", 9, of_time=True)]
    measured += [Figure("new", 5)]
    monkeypatch.setattr(figures, "figures", lambda times: iter(measured))
    file.write_text(json.dumps({"equal": 3, "more": 1, "slower": 1, "not measured": 7}))
    assert figures.main(["--file", str(file)]) == 1
    assert capsys.readouterr().err == "worse: more is 2, and was 1\n"
    assert figures.main(["--file", str(file), "--record"]) == 0
    recorded = {"equal": 3, "more": 2, "slower": 9, "not measured": 7, "new": 5}
    assert json.loads(file.read_text()) == recorded
    assert figures.main(["--file", str(file)]) == 0
