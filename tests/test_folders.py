"""Dependencies point one way: no two folders import from each other, and the drawing shows the floors of today."""

import pytest

from tests import folders


def test_folders_import_in_one_direction_and_the_drawing_shows_it() -> None:
    rows = folders.floors(folders.arrows())
    assert rows[0] == ["_base"]
    assert folders.DRAWING.read_text() == folders.drawing(rows), "run python -m tests.folders"


def test_only_optax_imports_optax() -> None:
    users = {name for name, below in folders.arrows().items() if any(x.startswith("optax") for x in below)}
    assert all(name.startswith("optax") for name in users)


def test_only_users_import_testing() -> None:
    assert not [name for name, below in folders.arrows().items() if "testing" in below]


def test_a_circle_is_named() -> None:
    with pytest.raises(ValueError, match="these import from each other: a, b"):
        folders.floors({"a": {"b"}, "b": {"a"}, "c": set()})
