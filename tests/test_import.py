"""What importing costs, what it says where something is missing, and which way imports point.

The core never imports Optax, nothing imports `testing`, and no modules import each other.
"""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import treekit
from tests.releases import has
from treekit import optax

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


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)


# Code, and what it prints.
RUNS: dict[str, tuple[str, str]] = {
    "the core imports nothing else": (f"import sys, treekit; print(*(sys.modules.keys() & {set(OPTIONAL)!r}))", ""),
    "the core starts no backend": (  # importing must leave a program the choice of its devices
        "import treekit, jax; jax.config.update('jax_num_cpu_devices', 2); print(len(jax.devices()))",
        "2",
    ),
    "the submodule is imported on demand": (
        "import sys, treekit; from treekit import optax; print('optax' in sys.modules, optax.__name__)",
        "True treekit.optax",
    ),
    "a name is not looked for in Optax where nobody imports it": (
        "import treekit\ntry: treekit.filtered\nexcept AttributeError as error: print(error)",
        "module 'treekit' has no attribute 'filtered'",
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_imports_in_a_process_of_their_own(case: str) -> None:
    code, printed = RUNS[case]
    done = python(code)
    assert (done.returncode, done.stdout) == (0, f"{printed}\n"), done.stderr


def names_of(file: Path) -> set[str]:
    """The names of JAX and Optax that the code of a file uses, such as `jax.tree.map`."""
    roots = {"jax": "jax", "untyped": "jax", "jnp": "jax.numpy", "lax": "jax.lax", "optax": "optax", "_optax": "optax"}
    attributes = (ast.unparse(x) for x in ast.walk(ast.parse(file.read_text())) if isinstance(x, ast.Attribute))
    found = (re.fullmatch(r"(\w+)((?:\.\w+)+)", attribute) for attribute in attributes)
    return {roots[match[1]] + match[2] for match in found if match and match[1] in roots}


# The files that know what not every release has; and one of which a release has all or nothing.
KNOW = ("_base/jax.py", "optax/_releases.py", "optax/_beyond/monitor.py")


def test_all_other_files_use_only_names_that_every_release_has() -> None:
    """`make lowest` runs this too."""
    package = Path(treekit.__file__).parent
    used = {name for file in package.rglob("*.py") if not str(file).endswith(KNOW) for name in names_of(file)}
    assert {"jax.numpy.zeros_like", "jax.lax.cond", "optax.transforms.PartitionState"} <= used
    assert [name for name in sorted(used) if not has(name)] == []


INSTALL = "treekit.optax needs optax; install it with: pip install 'treekit-jax[optax]'"


@pytest.mark.parametrize(
    ("name", "statement", "message"),
    [
        ("optax", "from treekit import optax", INSTALL),
        ("optax", "import treekit.optax.contrib", INSTALL),
        ("optax._src", "import treekit.optax", "No module named 'optax._src'"),  # what Optax itself would say
    ],
)
def test_where_a_module_is_missing_the_submodule_says_what_to_install(name: str, statement: str, message: str) -> None:
    done = python(f"{WITHOUT.format(name=name)}\n{statement}")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"ModuleNotFoundError: {message}")


STAR = """
import inspect, optax, treekit.optax, treekit.testing
plain = optax
from treekit import *
public = {name for name, x in vars(treekit).items() if name[0] != "_" and not inspect.ismodule(x)}
print(optax is plain, "testing" in globals(), public <= globals().keys(), "tree_at" in public)
from treekit.typing import *
print(GradientTransformation.__name__, "TYPE_CHECKING" in globals())
"""


def test_a_star_import_has_every_public_name_and_no_module() -> None:
    done = python(STAR)
    assert (done.returncode, done.stdout) == (0, "True False True True\nGradientTransformation False\n"), done.stderr


@pytest.mark.parametrize(("module", "name"), [(treekit, "nothing"), (treekit, "adam"), (optax, "graft")])
def test_python_is_told_which_name_a_module_does_not_have(module: ModuleType, name: str) -> None:
    """So that it adds, as for every module: Did you mean ...?"""
    with pytest.raises(AttributeError, match=name) as caught:
        getattr(module, name)
    assert (caught.value.name, caught.value.obj) == (name, module)
    assert ("other module" in str(caught.value)) is (name != "nothing")


# ------------------------------------------------------------------------------------------- what the sources import

SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.glob("treekit/**/*.py")}
needs_source = pytest.mark.skipif(not SOURCES, reason="needs the source")


@needs_source
@pytest.mark.parametrize(
    ("name", "users"),
    [
        # `treekit.typing` has the types of transformations: to checkers, and at run time once it is asked for them.
        ("optax", ("treekit/optax/", "treekit/testing/", "treekit/typing.py")),
        ("testing", ("treekit/testing/",)),
    ],
)
def test_imports_point_one_way(name: str, users: tuple[str, ...]) -> None:
    import_it = rf"^ *(?:(?:from|import) (?:treekit\.)?{name}\b|from treekit import (?:\([^)]*|.*)\b{name}\b)"
    found = [path for path, source in SOURCES.items() if re.search(import_it, source, re.M)]
    assert found
    assert [path for path in found if not path.startswith(users)] == []


@needs_source
def test_what_optax_does_not_have_is_a_room_of_its_own() -> None:
    """The kernel imports nothing of it, and each of its files could be removed without touching another."""
    of_room = re.compile(r"^ *from treekit\.optax\._beyond\.?(\w*) import", re.M)
    users = {path.removeprefix("treekit/optax/"): set(of_room.findall(source)) for path, source in SOURCES.items()}
    found = {path: names for path, names in users.items() if names}
    assert found.pop("__init__.py") >= {"average", "summary"}
    assert found == {"_beyond/precision.py": {"eight_bits"}}  # whose codes are one of its formats


@needs_source
def test_no_modules_import_each_other() -> None:
    modules = {path.removesuffix(".py").replace("/", "."): source for path, source in SOURCES.items()}
    needs: dict[str, set[str]] = {name: set() for name in modules}
    for name, source in modules.items():
        # At the left margin: neither in functions nor for type checkers. Packages are left out: each imports its parts.
        for module, names in re.findall(r"^from ([\w.]+) import (\([^)]*\)|.+)", source, re.M):
            found = {module, *(f"{module}.{each}" for each in re.findall(r"\w+", names))}
            needs[name] |= found & modules.keys()
    assert "treekit._base.dtype" in needs["treekit._base.predicates"]
    graphlib.TopologicalSorter(needs).prepare()  # a circle is a CycleError, which names it
