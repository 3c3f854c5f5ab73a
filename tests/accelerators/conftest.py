"""These tests compile for TPUs, which needs libtpu and no TPU. `make accelerators` installs it."""

import importlib.util
import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without libtpu they are skipped; in CI, where it has to be installed, they fail."""
    if importlib.util.find_spec("libtpu") is None and "CI" not in os.environ:
        for item in items:
            item.add_marker(pytest.mark.skip("libtpu is not installed: run make accelerators"))
