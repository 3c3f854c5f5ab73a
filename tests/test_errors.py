"""Each error of treekit, once: it names the fact, and `make errors` prints all of them for a reader."""

import ast
import functools
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import jax
import pytest

import treekit
from tests.errors import beyond, classes, kernel, leaves, saved, trees, whole, wrappers
from tests.errors.mistake import Mistake
from tests.releases import needs

TABLES = {
    "Classes": classes.MISTAKES,
    "Trees": trees.MISTAKES,
    "Leaves": leaves.MISTAKES,
    "What was saved": saved.MISTAKES,
    "Every transformation": kernel.MISTAKES,
    "Wrappers": wrappers.MISTAKES,
    "Beyond Optax": beyond.MISTAKES,
    "At the border of two libraries": whole.MISTAKES,
}
MISTAKES = {f"{title}: {name}": mistake for title, table in TABLES.items() for name, mistake in table.items()}
SOURCES = Path(treekit.__file__).parent
# Where treekit catches what it raised, and where Optax is not installed: how many there are in each file.
NOT_READ = {"optax/__init__.py": 1, "training/_round.py": 1}
RELEASES = f"Python 3.{sys.version_info.minor}, jax {jax.__version__}, optax {metadata.version('optax')}"
HEADER = f"""# Every error of treekit

Each message as a user reads it, under the mistake that it answers. `make errors` prints this page from the tables in
tests/errors. Read a message aloud: it says what is wrong, where, what was found, and what to do.

Written with {RELEASES}.
"""


@functools.cache  # three tests ask
def error_of(mistake: Mistake) -> Exception:
    """What a call raises, with the promotion of dtypes that users have."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        try:
            mistake.call()
        except Exception as error:
            return error
    raise AssertionError("this call raises no error")


def words_of(error: BaseException) -> str:
    """The message with its notes, without addresses and without JAX's note on hidden frames."""
    words = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return re.sub(r" at 0x[0-9a-f]+|\n-+\nFor simplicity, JAX has removed .*", "", words)


def page() -> str:
    lines = [HEADER]
    for title, table in TABLES.items():
        lines.append(f"\n## {title}\n")
        for name, mistake in table.items():
            error = error_of(mistake)
            lines.append(f"\n### {name}\n\n```text\n{type(error).__name__}: {words_of(error)}\n```\n")
    return "".join(lines)


def raised_at(error: BaseException | None) -> Iterator[tuple[Path, int]]:
    """The lines of treekit that raised an error, and those that it came from."""
    while error:
        yield from [(Path(frame.filename), frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(*mistake.needs)) for name, mistake in MISTAKES.items()]
)
def test_an_error_names_the_fact(name: str) -> None:
    mistake = MISTAKES[name]
    error = error_of(mistake)
    assert type(error) is mistake.kind
    assert mistake.fact in words_of(error)


@needs("optax>=0.2.8", "jax>=0.10")
def test_every_error_is_in_a_table() -> None:
    lines = {
        (path, node.lineno)
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and node.exc
    }
    raised = {site for mistake in MISTAKES.values() for site in raised_at(error_of(mistake))}
    missing = sorted((str(path.relative_to(SOURCES)), line) for path, line in lines - raised)
    assert Counter(path for path, _ in missing) == NOT_READ, missing


if __name__ == "__main__":
    print(page())
