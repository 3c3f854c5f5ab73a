"""What the site needs beyond its pages: its version, pages made of other files, links to the reference, and search."""

import itertools
import json
import re
import subprocess
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


REFERENCE = re.compile(r"^::: (\S+)$", re.MULTILINE)
NAMES = {name for path in ROOT.glob("docs/reference/*.md") for name in REFERENCE.findall(path.read_text("utf-8"))}
# As the guides import them; `plain` is Optax's own.
MODULES = {
    "tk": "treekit",
    "treekit": "treekit",
    **{name: f"treekit.{name}" for name in ("optax", "testing", "training", "typing")},
}

NAME = re.compile(rf"\b({'|'.join(MODULES)})\.(\w+)")


def on_config(config: Any) -> Any:
    """The header of each page has the version, and a link to the repository that this one was cloned from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"treekit {project['version']}"
    remote = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True).stdout
    address = re.sub(r"^git@(.+?):", r"https://\1/", remote.strip()).removesuffix(".git")
    if address.startswith("https://"):
        config.repo_url, config.repo_name = address, "Repository"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add these pages, with links between the files changed to links between the pages, and the benchmarks' results."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            text = f"---\nhide: [toc]\n---\n\n# {source}\n\n```python\n{text}```\n"
        else:
            text = re.sub(r"\]\(([^)#]+)", lambda link: f"]({PAGES.get(link[1], link[1].removeprefix('docs/'))}", text)
        if page == "index.md":
            text = "---\nhide: [navigation]\n---\n\n" + text  # the navigation would list this page only
        files.append(File.generated(config, page, content=text))
    for path in RESULTS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        content = f"---\nsearch: {{ exclude: true }}\n---\n\n{text}"
        files.append(File.generated(config, f"results/{path.name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link to the pages of examples and results. `\\|` in a table, which GitHub needs, would show its backslash."""
    if page.file.src_uri.startswith("guides/"):
        markdown += _names_in(markdown)
    if page.file.src_uri == "reference/names.md":
        markdown = re.sub(r"^## .*?(?=^## |\Z)", _to_docstrings, markdown, flags=re.DOTALL | re.MULTILINE)
    example = r"\]\(\.\./((?:\.\./)*)(examples/\w+\.py)\)"
    markdown = re.sub(example, lambda link: f"]({link[1]}{PAGES[link[2]]})", markdown)
    markdown = re.sub(r"\]\(\.\./((?:\.\./)*)benchmarks/(results/)", r"](\1\2", markdown)
    return re.sub(r"^\|.*\|$", lambda row: row[0].replace(r"\|", "|"), markdown, flags=re.MULTILINE)


def _to_docstrings(section: re.Match[str]) -> str:
    """In the section of a module, a name links to its docstring on the site instead of to its file."""
    heading = re.match(r"## (treekit\.\w+)\n", section[0])
    module = heading[1] if heading else "treekit"

    def link(name: re.Match[str]) -> str:
        path = f"{module}.{name[1]}"
        return f"[`{name[1]}`][{path}]" if path in NAMES else f"`{name[1]}`"

    return re.sub(r"\[`(\w+)`\]\((?:\.\./)+treekit/[^)]+\)", link, section[0])


def _names_in(markdown: str) -> str:
    """A line of links to the reference of each name in a guide, in their order."""
    found = [(f"{MODULES[module]}.{name}", f"{module}.{name}") for module, name in NAME.findall(markdown)]
    links = dict.fromkeys(f"[`{text}`][{name}]" for name, text in found if name in NAMES)
    return f"\n\n**In the reference:** {', '.join(links)}.\n" if links else ""


def on_page_content(html: str, **_: Any) -> str:
    """Each cell knows its column's title, which narrow screens show before it (style.css)."""
    return re.sub(r"<table>\s*(<thead>|<tr>\s*<th>).*?</table>", _label_cells, html, flags=re.DOTALL)


def _label_cells(table: re.Match[str]) -> str:
    titles = [re.sub(r"<[^>]+>", "", title) for title in re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)]
    column = itertools.cycle(titles)
    return re.sub("<td", lambda _: f'<td data-title="{next(column)}"', table[0])


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
