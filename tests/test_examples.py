"""The programs in examples/ that need nothing but this machine run to their end."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.releases import keys

ROOT = Path(__file__).parent.parent


def run(folder: Path, *names: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the first of these programs where it finds the others, and writes a picture next to them.

    The tables that it prints fit 80 columns.
    """
    for name in (*names, "_program.py"):
        shutil.copy(ROOT / "examples" / name, folder)
    line = [sys.executable, str(folder / names[0]), *options]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert [x for x in done.stdout.splitlines() if "  " in x.strip() and len(x) > 80] == []
    return done


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_progress_bars_fit_80_columns(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    bars = [ast.unparse(node) for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "tqdm"]
    assert [bar for bar in bars if "ncols=80" not in bar] == []


EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if not path.stem.startswith("_")]
# What happens to a program, and what stderr then says.
STOPPED = {
    "ctrl-C": ("raise KeyboardInterrupt", "\nStopped: nothing was saved.\n"),
    "a package is missing": ("import nobody_has_this", "nobody_has_this is not installed: `make demo` installs"),
    "its folder is read-only": (
        "_program.check_folder(_program.picture_of('no such folder/a.py'))",
        "The picture cannot be written to no such folder (No such file or directory): name a folder with PICTURES=...",
    ),
    "its picture is half drawn": (
        "_program.save(type('Figure', (), {'savefig': lambda self, path: open(path, 'x') and 1 / 0})(), Path('a.png'))",
        "ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("case", keys(STOPPED, {"its picture is half drawn": "PIL"}))
def test_what_stops_a_program_is_one_sentence_and_nothing_is_saved_half(case: str, tmp_path: Path) -> None:
    code, said = STOPPED[case]
    shutil.copy(ROOT / "examples" / "_program.py", tmp_path)
    line = [sys.executable, "-B", "-c", f"from pathlib import Path; import _program; {code}"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert said in done.stderr and done.returncode != 0
    assert ("Traceback" in done.stderr) == (case == "its picture is half drawn")
    assert [path.name for path in tmp_path.iterdir()] == ["_program.py"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_how_to_run_it_and_its_page_has_a_small_picture_and_what_it_printed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    example = "" if path.stem == "digits" else f" EXAMPLE={path.stem}"
    assert f"\n    make demo{example}, or: python examples/{path.name}\n" in text
    assert "_program.check_folder(PICTURE)" in text and "_program.save(figure, PICTURE)" in text
    recorded = ROOT / "docs" / "examples" / path.stem
    assert recorded.with_suffix(".png").stat().st_size < 60_000
    printed = recorded.with_suffix(".txt").read_text(encoding="utf-8")
    assert max(map(len, printed.splitlines())) <= 80
    assert f"examples/{path.stem}.png" in printed


@pytest.mark.slow
def test_a_state_is_sharded_where_that_of_optax_is_not(tmp_path: Path) -> None:
    done = run(tmp_path, "sharded.py")
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^  (plain Optax|treekit) +([\d,]+) +([\d,]+)$", done.stdout, re.MULTILINE)
    assert {name: whole == fullest for name, whole, fullest in rows} == {"plain Optax": True, "treekit": False}


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
    assert re.findall(r"^(.+?) +test accuracy 9\d", done.stdout, re.MULTILINE) == ["plain Optax", "treekit"]
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(tmp_path))  # the path of the picture


MAGIKA = pytest.mark.skipif(importlib.util.find_spec("magika") is None, reason="its wheel has the weights")


@pytest.mark.slow
@MAGIKA
@pytest.mark.parametrize("options", [(), ("--bf16",)], ids=["f32", "bf16"])
def test_a_deployed_model_is_fine_tuned(options: tuple[str, ...], tmp_path: Path) -> None:
    """In a few steps, stubs and sources are not yet distinguished; the weights are right, and the run is resumed."""
    done = run(tmp_path, "finetune.py", options=("--rounds=2", "--files=30", *options))
    assert (done.returncode, done.stderr) == (0, "")
    assert "10 kept, 0 fresh, 0 dropped, 0 refused" in done.stdout
    assert (
        "Stopped within a round, after 6 micro-batches, saved and resumed:\nall arrays are the same, bit" in done.stdout
    )
    assert re.search(r"^stubs, right, of 20 +0 +\d+ +\d+$", done.stdout, re.MULTILINE)
    assert (tmp_path / "finetune.png").stat().st_size > 1000


# What is changed before the program starts, and what it says.
REFUSED = {
    "no stubs": ("sys.argv += ['--folder', '.']", "There are no stubs (.pyi) in . to train with."),
    "another name": (
        "finetune.RENAME['const_fold_opt__9'] = finetune.RENAME.pop('const_fold_opt__209')",
        "rename: 'const_fold_opt__9' matches no leaf of the old tree. The nearest paths: const_fold_opt__209",
    ),
    "another graph": ("finetune.nnx.gelu = finetune.nnx.relu", "computes something else from its weights than 1.0.3"),
    "no such folder": ("sys.argv += ['--folder', 'nowhere']", "--folder: there is no folder nowhere"),
    "no rounds": ("sys.argv += ['--rounds', '0']", "--rounds must be 1 or more"),
}


@pytest.mark.slow
@MAGIKA
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_fine_tuned_model_cannot_be_made_of_is_refused(case: str, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    for name in ("finetune.py", "_program.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    code = f"import sys, finetune; {change}; finetune.main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert message in done.stderr and "Traceback" not in done.stderr
