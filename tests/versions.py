"""The tests with the lowest and with the newest dependencies, on each Python found: `make versions`.

Each run has an environment of its own with the wheel in it; the tests come from the sdist, and find no other treekit.
Writes docs/versions.md. With arguments for pytest, as `python -m tests.versions tests/test_map.py`, it prints only, and
runs the two ends: the lowest on the oldest Python, the newest on the newest.
"""

import itertools
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "versions.md"
RESOLUTIONS = ("lowest-direct", "highest")
SHOWN = ("jax", "jaxtyping", "numpy", "optax")


def uv(*arguments: str | Path) -> None:
    """It does in seconds what pip does in minutes, finds the lowest versions, and trusts the system as pip does."""
    subprocess.run([sys.executable, "-m", "uv", "--quiet", "--system-certs", *arguments], cwd=ROOT, check=True)


def output(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a command prints; nothing where there is no such command."""
    try:
        return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    except FileNotFoundError:
        return ""


def interpreters() -> Iterator[str]:
    """Of each minor version one that runs: by its name, or pyenv's, whose names may run nothing."""
    installed = Path(output("pyenv", "root").strip() or "nowhere", "versions")
    for minor in range(11, 15):
        candidates = [f"python3.{minor}", *(str(path / "bin" / "python") for path in installed.glob(f"3.{minor}.*"))]
        yield from [python for python in candidates if output(python, "-c", "print(1)")][:1]


def run_tests(python: str, resolution: str, dist: Path, arguments: list[str]) -> list[str]:
    """The row of the table: the versions, and what pytest says at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        source = next(folder.glob("treekit_jax-*"))
        (source / "treekit").rename(folder / "out_of_reach")
        env, pins = folder / "env" / "bin" / "python", folder / "pins.txt"
        group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["test"]
        uv("venv", "--python", python, folder / "env")
        # The lowest of what treekit itself declares: its peers in the tests are the newest that go with them.
        resolve = ["--extra=optax", "--only-binary=:all:", f"--resolution={resolution}"]
        uv("pip", "compile", "--python", env, *resolve, "--output-file", pins, "pyproject.toml")
        uv("pip", "install", "--python", env, "--constraint", pins, *group, next(dist.glob("*.whl")))
        command = ["-m", "pytest", "-n", "2", "-q", "--tb=short", *(arguments or ["tests"])]
        log = output(env, *command, cwd=source)
        print(log, flush=True)
        code = f"import sys, importlib.metadata as m; print(sys.version.split()[0], *map(m.version, {SHOWN!r}))"
        summary = log.splitlines()[-1].strip("= ").partition(" in ")[0]
        return [*output(env, "-c", code).split(), summary]


def table(rows: list[list[str]]) -> str:
    header = ["Python", *SHOWN, "tests"]
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, ["---"] * len(header), *rows])


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as dist:
        subprocess.run([sys.executable, "-m", "build", "--outdir", dist, ROOT], check=True)
        pythons = list(interpreters())
        pairs = list(itertools.product(pythons, RESOLUTIONS))
        ends = list(zip((pythons[0], pythons[-1]), RESOLUTIONS, strict=True))
        rows = [run_tests(*pair, Path(dist), arguments) for pair in (ends if arguments else pairs)]
    print(table(rows))
    if not arguments:
        before, after = "<!-- make versions -->\n", "<!-- end -->\n"
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index(before)] + before + table(rows) + text[text.index(after) :])
    if any(" passed" not in row[-1] or " failed" in row[-1] or " error" in row[-1] for row in rows):
        sys.exit("tests failed")


if __name__ == "__main__":
    main(sys.argv[1:])
