"""What treekit promises changes only with the file that says it."""

import importlib
import inspect

import pytest

from tests import public_api
from treekit.optax._mirror.ours import OURS

pytestmark = pytest.mark.skipif(not (public_api.ROOT / "treekit").exists(), reason="needs the source")


def test_the_public_interface_is_what_its_file_says() -> None:
    written = public_api.FILE.read_text(encoding="utf-8")
    assert public_api.text() == written, "run `make api`, look at what changes, and record it in CHANGELOG.md"


@pytest.mark.parametrize("module", public_api.MODULES)
def test_the_file_has_every_public_name(module: str) -> None:
    names = {*public_api.public_names(module)}
    imported = importlib.import_module(module)
    public = {
        name
        for name, x in vars(imported).items()
        if not inspect.ismodule(x) and (name[0] != "_" or name == public_api.VERSION)
    }
    if module == "treekit.optax":  # whose other names are Optax's own functions
        # Optax 0.2.5 has some of them in a submodule only.
        ours = {
            ours.__name__ for theirs, ours in OURS.items() if ours is not theirs and hasattr(imported, ours.__name__)
        }
        assert {name for name in names if hasattr(imported, name)} == ours
    else:
        assert names == (set(imported.__all__) if module == "treekit.typing" else public - {"jaxtyping"})
