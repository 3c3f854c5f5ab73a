"""What treekit promises changes only with the file that says it."""

import importlib

import pytest

from tests import public_api
from tests.test_docs import public_names

pytestmark = pytest.mark.skipif(not (public_api.ROOT / "treekit").exists(), reason="needs the source")


def test_the_public_interface_is_what_its_file_says() -> None:
    written = public_api.FILE.read_text(encoding="utf-8")
    assert public_api.text() == written, "run `make api`, look at what changes, and record it in CHANGELOG.md"


@pytest.mark.parametrize("module", public_api.MODULES)
def test_the_file_has_every_public_name(module: str) -> None:
    names = {*public_api.public_names(module)}
    imported = importlib.import_module(module)
    assert names == (set(imported.__all__) if module == "treekit.typing" else public_names(imported))
