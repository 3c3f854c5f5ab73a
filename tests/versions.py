"""The tests with the lowest and with the newest dependencies, on each Python found: `make versions`.

Each run has an environment of its own with the wheel in it; the tests come from the sdist, and find no other treekit.
Writes docs/versions.md. `python -m tests.versions lowest` prints one run only, of the lowest dependencies on the oldest
Python, and `newest` of the newest on the newest. Arguments for pytest may follow, such as `tests/test_map.py`.
"""

import itertools
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "versions.md"
NEW_ENOUGH = "import sys; print('yes' * (sys.version_info >= (3, 12)))"  # for JAX 0.12
SHOWN = ("jax", "jaxtyping", "wadler_lindig", "numpy", "optax")


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
    """Of each minor version one that runs: pyenv's names may run nothing."""
    installed = Path(output("pyenv", "root").strip() or "nowhere", "versions")
    for minor in range(11, 15):
        candidates = [f"python3.{minor}", *(str(path / "bin" / "python") for path in installed.glob(f"3.{minor}.*"))]
        yield from [python for python in candidates if output(python, "-c", "print(1)")][:1]


def run_tests(python: str, resolution: str, dist: Path, arguments: Sequence[str]) -> list[str]:
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


def pairs(which: str) -> list[tuple[str, str]]:
    """The Pythons and resolutions to run; none where the newest JAX has no Python."""
    pythons = list(interpreters())
    if which == "lowest":
        return [(pythons[0], "lowest-direct")]
    if which == "newest":
        return [(pythons[-1], "highest")] if output(pythons[-1], "-c", NEW_ENOUGH).strip() else []
    return list(itertools.product(pythons, ("lowest-direct", "highest")))


def main(which: str = "", *arguments: str) -> None:
    with tempfile.TemporaryDirectory() as dist:
        found = pairs(which)
        if not found:
            print("Not run: the newest JAX needs Python 3.12 or later, and there is none here.")
            return
        subprocess.run([sys.executable, "-m", "build", "--outdir", dist, ROOT], check=True)
        rows = [run_tests(*pair, Path(dist), arguments) for pair in found]
    header = ["Python", *SHOWN, "tests"]
    table = "".join(f"| {' | '.join(row)} |\n" for row in [header, ["---"] * len(header), *rows])
    print(table)
    if not which:
        before, after = "<!-- make versions -->\n", "<!-- end -->\n"
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index(before)] + before + table + text[text.index(after) :])
    if any(" passed" not in row[-1] or " failed" in row[-1] or " error" in row[-1] for row in rows):
        sys.exit("tests failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
