"""The programs in examples/ that need nothing but this machine run to their end."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Run the first of these programs where it finds the others, and writes a picture next to them."""
    for name in names:
        shutil.copy(ROOT / "examples" / name, folder)
    line = [sys.executable, str(folder / names[0])]
    return subprocess.run(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("orbax") is None, reason="it saves with Orbax")
def test_a_model_that_grows_reads_more_digits_than_one_started_anew(tmp_path: Path) -> None:
    done = run(tmp_path, "grow.py", "digits.py")
    assert done.returncode == 0, done.stderr
    assert "Unfrozen: 15 leaves of the state are kept, 11 are new." in done.stdout
    assert (tmp_path / "grow.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_demo_prints_no_progress_bars_into_a_file(tmp_path: Path) -> None:
    done = run(tmp_path, "digits.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\ntest accuracy 9")
