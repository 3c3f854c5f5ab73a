"""mypy and pyright over files, as a user has treekit: the wheel, in an environment of its own, without typings/."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SETTINGS = ("mypy", "mypy that follows", "pyright basic", "pyright strict")
STRICT = ("mypy", "pyright strict")
# What pyright says of a line besides a mistake: it is an expression, or a name, that is there for its type only.
BESIDES = ("reportUnused", "reportUnknown")
FENCE = re.compile(
    r"^(?: *<!-- types: (?P<marker>[^\n]*) -->\n+)?"
    r"(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
# A page is a notebook: names are used again for other values, and functions have no annotations.
NOTEBOOK = "# mypy: allow-redefinition-new, local-partial-types, allow-untyped-defs, allow-untyped-calls\n"


class Found(NamedTuple):
    """What a checker says of a line: an error, or a type that `reveal_type` asked for."""

    file: str
    line: int
    rule: str  # "" for a revealed type
    text: str
    source: str  # from where the error begins to the end of the line


def environment(folder: Path) -> Path:
    """The Python of a new environment in a folder, with the wheel in it and the packages of this one behind it."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(next((folder / "dist").glob("*.whl")))]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, capture_output=True)
    # Last in sys.path, and of its own .pth files, such as that of an editable treekit, Python reads none.
    site = next((folder / "env").glob("lib/*/site-packages"))
    (site / "peers.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def check(python: Path, folder: Path, setting: str) -> list[Found]:
    """What a checker finds in a folder of files, under one of `SETTINGS`."""
    environ = os.environ | {"PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]])}
    environ.pop("PYTHONPATH", None)
    environ.pop("MYPYPATH", None)

    def output(*command: str) -> str:
        done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: it has found errors
        return done.stdout

    checker, _, mode = setting.partition(" ")
    if checker == "pyright":
        # By default a warning, with which editors underline the import of a module that has a stub and no source.
        config = {"include": ["."], "typeCheckingMode": mode, "reportMissingModuleSource": "error"}
        (folder / "pyrightconfig.json").write_text(json.dumps(config))
        return list(_of_pyright(folder, json.loads(output("pyright", "--outputjson"))))
    cache = ROOT / ".mypy_cache" / setting.replace(" ", "-")
    options = ["--strict", "--output=json", f"--python-executable={python}", f"--cache-dir={cache}"]
    lines = output("mypy", *options, *(["--follow-untyped-imports"] if mode else []), ".").splitlines()
    return list(_of_mypy(folder, map(json.loads, lines)))


def is_of_jax(found: Found) -> bool:
    """Whether what pyright does not know is in JAX, most of whose functions have a parameter of an unknown type."""
    return found.rule.startswith("reportUnknown") and found.source.startswith(("jax.", "jnp."))


def _of_mypy(folder: Path, messages: Iterable[Mapping[str, Any]]) -> Iterator[Found]:
    for message in messages:
        text, file, line = str(message["message"]), str(message["file"]), int(message["line"])
        source = (folder / file).read_text().splitlines()[line - 1][int(message["column"]) :]
        if message["severity"] == "error":
            yield Found(file, line, str(message["code"]), text, source)
        elif text.startswith("Revealed type is"):
            yield Found(file, line, "", text.removeprefix("Revealed type is ").strip('"'), source)


def _of_pyright(folder: Path, report: Mapping[str, Any]) -> Iterator[Found]:
    for message in report["generalDiagnostics"]:
        start = message["range"]["start"]
        path = Path(message["file"])
        source = path.read_text().splitlines()[start["line"]][start["character"] :]
        place = str(path.relative_to(folder.resolve())), start["line"] + 1
        if message["severity"] == "error":
            yield Found(*place, message.get("rule", "syntax"), message["message"], source)
        elif " is " in message["message"]:
            yield Found(*place, "", message["message"].rpartition('" is "')[2].strip('"'), source)


def write_pages(pages: Iterable[Path], folder: Path) -> None:
    """The code of pages as files, one a page, with the numbers that its lines have there."""
    folder.mkdir(parents=True)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        lines = [NOTEBOOK.strip()]
        for block in FENCE.finditer(text):
            if block["language"] == "python":
                before = text.count("\n", 0, block.start("code"))
                lines += [""] * (before - len(lines)) + textwrap.dedent(block["code"]).splitlines()
        if len(lines) > 1:
            (folder / f"page_{page.stem}.py").write_text("\n".join(lines) + "\n")


def copy(source: Path, folder: Path) -> None:
    """The Python files of a folder, without what was compiled of them."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", "*.json"))


def is_any(found: Found) -> bool:
    """Whether a type is Any, or pyright's Unknown, as a whole."""
    return found.text in ("Any", "Unknown")


def caught(found: Iterable[Found]) -> set[tuple[str, int]]:
    """The file and the line of each error."""
    return {(Path(x.file).name, x.line) for x in found if x.rule and not x.rule.startswith(BESIDES)}
