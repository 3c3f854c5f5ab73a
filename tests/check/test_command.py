"""python -m treekit check: what it prints, its exit status, and no traceback whatever it is given."""

import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import treekit as tk
from tests.trees import FLOAT
from treekit.check._command import main

MODULE = """
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import treekit as tk

print("printed by the module")


def mlp():
    return eqx.nn.MLP(2, 1, 4, depth=1, dtype=jnp.float32, key=jax.random.key(0))


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


class Tagged:
    pass


jax.tree_util.register_pytree_node(Tagged, lambda x: ((), ("tag",)), lambda *_: Tagged())
adam = optax.adam(1e-3)


def needs_more():
    return optax.GradientTransformationExtraArgs(lambda _: (), lambda updates, state, params, *, rate: (updates, state))


def lbfgs():
    from treekit import optax

    return optax.lbfgs()


SEEN = []


def recording():
    SEEN.clear()

    def update(updates, state, params, *, value, grad, value_fn):
        with jax.ensure_compile_time_eval():
            SEEN.append((float(value), float(value_fn(pair)), grad["w"].tolist()))
        return updates, state

    return optax.GradientTransformationExtraArgs(lambda _: (), update)


def hopeless():
    def init(params):
        raise ArithmeticError("never")

    return optax.GradientTransformation(init, optax.identity().update)


def cubes(tree):
    return jnp.sum(tree["w"] ** 3)


polyak_sgd = optax.polyak_sgd()
plateau = optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau())


def sophia():
    return optax.contrib.sophia(1e-3)


def ours():
    from treekit import optax

    return optax.adam(1e-3)


def searching():
    return optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5))


class Namespace:
    class Inner:
        model = model


def nothing():
    pass


def skips():
    raise __import__("pytest").skip.Exception("no reason")


class Mute:
    def __repr__(self):
        raise ArithmeticError


mute = Empty(name=Mute())
long = Empty(name="x" * 100)
odd = {"\\ud800": 1.0}
shapes = jax.eval_shape(lambda: Empty(jnp.ones(2, jnp.float32)))
deep = 1.0
for _ in range(350):
    deep = [deep]
floats = {"w": jnp.ones(2), "rate": 0.5}
ints = {"w": jnp.ones(2), "n": jnp.arange(2)}
flags = {"w": jnp.ones(2), "n": 1, "b": True}
mixture = {"w": jnp.ones(2, jnp.bfloat16), "z": jnp.ones(2, jnp.complex64), "rate": 0.5, "n": 2, "flag": True}
pair = {"w": jnp.ones(2), "b": jnp.ones(1)}
static_relu = Empty(name=jax.nn.relu)
keys = {"w": jnp.ones(2), "key": jax.random.key(0)}
complexes = {"w": jnp.ones(2), "z": 1j}
mixed = {1: 1.0, "a": 2.0}


def interrupted():
    raise KeyboardInterrupt
"""

RAW = """
import atexit
import os
import subprocess
import sys

os.write(1, b"by number")
subprocess.run(["echo", "by another process"])
sys.__stdout__.write("by the first name")
atexit.register(print, "at the end")
model = {f"k{i}" * 20: 1.0 for i in range(3000)}
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the working directory; Optax mixes dtypes."""
    (tmp_path / "users_module.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "skipping_module.py").write_text("import pytest\n\npytest.importorskip('no_such_module')\n")
    (tmp_path / "raw_module.py").write_text(RAW)
    (tmp_path / "exiting_module.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "interrupted_module.py").write_text("raise KeyboardInterrupt\n")
    (tmp_path / "small_module.py").write_text("tree = [1.0]\n")
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
    table = str(tk.tree_summary(importlib.import_module("users_module").mlp()))
    assert "\n".join(f"  {line}" for line in table.splitlines()) in out
    assert re.search(r" layers\.0\.weight +f32\[4,2\] +8 +32\n", out)
    assert re.search(r" layers\.1\.in_features +4\n", out)
    assert re.search(r"callable\(tree\) +True", out) and re.search(r"is_truly_callable\(tree\) +False", out)
    assert re.search(r"jax\.jit +cannot take 2 of 6 leaves: activation, final_activation", out)
    assert re.search(r"optax +sees every leaf; adam's init fails: TypeError", out)
    assert re.search(r"treekit\.optax\.filtered +trains 4 of 6 leaves", out)
    assert "all hold" in out and "\033" not in out
    assert "printed by the module" in err and "printed by the module" not in out


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "users_module:params", "--json")
    data: dict[str, Any] = json.loads(out)
    assert status == 0 and data["class"] == "dict" and data["violations"] == [] and data["optimizer"] is None
    assert [(leaf["path"], leaf["kind"], leaf["dtype"], leaf["shape"], leaf["bytes"]) for leaf in data["leaves"]] == [
        ("name", "other", None, None, 0),
        ("rate", "number", FLOAT, None, 0),
        ("w", "array", "bfloat16", [2, 3], 12),
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


@pytest.mark.parametrize(("name", "path", "value"), [("Empty", "name", "'empty'"), ("Tagged", "", "('tag',)")])
def test_static_parts_of_a_node(name: str, path: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = check(capsys, f"users_module:{name}", "--json")
    assert json.loads(out)["static"] == [{"path": path, "value": value}]


def test_a_broken_class_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "users_module:Doubling")
    assert status == 1
    assert "found:" in out and "fix:" in out and "treekit.register_node" in out
    status, out, _ = check(capsys, "users_module:Doubling", "--json")
    assert status == 1 and all(law.keys() == {"law", "found", "effect", "fix"} for law in json.loads(out)["violations"])


# In the lowest version of JAX, its error does not name the key path.
_AT_N = r"\bn\b" if jax.__version_info__ > (0, 10, 0) else "Expected None"


@pytest.mark.parametrize(
    ("tree", "optimizer", "status", "words"),
    [
        ("mlp", "adam", 1, "init takes the params"),
        ("mlp", "ours", 0, "all hold"),
        ("mlp", "needs_more", 1, "update runs with the extra arguments that you passed\n.*'rate'"),
        pytest.param("mixture", "lbfgs", 0, "all hold", marks=pytest.mark.slow),
        ("pair", "searching", 1, "keeps the weak types of the state\n.*\n.*num_linesearch_steps"),
        ("pair", "polyak_sgd", 0, "all hold"),
        ("pair", "plateau", 0, "all hold"),
        ("pair", "sophia", 0, "all hold"),
        ("static_relu", "ours", 0, "all hold"),
        ("ints", "adam", 1, r"takes the gradients.*\n.*" + _AT_N),
        ("shapes", "ours", 0, "all hold"),
        ("Doubling", "ours", 1, "the params can be rebuilt as gradients"),
        ("pair", "hopeless", 1, "(?s)init takes the params.*cannot be shown: ArithmeticError: never"),
    ],
)
def test_an_optimizer(tree: str, optimizer: str, status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, _ = check(capsys, f"users_module:{tree}", "--optimizer", f"users_module:{optimizer}")
    _, title, laws = out.partition("Laws of a gradient transformation")
    assert bool(title) and re.search(words, laws) and found == status, laws


def test_what_a_step_does_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["users_module:mlp", "--optimizer", "users_module:ours"]
    _, out, _ = check(capsys, *arguments)
    table = out.partition("What a step of users_module:ours does to each leaf")[2]
    assert re.search(r"leaf +array +step +decay +state +bytes\n +layers +f32, 4 leaves, 17 numbers +0\.\d+", table)
    _, out, _ = check(capsys, *arguments, "--json")
    first, *_ = json.loads(out)["summary"]
    assert first["path"] == "layers.0.weight" and first["shape"] == [4, 2] and first["step"] > 0
    assert [x["name"] for x in first["state"]] == ["mu", "nu"]
    _, out, _ = check(capsys, "users_module:Doubling", "--optimizer", "users_module:ours")
    assert "does to each leaf" in out
    assert "does to each leaf" not in check(capsys, "users_module:mlp")[1]
    status, out, _ = check(capsys, "users_module:pair", "--optimizer", "users_module:hopeless", "--json")
    assert status == 1 and json.loads(out)["summary"] == []


def test_a_loss_gives_the_gradients_and_the_extra_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = ["--optimizer", "users_module:recording"]
    for loss, value, grad in [([], 1.5, 1.0), (["--loss", "users_module:cubes"], 2.0, 3.0)]:
        status, _, _ = check(capsys, "users_module:pair", *optimizer, *loss)
        assert status == 0
        assert importlib.import_module("users_module").SEEN[0] == (value, value, [grad, grad])


UNUSABLE: dict[str, tuple[list[str], str]] = {
    "no colon": (["users_module"], "does not have the form module:name"),
    "no name": (["users_module:"], "does not have the form module:name"),
    "file": (["src/users_module.py:x"], "src/users_module.py is a file; name the module as an import does"),
    "no module": (["no_such_module:x"], "importing no_such_module fails: ModuleNotFoundError"),
    "relative": (["..x:y"], "importing ..x fails"),
    "module that raises": (["broken_module:x"], "importing broken_module fails: ZeroDivisionError"),
    "module that exits": (["exiting_module:x"], "importing exiting_module fails: SystemExit: 3"),
    "module that skips itself": (["skipping_module:x"], "importing skipping_module fails: Skipped: could not import"),
    "None": (["users_module:nothing"], "users_module:nothing is None, or returns None"),
    "a function that skips": (["users_module:skips"], "cannot be called without arguments: Skipped: no reason"),
    "no such name": (["users_module:missing"], "users_module has no missing: AttributeError"),
    "unsorted keys": (["users_module:mixed"], "users_module:mixed cannot be flattened: ValueError"),
    "a number": (["users_module:leaf"], "not a pytree but a leaf of type int"),
    "a plain class": (["users_module:Plain"], "not a pytree but a leaf of type Plain"),
    "a class with arguments": (["users_module:Needs"], "Needs cannot be called without arguments: TypeError"),
    "a function that raises": (["users_module:fails"], "cannot be called without arguments: ArithmeticError: of two"),
    "a function that exits": (["users_module:leaves"], "SystemExit: 0"),
    "no such optimizer": (["users_module:mlp", "--optimizer", "users_module:sgd"], "has no sgd"),
    "no optimizer": (
        ["users_module:mlp", "--optimizer", "users_module:params"],
        "is not a gradient transformation: dict",
    ),
    "a loss alone": (["users_module:mlp", "--loss", "users_module:cubes"], "--loss needs --optimizer"),
    "no loss": (
        ["users_module:mlp", "--optimizer", "users_module:ours", "--loss", "users_module:params"],
        "users_module:params is not a function of the model, but of type dict",
    ),
    "a loss of another model": (
        ["users_module:mlp", "--optimizer", "users_module:ours", "--loss", "users_module:cubes"],
        "users_module:cubes cannot be differentiated with respect to the model: TypeError: 'MLP' object",
    ),
    "a page nowhere": (["users_module:mlp", "--html", "no/such/folder.html"], "treescope|cannot be written"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_is_unusable_is_one_line_and_status_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = UNUSABLE[name]
    status, out, err = check(capsys, *arguments)
    progress = re.compile(r"printed by the module|…$")
    (line,) = [line for line in err.splitlines() if not progress.search(line)]
    assert status == 2 and out == "" and line.startswith("treekit check: ") and re.search(message, line)


@pytest.mark.parametrize("name", ["interrupted_module:x", "users_module:interrupted"])
def test_an_interrupt_goes_through(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        check(capsys, name)


def test_without_optax_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    assert "optax" in (out := check(capsys, "small_module:tree")[1]) and "it is not installed" in out


def test_without_treescope_a_page_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "treescope", None)
    status, _, err = check(capsys, "users_module:mlp", "--html", "page.html")
    assert status == 2 and 'pip install "treekit-jax[html]"' in err and not Path("page.html").exists()


@pytest.mark.skipif(importlib.util.find_spec("treescope") is None, reason="treescope is an extra")
@pytest.mark.filterwarnings("ignore")  # treescope's own
def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "users_module:params", "--html", "page.html")
    page = Path("page.html").read_text()
    assert status == 0 and "bf16[2,3]" in out
    assert page.startswith("<!doctype html>") and "bf16[2,3]" in page and 'id="search"' in page
    assert "<td>w</td>" in page and "All laws hold." in page
    assert "does to each leaf" not in page
    check(capsys, "users_module:mlp", "--optimizer", "users_module:ours", "--html", "page.html")
    assert "What a step of users_module:ours does to each leaf</h2><pre" in Path("page.html").read_text()
    status, _, _ = check(capsys, "users_module:Doubling", "--html", "page.html")
    page = Path("page.html").read_text()
    assert status == 1 and "<h3>it can be rebuilt with its own leaves, and keeps them</h3>" in page
    assert "<dt>fix</dt><dd>make the class a treekit.node" in page


def command(*arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment["JAX_CHECK_TRACER_LEAKS"] = "0"  # on raw_module's 3000 leaves it takes minutes
    pipe = subprocess.PIPE
    line = [sys.executable, "-m", "treekit", "check", *arguments]
    return subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env=environment)


def test_importing_the_entry_point_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("treekit.__main__")
    assert capsys.readouterr() == ("", "")


def test_as_a_command() -> None:
    with command("users_module:missing") as process:
        _, err = process.communicate()
    assert process.returncode == 2 and "Traceback" not in err and "has no missing" in err


def test_nothing_but_the_report_is_on_standard_output() -> None:
    with command("raw_module:model", "--json") as process:
        out, err = process.communicate()
    assert process.returncode == 0 and json.loads(out)["totals"]["numbers"] == 3000
    assert all(f"by {how}" in err for how in ("number", "another process", "the first name")) and "at the end" in err


def test_a_reader_may_stop_reading() -> None:
    with command("raw_module:model") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 0 and "Traceback" not in err and "BrokenPipe" not in err


@pytest.mark.parametrize(
    ("name", "encoding", "words"),
    [
        ("long", "ascii", "x\\u2026"),
        ("long", "latin-1", "x\\u2026"),
        ("long", "utf-8", "x…"),
        ("odd", "utf-8", "\\ud800"),
    ],
)
def test_any_encoding_will_do(name: str, encoding: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
        assert main(["check", f"users_module:{name}"]) == 0
        assert words in written.getvalue().decode(encoding)


def test_what_cannot_be_printed_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "users_module:mute")
    assert status == 0 and "name  <Mute, whose __repr__ raises ArithmeticError>" in out


def test_a_deep_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys, "users_module:deep")[0] == 0


def test_shapes_without_arrays_have_their_size(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = check(capsys, "users_module:shapes")
    assert re.search(r" w +f32\[2\] +2 +8\n", out) and "1 leaf, 2 numbers, 8 bytes" in out
    assert re.search(r"jax\.jit +cannot take 1 of 1 leaf: w", out)


def total(tree: Any) -> Any:
    numbers = [x for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    with jax.numpy_dtype_promotion("standard"):
        return sum(jnp.real(x).sum() for x in numbers) * 1.0


@pytest.mark.parametrize("name", ["model", "params", "floats", "ints", "flags", "keys", "complexes", "shapes", "array"])
def test_what_jax_is_said_to_do_is_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = check(capsys, f"users_module:{name}", "--json")
    said = {each["library"]: each["what"] for each in json.loads(out)["treatments"]}
    tree = getattr(importlib.import_module("users_module"), name)
    for who, transform in (("jax.jit", jax.jit), ("jax.grad", jax.grad)):
        try:
            transform(total)(tree)
            takes = True
        except Exception:  # a TypeError, but in jax 0.10.0
            takes = False
        assert said[who].startswith("cannot take") is not takes


def test_long_work_shows_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treekit.check._command._PATIENCE", -1.0)
    _, _, err = check(capsys, "users_module:mlp", "--optimizer", "users_module:ours")
    told = err.splitlines()
    assert {"importing users_module…", "checking the laws of a pytree…", "optimizer: vmap…"} <= set(told)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    _, _, err = check(capsys, "users_module:mlp")
    assert err.endswith("\r\033[K"), "the line is wiped when all is done"


def test_arguments_that_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "usage: python -m treekit" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--help"])
    out = capsys.readouterr().out
    assert "python -m treekit check my_package.models:make_model --optimizer" in out and "--loss" in out
