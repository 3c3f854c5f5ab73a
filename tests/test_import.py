"""What importing costs, and what it says where something is missing; each case in a process of its own."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import treekit

ROOT = Path(__file__).parent.parent

# What treekit's core must not pull in; each is installed where the tests run.
OPTIONAL = ("optax", "equinox", "flax", "diffrax", "orbax", "sklearn", "matplotlib", "beartype", "hypothesis", "pytest")

WITHOUT = """
import importlib.abc, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
"""
WITHOUT_OPTAX = WITHOUT.format(name="optax")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_the_core_imports_jax_jaxtyping_and_numpy_only() -> None:
    done = python(f"import sys, treekit; print(*(sys.modules.keys() & {set(OPTIONAL)!r}))")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_the_core_starts_no_backend() -> None:
    """Importing must leave a program the choice of its devices."""
    done = python("import treekit, jax; jax.config.update('jax_num_cpu_devices', 2); print(len(jax.devices()))")
    assert (done.returncode, done.stdout.split()) == (0, ["2"]), done.stderr


def test_the_core_works_without_optax() -> None:
    done = python(f"{WITHOUT_OPTAX}\nimport treekit\nprint(treekit.filter([1, 2.0], lambda x: x == 1))")
    assert (done.returncode, done.stdout) == (0, "[1, None]\n"), done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "import treekit.optax",
        "from treekit import optax",
        "import treekit.optax.contrib",
        "from treekit.optax import adam",
    ],
)
def test_without_optax_the_submodule_says_what_to_install(statement: str) -> None:
    done = python(f"{WITHOUT_OPTAX}\n{statement}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: treekit.optax needs optax; install it with: pip install 'treekit-jax[optax]'"
    )


def test_without_what_optax_needs_it_says_what_optax_would() -> None:
    done = python(f"{WITHOUT.format(name='optax._src')}\nimport treekit.optax")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ModuleNotFoundError: No module named 'optax._src'")


def test_the_submodule_is_imported_on_demand() -> None:
    done = python("import sys, treekit; from treekit import optax; print('optax' in sys.modules, optax.__name__)")
    assert (done.returncode, done.stdout) == (0, "True treekit.optax\n"), done.stderr


def test_all_lists_every_public_name_of_the_core() -> None:
    public = [name for name, value in vars(treekit).items() if name[0] != "_" and not inspect.ismodule(value)]
    assert treekit.__all__ == sorted(public)


NAMES = """
import treekit as tk
try:
    {first}
    print({module}.{name})
except AttributeError as error:
    print(error, error.name, error.obj is {module})
"""
# the module that is asked, a name, what is imported before, and where the error says that the name is
MISSING: list[tuple[str, str, str, str]] = [
    ("treekit", "filtered", "from treekit import optax", "treekit.optax.filtered"),
    ("treekit", "adam", "import treekit.optax", "treekit.optax.adam"),
    ("treekit.optax", "graft", "from treekit import optax", "treekit.graft"),
    ("treekit", "filtered", "pass", ""),
    ("treekit", "nothing", "from treekit import optax", ""),
    ("treekit", "__wrapped__", "from treekit import optax", ""),
]


@pytest.mark.parametrize(("module", "name", "first", "found"), MISSING)
def test_a_name_of_the_other_module_is_found_there(module: str, name: str, first: str, found: str) -> None:
    done = python(NAMES.format(name=name, first=first, module=module.replace("treekit.", "").replace("treekit", "tk")))
    other = f". It is in the other module: {found}" if found else ""
    message = f"module '{module}' has no attribute '{name}'{other} {name} True\n"
    assert (done.returncode, done.stdout) == (0, message), done.stderr
