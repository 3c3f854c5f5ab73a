"""python -m treekit check: what it prints, its exit status, and no traceback whatever it is given."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from treekit.__main__ import main

MODULE = """
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import treekit as tk

print("printed by the module")


def mlp():
    return eqx.nn.MLP(2, 1, 4, depth=1, key=jax.random.key(0))


model = mlp()
params = {"w": jnp.ones((2, 3), jnp.bfloat16), "rate": 0.5, "name": "dense", "n": None}
leaf = 3
array = jnp.ones(2)


@tk.node
class Empty:
    w: object = tk.field(default_factory=lambda: jnp.ones(2))
    name: str = tk.field(default="empty", static=True)


class Plain:
    pass


class Needs:
    def __init__(self, size):
        self.size = size


def fails():
    raise ArithmeticError("of two\\nlines")


def leaves():
    raise SystemExit(0)


@jax.tree_util.register_pytree_node_class
class Doubling:
    def __init__(self, value=1.0):
        self.value = value * 2

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


adam = optax.adam(1e-3)


def ours():
    from treekit import optax

    return optax.adam(1e-3)


def searching():
    return optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5))


class Namespace:
    class Inner:
        model = model
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the working directory; Optax mixes dtypes."""
    (tmp_path / "users_module.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "exiting_module.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "users_module", raising=False)


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with jax.numpy_dtype_promotion("standard"):
        status = main(["check", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = check(capsys, "users_module:mlp")
    assert status == 0
    assert re.search(r"\.layers\[0\]\.weight +f32\[4,2\] +32 B\n", out)
    assert re.search(r"\.activation +custom_jvp relu\n", out)
    assert "6 leaves (4 arrays, 0 numbers, 2 functions, 0 others); 17 elements, 68 bytes" in out
    assert re.search(r"\.layers\[1\]\.in_features +4\n", out)
    assert re.search(r"callable\(tree\) +True", out) and re.search(r"is_truly_callable\(tree\) +False", out)
    assert re.search(r"jax\.jit +cannot take 2 of 6 leaves: \.activation, \.final_activation", out)
    assert re.search(r"optax +sees every leaf; adam's init fails: TypeError", out)
    assert re.search(r"treekit\.optax\.filtered +trains 4 of 6 leaves", out)
    assert "all hold" in out and "\033" not in out
    assert "printed by the module" in err and "printed by the module" not in out


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "users_module:params", "--json")
    data: dict[str, Any] = json.loads(out)
    assert status == 0 and data["class"] == "dict" and data["broken"] == [] and data["optimizer"] is None
    assert [(leaf["path"], leaf["kind"], leaf["dtype"], leaf["shape"], leaf["bytes"]) for leaf in data["leaves"]] == [
        ("['name']", "other", None, None, 0),
        ("['rate']", "number", "float32", None, 0),
        ("['w']", "array", "bfloat16", [2, 3], 12),
    ]
    assert data["totals"] == {
        "leaves": 3,
        "arrays": 1,
        "numbers": 1,
        "functions": 0,
        "others": 1,
        "elements": 6,
        "bytes": 12,
    }


@pytest.mark.parametrize("name", ["model", "Empty", "array", "Namespace.Inner.model"])
def test_what_can_be_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, f"users_module:{name}")
    assert status == 0 and f"users_module:{name}" in out


def test_static_parts_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = check(capsys, "users_module:Empty", "--json")
    assert json.loads(out)["static"] == [{"path": ".name", "value": "'empty'"}]


def test_a_broken_class_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "users_module:Doubling")
    assert status == 1
    assert "found:" in out and "mend:" in out and "treekit.register_node" in out
    status, out, _ = check(capsys, "users_module:Doubling", "--json")
    assert status == 1 and all(law.keys() == {"law", "found", "cause", "remedy"} for law in json.loads(out)["broken"])


@pytest.mark.parametrize(
    ("optimizer", "status", "words"),
    [
        ("adam", 1, "init takes the params"),
        ("ours", 0, "all hold"),
        ("searching", 1, "takes the"),
    ],
)
def test_an_optimizer(optimizer: str, status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, _ = check(capsys, "users_module:mlp", "--optimizer", f"users_module:{optimizer}")
    _, title, laws = out.partition("Laws of a gradient transformation")
    assert (found, bool(title)) == (status, True) and words in laws


WRONG: dict[str, tuple[list[str], str]] = {
    "no colon": (["users_module"], "not of the form module:name"),
    "no name": (["users_module:"], "not of the form module:name"),
    "no module": (["no_such_module:x"], "importing no_such_module fails: ModuleNotFoundError"),
    "relative": (["..x:y"], "importing ..x fails"),
    "module that raises": (["broken_module:x"], "importing broken_module fails: ZeroDivisionError"),
    "module that exits": (["exiting_module:x"], "importing exiting_module fails: SystemExit: 3"),
    "no such name": (["users_module:nothing"], "users_module has no nothing: AttributeError"),
    "a number": (["users_module:leaf"], "no pytree but a leaf of type int"),
    "a plain class": (["users_module:Plain"], "no pytree but a leaf of type Plain"),
    "a class with arguments": (["users_module:Needs"], "Needs cannot be called without arguments: TypeError"),
    "a function that raises": (["users_module:fails"], "cannot be called without arguments: ArithmeticError: of two"),
    "a function that exits": (["users_module:leaves"], "SystemExit: 0"),
    "no such optimizer": (["users_module:mlp", "--optimizer", "users_module:sgd"], "has no sgd"),
    "no optimizer": (["users_module:mlp", "--optimizer", "users_module:params"], "is no gradient transformation: dict"),
    "a page nowhere": (["users_module:mlp", "--html", "no/such/folder.html"], "treescope|cannot be written"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line_and_status_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = WRONG[name]
    status, out, err = check(capsys, *arguments)
    progress = re.compile(r"printed by the module|…$")
    (line,) = [line for line in err.splitlines() if not progress.search(line)]
    assert status == 2 and out == "" and line.startswith("treekit check: ") and re.search(message, line)


def test_without_treescope_a_page_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "treescope", None)
    status, _, err = check(capsys, "users_module:mlp", "--html", "page.html")
    assert status == 2 and 'pip install "treekit[html]"' in err and not Path("page.html").exists()


@pytest.mark.skipif(importlib.util.find_spec("treescope") is None, reason="treescope is an extra")
@pytest.mark.filterwarnings("ignore")  # treescope's own
def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "users_module:params", "--html", "page.html")
    page = Path("page.html").read_text()
    assert status == 0 and "bf16[2,3]" in out
    assert page.startswith("<!doctype html>") and "bf16[2,3]" in page and 'id="search"' in page
    assert "<td>[&#x27;w&#x27;]</td>" in page


def test_as_a_command() -> None:
    command = [sys.executable, "-m", "treekit", "check", "users_module:nothing"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "has no nothing" in done.stderr


def test_long_work_shows_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treekit.__main__._PATIENCE", -1.0)
    _, _, err = check(capsys, "users_module:mlp", "--optimizer", "users_module:ours")
    told = err.splitlines()
    assert {"importing users_module…", "the laws of a pytree…", "optimizer: vmap…"} <= set(told)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    _, _, err = check(capsys, "users_module:mlp")
    assert err.endswith("\r\033[K"), "the line is wiped when all is done"


def test_arguments_that_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "usage: python -m treekit" in capsys.readouterr().err
