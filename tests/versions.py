"""The tests with the lowest dependencies, with the newest, and with releases between them: `make versions`.

Each run has an environment of its own with the wheel in it; the tests come from the sdist, and find no other treekit.
Writes docs/versions.md, with a column for each run. `python -m tests.versions lowest` prints one run only, that of the
lowest dependencies on the oldest Python, and `newest` that of the newest on the newest. Arguments for pytest may
follow, such as `tests/arrays/test_map.py`.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "versions.md"
NEW_ENOUGH = "import sys; print('yes' * (sys.version_info >= (3, 12)))"  # for JAX 0.12
SHOWN = ("jax", "jaxtyping", "wadler_lindig", "numpy", "optax", "equinox", "flax")
# For each run, its Python among those found; which releases uv resolves to; and constraints.
RUNS: dict[str, tuple[int, str, Sequence[str]]] = {
    # Of what treekit itself declares: its peers in the tests are the newest that go with them.
    "lowest": (0, "lowest-direct", ()),
    "JAX 0.7": (0, "highest", ["jax==0.7.*"]),
    "JAX 0.8": (0, "highest", ["jax==0.8.*"]),
    "JAX 0.9": (0, "highest", ["jax==0.9.*"]),
    # Those of .venv, in which figures are measured.
    "pinned": (0, "highest", [f"{name}=={metadata.version(name)}" for name in ("jax", "optax")]),
    "newest": (-1, "highest", ()),
}


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


def run_tests(name: str, dist: Path, arguments: Sequence[str]) -> dict[str, str]:
    """The column of a run: the versions, how many tests passed, and how many were skipped for what they need."""
    index, resolution, constraints = RUNS[name]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        source = next(folder.glob("treekit_jax-*"))
        (source / "treekit").rename(folder / "out_of_reach")
        env, wanted, pins = folder / "env" / "bin" / "python", folder / "wanted.txt", folder / "pins.txt"
        group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["test"]
        uv("venv", "--python", list(interpreters())[index], folder / "env")
        wanted.write_text("\n".join(constraints))
        resolve = ["--extra=optax", "--only-binary=:all:", f"--resolution={resolution}", f"--constraint={wanted}"]
        uv("pip", "compile", "--python", env, *resolve, "--output-file", pins, "pyproject.toml")
        uv("pip", "install", "--python", env, "--constraint", pins, *group, next(dist.glob("*.whl")))
        command = ["-m", "pytest", "-n", "2", "-q", "--tb=short", "-rs", *(arguments or ["tests"])]
        log = output(env, *command, cwd=source)
        print(log, flush=True)
        code = f"import sys, importlib.metadata as m; print(sys.version.split()[0], *map(m.version, {SHOWN!r}))"
        versions = dict(zip(("Python", *SHOWN), output(env, "-c", code).split(), strict=True))
    counts = {what: number for number, what in re.findall(r"(\d+) (\w+)", log.splitlines()[-1].partition(" in ")[0])}
    needs = Counter[str]()
    for number, what in re.findall(r"SKIPPED \[(\d+)\] \S+ (needs (?!the ).*)", log):
        needs[what] += int(number)
    return versions | counts | {what: str(number) for what, number in sorted(needs.items())}


def table_of(columns: dict[str, dict[str, str]]) -> str:
    first = ["Python", *SHOWN, "passed", "failed", "errors", "xfailed", "skipped"]  # then why they were skipped
    found = {row for column in columns.values() for row in column} - {"warnings", "warning"}
    rows = [row for row in first if row in found] + sorted(found - {*first})
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(column.get(row, "0") for column in columns.values())] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(which: str = "", *arguments: str) -> None:
    if which in ("", "newest") and not output(list(interpreters())[-1], "-c", NEW_ENOUGH).strip():
        print("Skipped: the newest JAX needs Python 3.12 or later, which was not found.")
        RUNS.pop("newest")
    names = [name for name in RUNS if which in ("", name)]
    if not names:
        return
    with tempfile.TemporaryDirectory() as dist:
        subprocess.run([sys.executable, "-m", "build", "--outdir", dist, ROOT], check=True)
        columns = {name: run_tests(name, Path(dist), arguments) for name in names}
    table = table_of(columns)
    print(table)
    if not which:
        before, after = "<!-- make versions -->\n", "<!-- end -->\n"
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index(before)] + before + table + text[text.index(after) :])
    if any("passed" not in column or {"failed", "error", "errors"} & {*column} for column in columns.values()):
        sys.exit("tests failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
