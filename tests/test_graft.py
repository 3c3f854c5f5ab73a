"""graft: values carried over by key path, and a report that says what became of every leaf."""

import ast
import io
import re
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given

import treekit as tk
from tests.releases import HOST_MEMORY, needs, nnx_list
from tests.trees import Point, Twig, trees, untyped


def ones(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.ones(shape, dtype)


def zeros(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.zeros(shape, dtype)


def loose(new: Any, old: Any, **arguments: Any) -> tuple[Any, dict[str, str]]:
    """Graft what fits; return the tree, and the paths of each kind."""
    got, report = tk.graft(new, old, **arguments, strict=False)
    kinds = dict.fromkeys(row.kind for row in report)
    return got, {kind: " ".join(row.path for row in report if row.kind == kind) for kind in kinds}


def numbers(tree: Any) -> list[float]:
    """One number of each leaf."""
    return [float(np.max(x)) for x in jax.tree.leaves(tree)]


def has_dtype(x: Any) -> bool:
    return tk.is_array(x) or isinstance(x, int | float | complex)


# ------------------------------------------------------------------------------------------------------- the same paths


@given(trees())
def test_a_tree_onto_itself_is_kept(tree: Any) -> None:
    leaves = list(filter(has_dtype, jax.tree.leaves(tree)))
    got, report = tk.graft(tree, tree)
    tk.assert_trees_same(tk.filter(got, has_dtype), jax.tree.map(lambda x: x, tk.filter(tree, has_dtype)))
    tk.assert_trees_same(tk.filter(got, has_dtype, inverse=True), tk.filter(tree, has_dtype, inverse=True))
    assert len(report) == len(report.kept) == len(leaves)


def test_an_attribute_a_key_and_an_index_are_one_name() -> None:
    new = Twig({"layers": [Point(zeros(2), zeros(3))]})
    olds: list[Any] = [
        {"left": {"layers": {"0": {"x": ones(2), "y": ones(3)}}}},
        {"left": {"layers": {0: Point(ones(2), ones(3))}}},
        Twig({"layers": (Point(ones(2), ones(3)),)}),
    ]
    for old in olds:
        got, _ = tk.graft(new, old)
        assert type(got) is Twig and type(got.left["layers"][0]) is Point and numbers(got) == [1, 1]


def test_what_becomes_of_each_leaf() -> None:
    new = {"a": zeros(2), "b": zeros(2), "c": zeros(3), "d": zeros(2), "f": jax.nn.relu, "n": 0, "none": None}
    old = {"a": ones(2), "c": ones(2), "d": ones(2, dtype=jnp.bfloat16), "e": ones(1), "n": 7, "none": ones(1)}
    got, report = tk.graft(new, old | {"f": "relu"}, strict=False)
    assert numbers(got["a"]) == [1] and got["n"] == 7 and got["f"] is jax.nn.relu and got["none"] is None
    assert all(got[name] is new[name] for name in "bcd")
    assert [len(x) for x in (report, report.kept, report.fresh, report.refused, report.dropped)] == [7, 2, 1, 2, 2]
    assert str(report) == (
        "2 kept, 1 fresh, 2 dropped, 2 refused (new | old)\n"
        "c     refused  f32[3] | f32[2]\n"
        "d     refused  f32[2] | bf16[2]\n"
        "b     fresh    f32[2] | nothing\n"
        "e     dropped  nothing | f32[1]\n"
        "none  dropped  nothing | f32[1]\n"
        "a     kept     f32[2] | f32[2]\n"
        "n     kept     int 0 | int 7"
    )


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_report_is_printed_in_colours_on_a_terminal_only(is_terminal: bool, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, report = tk.graft({"a": zeros(2)}, {"a": ones(2)})
    report.show()
    printed = capsys.readouterr().out
    assert ("\033[" in printed) is is_terminal and re.sub("\033\\[\\d*m", "", printed) == f"{report}\n"


def test_reports_of_many_leaves_of_none_and_of_one() -> None:
    _, report = tk.graft({str(i): 0 for i in range(60)} | {"x": 1}, {str(i): 1 for i in range(60)})
    assert str(report).startswith("60 kept, 1 fresh, 0 dropped, 0 refused")
    assert str(report).endswith("… and 11 more: 11 of kept")
    assert str(tk.graft({}, None)[1]) == "0 kept, 0 fresh, 0 dropped, 0 refused (new | old)"
    got, report = tk.graft(zeros(2), ones(2))
    assert numbers(got) == [1] and str(report).endswith("(root)  kept  f32[2] | f32[2]")


# --------------------------------------------------------------------------------------------- classes, dtypes, devices


def test_values_have_the_classes_of_new() -> None:
    new: dict[str, Any] = {"jax": zeros(2), "numpy": np.zeros(2, np.float32), "int": 0, "float": 0.0, "bool": False}
    old = {"jax": np.ones(2, np.float32), "numpy": ones(2), "int": np.int32(3), "float": jnp.float32(2)}
    got, _ = tk.graft(new, old | {"bool": np.array(True)}, cast=True)
    assert isinstance(got["jax"], jax.Array) and isinstance(got["numpy"], np.ndarray)
    assert [(type(got[k]), got[k]) for k in ("int", "float", "bool")] == [(int, 3), (float, 2.0), (bool, True)]


WIDE: dict[str, tuple[Any, Any]] = {
    "an array of floats": (np.zeros(1), np.array([1 + 2.0**-40])),
    "an array of integers": (np.zeros(1, np.int64), np.array([2**40])),
    "a NumPy number": (np.float64(0), np.float64(1e300)),
    "a float": (0.0, np.float64(0.1)),
    "an integer": (0, 2**70),
}


@pytest.mark.parametrize(("new", "old"), WIDE.values(), ids=WIDE)
def test_wide_values_on_the_host_are_not_rounded(new: Any, old: Any) -> None:
    got, _ = tk.graft({"w": new}, {"w": old})
    assert type(got["w"]) is type(new) and getattr(got["w"], "dtype", 0) == getattr(new, "dtype", 0)
    assert got["w"] == old


KEY = jax.random.key(1)
# Of a leaf: new, old, whether it is kept as it is, and whether it is kept with cast=True.
DTYPES: dict[str, tuple[Any, Any, bool, bool]] = {
    "a key": (jax.random.key(0), KEY, True, True),
    "the data of a key": (jax.random.key(0), jnp.uint32([0, 1]), False, False),
    "a wide int to i32": (zeros(dtype=jnp.int32), 2**40, False, False),
    "wide integers to i32": (zeros(2, dtype=jnp.int32), np.array([3, -(2**40)]), False, False),
    "300 to i8": (zeros(1, dtype=jnp.int8), jnp.array([300], jnp.int16), False, False),
    "-128 to i8": (zeros(1, dtype=jnp.int8), jnp.array([-128], jnp.int16), False, True),
    "f32 to bf16": (zeros(2, dtype=jnp.bfloat16), ones(2), False, True),
    "f32 to i32": (zeros(2, dtype=jnp.int32), ones(2), False, False),
    # Zero means True in a mask that is added to scores, so a number is not cast to a flag.
    "floats to bools": (zeros(2, dtype=bool), np.array([0.0, -np.inf]), False, False),
    "an int to a bool": (zeros(dtype=bool), 1, False, False),
    # 64 bits become the 32 of JAX.
    "f64 to f32": (zeros(1), np.array([1.5]), True, True),
    "i64 to i32": (zeros(1, dtype=jnp.int32), np.ones(1, np.int64), True, True),
    # A finite value that would become infinite is refused.
    "1e300 in f64 to f32": (zeros(1), np.array([1e300]), False, False),
    "inf and NaN in f64 to f32": (zeros(4), np.array([np.inf, -np.inf, np.nan, 1.0]), True, True),
    "a float of 1e300 to f32": (zeros(), 1e300, False, False),
    "1e300j to c64": (zeros(1, dtype=jnp.complex64), np.array([1e300j]), False, False),
    "1e10 to f16": (zeros(1, dtype=jnp.float16), jnp.array([1e10]), False, False),
    "inf and NaN to f16": (zeros(2, dtype=jnp.float16), jnp.array([jnp.inf, jnp.nan]), False, True),
    "an integer to f16": (zeros(1, dtype=jnp.float16), np.array([100_000]), False, False),
    "f16 to f32": (zeros(1), jnp.array([1e4], jnp.float16), False, True),
    "3.4e38 to bf16": (zeros(1, dtype=jnp.bfloat16), np.array([3.4e38], np.float32), False, False),
    "NaN to f8": (zeros(1, dtype=jnp.float8_e4m3fn), np.array([np.nan], np.float32), False, True),
    "inf to f8": (zeros(1, dtype=jnp.float8_e4m3fn), np.array([np.inf], np.float32), False, False),
    "470 to f8": (zeros(1, dtype=jnp.float8_e4m3fn), np.array([470], np.float32), False, False),
    "6 to f4": (zeros(1, dtype=jnp.float4_e2m1fn), np.array([6], np.float32), False, True),
    "100 to f4": (zeros(1, dtype=jnp.float4_e2m1fn), np.array([100], np.float32), False, False),
    "NaN to f4": (zeros(1, dtype=jnp.float4_e2m1fn), np.array([np.nan], np.float32), False, False),
}


@pytest.mark.parametrize(("new", "old", "is_kept", "is_cast"), DTYPES.values(), ids=DTYPES)
def test_which_dtypes_are_cast(new: Any, old: Any, is_kept: bool, is_cast: bool) -> None:
    for cast, expected in ((False, is_kept), (True, is_cast)):
        got, kinds = loose({"w": new, "x": 0}, {"w": old, "x": 1}, cast=cast)
        assert kinds == ({"kept": "w x"} if expected else {"refused": "w", "kept": "x"})
        assert got["w"].dtype == new.dtype and (expected or got["w"] is new)
        if expected and new.dtype != KEY.dtype:
            values, want = (np.asarray(x).astype(new.dtype).astype(complex) for x in (got["w"], old))
            np.testing.assert_array_equal(values, want)


def test_shapes_and_dtypes_will_do_for_new() -> None:
    new = jax.eval_shape(lambda: {"w": zeros(2), "b": zeros(3)})
    got, _ = tk.graft(new, {"w": np.ones(2, np.float32)}, fresh="b")
    assert isinstance(got["w"], jax.Array) and got["b"] is new["b"]


@needs(HOST_MEMORY)
def test_values_lie_where_those_of_new_do() -> None:
    sharding = jax.sharding.SingleDeviceSharding(untyped.devices()[0], memory_kind="pinned_host")
    new = jax.device_put(zeros(2), sharding)
    for wanted in (new, untyped.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding)):
        assert tk.graft({"w": wanted}, {"w": ones(2)})[0]["w"].sharding == sharding


def test_under_jit() -> None:
    new, old = {"w": zeros(2), "n": 0, "b": zeros(3)}, {"w": ones(2), "n": 4}
    got = jax.jit(lambda new, old: tk.graft(new, old, fresh="b")[0])(new, old)
    assert {name: float(x.max()) for name, x in got.items()} == {"w": 1, "n": 4, "b": 0}


# --------------------------------------------------------------------------------------------------- rename and resize


PAIR = {"a": [1.0, 2.0], "b": [3.0, 4.0]}


# The new and the old tree, `rename`, and what the new one gets. The first pattern that matches moves a leaf.
RENAMED: dict[str, tuple[Any, Any, dict[str, str], Any]] = {
    "two swapped": (PAIR, PAIR, {"a.**": "b.**", "b.**": "a.**"}, {"a": [3.0, 4.0], "b": [1.0, 2.0]}),
    "their entries": (PAIR, PAIR, {"**.0": "**.1", "**.1": "**.0"}, {"a": [2.0, 1.0], "b": [4.0, 3.0]}),
    "one displaced": (PAIR, PAIR, {"a.0": "a.0", "a.*": "b.*"}, {"a": [1.0, 0.0], "b": [3.0, 2.0]}),
    "a part of a part": ({"l_0": 0, "l_1": 0}, {"b0": 1, "b1": 2}, {"b*": "l_*"}, {"l_0": 1, "l_1": 2}),
    "below a key": ({"params": {"a": {"b": 0}}}, {"a": {"b": 1}}, {"**": "params.**"}, {"params": {"a": {"b": 1}}}),
    "the root": ({"w": 0}, 1, {"**": "**.w"}, {"w": 1}),
    "first as much": ({"a.b.c.b.d": 0}, {"a.b.a.b.d": 1}, {"**.a.**": "**.c.**"}, {"a.b.c.b.d": 1}),
    "one character": ({"l1": {"w": 0}}, {"a1": {"w": 1}}, {"a1.?": "l1.w"}, {"l1": {"w": 1}}),
    "as much in a part": ({"aba+": 0}, {"abab": 1}, {"*b*": "*+*"}, {"aba+": 1}),
}


@pytest.mark.parametrize(("new", "old", "rename", "expected"), RENAMED.values(), ids=RENAMED)
def test_rename(new: Any, old: Any, rename: Any, expected: Any) -> None:
    got, report = tk.graft(jax.tree.map(lambda x: 0 * x, new), old, rename=rename, strict=False)
    assert got == expected
    assert len(report.dropped) == len(report.fresh) == sum(x == 0 for x in jax.tree.leaves(got))


def grow(new: Any, old: Any) -> Any:
    return new.at[: old.shape[0]].set(old)


@pytest.mark.parametrize(("resize", "kept"), [(grow, "embed head"), ({"embed": grow}, "embed"), (lambda *_: None, "")])
def test_resize(resize: Any, kept: str) -> None:
    old, new = {"embed": ones(3, 2), "head": ones(3)}, {"embed": zeros(5, 2), "head": zeros(5)}
    got, kinds = loose(new, old, resize=resize)
    assert kinds.get("kept", "") == kept and kinds.keys() <= {"kept", "refused"}
    assert {k: float(x.sum()) for k, x in got.items()} == {k: old[k].size * (k in kept) for k in old}


def test_a_resized_leaf_has_the_dtype_of_new() -> None:
    arguments = {"w": zeros(5, dtype=jnp.bfloat16)}, {"w": ones(3)}
    pad = {"w": lambda new, old: jnp.pad(old, (0, 2))}
    assert loose(*arguments, resize=pad)[1] == {"refused": "w"}
    w = loose(*arguments, resize=pad, cast=True)[0]["w"]
    assert w.dtype == jnp.bfloat16 and float(w.sum()) == 3


# ------------------------------------------------------------------------------------------------------ what is refused


NEW, OLD = {"a": 0, "w": zeros(3, 2)}, {"a": 1, "w": ones(2, 3)}
EMPTY: dict[str, Any] = {r"\{\}": {}, "'ckpt": "ckpt/step_3", r"\(EmptyState": optax.sgd(0.1).init({})}
NO_ARRAYS = r"tree must be a pytree with arrays or numbers; found"
# What is wrong with an argument, the arguments, the error, and what it says.
ARGUMENTS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("a list for", {"rename": ["w"]}, TypeError, r"rename must be a dict that maps old .*found \['w'\]"),
    ("no target in", {"rename": {"w": []}}, TypeError, r"to a list of new .*, or to None; found \{'w': \[\]\}"),
    ("no old leaf in", {"rename": {"v": "w"}}, ValueError, r"rename: 'v' matches no leaf of the old tree. .* paths: w"),
    ("no new leaf in", {"rename": {"w": "v"}}, ValueError, r"'w' leads to v, which the new tree does not .* paths: w"),
    ("wildcards in", {"rename": {"*": "**"}}, ValueError, r"same wildcards on .* Found '\*' and '\*\*'\.$"),
    ("two more in", {"rename": {"*": "*.*"}}, ValueError, r"Found '\*' and '\*\.\*'\. It could be any of several '\*'"),
    ("no axes for", {"rename": {"a": "*"}}, ValueError, r"'a' lacks a '\*' of '\*'.* unstacked; a has no axes"),
    ("no indices for", {"rename": {"*": "b"}}, ValueError, r"'b' lacks a '\*' of '\*', .* at a it matches 'a'"),
    ("one name twice in", {"rename": {"a": "w", "w": "w"}}, ValueError, "rename maps w and a to one name: w"),
    ("a hidden", {"rename": {"**": "**", "a": "w"}}, ValueError, r"'a' decides about no .* '\*\*'\. Put it before"),
    ("a function for", {"convert": np.transpose}, TypeError, "convert must be a dict .*found <.*transpose"),
    ("no leaf in", {"convert": {"v": jnp.ravel}}, ValueError, "^convert: 'v' matches no leaf of the new tree"),
    ("an error in", {"convert": {"w": lambda x: x.no}}, AttributeError, r"(?s)no.* the `convert` .* w, on f32\[2,3\]"),
    ("None from", {"convert": {"w": lambda x: None}}, TypeError, "at w: convert must return an .* found None"),
    ("a number for", {"resize": 2}, TypeError, "resize must be a function of the new leaf and .*found 2"),
    ("a wrong", {"resize": lambda x, y: y}, ValueError, r"at w: resize .* of shape \(3, 2\), found \(2, 3\)"),
    ("an error in", {"resize": lambda x, y: y.no}, AttributeError, "(?s)'no'.* the `resize` of graft, at w"),
    ("a dict for", {"fresh": {"w": None}}, TypeError, r"fresh must be a pattern .*found \{'w': None\}"),
    ("a number in", {"fresh": [3]}, TypeError, "a pattern must be a string such as .* found 3"),
    ("no leaf in", {"fresh": ["w", "w.x"]}, ValueError, r"^fresh: 'w\.x' matches no leaf of the new tree"),
    ("no whole path in", {"fresh": re.compile("")}, ValueError, "^fresh: '' matches no leaf of the new tree"),
    ("an empty", {"fresh": ""}, ValueError, "a pattern must not be empty"),
]
FILE = "model.safetensors"
# The trees, other arguments, the error, and what it says.
MISTAKES: dict[str, tuple[Any, ...]] = {
    **{f"old is {x}": (NEW, x, {}, ValueError, f"the old {NO_ARRAYS} {text}") for text, x in EMPTY.items()},
    **{f"new is {x}": (x, OLD, {}, ValueError, f"the new {NO_ARRAYS} {text}") for text, x in EMPTY.items()},
    **{
        f"{side} is a file, {type(x).__name__}": (*pair, {}, ValueError, f"the {side} tree .* load it first")
        for x in (FILE, FILE.encode(), Path(FILE), io.StringIO(FILE))
        for side, pair in (("old", (NEW, x)), ("new", (x, OLD)))
    },
    "no name": ({"w": 0}, {"p": 1}, {}, ValueError, r"no leaf in common. Old: p. New: w. .* rename=\{'p': …, …\}.$"),
    "shapes": (NEW, jax.eval_shape(lambda: NEW), {}, TypeError, "at [aw]: the old tree has a shape and dtype, but no"),
    "one name": (NEW, {"a": {"b": 1}, "a.b": 2}, {}, ValueError, r"different name .*, but two .* are called a\.b"),
    **{f"{name} {next(iter(x))}": (NEW, OLD, x, error, said) for name, x, error, said in ARGUMENTS},
}


@pytest.mark.parametrize(("new", "old", "arguments", "error", "message"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "loose"])
def test_mistakes(new: Any, old: Any, arguments: Any, error: Any, message: str, strict: bool) -> None:
    unchecked: Any = tk.graft  # by beartype
    with pytest.raises(error, match=message):
        unchecked.__wrapped__(new, old, **arguments, strict=strict)


# ---------------------------------------------------------------------------------------------------------------- lists


def layers(count: int, start: float = 1.0) -> Any:
    return {"layers": [{"w": jnp.full(2, start + i)} for i in range(count)], "head": ones(2)}


def entries(start: int, count: int) -> list[Any]:
    return [jnp.full(1, start + i, float) for i in range(count)]


# The start of the patterns for the entries, and a tree that has them.
LISTS: dict[str, tuple[str, Callable[[int, int], Any]]] = {
    "layers": ("**.layers.", lambda start, n: {"layers": [{"w": x} for x in entries(start, n)]}),
    "the root": ("", entries),
    # A list of NNX has a child without leaves next to its entries.
    "a list of NNX": ("**.blocks.", lambda start, n: {"blocks": nnx_list(map(nnx.Param, entries(start, n)))}),
    "a named tuple": ("**.layers.", lambda start, n: CountState(0, {"layers": entries(start, n)})),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    ("count", "k", "moved", "unmoved"),
    [(6, 2, [10, 11, 2, 12, 13, 14], [10, 11, 12, 13, 14, 5]), (4, 3, [10, 11, 13, 14], [10, 11, 12, 13])],
    ids=["one more", "one less"],
)
def test_other_lengths_are_a_warning_with_what_to_do(name: str, count: int, k: int, moved: Any, unmoved: Any) -> None:
    start, make = LISTS[name]
    new, old = make(0, count), make(10, 5)
    with pytest.warns(UserWarning, match=rf"lengths of lists differ: .* \(new {count}, old 5\)\. Th") as caught:
        loose(new, old)
    said, _, last = str(caught[0].message).rpartition("If it was the last, say so with ")
    step = "{i + 1}" if count > 5 else "{i - 1}"
    assert f"pass rename={{f'{start}{{i}}.**': f'{start}{step}.**' for i in range(k, 5)}}, where k is the old" in said
    rename = {f"{start}{i}.**": f"{start}{i + count - 5}.**" for i in range(k, 5)}
    argument, _, value = last.partition("=")
    for arguments, expected in (({"rename": rename}, moved), ({argument: ast.literal_eval(value)}, unmoved)):
        got, _ = loose(new, old, **arguments)
        assert [float(x[0]) for x in jax.tree.leaves(got) if np.shape(x) == (1,)] == expected


@pytest.mark.parametrize("pair", [("layers.1.**", "layers.2.**"), ("layers.0.**",) * 2, ("layers.**",) * 2], ids=str)
def test_a_rename_of_some_layers_does_not_say_where_those_after_them_go(pair: tuple[str, str]) -> None:
    loose(layers(6, 0.0), layers(5, 5.0), rename={"layers.4.**": "layers.5.**"})  # inserted before the last
    with pytest.warns(UserWarning, match=r"lengths of lists differ: layers \(new 6, old 5\)"):
        loose(layers(6, 0.0), layers(5, 5.0), rename=dict([pair]))


def test_lengths_are_those_of_the_list_with_the_same_labels() -> None:
    def pair(gen: int, critic: int) -> Any:
        return {k: CountState(0, {"layers": entries(0, n)}) for k, n in (("gen", gen), ("critic", critic))}

    tk.graft(pair(3, 2), pair(3, 2))
    with pytest.warns(UserWarning, match=r"lengths of lists differ: mu.layers \(new 3, old 2\)\. "):
        loose(pair(3, 3), pair(3, 2))


def test_the_warning_names_the_line_that_calls_graft() -> None:
    # In a process of its own: beartype, which checks treekit in these tests, adds calls between the two.
    source = "import numpy as np; import treekit as tk; tk.graft([np.ones(1), np.ones(1)], [np.ones(1)], strict=False)"
    command = [sys.executable, "-W", "error::UserWarning:__main__", "-c", source]
    run = subprocess.run(command, capture_output=True, text=True)
    assert "UserWarning: graft: lengths of lists differ" in run.stderr and run.returncode == 1


# ------------------------------------------------------------------------ states, as the core sees them: named tuples


CountState = namedtuple("CountState", ("count", "mu"))
OtherState = namedtuple("OtherState", ("count", "mu"))
WrapState = namedtuple("WrapState", ("steps", "inner_state"))
CounterState = namedtuple("CounterState", ("count",))
GroupState = namedtuple("GroupState", ("inner_states",))
TraceState = namedtuple("TraceState", ("trace",))
ScaleState = namedtuple("ScaleState", ("scale",))


def state(by: float, *names: str) -> Any:
    return CountState(jnp.float32(by), {name: jnp.float32(by) for name in names})


def wrapped(by: float, *inner: Any) -> Any:
    return WrapState(jnp.float32(by), inner)


def group(**states: Any) -> Any:
    return GroupState(states)


A, AB, NONE, THREE = state(0, "a"), state(0, "a", "b"), CounterState(0), CounterState(3)
XYZ = group(x=A, y=state(0, "b"), z=state(0, "c"))
PLACES, MOVED = ({"a": (state(a, "w"),), "b": ((), state(b, "w"))} for a, b in ((0, 0), (1, 2)))
SCALED = wrapped(0, ScaleState(0.0), A)
RIVALS = {"gen": A, "rival": A}, {"gen": state(1, "a"), "critic": state(2, "a")}
# The new and the old tree; the numbers that the new one gets, 0 for its own; what is dropped, and `rename`.
STATES: dict[str, tuple[Any, ...]] = {
    "in a wrapper": (wrapped(0, (), AB), (state(1, "a"), ()), [0, 1, 1, 0]),
    "out of it": ((A,), wrapped(5, (), state(2, "a")), [2, 2], "steps"),
    "equal states": (
        (zeros(1), A, {"x": 0}, A), (ones(1), state(1, "a"), {"x": 5}, state(2, "a")), [1, 1, 1, 5, 2, 2]
    ),
    # Counts of two schedules that belong to no params, of which one is new.
    "a count more": ((NONE, NONE), (THREE,), [3, 3]),
    "a count less": ((NONE,), (THREE, (), THREE), [3]),
    "other labels": (
        {"opt": XYZ}, {"opt": group(x=state(1, "a", "b"), w=state(2, "c"))}, [1, 1, 1, 1, 2, 2]
    ),
    "a new label": (XYZ, group(x=state(1, "a"), y=state(2, "b")), [1, 1, 2, 2, 0, 0]),
    "split": (group(x=A, y=state(0, "b")), state(3, "a", "b"), [3, 3, 3, 3]),
    "put together": (AB, group(x=state(3, "a"), y=state(3, "b")), [3, 3, 3]),
    "another class": (OtherState(0.0, {"a": 0.0}), state(1, "a"), [0, 1], "count", {"mu.**": "mu.**"}),
    # Keys above a state are names. What the generator still has is not for its critic.
    "two states": (
        {"gen": AB, "critic": AB}, {"gen": state(1, "a"), "critic": state(2, "a", "b")}, [2, 2, 2, 1, 1, 0]
    ),
    "another key": (*RIVALS, [1, 1, 0, 0], "critic.count critic.mu.a"),
    "another key, renamed": (*RIVALS, [1, 1, 2, 2], "", {"critic.**": "rival.**"}),
    "swapped by rename": (PLACES, MOVED, [2, 2, 1, 1], "", {"a.**": "b.**", "b.**": "a.**"}),
    "displaced by rename": (PLACES, MOVED, [0, 0, 1, 1], "b.1.count b.1.mu.w", {"a.**": "b.**"}),
    # Parameters decide between states that have changed places, and the rest follows them.
    "changed places": (
        (wrapped(0, state(0, "b")), wrapped(0, A)),
        (wrapped(5, state(1, "a")), wrapped(5, state(2, "b"))),
        [5, 2, 2, 5, 1, 1],
    ),
    # The momentum of a bare array is not a counter, which several states may share.
    "a bare number": (group(a=TraceState(zeros()), b=NONE), group(a=TraceState(ones()), b=THREE), [1, 3]),
    # A number, as of reduce_on_plateau, in an optimizer that gets a wrapper with an accumulator; and back.
    "a scale": (SCALED, ScaleState(1.0), [0, 1, 0, 0]),
    "a scale alone": (
        ScaleState(0.0), wrapped(0, ScaleState(1.0), A), [1], "steps inner_state.1.count inner_state.1.mu.a"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_states_are_matched_by_class_field_and_parameter(name: str) -> None:
    new, old, expected, *others = STATES[name]
    dropped, rename = others[0] if others else "", others[1] if others[1:] else None
    got, kinds = loose(new, old, rename=rename)
    assert numbers(got) == expected
    assert kinds.get("dropped", "") == dropped and "refused" not in kinds
    assert len(kinds.get("fresh", "").split()) == expected.count(0)
    assert untyped.tree.structure(got) == untyped.tree.structure(new)


EQUAL: Any = (zeros(1), state(1, "a"), {"x": 0}, state(2, "a"))
SWAPPED = tuple(tuple(wrapped(i, state(i, *mask)) for i, mask in enumerate(x, 1)) for x in (("ac", "bc"), ("abc", "b")))
COUNTED = [wrapped(0, state(i, x), CounterState(i)) for i, x in enumerate("ab")]
ONE, TWO = state(1, "a"), state(2, "a")
# The new and the old tree, the leaves that the error lists of each, and what is kept if one follows its advice.
AMBIGUOUS: dict[str, tuple[Any, ...]] = {
    "one of two": ((A,), (ONE, TWO), "0.mu.a", "0.mu.a 1.mu.a", "0.count 0.mu.a"),
    "one for two": ((A, A), (ONE,), "0.mu.a 1.mu.a", "0.mu.a", "1.count 1.mu.a"),
    "counts put together": (
        AB, group(x=ONE, y=state(2, "b")), "count", "inner_states.x.count inner_states.y.count", "count mu.a mu.b"
    ),
    "a wrapper in itself": (
        WrapState({"a": 0.0}, WrapState({"a": 0.0}, A)), WrapState({"a": 1.0}, ONE),
        "steps.a inner_state.steps.a", "steps.a",
        "inner_state.steps.a inner_state.inner_state.count inner_state.inner_state.mu.a",
    ),
    "counts alone": ((NONE,), (THREE, CounterState(4)), "0.count", "0.count 1.count", "0.count"),
    "bare arrays": ((TraceState(ones(3)),) * 2, TraceState(ones(3)), "0.trace 1.trace", "trace", "0.trace"),
    "other indices": (EQUAL, (ONE, TWO), "1.mu.a 3.mu.a", "0.mu.a 1.mu.a", "1.count 1.mu.a"),
    "all indices moved": (EQUAL, EQUAL[1:], "1.mu.a 3.mu.a", "0.mu.a 2.mu.a", "1.count 1.mu.a 3.count 3.mu.a"),
    **{f"{y} swapped": (x[::-1], x, *[f"0.inner_state.0.mu.{y} 1.inner_state.0.mu.{y}"] * 2, "")
       for x, y in zip(SWAPPED, "cb", strict=True)},
    "counts swapped": (COUNTED[::-1], COUNTED, *["0.inner_state.1.count 1.inner_state.1.count"] * 2, ""),
}  # fmt: skip


@pytest.mark.parametrize(("new", "old", "ours", "theirs", "kept"), AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "loose"])
def test_ambiguity_is_an_error_with_a_hint(new: Any, old: Any, ours: str, theirs: str, kept: str, strict: bool) -> None:
    lists = ["\n  ".join([title, *names.split()]) for title, names in (("new leaves:", ours), ("old leaves:", theirs))]
    said = rf"graft cannot decide which old value goes where. The {lists[0]}\nThe {lists[1]}\nDrop .* pass rename="
    with pytest.raises(ValueError, match=said) as caught:
        tk.graft(new, old, strict=strict)
    if kept:
        _, kinds = loose(new, old, rename=suggested_rename(caught))
        assert kinds["kept"] == kept


def suggested_rename(caught: pytest.ExceptionInfo[ValueError]) -> Any:
    """The dict at the end of an error."""
    return ast.literal_eval(str(caught.value).rpartition("rename=")[2])


def test_values_that_are_traced_do_not_decide() -> None:
    whole, split = state(0, "a", "b"), GroupState({"x": state(0, "a"), "y": state(0, "b")})
    tk.graft(whole, split)
    with pytest.raises(ValueError, match="cannot decide"):
        jax.jit(lambda old: tk.graft(whole, old)[0])(split)


def test_plain_dicts_for_states_are_matched_by_name_alone() -> None:
    new = wrapped(0, state(0, "a"), state(0, "a"))
    one, two = ({"count": jnp.float32(i), "mu": {"a": jnp.float32(i)}} for i in (1, 2))
    for inner in ([one, two], {"0": one, "1": two}, {0: one, 1: two}):
        assert numbers(tk.graft(new, {"steps": jnp.float32(7), "inner_state": inner})[0]) == [7, 1, 1, 2, 2]
        with pytest.raises(ValueError, match=r"no leaf in common.*restore it into old_optimizer\.init\(old_params\)"):
            tk.graft(new, {"0": inner})
        got, _ = tk.graft(new, {"x": inner}, rename={"x.**": "inner_state.**"}, fresh="steps")
        assert numbers(got) == [0, 1, 1, 2, 2]
        back, _ = tk.graft({"x": inner}, new, rename={"inner_state.**": "x.**", "steps": None})
        assert not any(numbers(back))


def test_states_of_two_classes_do_not_match() -> None:
    other = {"a": OtherState(1.0, {"w": 1.0}), "b": state(1, "w")}
    with pytest.raises(ValueError, match=r"'a\.\*\*' leads to b.count, which the new tree has in a state of another"):
        tk.graft(other, other, rename={"a.**": "b.**"})
    with pytest.raises(ValueError, match=r"no leaf in common.* is in states of two classes\. .* rename full paths"):
        tk.graft(OtherState(jnp.float32(0), {"a": jnp.float32(0)}), state(1, "a"))


@pytest.mark.parametrize(
    ("new", "old", "rename"),
    [
        ({"opt": state(0, "a")}, state(1, "a"), {"**": "opt.**"}),
        ({"opt": wrapped(0, state(0, "a"))}, (state(1, "a"),), {"**": "opt.**"}),
        (wrapped(0, state(0, "a")), {"a": {"b": [state(1, "a")]}}, {"a.b.**": "**"}),
        ({"x": ((), state(0, "a"))}, {"y": [state(1, "a")]}, {"**.y.**": "**.x.**"}),
    ],
    ids=["below a key", "below a key, wrapped", "from below two keys", "to another key"],
)
def test_rename_of_the_keys_above_a_state_goes_through_wrappers(new: Any, old: Any, rename: Any) -> None:
    with pytest.raises(ValueError, match=r"no leaf in common.*states, but under other keys, .* use rename=") as caught:
        tk.graft(new, old)
    other = {"w": ones(1)}
    with pytest.raises(ValueError, match=r"leaves are left.(?s:.*)states, but under other keys, .* use rename="):
        tk.graft({"m": other, "s": new}, {"m": other, "s": old})
    for said in (rename, suggested_rename(caught)):
        got, kinds = loose(new, old, rename=said)
        assert "dropped" not in kinds and len(kinds["kept"].split()) == 2 and sum(numbers(got)) == 2


STRANGE = np.array([[1.0, np.nan], [np.inf, -np.inf]])


@pytest.mark.parametrize(
    ("x", "number"),
    [
        *[(jnp.asarray(STRANGE, dtype), 3) for dtype in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float8_e5m2)],
        (jnp.asarray(STRANGE + 0j, jnp.complex64), 3),
        (jnp.asarray(STRANGE, jnp.float8_e4m3fn), 3),  # which has no infinity, but NaN
        (STRANGE, 3),
        (np.float32(np.nan), 1),
        (np.inf, 1),
        (jnp.ones(2), 0),
        (jnp.arange(2), 0),
        (np.array([3]), 0),
    ],
)
def test_the_report_counts_numbers_that_are_not_finite(x: Any, number: int) -> None:
    zero = jnp.zeros_like(x) if isinstance(x, jax.Array) else type(x)(0) if np.shape(x) == () else np.zeros_like(x)
    new: dict[str, Any] = {"w": zero, "b": 1.0}
    got, report = tk.graft(new, {"w": x, "b": 1.0})
    assert report.not_finite == number and [row.not_finite for row in report] == [0, number]
    words = f"{number} number{'s' * (number > 1)} not finite (new | old)"
    assert (words in str(report)) == (number > 0) == ("not finite" in str(report))
    assert tk.graft(new, {"w": x, "b": 1.0}, fresh="w")[1].not_finite == 0  # it has the new value
    assert jax.jit(lambda old: tk.graft({"w": +old["w"]}, old)[1].not_finite)({"w": jnp.asarray(x)}) == 0  # unknown
    np.testing.assert_array_equal(np.asarray(got["w"], complex), np.asarray(x, complex))
