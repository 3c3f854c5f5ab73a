"""What PyPI shows besides pyproject.toml: the addresses of the project, and a README whose links lead out of it.

A maintainer fills in the addresses once, in pyproject.toml under `[tool.hatch.metadata.hooks.custom]`. Until then, the
README stays as it is.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Where a link or an image of Markdown or HTML leads, unless it has an address or leads to its own page.
RELATIVE = re.compile(r"""(?P<before>(?P<image>!\[[^][]*|)\]\(|<img [^>]*src=")(?!\w+:|#)(?P<path>[^)"]+)""")


class AddressesHook(MetadataHookInterface):
    """Adds `urls` and `readme` to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Hatchling calls this once it knows the version."""
        repository, site = self.config["repository"].rstrip("/"), self.config["site"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository:
            text = absolute(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository, site)


def urls(repository: str, site: str) -> dict[str, str]:
    """The addresses that are known, with the names by which PyPI chooses their icons."""
    found = {"Documentation": site, "Repository": repository}
    if repository:
        found |= {"Issues": f"{repository}/issues", "Changelog": f"{repository}/blob/main/CHANGELOG.md"}
    return {name: address for name, address in found.items() if address}


def absolute(text: str, repository: str, tag: str) -> str:
    """The text with links to the files of this tag: PyPI has the README alone."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] or found["before"].startswith("<img") else "blob"
        return f"{found['before']}{repository}/{kind}/{tag}/{found['path']}"

    return RELATIVE.sub(link, text)
