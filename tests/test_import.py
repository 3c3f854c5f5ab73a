"""What importing costs, what it says where something is missing, and which way imports point.

The core never imports Optax, nothing imports `testing`, and no modules import each other.
"""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

import treekit
import treekit.typing
from tests.releases import has
from treekit import optax
from treekit._missing import _HABITS, getattr_of

PACKAGE = Path(treekit.__file__).parent
SOURCES = {path.relative_to(PACKAGE.parent).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}

# What treekit's core must not pull in; each is installed where the tests run.
OPTIONAL = ("optax", "equinox", "flax", "diffrax", "orbax", "sklearn", "matplotlib", "beartype", "hypothesis", "pytest")

# A module that is None in sys.modules cannot be imported.
MISSING = """
import sys
sys.modules[{name!r}] = None
try: {statement}
except ModuleNotFoundError as error: print(error)
"""
INSTALL = "treekit.optax needs optax; install it with: pip install 'treekit-jax[optax]'"
STAR = """
import inspect, optax, treekit.optax, treekit.testing
plain = optax
from treekit import *
public = {name for name, x in vars(treekit).items() if name[0] != "_" and not inspect.ismodule(x)}
print(optax is plain, "testing" in globals(), public <= globals().keys(), "tree_at" in public, end=" ")
from treekit.typing import *
print(GradientTransformation.__name__, "TYPE_CHECKING" in globals())
"""
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
        "import treekit\ntry: treekit.masked\nexcept AttributeError as error: print(error)",
        "module 'treekit' has no attribute 'masked'",
    ),
    "a name of the tests is found where nobody imports them": (
        "import treekit\ntry: treekit.check_pytree\nexcept AttributeError as error: print(error)",
        "module 'treekit' has no attribute 'check_pytree'. It is in another module: treekit.testing.check_pytree",
    ),
    "a star import has every public name and no module": (STAR, "True False True True GradientTransformation False"),
    "no Optax": (MISSING.format(name="optax", statement="from treekit import optax"), INSTALL),
    "no Optax, for a part of it": (MISSING.format(name="optax", statement="import treekit.optax.contrib"), INSTALL),
    "a part of Optax is missing": (  # what Optax itself would say
        MISSING.format(name="optax._src", statement="import treekit.optax"),
        "import of optax._src halted; None in sys.modules",
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_imports_in_a_process_of_their_own(case: str) -> None:
    code, printed = RUNS[case]
    line = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(line, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{printed}\n"), done.stderr


def names_of(tree: ast.Module) -> set[str]:
    """The names of JAX and Optax that the code of a file uses, such as `jax.tree.map`."""
    roots = {"jax": "jax", "untyped": "jax", "jnp": "jax.numpy", "lax": "jax.lax", "optax": "optax", "_optax": "optax"}
    attributes = (ast.unparse(x) for x in ast.walk(tree) if isinstance(x, ast.Attribute))
    found = (re.fullmatch(r"(\w+)((?:\.\w+)+)", attribute) for attribute in attributes)
    return {roots[match[1]] + match[2] for match in found if match and match[1] in roots}


# The files that know what not every release has; and one of which a release has all or nothing.
KNOW = ("_base/jax.py", "optax/_wrappers/releases.py", "optax/_wrappers/monitor.py")


def test_all_other_files_use_only_names_that_every_release_has() -> None:
    """`make lowest` runs this too."""
    used = {name for path, tree in SOURCES.items() if not path.endswith(KNOW) for name in names_of(tree)}
    assert {"jax.numpy.zeros_like", "jax.lax.cond", "optax.transforms.PartitionState"} <= used
    assert [name for name in sorted(used) if not has(name)] == []


@pytest.mark.parametrize(
    ("module", "name"), [(treekit, "nothing"), (treekit, "adam"), (optax, "graft"), (treekit.typing, "graft")]
)
def test_python_is_told_which_name_a_module_does_not_have(module: ModuleType, name: str) -> None:
    """So that it adds, as for every module: Did you mean ...?"""
    with pytest.raises(AttributeError, match=name) as caught:
        getattr(module, name)
    assert (caught.value.name, caught.value.obj) == (name, module)
    other = "treekit.optax" if module is treekit else "treekit"
    assert (f": {other}.{name}" in str(caught.value)) is (name != "nothing")


@pytest.mark.parametrize("name", _HABITS)
def test_a_name_that_people_write_by_habit_says_what_there_is(name: str) -> None:
    assert not hasattr(treekit, name) or isinstance(getattr(treekit, name), ModuleType)  # which this file has imported
    with pytest.raises(AttributeError, match=f"{name}'.*{re.escape(_HABITS[name])}"):
        getattr_of("treekit")(name)
    named = re.findall(r"(?:treekit|jax|equinox)(?:\.\w+)+", _HABITS[name])
    assert all(map(has, named)) and (named or "import" in _HABITS[name])


# ------------------------------------------------------------------------------------------- what the sources import


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules that these statements import, and the names that they import from them."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


# A module, and the files that may import it, or a part of it.
USERS: dict[str, tuple[str, ...]] = {
    # `treekit.typing` has the types of transformations: to checkers, and at run time once it is asked for them.
    **dict.fromkeys(
        ("optax", "treekit.optax"), ("treekit/optax/", "treekit/training/", "treekit/testing/", "treekit/typing.py")
    ),
    "treekit.testing": ("treekit/testing/",),
    # What Optax does not have is a module of its own: Optax's names need nothing of it, and each of its files could be
    # removed without touching another, but for what a summary shows: the effects of a step, with the hyperparameters of
    # a state.
    "treekit.training": ("treekit/training/",),
    **{
        f"treekit.training.{path.stem}": ("treekit/training/__init__.py",)
        for path in PACKAGE.glob("training/_[a-z]*.py")
    },
    "treekit.training._rules": ("treekit/training/_store.py",),
    "treekit.training._effects": ("treekit/training/_summary.py",),
    "treekit.training._frozen": ("treekit/training/_effects.py",),
    "treekit.training._round": tuple(f"treekit/training/_{name}.py" for name in ("effects", "frozen", "summary")),
    "treekit.training._hyperparams": ("treekit/training/__init__.py", "treekit/training/_summary.py"),
    "treekit.training._summary_table": ("treekit/training/_summary.py",),
    "treekit.training._row_names": ("treekit/training/_groups_of_leaves.py", "treekit/training/_summary.py"),
    "treekit.training._groups_core": ("treekit/training/_groups.py",),
    "treekit.training._groups_leafwise": ("treekit/training/_groups.py",),
    "treekit.training._groups_of_leaves": ("treekit/training/_groups_core.py",),
    "treekit.training._groups_table": ("treekit/training/__init__.py", "treekit/training/_groups"),
}


@pytest.mark.parametrize("module", USERS)
def test_imports_point_one_way(module: str) -> None:
    found = [
        path
        for path, tree in SOURCES.items()
        if any(f"{name}.".startswith(f"{module}.") for name in imports(ast.walk(tree)))
    ]
    assert found
    assert [path for path in found if not path.startswith(USERS[module])] == []


# The rooms, and those that each imports from. Optimizers and nodes do not know each other; `testing` knows both.
LOW = {"_base", "_text", "_names", "_compare"}
ROOMS: dict[str, set[str]] = {
    "_base": set(),
    "_text": {"_base"},
    "_names": {"_base", "_text"},
    "_compare": {"_base", "_text", "_names"},
    "_trained": LOW - {"_compare"},
    "_select": LOW | {"_trained"},
    "_arrays": LOW | {"_select"},
    "_types": LOW - {"_compare"},
    "_node": LOW | {"_types"},
    "_show": LOW - {"_compare"},
    "_graft": LOW | {"_arrays", "_trained"},
    "optax/_kernel": LOW | {"_arrays", "_trained"},
    "optax/_wrappers": LOW | {"_arrays", "_select", "_trained", "optax/_kernel"},
    "optax/_mirror": LOW | {"_arrays", "_select", "_trained", "optax/_kernel", "optax/_wrappers"},
    "training": LOW | {"_arrays", "_select", "_trained", "optax/_kernel", "optax/_wrappers"},
}


def test_each_room_imports_only_from_those_that_it_needs() -> None:
    def room(name: str) -> str:
        """The room of a module, or of a path."""
        parts = name.removesuffix(".py").replace("/", ".").removeprefix("treekit.").split(".")
        return "/".join(parts[: 2 if parts[0] == "optax" else 1])

    wrong = [
        (path, name)
        for path, tree in SOURCES.items()
        if room(path) in ROOMS
        for name in imports(tree.body)
        if room(name) in ROOMS and room(name) not in ROOMS[room(path)] | {room(path)}
    ]
    assert wrong == []


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "training"])
def test_each_room_says_what_its_files_are_for(room: str) -> None:
    files = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}
    said = ast.get_docstring(SOURCES[f"treekit/{room}/__init__.py"]) or ""
    assert files and files - set(re.findall(r"`(\w+)`", said)) == set()


def test_no_modules_import_each_other() -> None:
    modules = {path.removesuffix(".py").replace("/", "."): tree for path, tree in SOURCES.items()}
    # At the left margin: neither in functions nor for type checkers. Packages are left out: each imports its parts.
    needs = {name: imports(tree.body) & modules.keys() for name, tree in modules.items()}
    assert "treekit._base.dtype" in needs["treekit._base.predicates"]
    graphlib.TopologicalSorter(needs).prepare()  # a circle is a CycleError, which names it
