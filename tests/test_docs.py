"""The README and the pages: their code runs, their tables say what it gives, and every public name is there.

All pieces of a page share one namespace, from its top to its end, as a reader would type them. A piece is a block of
Python, in which a statement that ends in `# raises Error: text` must raise that, and an expression that ends in
`# gives x` have that repr (either may stand on a line of its own below); or a row of a table
of names, whose third cell is an expression and whose fourth is the repr of its value. The block of text after a block
of Python is what that prints, or the whole message of the error that it raises.
"""

import ast
import builtins
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

import treekit
import treekit.optax
import treekit.testing
import treekit.training
import treekit.typing
from tests.releases import needs

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference"
PAGES = [
    README,
    ROOT / "SECURITY.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("benchmarks/results/*.md")),
]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)  # indented in a tab
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| `(?P<code>[^|]+)` \| `(?P<gives>.+)` \| \[[^|]+\) \|$", re.MULTILINE)
NAME = re.compile(r"^\| \[`(?P<name>[\w.]+)`\]\(\.\./\.\./(?P<file>[^)]+)\) \|.*\]\(\.\./\S+\) \|$", re.MULTILINE)
RAISES = re.compile(r"# raises (?P<error>\w+): (?P<text>.+)$")
GIVES = re.compile(r"# gives (?P<value>.+)$")


def fences(page: Path) -> list[re.Match[str]]:
    return list(FENCE.finditer(page.read_text(encoding="utf-8")))


def line_of(match: re.Match[str]) -> int:
    return match.string.count("\n", 0, match.start("code")) + 1


def pieces(page: Path) -> Iterator[tuple[int, str]]:
    """The first line of each block and row, and its code, which says for a row what it gives."""
    blocks = [(line_of(x), textwrap.dedent(x["code"])) for x in fences(page) if x["language"] == "python"]
    rows = [(line_of(x), f"{x['code']}  # gives {x['gives']}") for x in ROW.finditer(page.read_text(encoding="utf-8"))]
    yield from sorted([*blocks, *((line, code.replace(r"\|", "|")) for line, code in rows)])


def outputs(page: Path) -> dict[int, str]:
    """What blocks of Python print, by their first lines: the block of text after them."""
    pairs = itertools.pairwise(fences(page))
    return {
        line_of(x): textwrap.dedent(y["code"]) for x, y in pairs if (x["language"], y["language"]) == ("python", "text")
    }


def raises(error: str, text: str) -> AbstractContextManager[pytest.ExceptionInfo[BaseException]]:
    is_old = jax.__version_info__ < (0, 10, 2) and text == "pytree structure error"  # JAX's own words since 0.10.2
    return pytest.raises(getattr(builtins, error), match="." if is_old else re.escape(text))


def run_piece(page: Path, line: int, code: str, namespace: dict[str, Any]) -> str:
    """Run it, and return the message of the last error that it should raise."""
    lines, message = [*code.splitlines(), ""], ""
    for statement in ast.parse(code).body:
        last, following = lines[(statement.end_lineno or 1) - 1 :][:2]
        said = last + (following if following.startswith("#") else "")
        promise, gives = RAISES.search(said), GIVES.search(said)
        ast.increment_lineno(statement, line - 1)
        if gives:
            assert isinstance(statement, ast.Expr), f"{page.name}, line {statement.lineno}: no expression"
            value = eval(compile(ast.Expression(statement.value), str(page), "eval"), namespace)
            assert repr(value) == gives["value"], f"{page.name}, line {statement.lineno}: it gives {value!r}"
            continue
        with raises(**promise.groupdict()) if promise else nullcontext() as error:
            exec(compile(ast.Module([statement], []), str(page), "exec"), namespace)
        message = str(error.value) if error else message
    return message


def public_names(module: ModuleType) -> set[str]:
    """The names of a module; of `treekit.optax`, which has all of Optax's, those that treekit defines."""
    names = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module)) if name[0] != "_"}
    if module is treekit.optax:
        return {name for name, x in names.items() if getattr(x, "__module__", "").startswith("treekit.optax._")}
    return {name for name, x in names.items() if not isinstance(x, ModuleType)}


def in_this_project(file: Path) -> Path:
    """The file; of treekit/, where it is installed: the tests of an sdist run with the wheel."""
    return (Path(treekit.__file__).parent.parent if file.parts[0] == "treekit" else ROOT) / file


MODULES = (treekit, treekit.training, treekit.optax, treekit.testing, treekit.typing)


# What the code of a page needs that not every release has.
FREEZING = ("README", "freeze", "from_equinox", "from_optax", "see_and_edit", "wrappers")
NEEDS = {
    "design": ["jax>=0.10"],
    "faq": ["jax>=0.10.2", "optax>=0.2.8", "flax>=0.12"],  # errors in the words of these
    "optax": ["optax.monitor", "optax.selective_transform"],
    "while_training": ["optax.monitor"],
    "from_flax": ["flax>=0.12", "optax.selective_transform"],
    **{page: ["optax.selective_transform"] for page in FREEZING},
    "whole_program": ["flax>=0.12"],
    "finetune": ["flax.nnx", "magika", "onnx"],
}
WITH_CODE = [
    pytest.param(page, marks=needs(*NEEDS.get(page.stem, ())), id=page.stem) for page in PAGES if any(pieces(page))
]


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_runs_from_top_to_bottom_and_prints_what_is_shown(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = outputs(page)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # annotations that are strings are looked up there
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a reader has it
        for line, code in pieces(page):
            message = run_piece(page, line, code, vars(module))
            printed = capsys.readouterr().out or message
            if line in shown:
                assert [x.rstrip() for x in printed.splitlines()] == shown[line].splitlines(), f"{page.name}:{line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_code_is_hidden_from_the_test_above_and_links_lead_to_files(page: Path) -> None:
    """Code is not hidden by a fence that is spelt otherwise or not closed; `make docs` checks the links of the site."""
    text = page.read_text(encoding="utf-8")
    assert {fence["language"] for fence in fences(page)} <= {"python", "", "sh", "text", "toml"}
    assert text.count("```") == 2 * len(fences(page))
    assert sum(fence["language"] == "text" for fence in fences(page)) == len(outputs(page))
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", FENCE.sub("", text))
    files = [(page.parent / link).resolve().relative_to(ROOT) for link in links]
    assert [str(file) for file in files if not in_this_project(file).exists()] == []


def test_each_answer_of_the_faq_shows_its_error_or_its_result() -> None:
    _, *answers = re.split(r"^### ", (ROOT / "docs" / "faq.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(answers) >= 20
    assert [answer for answer in answers if not re.search("# (raises|gives) ", answer)] == []


@needs("optax.monitor")
def test_the_reference_has_every_public_name_its_file_and_a_guide_and_no_other_name() -> None:
    names = [f"{module.__name__}.{name}" for module in MODULES for name in public_names(module)]
    listed = [pair for page in REFERENCE.glob("*.md") for pair in NAME.findall(page.read_text(encoding="utf-8"))]
    known = {name.removeprefix("treekit.") if name.count(".") > 1 else name.replace("treekit", "tk") for name in names}
    assert sorted(name for name, _ in listed) == sorted({*known, "optax.contrib.schedule_free_eval_params"})
    old = {"multi_transform": "partition", "inject_stateful_hyperparams": "inject_hyperparams"}
    for path, file in listed:
        name = path.rpartition(".")[2]
        defines = rf"^(\s*(def|class) )?{old.get(name, name)}\b *[(:=\[]"
        source = in_this_project(Path(file)).read_text(encoding="utf-8")
        assert re.search(defines, source, re.MULTILINE), f"{name} is not in {file}"
    index = (REFERENCE / "index.md").read_text(encoding="utf-8")
    assert [path for path, _ in listed if f"`{path.partition('.')[2]}`" not in index] == []


def test_the_version_is_the_same_everywhere() -> None:
    (first, *_) = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert [first, *cited] == [treekit.__version__, treekit.__version__]
