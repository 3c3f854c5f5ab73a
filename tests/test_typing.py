"""What type checkers accept and refuse: right use and the pages' code, with the wheel alone, and files of wrong use.

Each wrong line of typing_bad/mistakes ends in the checkers that catch it, in their strict modes and without settings:
`# both`, `# pyright`, `# mypy`, or `# neither: why`.
"""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import optax
import pytest

import treekit.optax
from benchmarks.evidence import checkers
from benchmarks.evidence.checkers import FENCE, SETTINGS, STRICT, Found, caught, is_of_jax
from tests import optax_names
from tests.releases import needs

ROOT = Path(__file__).parent.parent
MISTAKES = ROOT / "tests" / "typing_bad" / "mistakes"
MISTAKE = re.compile(r"  # (both|pyright|mypy|neither: .+)$")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
# In a page, functions have no annotations, names and imports are repeated, and expressions are there for the reader.
OF_PAGES = re.compile(
    "no-any-return|type-arg|"
    "report(Unknown|Unused|Missing|Redeclaration|DuplicateImport|PossiblyUnbound|UntypedFunctionDecorator)"
)

IMPORTS = ("import-untyped", "reportMissingTypeStubs")  # of a package that ships no types

needs_checkers = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("build", "hatchling", "mypy", "pyright")))
    or not (ROOT / "treekit").exists(),
    reason="needs the source, and what `pip install --group dev` installs",
)


def not_to_be_accepted(page: Path, setting: str) -> set[int]:
    """The lines of a page that promise an error, or are in a block that is marked for the other checker."""
    text = page.read_text(encoding="utf-8")
    lines: set[int] = set()
    for block in FENCE.finditer(text):
        first = text.count("\n", 0, block.start("code")) + 1
        code = block["code"].splitlines()
        if (block["marker"] or "").startswith("pyright only") and setting.startswith("mypy"):
            lines |= set(range(first, first + len(code)))
        for i, line in enumerate(code):
            if "# raises " in line:
                lines |= {first + i, first + i - 1} if line.lstrip().startswith("#") else {first + i}
    return lines


@needs_checkers
@pytest.mark.parametrize("setting", SETTINGS)
def test_checkers_accept_right_use_and_catch_mistakes(setting: str, tmp_path: Path) -> None:
    """One run over all files, with the wheel and no stubs."""
    files = tmp_path / "files"
    checkers.copy(ROOT / "tests" / "typing_good", files / "good")
    checkers.copy(MISTAKES, files / "mistakes")
    checkers.write_pages(PAGES, files / "pages")
    found = checkers.check(checkers.environment(tmp_path), files, setting)

    good = [x for x in found if x.rule and x.file.startswith("good/")]
    assert [x for x in good if not is_of_jax(x) and not is_import_of_optax(x)] == []
    assert list(refused_of_pages(found, setting)) == []
    if setting in STRICT:
        check_mistakes(found, setting.split()[0])


def refused_of_pages(found: list[Found], setting: str) -> Iterator[Found]:
    """The errors in the code of pages, but for those that were to be expected."""
    promised = {f"pages/page_{page.stem}.py": not_to_be_accepted(page, setting) for page in PAGES}
    for x in found:
        if x.rule and x.file in promised and x.line not in promised[x.file]:
            if not (x.rule in IMPORTS or OF_PAGES.match(x.rule) or '"onnxruntime"' in x.text):
                yield x


def is_import_of_optax(x: Found) -> bool:
    """Whether an error says only that Optax ships no types."""
    return x.rule in IMPORTS and '"optax"' in x.text


def check_mistakes(found: list[Found], checker: str) -> None:
    """Each is caught by the checkers that its line names, and by no other."""
    marked = {
        (path.name, number): marker[1]
        for path in MISTAKES.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (marker := MISTAKE.search(line))
    }
    expected = {place for place, marker in marked.items() if marker in ("both", checker)}
    assert caught(x for x in found if x.file.startswith("mistakes/")) == expected
    assert expected


NEWEST_OPTAX = needs("optax>=0.2.8")  # which the stubs describe


@NEWEST_OPTAX
@pytest.mark.parametrize("module", optax_names.MODULES)
def test_the_stubs_are_what_the_script_makes_of_optax(module: str) -> None:
    pytest.importorskip("ruff")
    assert optax_names.file(module).read_text() == optax_names.text(module), "run `make stubs`"


def _is_of_python(x: object) -> bool:
    return isinstance(x, ModuleType) and not x.__name__.startswith("optax.")


@NEWEST_OPTAX
@pytest.mark.parametrize("module", optax_names.MODULES)
def test_the_checkers_are_told_of_every_name_of_optax(module: str) -> None:
    ours, theirs = (getattr(top, module) if module else top for top in (treekit.optax, optax))
    files = [optax_names.file(module), *([] if module else [Path(str(ours.__file__))])]
    text = "\n".join(file.read_text() for file in files)
    listed = re.findall(r"(?:as |^)([^\W_]\w*)(?:$|: Final| = )", text, re.MULTILINE)
    names = {name for name in dir(theirs) if not name.startswith("_") and not _is_of_python(getattr(theirs, name))}
    ours_too = set() if module else set(ours.__all__) - {"jaxtyping"}  # which the import hook of these tests adds
    assert set(listed) == names | ours_too
    assert all(hasattr(ours, name) for name in names)


@NEWEST_OPTAX
def test_every_stub_is_that_of_a_module_of_optax() -> None:
    """A folder of a module that Optax no longer has would give checkers names that fail at run time."""
    stubs = {path.parent for path in optax_names.FOLDER.glob("*/__init__.pyi")}
    assert stubs == {optax_names.file(module).parent for module in optax_names.MODULES}
