"""What type checkers know of a program with treekit, and which mistakes they catch: with the wheel, without stubs."""

import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.evidence.checkers import ROOT, Found, check, copy, environment
from benchmarks.evidence.figure import Figure

TESTS = ROOT / "tests"
MISTAKE = re.compile(r"  # (both|pyright|mypy|neither: .+)$")
STRICT = ("mypy", "pyright strict")
# What pyright says of a line besides the mistake: it is an expression, or a name, that is there for its type only.
BESIDES = ("reportUnused", "reportUnknown")


def figures() -> Iterator[Figure]:
    """Of each checker in strict mode, without settings."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment(folder)
        copy(TESTS / "typing_good", folder / "files" / "good")
        copy(TESTS / "typing_bad" / "mistakes", folder / "files" / "mistakes")
        for setting in STRICT:
            found = check(python, folder / "files", setting)
            revealed = expressions(found)
            unknown = [x for x in revealed if is_any(x) and not is_of_optax(x)]
            note = ", ".join(x.source.strip() for x in unknown)
            title = f"typed program, {setting}: expressions that are Any, of {len(revealed)}"
            yield Figure(title, len(unknown), goal=5, note=f"{sum(map(is_any, revealed))} with Optax's; {note}")
            of_folder = mistakes(folder / "files")
            number = len(caught(found) & of_folder)
            goal = 45 if setting == "mypy" else 55
            yield Figure(f"mistakes caught, {setting}, of {len(of_folder)}", number, goal=goal, at_least=True)


def expressions(found: Iterable[Found]) -> list[Found]:
    """What the program's `reveal_type` say."""
    return [x for x in found if not x.rule and "program" in x.file]


def is_any(found: Found) -> bool:
    """Whether a type is Any, or pyright's Unknown, as a whole."""
    return found.text in ("Any", "Unknown")


def is_of_optax(found: Found) -> bool:
    """Whether it is a class of Optax's, which is Any to mypy without settings, and marked so in the program."""
    return found.source.endswith("# Optax's")


def mistakes(folder: Path) -> set[tuple[str, int]]:
    """The file and the line of each that is marked in a folder's files."""
    return {
        (path.name, number)
        for path in folder.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MISTAKE.search(line)
    }


def caught(found: Iterable[Found]) -> set[tuple[str, int]]:
    """The file and the line of each error."""
    return {(Path(x.file).name, x.line) for x in found if x.rule and not x.rule.startswith(BESIDES)}
