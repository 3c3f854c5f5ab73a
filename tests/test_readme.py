"""The README: its examples run, its tables say what they give, and it names every public name and no other.

All pieces share one namespace, from the top of the page to its end, as a reader would type them. A piece is a block of
Python, where a line that ends in `# raises Error: text` must raise that; or a row of a table of names, whose third cell
is an expression and whose fourth is the repr of its value.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import pytest

import treekit
import treekit.optax
import treekit.testing

README = Path(__file__).parent.parent / "README.md"
FENCE = re.compile(r"```python\n(?P<code>.*?)```", re.DOTALL)
ROW = re.compile(r"^\| `?(?P<name>[\w ]+)`? \| [^|]+ \| `(?P<code>[^|]+)` \| `(?P<gives>.+)` \|$", re.MULTILINE)
RAISES = re.compile(r"# raises (?P<error>\w+): (?P<text>.+)$")


class Piece(NamedTuple):
    line: int  # of the README
    code: str
    gives: str | None  # the repr of the value, for an expression


def pieces() -> Iterator[Piece]:
    text = README.read_text(encoding="utf-8")
    found = sorted([*FENCE.finditer(text), *ROW.finditer(text)], key=lambda match: match.start())
    for match in found:
        row = match.groupdict()
        gives = row["gives"].replace(r"\|", "|") if "gives" in row else None
        yield Piece(text.count("\n", 0, match.start("code")) + 1, row["code"], gives)


def run_block(piece: Piece, namespace: dict[str, Any]) -> None:
    lines = piece.code.splitlines()
    for statement in ast.parse(piece.code).body:
        promise = RAISES.search(lines[(statement.end_lineno or 1) - 1])
        code = compile(ast.increment_lineno(ast.Module([statement], []), piece.line - 1), str(README), "exec")
        if promise:
            with pytest.raises(getattr(builtins, promise["error"]), match=re.escape(promise["text"])):
                exec(code, namespace)
        else:
            exec(code, namespace)


def public_names(module: ModuleType) -> set[str]:
    """What a module of treekit defines itself, or takes from the private modules beside it."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(module.__name__)
    }


def test_the_examples_run_from_top_to_bottom() -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    found = list(pieces())
    assert {piece.gives is None for piece in found} == {True, False}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a reader has it
        for piece in found:
            if piece.gives is None:
                run_block(piece, namespace)
            else:
                value = eval(piece.code, namespace)
                assert repr(value) == piece.gives, f"README.md, line {piece.line}: {piece.code}"


def test_the_tables_have_every_public_name_and_no_other() -> None:
    named = [match["name"] for match in ROW.finditer(README.read_text(encoding="utf-8"))]
    core, wrappers, laws = map(public_names, (treekit, treekit.optax, treekit.testing))
    assert sorted(named) == sorted([*core, *wrappers, *laws, "every other name"])


def test_its_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README.read_text(encoding="utf-8"))
    assert [link for link in links if not (README.parent / link).exists()] == []
    assert "docs/digits.png" in links
