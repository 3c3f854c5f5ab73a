"""What the site needs beyond its pages: its version, pages made of other files, links to the reference, and search."""

import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "examples/digits.py": "demo.md",
    "examples/finetune.py": "finetune.md",
    "examples/grow.py": "grow.md",
    "examples/neural_ode.py": "neural_ode.md",
    "examples/sharded.py": "sharded.md",
}


# In a search, the guide of a subject comes first. Of an example, a search knows only what its program says of itself.
EXAMPLES = [page.removesuffix(".md") for source, page in PAGES.items() if source.endswith(".py")]
BOOSTS = {"reference/": 0.3, "changelog": 0.1, **dict.fromkeys(EXAMPLES, 0.3)}

# As the guides import them; `plain` is Optax's own.
MODULES = {
    "tk": "treekit",
    "treekit": "treekit",
    **{name: f"treekit.{name}" for name in ("optax", "testing", "training", "typing")},
}
NAME = re.compile(rf"\b({'|'.join(MODULES)})\.([\w.]+)")

# A row of a page of the reference: a name, its file, what it does, its example, what that gives, and its guide.
ROW = re.compile(r"^\| \[`([\w.]+)`\]\([^)]+\) \| (.+?) \| (`.+`|) ?\| (`.+`|) ?\| (\[.+\)) \|$", re.MULTILINE)


def _dotted(name: str) -> str:
    """The name as Python knows it: `treekit.path_mask` of `tk.path_mask`."""
    module, _, rest = name.partition(".")
    return f"{MODULES[module]}.{rest}"


# Those with an example have a docstring.
NAMES = {
    _dotted(name)
    for path in ROOT.glob("docs/reference/*.md")
    for name, _, example, *_ in ROW.findall(path.read_text(encoding="utf-8"))
    if example
}


def on_config(config: Any) -> Any:
    """The header of each page has the version, and links to the addresses in pyproject.toml."""
    (version,) = re.findall(r'^__version__ = "(.+?)"', (ROOT / "treekit/__init__.py").read_text("utf-8"), re.MULTILINE)
    config.site_name = f"treekit {version}"
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    addresses = pyproject["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    config.site_url = addresses["site"]
    if addresses["repository"]:
        config.repo_url, config.repo_name = addresses["repository"], "Repository"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add these pages, with links between the files changed to links between the pages, and the benchmarks' results."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            text = _page_of(Path(source).stem, text)
        else:
            text = re.sub(r"\]\(([^)#]+)", lambda link: f"]({PAGES.get(link[1], link[1].removeprefix('docs/'))}", text)
        files.append(File.generated(config, page, content=text))
    for path in RESULTS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        content = f"---\nsearch: {{ exclude: true }}\n---\n\n{text}"
        files.append(File.generated(config, f"results/{path.name}", content=content))
    return files


SECTION = re.compile(r"\n*^# --- (.+?) -+$\n+", re.MULTILINE)
UNSEARCHED = "{ data-search-exclude }"


def _page_of(name: str, program: str) -> str:
    """The page of an example: what its docstring says, its picture, what it printed, and its sections."""
    _, docstring, code = program.split('"""', 2)
    first, _, text = docstring.partition("\n")
    title, _, what = first.partition(": ")
    printed = (ROOT / "docs" / "examples" / f"{name}.txt").read_text(encoding="utf-8")
    head, *sections = SECTION.split(code.strip("\n"))
    program = "\n".join(
        f"### {title} {UNSEARCHED}\n\n```python\n{section.strip()}\n```\n"
        for title, section in zip(["Imports and settings", *sections[::2]], [head, *sections[1::2]], strict=True)
    )
    return (
        f"# Example: {title[0].lower()}{title[1:]}\n\n{what[0].upper()}{what[1:]}\n{text}\n"
        f"![What the program draws: {what}](examples/{name}.png)\n\n"
        f"## What it printed {UNSEARCHED}\n\n```text\n{printed}```\n\n"
        f"## The program, `examples/{name}.py` {UNSEARCHED}\n\n{program}"
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link to the pages of examples and results. `\\|` in a table, which GitHub needs, would show its backslash."""
    if page.file.src_uri in ("index.md", "faq.md"):
        page.meta["hide"] = ["navigation"]  # which would list this page only
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    if page.file.src_uri.startswith("guides/"):
        markdown += _names_in(markdown)
    if page.file.src_uri.startswith("reference/"):
        level = 3 if "\n## " in markdown else 2
        tables = r"^\| name \|.*?(?=\n\n|\Z)"
        markdown = re.sub(
            tables, lambda table: _with_docstrings(table[0], level), markdown, flags=re.DOTALL | re.MULTILINE
        )
    if page.file.src_uri == "reference/index.md":
        markdown = re.sub(r"^\|.*\[.+\]\((\w+\.md)\).*$", _with_links, markdown, flags=re.MULTILINE)
    if page.file.src_uri == "versions.md":
        markdown = re.sub(r"(\|.*\n\|[- |]+\n)((?:\|.*\n)*?)((?:\| needs .*\n)+)", _fold, markdown)
    made = rf"\]\(\.\./((?:\.\./)*)({'|'.join(map(re.escape, PAGES))})"
    markdown = re.sub(made, lambda link: f"]({link[1]}{PAGES[link[2]]}", markdown)
    markdown = re.sub(r"\]\(\.\./((?:\.\./)*)benchmarks/(results/)", r"](\1\2", markdown)
    return re.sub(r"^\|.*\|$", lambda row: row[0].replace(r"\|", "|"), markdown, flags=re.MULTILINE)


def _with_docstrings(table: str, level: int) -> str:
    """The table, in which a name links to its docstring instead of to its file, and after it the docstrings."""
    docstrings = []

    def row(found: re.Match[str]) -> str:
        name, what, example, gives, guide = found.groups()
        if not example:
            return f"| `{name}` | {what}: {guide} | | |"
        docstrings.append(f"::: {_dotted(name)}\n    options: {{ heading_level: {level} }}")
        if what.startswith("the old name"):  # which has no docstring
            docstrings.append(f"{what.capitalize()}.")
        docstrings.append(f"**Guide:** {guide}")
        return f"| [`{name}`][{_dotted(name)}] | {what} | {example} | {gives} |"

    table = ROW.sub(row, table).replace(" | guide |", " |", 1).replace("|---|---|---|---|---|", "|---|---|---|---|", 1)
    return "\n\n".join([table, *docstrings])


def _with_links(row: re.Match[str]) -> str:
    """A row of the index of all names, in which each links to its docstring."""
    page = (ROOT / "docs" / "reference" / row[1]).read_text(encoding="utf-8")
    paths = {name.partition(".")[2]: _dotted(name) for name, *_ in ROW.findall(page)}

    def link(name: re.Match[str]) -> str:
        if name[1] not in paths:
            return name[0]
        path = paths[name[1]]
        return f"[`{name[1]}`][{path}]" if path in NAMES else f"[`{name[1]}`]({row[1]})"

    return re.sub(r"`([\w.]+)`", link, row[0])


def _fold(table: re.Match[str]) -> str:
    """The rows of a table, and those that start with "needs", which a reader opens."""
    summary = "<summary>What the skipped tests need</summary>"
    return f'{table[1]}{table[2]}\n<details markdown="1">{summary}\n\n{table[1]}{table[3]}\n</details>\n'


def _names_in(markdown: str) -> str:
    """A line of links to the reference of each name in a guide, in their order."""
    found = {_dotted(f"{module}.{name}"): name for module, name in NAME.findall(markdown)}
    links = [f"[`{name}`][{path}]" for path, name in found.items() if path in NAMES]
    return f"\n\n**In the reference:** {', '.join(links)}.\n" if links else ""


def on_page_content(html: str, **_: Any) -> str:
    """What style.css needs: which blocks are tables, in each cell its column's title, and where its code may break.

    Source is not searched.
    """
    html = re.sub(r'<div class="(language-\w+ highlight)">.*?</pre>', _mark_table, html, flags=re.DOTALL)
    html = html.replace(
        '<details class="mkdocstrings-source"', '<details class="mkdocstrings-source" data-search-exclude'
    )
    return re.sub(r"<table>\s*(<thead>|<tr>\s*<th>).*?</table>", _label_cells, html, flags=re.DOTALL)


def _mark_table(block: re.Match[str]) -> str:
    """A block has the class `table` if half of its lines have columns, with two spaces or more between them."""
    lines = re.sub(r"<[^>]+>", "", block[0]).strip().splitlines()
    columns = sum(bool(re.search(r"\S {2,}\S", line.partition("  #")[0])) for line in lines)
    return block[0].replace(block[1], f"{block[1]} table", 1) if 2 * columns >= len(lines) else block[0]


# After these, a line of code in a table may end, and after each underscore of a long name.
BREAK = re.compile(r"[./,(=](?=[^\W\d])")
LONG_NAME = re.compile(r"\w{30,}")


def _with_breaks(code: re.Match[str]) -> str:
    broken = BREAK.sub(r"\g<0><wbr>", code[0])
    return LONG_NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), broken)


def _label_cells(table: re.Match[str]) -> str:
    cells = re.sub(r"(?<=<code>).*?(?=</code>)", _with_breaks, table[0], flags=re.DOTALL)
    titles = [re.sub(r"<[^>]+>", "", title) for title in re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)]
    column = itertools.cycle(titles)
    return re.sub("<td", lambda _: f'<td data-title="{next(column)}"', cells)


SEARCH = """// Browsers do not start a worker from a file, but they do so from text.
if (location.protocol === "file:") {
  const text = %s;
  const FromURL = Worker;
  Worker = class extends FromURL {
    constructor() {
      super(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    }
  };
}
"""


def on_post_build(config: Any) -> None:
    """Write the script with which search works where the site is opened as a file."""
    site = Path(config.site_dir)
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    (site / "search" / "iframe-worker.js").write_text(SEARCH % json.dumps(worker.read_text(encoding="utf-8")))
