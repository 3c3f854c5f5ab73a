"""The programs in examples/ that need nothing but this machine run to their end."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("orbax") is None, reason="it saves with Orbax")
def test_a_model_that_grows_reads_more_digits_than_one_started_anew(tmp_path: Path) -> None:
    for name in ("grow.py", "digits.py"):  # the picture is written beside them
        shutil.copy(ROOT / "examples" / name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, str(tmp_path / "grow.py")]
    run = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Unfrozen: 15 leaves of the state are kept, 11 are new." in run.stdout
    assert (tmp_path / "grow.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_demo_prints_no_progress_bars_into_a_file(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "digits.py", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, str(tmp_path / "digits.py")]
    run = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("\ntest accuracy 9")
