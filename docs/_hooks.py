"""Pages of the site that are files of the repository's root, so that there is one text of each."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/digits.py": "demo.md",
    "examples/neural_ode.py": "neural_ode.md",
    "examples/sharded.py": "sharded.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add these pages, with links between the files led to the pages."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            text = f"# {source}\n\n```python\n{text}```\n"
        else:
            text = text.replace(r"\|", "|")  # GitHub's tables need the backslash in code, these show it
            text = re.sub(r"\]\(([^)#]+)", lambda link: f"]({PAGES.get(link[1], link[1].removeprefix('docs/'))}", text)
        if page == "index.md":
            text = "---\nhide: [navigation]\n---\n\n" + text  # it would be the name of this page alone
        files.append(File.generated(config, page, content=text))
    return files
