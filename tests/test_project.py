"""What a maintainer relies on outside of the package: workflows, templates, and the README as PyPI shows it."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import treekit

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://example.org/owner/name"
IMAGES_AND_LINKS = """
[a](docs/a.md#b) [`b`](b.py), [![picture](c.svg)](d.md)
![alt](docs/e.svg) <img alt="f" src="docs/f.png"> [here](#part) [there](https://jax.dev) <img src="https://jax.dev/g.png">
"""


@pytest.fixture
def hatch_build(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("hatchling", reason="it builds the package")
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delitem(sys.modules, "hatch_build", raising=False)
    return __import__("hatch_build")


def relative_links(text: str) -> list[str]:
    """Where links and images lead that have no address, found otherwise than hatch_build.py finds them."""
    places = re.findall(r'\]\(([^)]+)\)|(?:src|href)="([^"]+)"', text)
    return [place for pair in places for place in pair if place and not place.startswith(("https://", "#"))]


@pytest.mark.parametrize("text", [(ROOT / "README.md").read_text(encoding="utf-8"), IMAGES_AND_LINKS])
def test_no_link_of_the_readme_is_relative_once_the_address_is_known(text: str, hatch_build: Any) -> None:
    shown = hatch_build.absolute(text, REPOSITORY, "v1.0.0")
    assert relative_links(text) != []
    assert relative_links(shown) == []
    assert len(re.findall(r"\]\(|src=", shown)) == len(re.findall(r"\]\(|src=", text))


def test_links_lead_to_files_of_the_tag_and_images_to_what_is_in_them(hatch_build: Any) -> None:
    shown = hatch_build.absolute(IMAGES_AND_LINKS, REPOSITORY, "v1.0.0")
    files = [f"{REPOSITORY}/blob/v1.0.0/{path}" for path in ("docs/a.md#b", "b.py", "d.md")]
    images = [f"{REPOSITORY}/raw/v1.0.0/{path}" for path in ("c.svg", "docs/e.svg", "docs/f.png")]
    assert [address for address in (*files, *images) if address not in shown] == []


def test_the_metadata_has_the_addresses_that_are_filled_in(hatch_build: Any) -> None:
    metadata: dict[str, Any] = {"version": "1.0.0"}
    hatch_build.AddressesHook(str(ROOT), {"repository": f"{REPOSITORY}/", "site": ""}).update(metadata)
    assert metadata["urls"]["Repository"] == REPOSITORY and "Documentation" not in metadata["urls"]
    assert f"({REPOSITORY}/blob/v1.0.0/CONTRIBUTING.md)" in metadata["readme"]["text"]
    assert hatch_build.urls("", "") == {}


def test_hatchling_finds_the_version() -> None:
    core = pytest.importorskip("hatchling.metadata.core", reason="it builds the package")
    manager = pytest.importorskip("hatchling.plugin.manager").PluginManager()
    metadata: Any = core.ProjectMetadata(str(ROOT), manager)
    if (ROOT / "treekit").exists():
        assert (metadata.version, metadata.core.name) == (treekit.__version__, "treekit-jax")


def test_contributing_has_every_command_of_the_makefile_and_no_other() -> None:
    described = set(re.findall(r"^([-\w ]+):.*?## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = {target for names in described for target in names.split()} - {"help"}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^(?:    |\| `)make ([-\w]+)", text, re.MULTILINE)} == commands


def test_workflows_run_targets_of_the_makefile() -> None:
    yaml = pytest.importorskip("yaml")
    if not (ROOT / ".github").exists():
        pytest.skip("an sdist has no workflows")
    targets = set(re.findall(r"^([-\w ]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    targets = {target for names in targets for target in names.split()}
    used: set[str] = set()
    for path in ROOT.glob(".github/workflows/*.yml"):
        workflow: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"} and "concurrency" in workflow, path.name
        for job in workflow["jobs"].values():
            matrix = job.get("strategy", {}).get("matrix", {})
            names = [*matrix.get("target", []), *(row["target"] for row in matrix.get("include", []))]
            for step in job["steps"]:
                if found := re.match(r"make PYTHON=python (.+)", step.get("run", "")):
                    used.update(names if "matrix.target" in found[1] else [found[1]])
    used = {target for names in used for target in names.split()}
    assert used <= targets and {"check", "test", "docs", "package"} <= used


def test_templates_ask_for_what_a_bug_needs() -> None:
    yaml = pytest.importorskip("yaml")
    if not (ROOT / ".github").exists():
        pytest.skip("an sdist has no templates")
    bug: Any = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8"))
    required = {part["id"] for part in bug["body"] if part.get("validations", {}).get("required")}
    assert required == {"program", "found", "expected", "versions"}
