"""These tests compile for TPUs, which needs libtpu and no TPU. `make accelerators` installs it."""

import importlib.util
import os
from typing import Any

import jax
import pytest


def pytest_configure() -> None:
    """Compile anew each time: JAX cannot read a program from its cache for a device that is not there."""
    set_option: Any = jax.config.update  # has no types
    set_option("jax_enable_compilation_cache", False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without libtpu they are skipped; in CI, where it has to be installed, they fail."""
    if importlib.util.find_spec("libtpu") is None and "CI" not in os.environ:
        for item in items:
            item.add_marker(pytest.mark.skip("libtpu is not installed: run make accelerators"))
