"""graft: values carried over by key path, and a report that says what became of every leaf."""

import ast
import re
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from jax.sharding import AxisType, NamedSharding

import treekit as tk
from tests.releases import HOST_MEMORY, VARIABLES, P, needs, nnx_list
from tests.trees import trees, untyped
from treekit.testing import assert_trees_same

zeros, ones = jnp.zeros, jnp.ones


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
    assert_trees_same(tk.filter(got, has_dtype), jax.tree.map(lambda x: x, tk.filter(tree, has_dtype)))
    assert_trees_same(tk.filter(got, has_dtype, inverse=True), tk.filter(tree, has_dtype, inverse=True))
    assert len(report) == len(report.kept) == len(leaves)


class Attributes(dict[str, Any]):
    """A mapping that raises another error for an attribute that it does not have."""

    __getattr__ = dict.__getitem__


def test_no_attributes_of_nodes_are_asked_for() -> None:
    untyped.tree_util.register_pytree_with_keys(
        Attributes,
        lambda x: ([(jax.tree_util.DictKey(key), x[key]) for key in sorted(x)], tuple(sorted(x))),
        lambda keys, values: Attributes(zip(keys, values, strict=True)),
    )
    model = Attributes(a=jnp.ones(2))
    got, report = tk.graft(model, model)
    assert_trees_same(got, model)
    assert report.fresh == ()


def test_what_becomes_of_each_leaf() -> None:
    new = {"a": zeros(2), "b": zeros(2), "c": zeros(3), "d": zeros(2), "f": jax.nn.relu, "n": 0, "none": None}
    old = {"a": ones(2), "c": ones(2), "d": ones(2, jnp.bfloat16), "e": ones(1), "f": "relu", "n": 7, "none": ones(1)}
    got, report = tk.graft(new, old, strict=False)
    assert numbers(got["a"]) == [1] and got["n"] == 7 and got["f"] is jax.nn.relu and got["none"] is None
    assert all(got[name] is new[name] for name in "bcd")
    assert [row.path for row in report] == ["a", "b", "c", "d", "n", "e", "none"]
    by_kind = (report.refused, report.fresh, report.dropped, report.kept)
    shown = [line.split()[:2] for line in str(report).splitlines()[1:]]
    assert shown == [[row.path, row.kind] for rows in by_kind for row in rows]
    assert [path for path, _ in shown] == ["c", "d", "b", "e", "none", "a", "n"]


def test_a_leaf_alone_and_no_leaves() -> None:
    got, report = tk.graft(zeros(2), ones(2))
    assert numbers(got) == [1] and "(root)" in str(report)
    assert tk.graft({}, None) == ({}, ())


# --------------------------------------------------------------------------------------------- classes, dtypes, devices


# A new leaf, and an old value that it gets in its own class and dtype; wide values on the host are not rounded.
CLASSES: dict[str, tuple[Any, Any]] = {
    "an array of JAX": (zeros(2), np.ones(2, np.float32)),
    "an array of NumPy": (np.zeros(2, np.float32), ones(2)),
    "a bool": (False, np.array(True)),
    "an integer": (0, jnp.int32(3)),
    "a wide integer": (0, 2**70),
    "a float": (0.0, np.float64(0.1)),
    "an array of wide floats": (np.zeros(1), np.array([1 + 2.0**-40])),
    "JAX from the other byte order": (zeros(3), np.arange(3, dtype=">f4")),
    "NumPy from the other byte order": (np.zeros(3, np.int64), np.arange(3, dtype=">i8")),
    "NumPy in the other byte order": (np.zeros(3, ">c8"), np.arange(3, dtype=np.complex64)),
    "a NumPy number": (np.float64(0), np.float64(1e300)),
}


@pytest.mark.parametrize(("new", "old"), CLASSES.values(), ids=CLASSES)
def test_values_have_the_class_and_the_dtype_of_new(new: Any, old: Any) -> None:
    got = tk.graft({"w": new}, {"w": old})[0]["w"]
    assert type(got) is type(new) and getattr(got, "dtype", 0) == getattr(new, "dtype", 0)
    assert np.array_equal(got, old)


KEY = jax.random.key(1)
# Of a leaf: new, old, whether it is kept as it is, and whether it is kept with cast=True.
DTYPES: dict[str, tuple[Any, Any, bool, bool]] = {
    "a key": (jax.random.key(0), KEY, True, True),
    "a key of another kind": (jax.random.key(0), jax.random.key(0, impl="rbg"), False, False),
    "a wide int to i32": (zeros((), jnp.int32), 2**40, False, False),
    "300 to i8": (zeros(1, jnp.int8), jnp.array([300], jnp.int16), False, False),
    "-128 to i8": (zeros(1, jnp.int8), jnp.array([-128], jnp.int16), False, True),
    "f32 to bf16": (zeros(2, jnp.bfloat16), ones(2), False, True),
    "f32 to i32": (zeros(2, jnp.int32), ones(2), False, False),
    # Zero means True in a mask that is added to scores, so a number is not cast to a flag.
    "floats to bools": (zeros(2, bool), np.array([0.0, -np.inf]), False, False),
    # 64 bits become the 32 of JAX.
    "i64 to i32": (zeros(1, jnp.int32), np.ones(1, np.int64), True, True),
    # A finite value that would become infinite is refused.
    "1e300 in f64 to f32": (zeros(1), np.array([1e300]), False, False),
    "inf and NaN in f64 to f32": (zeros(4), np.array([np.inf, -np.inf, np.nan, 1.0]), True, True),
    "a float of 1e300 to f32": (zeros(()), 1e300, False, False),
    "1e300j to c64": (zeros(1, jnp.complex64), np.array([1e300j]), False, False),
    "1e10 to f16": (zeros(1, jnp.float16), jnp.array([1e10]), False, False),
    "inf and NaN to f16": (zeros(2, jnp.float16), jnp.array([jnp.inf, jnp.nan]), False, True),
    "3.4e38 to bf16": (zeros(1, jnp.bfloat16), np.array([3.4e38], np.float32), False, False),
    "inf to f8": (zeros(1, jnp.float8_e4m3fn), np.array([np.inf], np.float32), False, False),
    "470 to f8": (zeros(1, jnp.float8_e4m3fn), np.array([470], np.float32), False, False),
    "6 to f4": (zeros(1, jnp.float4_e2m1fn), np.array([6], np.float32), False, True),
    "100 to f4": (zeros(1, jnp.float4_e2m1fn), np.array([100], np.float32), False, False),
    "NaN to f4": (zeros(1, jnp.float4_e2m1fn), np.array([np.nan], np.float32), False, False),
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


KINDS_OF_KEYS: dict[str, Any] = {
    "a key": jax.random.key(3),
    "a key of another kind": jax.random.key(3, impl="rbg"),
    "several keys": jax.random.split(jax.random.key(3), (2, 3)),
}


@pytest.mark.parametrize("name", KINDS_OF_KEYS)
def test_the_data_of_a_key_becomes_a_key(name: str) -> None:
    """Its dtype and shape show what it is, so nothing is guessed."""
    key = KINDS_OF_KEYS[name]
    new = jnp.zeros_like(key)
    data = jax.random.key_data(key)
    for each in (new, jax.eval_shape(lambda: new)):
        for old in (data, np.asarray(data)):
            got, _ = tk.graft({"k": each}, {"k": old})
            assert_trees_same(got, {"k": key})
        for wrong in (data[None], data.astype(jnp.int32), data.astype(jnp.float32)):
            assert loose({"k": each, "x": 0}, {"k": wrong, "x": 0}, cast=True)[1] == {"refused": "k", "kept": "x"}


def test_the_data_of_keys_is_stacked() -> None:
    data = {f"layers.{i}.key": jax.random.key_data(jax.random.key(i)) for i in range(3)}
    new = {"layers": {"key": jax.random.split(jax.random.key(9), 3)}}
    got, _ = tk.graft(new, data, rename={"layers.*.**": "layers.**"})
    for i, key in enumerate(got["layers"]["key"]):
        assert key == jax.random.key(i)


@needs(HOST_MEMORY)
def test_values_lie_where_those_of_new_do() -> None:
    sharding = jax.sharding.SingleDeviceSharding(untyped.devices()[0], memory_kind="pinned_host")
    new = jax.device_put(zeros(2), sharding)
    for wanted in (new, untyped.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding)):
        assert tk.graft({"w": wanted}, {"w": ones(2)})[0]["w"].sharding == sharding


def test_under_jit() -> None:
    new, old = {"w": zeros(2), "n": 0, "b": zeros(3)}, {"w": ones(2), "n": 4}
    both = jax.jit(lambda new, old: tk.graft(new, old, fresh="b")[0])(new, old)
    one = jax.jit(lambda old: tk.graft(new, old, fresh="b")[0])(old)
    other = jax.jit(lambda new: tk.graft(new, old, fresh="b")[0])(new)
    assert numbers(both) == numbers(one) == numbers(other) == [0, 4, 1]


# -------------------------------------------------------------------------------------------------------------- memory


def aligned(count: int) -> Any:
    """An array that JAX, on the CPU, would use in place of a copy, as those of a mapped file."""
    buffer = np.zeros(4 * count + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + 4 * count].view(np.float32)


DEVICE = untyped.devices()[0]
REPLICATED = NamedSharding(untyped.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,)), P())
# What a new leaf is.
KINDS: dict[str, Any] = {
    "an array": zeros(64),
    "a committed array": jax.device_put(zeros(64), DEVICE),
    "a replicated array": jax.device_put(zeros(64), REPLICATED),
    "a shape": untyped.ShapeDtypeStruct((64,), jnp.float32),
    "a shape with a sharding": untyped.ShapeDtypeStruct((64,), jnp.float32, sharding=REPLICATED),
    "an array of NumPy": np.zeros(64, np.float32),
}
HOW: dict[str, dict[str, Any]] = {
    "as it is": {"fresh": "b"},
    "converted to a view": {"fresh": "b", "convert": {"a": lambda x: x[...]}},
    "for two": {"rename": {"a": ["a", "b"]}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOW)
def test_the_result_shares_no_memory_with_the_old_tree(kind: str, how: str) -> None:
    """So a step may donate it, and the old file may change."""
    new = dict.fromkeys("ab", KINDS[kind])
    mapped = aligned(64)
    got, _ = tk.graft(new, {"a": mapped}, **HOW[how])
    mapped[:] = 2
    assert not np.asarray(got["a"]).any()
    live = jax.device_put(zeros(64), REPLICATED if "replicated" in kind else DEVICE)
    got, _ = tk.graft(new, {"a": live}, **HOW[how])
    if how == "for two" and isinstance(got["b"], jax.Array):
        got["b"].delete()
    live.delete()
    assert not np.asarray(got["a"]).any()


class Net(nnx.Module):
    def __init__(self, seed: int) -> None:
        self.body, self.head = (nnx.Linear(2, 2, rngs=nnx.Rngs(seed + i)) for i in range(2))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(seed))


@needs("flax.nnx.var_defaults")
@pytest.mark.parametrize("kind", VARIABLES)
def test_the_result_shares_no_variables_of_flax(kind: Any) -> None:
    flax: Any = nnx
    with flax.var_defaults(**kind):
        new, old = Net(0), Net(5)
        got, _ = tk.graft(new, old, fresh="head.**")
    assert list(map(type, jax.tree.leaves(got))) == list(map(type, jax.tree.leaves(new)))
    before = [tk.to_state_dict(x) for x in (new, old)]
    np.testing.assert_array_equal(tk.to_state_dict(got)["body.kernel"], before[1]["body.kernel"])
    np.testing.assert_array_equal(tk.to_state_dict(got)["head.kernel"], before[0]["head.kernel"])
    for _, x in flax.iter_graph(got):
        if isinstance(x, nnx.Param):
            x[...] = x[...] + 1
    for x, want in zip((new, old), before, strict=True):
        assert_trees_same(tk.to_state_dict(x), want)


def test_nothing_is_copied_under_jit() -> None:
    new, old = {"w": zeros(2)}, {"w": ones(2)}
    assert not jax.make_jaxpr(lambda new, old: tk.graft(new, old)[0])(new, old).eqns
    assert not jax.make_jaxpr(lambda new: tk.graft(new, old)[0])(new).eqns


# --------------------------------------------------------------------------------------------------- rename and resize


PAIR = {"a": [1.0, 2.0], "b": [3.0, 4.0]}
INTS = {"a": [1, 2], "b": [3, 4]}


# The new and the old tree, `rename`, and what the new one gets. The first pattern that matches moves a leaf.
RENAMED: dict[str, tuple[Any, Any, dict[str, str], Any]] = {
    "two swapped": (PAIR, PAIR, {"a.**": "b.**", "b.**": "a.**"}, {"a": [3.0, 4.0], "b": [1.0, 2.0]}),
    "one displaced": (INTS, INTS, {"a.0": "a.0", "a.*": "b.*"}, {"a": [1, 0], "b": [3, 2]}),
    "names that begin with others": ({"x": 0, "x.y": 0}, {"x": 1, "x.y": 2}, {}, {"x": 1, "x.y": 2}),
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
    old, new = {"embed": ones((3, 2)), "head": ones(3)}, {"embed": zeros((5, 2)), "head": zeros(5)}
    got, kinds = loose(new, old, resize=resize)
    assert kinds.get("kept", "") == kept and kinds.keys() <= {"kept", "refused"}
    assert {k: float(x.sum()) for k, x in got.items()} == {k: old[k].size * (k in kept) for k in old}


# ---------------------------------------------------------------------------------------------------------------- lists


CountState = namedtuple("CountState", ("count", "mu"))


def entries(start: int, count: int) -> list[Any]:
    return [jnp.full(1, start + i, float) for i in range(count)]


# Trees with a list of so many entries, and how the warning and patterns write its name.
LISTS: dict[str, tuple[Callable[[int, int], Any], str, str]] = {
    "layers": (lambda start, n: {"layers": [{"w": x} for x in entries(start, n)]}, "layers", "layers.{}.**"),
    "the root": (entries, "the root", "{}"),
    # A list of NNX has a child without leaves next to its entries.
    "a list of NNX": (lambda start, n: {"blocks": nnx_list(map(nnx.Param, entries(start, n)))}, "blocks", "blocks.{}"),
    "a named tuple": (lambda start, n: CountState(0, {"layers": entries(start, n)}), "mu.layers", "**.layers.{}"),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    ("moved", "fresh", "expected"),
    [({2: 3, 3: 4, 4: 5}, [2], [10, 11, 2, 12, 13, 14]), ({2: None, 3: 2, 4: 3}, [], [10, 11, 13, 14])],
    ids=["one inserted", "one removed"],
)
def test_other_lengths_are_named_and_rename_says_what_has_moved(
    name: str, moved: dict[int, int | None], fresh: list[int], expected: list[int]
) -> None:
    tree, list_name, entry = LISTS[name]
    new, old = tree(0, len(expected)), tree(10, 5)
    for strict, kind in ((False, UserWarning), (True, ValueError)):
        with pytest.raises(kind, match=rf"differ: {list_name} \(new {len(expected)}, old 5\)"):
            tk.graft(new, old, strict=strict)
    rename = {entry.format(i): None if j is None else entry.format(j) for i, j in moved.items()}
    got, _ = tk.graft(new, old, rename=rename, fresh=list(map(entry.format, fresh)))
    assert [float(x[0]) for x in jax.tree.leaves(got) if np.shape(x) == (1,)] == expected


def test_lengths_are_those_of_the_list_with_the_same_labels() -> None:
    def pair(gen: int, critic: int) -> Any:
        return {k: CountState(0, {"layers": entries(0, n)}) for k, n in (("gen", gen), ("critic", critic))}

    tk.graft(pair(3, 2), pair(3, 2))
    with pytest.warns(UserWarning, match=r"mu.layers \(new 3, old 2\)"):
        loose(pair(3, 3), pair(3, 2))


def test_the_warning_names_the_line_that_calls_graft() -> None:
    # In a process of its own: beartype, which checks treekit in these tests, adds calls between the two.
    source = "import numpy as np; import treekit as tk; tk.graft([np.ones(1), np.ones(1)], [np.ones(1)], strict=False)"
    command = [sys.executable, "-W", "error::UserWarning:__main__", "-c", source]
    run = subprocess.run(command, capture_output=True, text=True)
    assert "UserWarning: graft" in run.stderr and run.returncode == 1


# ------------------------------------------------------------------------ states, as the core sees them: named tuples


OtherState = namedtuple("OtherState", ("count", "mu"))
WrapState = namedtuple("WrapState", ("steps", "inner_state"))
CounterState = namedtuple("CounterState", ("count",))
GroupState = namedtuple("GroupState", ("inner_states",))
TraceState = namedtuple("TraceState", ("trace",))
ScaleState = namedtuple("ScaleState", ("scale",))
MomentsState = namedtuple("MomentsState", ("mu", "nu"))


def state(by: float, *names: str) -> Any:
    return CountState(jnp.float32(by), {name: jnp.float32(by) for name in names})


def wrapped(by: float, *inner: Any) -> Any:
    return WrapState(jnp.float32(by), inner)


def group(**states: Any) -> Any:
    return GroupState(states)


A, AB, ONE, TWO = state(0, "a"), state(0, "a", "b"), state(1, "a"), state(2, "a")
NONE, THREE = CounterState(0), CounterState(3)
XYZ = group(x=A, y=state(0, "b"), z=state(0, "c"))
PLACES, MOVED = ({"a": (state(a, "w"),), "b": ((), state(b, "w"))} for a, b in ((0, 0), (1, 2)))
# The new and the old tree; the numbers that the new one gets, 0 for its own; what is dropped, and `rename`.
STATES: dict[str, tuple[Any, ...]] = {
    "in a wrapper": (wrapped(0, (), AB), (state(1, "a"), ()), [0, 1, 1, 0]),
    "equal states": (
        (zeros(1), A, {"x": 0}, A), (ones(1), state(1, "a"), {"x": 5}, state(2, "a")), [1, 1, 1, 5, 2, 2]
    ),
    # Counts of two schedules that belong to no params, of which one is new.
    "a count more": ((NONE, NONE), (THREE,), [3, 3]),
    "other labels": (
        {"opt": XYZ}, {"opt": group(x=state(1, "a", "b"), w=state(2, "c"))}, [1, 1, 1, 1, 2, 2]
    ),
    "another class": (OtherState(0.0, {"a": 0.0}), state(1, "a"), [0, 1], "count", {"mu.**": "mu.**"}),
    # Keys above a state are names. What the generator still has is not for its critic.
    "two states": (
        {"gen": AB, "critic": AB}, {"gen": state(1, "a"), "critic": state(2, "a", "b")}, [2, 2, 2, 1, 1, 0]
    ),
    "another key": ({"gen": A, "rival": A}, {"gen": ONE, "critic": TWO}, [1, 1, 0, 0], "critic.count critic.mu.a"),
    "swapped by rename": (PLACES, MOVED, [2, 2, 1, 1], "", {"a.**": "b.**", "b.**": "a.**"}),
    "displaced by rename": (PLACES, MOVED, [0, 0, 1, 1], "b.1.count b.1.mu.w", {"a.**": "b.**"}),
    "below a key": ({"opt": wrapped(0, A)}, (ONE,), [0, 1, 1], "", {"**": "opt.**"}),
    "from below keys": (wrapped(0, A), {"a": {"b": [ONE]}}, [0, 1, 1], "", {"a.b.**": "**"}),
    "to another key": ({"x": ((), A)}, {"y": [ONE]}, [1, 1], "", {"**.y.**": "**.x.**"}),
    "one field for another": (
        {"opt": (MomentsState([0], [0]),)}, {"opt": (MomentsState([1], [2]),)}, [2, 1], "",
        {"*.0.mu.**": "*.0.nu.**", "*.0.nu.**": "*.0.mu.**"},
    ),
    "to a longer key": ({"xyz": ((), A), "b": A}, {"y": ONE}, [0, 0, 1, 1], "", {"y.**": "xyz.**"}),
    # Parameters decide between states that have changed places, and the rest follows them.
    "changed places": (
        (wrapped(0, state(0, "b")), wrapped(0, A)),
        (wrapped(5, state(1, "a")), wrapped(5, state(2, "b"))),
        [5, 2, 2, 5, 1, 1],
    ),
    # Parameters may have other labels; a state without moments is that of its label.
    "swapped labels": (
        group(x=(A, NONE), y=(state(0, "b"), NONE)),
        group(x=(state(1, "b"), CounterState(3)), y=(TWO, CounterState(4))),
        [2, 2, 3, 1, 1, 4],
    ),
    # The momentum of a bare array is not a counter, which several states may share.
    "a bare number": (group(a=TraceState(zeros(())), b=NONE), group(a=TraceState(ones(())), b=THREE), [1, 3]),
    # A number, as of reduce_on_plateau, in an optimizer that gets a wrapper with an accumulator.
    "a scale": (wrapped(0, ScaleState(0.0), A), ScaleState(1.0), [0, 1, 0, 0]),
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


EQUAL: Any = (zeros(1), ONE, {"x": 0}, TWO)
COUNTED = [wrapped(0, state(i, x), CounterState(i)) for i, x in enumerate("ab")]
# The new and the old tree, the leaves that the error lists of each, and what is kept if one follows its advice.
AMBIGUOUS: dict[str, tuple[Any, ...]] = {
    "one for two": ((A, A), (ONE,), "0.mu.a 1.mu.a", "0.mu.a", "1.count 1.mu.a"),
    "counts put together": (
        AB, group(x=ONE, y=state(2, "b")), "count", "inner_states.x.count inner_states.y.count", "count mu.a mu.b"
    ),
    "all indices moved": (EQUAL, EQUAL[1:], "1.mu.a 3.mu.a", "0.mu.a 2.mu.a", "1.count 1.mu.a 3.count 3.mu.a"),
    "counts swapped": (COUNTED[::-1], COUNTED, *["0.inner_state.1.count 1.inner_state.1.count"] * 2, ""),
}  # fmt: skip


@pytest.mark.parametrize(("new", "old", "ours", "theirs", "kept"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguity_is_an_error_with_a_hint(new: Any, old: Any, ours: str, theirs: str, kept: str) -> None:
    with pytest.raises(ValueError, match="rename=") as caught:
        tk.graft(new, old, strict=False)
    _, *listed = re.split("leaves:", str(caught.value))
    assert [re.findall(r"\n  (\S+)", names) for names in listed] == [ours.split(), theirs.split()]
    if kept:
        rename = ast.literal_eval(str(caught.value).rpartition("rename=")[2])
        _, kinds = loose(new, old, rename=rename)
        assert kinds["kept"] == kept


def test_values_that_are_traced_do_not_decide() -> None:
    split = group(x=A, y=state(0, "b"))
    tk.graft(AB, split)
    with pytest.raises(ValueError, match=r"inner_states\.x\.count"):
        jax.jit(lambda old: tk.graft(AB, old)[0])(split)


def test_plain_dicts_for_states_are_matched_by_name_alone() -> None:
    new = wrapped(0, A, A)
    one, two = ({"count": jnp.float32(i), "mu": {"a": jnp.float32(i)}} for i in (1, 2))
    for inner in ([one, two], {"0": one, "1": two}, {0: one, 1: two}):
        assert numbers(tk.graft(new, {"steps": jnp.float32(7), "inner_state": inner})[0]) == [7, 1, 1, 2, 2]
        got, _ = tk.graft(new, {"x": inner}, rename={"x.**": "inner_state.**"}, fresh="steps")
        assert numbers(got) == [0, 1, 1, 2, 2]


STRANGE = np.array([[1.0, np.nan], [np.inf, -np.inf]])


@pytest.mark.parametrize(
    ("x", "number"),
    [
        *[(jnp.asarray(STRANGE, dtype), 3) for dtype in (jnp.float32, jnp.bfloat16, jnp.float8_e5m2, jnp.complex64)],
        (jnp.asarray(STRANGE, jnp.float8_e4m3fn), 3),  # which has no infinity, but NaN
        (STRANGE, 3),
        (np.array([3]), 0),
    ],
)
def test_the_report_counts_numbers_that_are_not_finite(x: Any, number: int) -> None:
    new: dict[str, Any] = {"w": jnp.zeros_like(x), "b": 1.0}
    got, report = tk.graft(new, {"w": x, "b": 1.0})
    assert report.not_finite == number and [row.not_finite for row in report] == [0, number]
    assert all(("not finite" in line) == (number > 0) for line in (str(report).splitlines()[0], report[1].old))
    assert tk.graft(new, {"w": x, "b": 1.0}, fresh="w")[1].not_finite == 0  # it has the new value
    assert jax.jit(lambda old: tk.graft({"w": +old["w"]}, old)[1].not_finite)({"w": jnp.asarray(x)}) == 0  # unknown
    np.testing.assert_array_equal(np.asarray(got["w"], complex), np.asarray(x, complex))
