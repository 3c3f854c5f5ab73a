"""graft: values carried over by key path, and a report that says what became of every leaf."""

import io
import re
import subprocess
import sys
from collections import namedtuple
from typing import Any, NamedTuple, assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given

import treekit as tk
from tests.trees import EXAMPLES, Point, Twig, trees, untyped


def ones(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.ones(shape, dtype)


def zeros(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.zeros(shape, dtype)


def paths(rows: Any) -> list[str]:
    return [row.path for row in rows]


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


@pytest.mark.parametrize("name", EXAMPLES)
def test_structure_classes_and_functions_are_those_of_new(name: str) -> None:
    new = EXAMPLES[name]
    old = jax.tree.map(lambda x: x + 1 if isinstance(x, int | float) and not isinstance(x, bool) else x, new)
    got, _ = tk.graft(new, old, strict=False)
    assert untyped.tree.structure(got) == untyped.tree.structure(new)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(old), strict=True):
        assert type(x) is type(y) and (x is y or has_dtype(x))


def test_an_attribute_a_key_and_an_index_are_one_name() -> None:
    new = Twig({"layers": [Point(zeros(2), zeros(3))]})
    olds: list[Any] = [
        {"left": {"layers": {"0": {"x": ones(2), "y": ones(3)}}}},
        {"left": {"layers": {0: Point(ones(2), ones(3))}}},
        Twig({"layers": (Point(ones(2), ones(3)),)}),
    ]
    for old in olds:
        got, _ = tk.graft(new, old)
        assert type(got) is Twig and type(got.left["layers"][0]) is Point
        assert all(float(x.min()) == 1 for x in jax.tree.leaves(got))


def test_what_becomes_of_each_leaf() -> None:
    new = {"a": zeros(2), "b": zeros(2), "c": zeros(3), "d": zeros(2), "f": jax.nn.relu, "n": 0, "none": None}
    old = {
        "a": ones(2),
        "c": ones(2),
        "d": ones(2, dtype=jnp.bfloat16),
        "e": ones(1),
        "f": "relu",
        "n": 7,
        "none": ones(1),
    }
    got, report = tk.graft(new, old, strict=False)
    assert paths(report.kept) == ["a", "n"]
    assert paths(report.fresh) == ["b"]
    assert paths(report.refused) == ["c", "d"]
    assert paths(report.dropped) == ["e", "none"]
    assert len(report) == 7
    assert float(got["a"][0]) == 1 and got["n"] == 7 and got["f"] is jax.nn.relu and got["none"] is None
    for name in "bcd":
        assert got[name] is new[name]
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


def test_the_report_is_printed_in_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = tk.graft({"a": zeros(2)}, {"a": ones(2)}, strict=False)
    for is_terminal in (False, True):
        out = io.StringIO()
        monkeypatch.setattr(out, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.delenv("NO_COLOR", raising=False)
        report.show()
        assert ("\033[" in out.getvalue()) is is_terminal
        assert re.sub("\033\\[\\d*m", "", out.getvalue()) == f"{report}\n"


def test_a_long_report_is_cut() -> None:
    _, report = tk.graft({str(i): 0 for i in range(60)} | {"x": 1}, {str(i): 1 for i in range(60)}, strict=False)
    assert str(report).startswith("60 kept, 1 fresh, 0 dropped, 0 refused")
    assert str(report).endswith("… and 11 more: 11 of kept")


def test_an_empty_tree() -> None:
    empty: list[Any] = [({}, {}), (None, ())]
    for new, old in empty:
        got, report = tk.graft(new, old, strict=False)
        assert got == new and report.kept == ()
    assert str(tk.graft({}, {}, strict=False)[1]) == "0 kept, 0 fresh, 0 dropped, 0 refused (new | old)"


@pytest.mark.parametrize(
    ("tree", "found"),
    [({}, r"\{\}"), (None, "None"), ("ckpt/step_3", "'ckpt/step_3'"), (optax.sgd(0.1).init({}), r"\(EmptyState\(")],
)
def test_a_tree_without_leaves_is_an_error_that_describes_it(tree: Any, found: str) -> None:
    with pytest.raises(ValueError, match=f"the old tree must be a pytree with arrays or numbers; found {found}"):
        tk.graft({"a": 1}, tree, strict=False)
    with pytest.raises(ValueError, match=f"the new tree must be a pytree with arrays or numbers; found {found}"):
        tk.graft(tree, {"a": 1}, strict=False)


def test_a_single_array() -> None:
    got, report = tk.graft(zeros(2), ones(2), strict=False)
    assert float(got[0]) == 1
    assert str(report).endswith("(root)  kept  f32[2] | f32[2]")


# --------------------------------------------------------------------------------------------- classes, dtypes, devices


def test_values_have_the_classes_of_new() -> None:
    new: dict[str, Any] = {"jax": zeros(2), "numpy": np.zeros(2, np.float32), "int": 0, "float": 0.0, "bool": False}
    old = {
        "jax": np.ones(2, np.float32),
        "numpy": ones(2),
        "int": np.int32(3),
        "float": jnp.float32(2),
        "bool": np.array(True),
    }
    got, _ = tk.graft(new, old, cast=True)
    assert isinstance(got["jax"], jax.Array) and isinstance(got["numpy"], np.ndarray)
    assert [(type(got[k]), got[k]) for k in ("int", "float", "bool")] == [(int, 3), (float, 2.0), (bool, True)]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (np.zeros(1), np.array([1 + 2.0**-40])),
        (np.zeros(1), np.array([1e300])),
        (np.zeros(1, np.int64), np.array([2**40])),
        (np.float64(0), np.float64(0.1)),
        (np.int64(0), np.int64(2**40)),
        (0.0, np.float64(0.1)),
        (0, np.int64(2**40)),
        (0, 2**70),
    ],
)
def test_wide_values_on_the_host_are_not_rounded(new: Any, old: Any) -> None:
    got, _ = tk.graft({"w": new}, {"w": old})
    assert type(got["w"]) is type(new) and getattr(got["w"], "dtype", 0) == getattr(new, "dtype", 0)
    assert got["w"] == old


def test_keys_are_kept() -> None:
    got, _ = tk.graft({"k": jax.random.key(0)}, {"k": jax.random.key(1)})
    assert bool(got["k"] == jax.random.key(1))
    _, report = tk.graft({"k": jax.random.key(0), "x": 0}, {"k": jnp.uint32([0, 1]), "x": 1}, cast=True, strict=False)
    assert paths(report.refused) == ["k"]


def test_an_int_that_does_not_fit_is_refused() -> None:
    for old in (2**40, np.int64(2**40), np.array([3, -(2**40)])):
        for new in (jnp.zeros(np.shape(old), jnp.int32), np.zeros(np.shape(old), np.int32)):
            _, report = tk.graft({"n": new, "x": 0}, {"n": old, "x": 1}, strict=False)
            assert paths(report.refused) == ["n"]
    got, report = tk.graft(
        {"a": zeros(1, dtype=jnp.int8), "b": zeros(1, dtype=jnp.int8)},
        {"a": jnp.array([300], jnp.int16), "b": jnp.array([-128], jnp.int16)},
        cast=True,
        strict=False,
    )
    assert paths(report.refused) == ["a"] and got["b"] == -128


def test_cast() -> None:
    new = {"down": zeros(2, dtype=jnp.bfloat16), "up": zeros(2), "int": zeros(2, dtype=jnp.int32), "float": zeros(2)}
    old = {"down": ones(2), "up": ones(2, dtype=jnp.bfloat16), "int": ones(2), "float": ones(2, dtype=jnp.int32)}
    with pytest.raises(ValueError, match=r"(?s)leaves are left.*\n  int \(i32\[2\] \| f32\[2\]\)"):
        tk.graft(new, old)
    got, report = tk.graft(new, old, cast=True, strict=False)
    assert paths(report.refused) == ["int"]
    assert {k: x.dtype.name for k, x in got.items()} == {k: x.dtype.name for k, x in new.items()}
    assert all(float(got[k][0]) == 1 for k in ("down", "up", "float"))


@pytest.mark.parametrize("old", [np.array([0.0, -np.inf]), np.array([0, 1]), ones(2), 1])
def test_a_number_is_not_cast_to_a_flag(old: Any) -> None:
    """Zero means True in a mask that is added to scores."""
    new = {"mask": jnp.zeros(np.shape(old), bool), "x": 0}
    _, report = tk.graft(new, {"mask": old, "x": 1}, cast=True, strict=False)
    assert paths(report.refused) == ["mask"]
    tk.graft(new, {"mask": old, "x": 1}, convert={"mask": lambda x: x == 0})


def test_shapes_and_dtypes_will_do_for_new() -> None:
    new = jax.eval_shape(lambda: {"w": zeros(2), "b": zeros(3)})
    got, report = tk.graft(new, {"w": np.ones(2, np.float32)}, strict=False)
    assert isinstance(got["w"], jax.Array) and got["b"] is new["b"] and paths(report.fresh) == ["b"]


def test_values_lie_where_those_of_new_do() -> None:
    sharding = jax.sharding.SingleDeviceSharding(untyped.devices()[0], memory_kind="pinned_host")
    new = jax.device_put(zeros(2), sharding)
    abstract = untyped.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding)
    for wanted in (new, abstract):
        got, _ = tk.graft({"w": wanted}, {"w": ones(2)}, strict=False)
        assert got["w"].sharding == sharding


def test_under_jit() -> None:
    @jax.jit
    def carry(new: Any, old: Any) -> Any:
        return tk.graft(new, old, strict=False)[0]

    got = carry({"w": zeros(2), "n": 0, "b": zeros(3)}, {"w": ones(2), "n": 4})
    assert float(got["w"][0]) == 1 and int(got["n"]) == 4 and float(got["b"][0]) == 0
    traced = jax.jit(lambda old: tk.graft({"w": zeros(2), "n": 0}, old, strict=False)[0])({"w": ones(2), "n": 4})
    assert float(traced["w"][0]) == 1 and int(traced["n"]) == 4


def test_nnx() -> None:
    class Net(nnx.Module):
        def __init__(self, out: int) -> None:
            self.body = nnx.Linear(3, 2, rngs=nnx.Rngs(out))
            self.head = nnx.Linear(2, out, rngs=nnx.Rngs(out))

    new, old = nnx.split(Net(4))[1], nnx.split(Net(3))[1]
    got, report = tk.graft(new, old, strict=False)
    assert type(got) is type(new)
    assert paths(report.kept) == ["body.bias", "body.kernel"]
    assert paths(report.refused) == ["head.bias", "head.kernel"]
    from_pure, _ = tk.graft(new, nnx.to_pure_dict(old), strict=False)
    assert not tk.tree_diff(from_pure, got)
    pure, _ = tk.graft(nnx.to_pure_dict(new), nnx.to_pure_dict(old), strict=False)
    np.testing.assert_array_equal(pure["body"]["kernel"], nnx.to_pure_dict(got)["body"]["kernel"])


# --------------------------------------------------------------------------------------------------------------- rename


def test_rename() -> None:
    old = {"encoder": {"0": ones(2), "1": 2 * ones(2)}, "head": ones(3), "x": 4}
    new = {"body": {"layers": [zeros(2), zeros(2)]}, "out": zeros(3), "x": 0}
    got, report = tk.graft(new, old, rename={"encoder.*": "body.layers.*", "head": "out"})
    assert [float(jnp.max(x)) for x in jax.tree.leaves(got)] == [1, 2, 1, 4]
    assert str(report).splitlines()[1] == "body.layers.0  kept  f32[2] | f32[2] at encoder.0"


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ({"a.**": "b.**", "b.**": "a.**"}, {"a": [3.0, 4.0], "b": [1.0, 2.0]}),
        ({"a.0": "a.1", "a.1": "a.0"}, {"a": [2.0, 1.0], "b": [3.0, 4.0]}),
        ({"**.0": "**.1", "**.1": "**.0"}, {"a": [2.0, 1.0], "b": [4.0, 3.0]}),
        ({"a.*": "b.*"}, {"a": [0.0, 0.0], "b": [1.0, 2.0]}),
        ({"a.0": "b.1"}, {"a": [0.0, 2.0], "b": [3.0, 1.0]}),
        ({"*.0": "*.1"}, {"a": [0.0, 1.0], "b": [0.0, 3.0]}),
        ({"a.0": "a.0", "a.*": "b.*"}, {"a": [1.0, 0.0], "b": [3.0, 2.0]}),
    ],
)
def test_the_first_pattern_moves_a_leaf_and_what_it_displaces_is_dropped(rename: Any, expected: Any) -> None:
    got, report = tk.graft(
        {"a": [0.0, 0.0], "b": [0.0, 0.0]}, {"a": [1.0, 2.0], "b": [3.0, 4.0]}, rename=rename, strict=False
    )
    assert got == expected
    assert len(report.dropped) == len(report.fresh) == sum(x == 0 for x in jax.tree.leaves(got))


def test_a_part_of_a_part_and_the_root() -> None:
    got, _ = tk.graft({"layer_0": 0, "layer_1": 0}, {"block0": 1, "block1": 2}, rename={"block*": "layer_*"})
    assert got == {"layer_0": 1, "layer_1": 2}
    assert tk.graft({"a": {"b": 0}}, {"params": {"a": {"b": 1}}}, rename={"params.**": "**"}, strict=False)[0] == {
        "a": {"b": 1}
    }
    assert tk.graft({"params": {"a": {"b": 0}}}, {"a": {"b": 1}}, rename={"**": "params.**"}, strict=False)[0] == {
        "params": {"a": {"b": 1}}
    }
    assert tk.graft({"w": 0}, 1, rename={"**": "**.w"}, strict=False)[0] == {"w": 1}


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"haed": "head"}, r"rename: 'haed' matches no leaf of the old tree. The nearest paths: head, a"),
        (
            {"head": "haed"},
            r"rename: 'head' leads to haed, which the new tree does not have. The nearest paths: head, a",
        ),
        ({"*": "x.*"}, r"leads to x\.a"),
        (
            {"*": "**"},
            r"needs the same wildcards on both sides, .* to stack or unstack\. Found '\*' and '\*\*'\.$",
        ),
        ({"a": "b*"}, r"needs the same wildcards .*Found 'a' and 'b\*'\.$"),
        ({"*": "*.*"}, r"Found '\*' and '\*\.\*'\. It could be any of several '\*'"),
        ({"a": "*"}, r"'a' lacks a '\*' of '\*', so what it matches is unstacked; a has no axes"),
        ({"*": "b"}, r"'b' lacks a '\*' of '\*', .* in the order of integers; at a it matches 'a'"),
        ({"a": "head", "head": "head"}, "rename maps head and a to one name: head"),
        (
            {"**": "**", "a": "head"},
            r"rename: 'a' decides about no leaf, since earlier .*: '\*\*'\. Put it before",
        ),
        (
            {"head": "head", "a": "a", "*": "*"},
            r"rename: '\*' decides about no leaf, .*: 'head', 'a'\. Put it before them",
        ),
    ],
)
def test_a_rename_that_leads_nowhere(rename: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tk.graft({"a": 0, "head": 0}, {"a": 1, "head": 1}, rename=rename, strict=False)


# --------------------------------------------------------------------------------------------------------------- resize


def grow(new: Any, old: Any) -> Any:
    return new.at[: old.shape[0]].set(old)


def test_resize() -> None:
    old = {"embed": ones(3, 2), "head": ones(3)}
    new = {"embed": zeros(5, 2), "head": zeros(5)}
    for resize, expected in (
        (grow, [6, 3]),
        ({"embed": grow}, [6, 0]),
        ({"**": grow}, [6, 3]),
        (lambda *_: None, [0, 0]),
    ):
        got, report = tk.graft(new, old, resize=resize, strict=False)
        assert [float(x.sum()) for x in got.values()] == expected
        assert len(report.kept) == sum(x > 0 for x in expected)
    assert str(tk.graft(new, old, resize=grow, strict=False)[1]).splitlines()[1] == "embed  kept  f32[5,2] | f32[3,2]"


def test_a_resized_leaf_has_the_dtype_of_new() -> None:
    new, old = {"w": zeros(5, dtype=jnp.bfloat16)}, {"w": ones(3)}
    pad = {"w": lambda new, old: jnp.pad(old, (0, 2))}
    assert paths(tk.graft(new, old, resize=pad, strict=False)[1].refused) == ["w"]
    got, _ = tk.graft(new, old, resize=pad, cast=True)
    assert got["w"].dtype == jnp.bfloat16 and float(got["w"].sum()) == 3


def test_what_resize_may_not_do() -> None:
    with pytest.raises(ValueError, match=r"at w: resize must return an array of shape \(5,\), found \(3,\)"):
        tk.graft({"w": zeros(5)}, {"w": ones(3)}, resize=lambda new, old: old, strict=False)
    with pytest.raises(TypeError, match=r"at w: resize must return an array, found \[0\.0, 0\.0\]"):
        tk.graft({"w": zeros(2)}, {"w": ones(3)}, resize=lambda new, old: [0.0, 0.0], strict=False)
    with pytest.raises(ValueError, match=r"^resize: 'wte' matches no leaf of the new tree. The nearest paths: w"):
        tk.graft({"w": zeros(5)}, {"w": ones(3)}, resize={"wte": grow}, strict=False)
    with pytest.raises(ValueError, match=r"^resize: 'w\.\+' matches no leaf of the new tree"):
        tk.graft({"w": zeros(5)}, {"w": ones(3)}, resize={re.compile("w.+"): grow}, strict=False)
    with pytest.raises(AttributeError, match=r"(?s)no attribute 'at'.*happened in the `resize` of graft, at a\.w"):
        tk.graft({"a": {"w": np.zeros(5)}}, {"a": {"w": np.ones(3)}}, resize=grow, strict=False)


# ---------------------------------------------------------------------------------------------- lists, and bad input


def layers(count: int, start: float = 1.0) -> Any:
    return {"layers": [{"w": jnp.full(2, start + i)} for i in range(count)], "head": ones(2)}


@pytest.mark.parametrize(("new", "old"), [(3, 2), (2, 3)])
def test_lists_of_other_lengths_are_a_warning(new: int, old: int) -> None:
    with pytest.warns(UserWarning, match=rf"lengths of lists differ: layers \(new {new}, old {old}\)\. Their entries"):
        got, _ = tk.graft(layers(new, 0.0), layers(old, 5.0), strict=False)
    assert [float(x["w"][0]) for x in got["layers"]] == [5.0, 6.0, 2.0][:new]


def entries(start: int, count: int) -> list[Any]:
    return [jnp.full(1, start + i, float) for i in range(count)]


LISTS: dict[str, Any] = {
    "layers": lambda start, n: {"layers": [{"w": x} for x in entries(start, n)]},
    "blocks of arrays": lambda start, n: {"model": {"blocks": entries(start, n)}},
    "the root": entries,
    # A list of NNX has a child without leaves next to its entries.
    "a list of NNX": lambda start, n: {"blocks": nnx.List(map(nnx.Param, entries(start, n)))},
    "its state": lambda start, n: nnx.state({"blocks": nnx.List(map(nnx.Param, entries(start, n)))}),
    "a named tuple": lambda start, n: CountState(0, {"layers": entries(start, n)}),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    ("count", "k", "moved", "unmoved"),
    [(6, 2, [10, 11, 2, 12, 13, 14], [10, 11, 12, 13, 14, 5]), (4, 3, [10, 11, 13, 14], [10, 11, 12, 13])],
)
def test_what_the_warning_suggests_is_right(name: str, count: int, k: int, moved: Any, unmoved: Any) -> None:
    new, old = LISTS[name](0, count), LISTS[name](10, 5)
    with pytest.warns(UserWarning, match="lengths of lists differ") as caught:
        tk.graft(new, old, strict=False)
    suggested = re.search(r"(rename=\{.*?\}), where.* say so with (.*)$", str(caught[0].message))
    assert suggested
    for arguments, expected in zip(suggested.groups(), (moved, unmoved), strict=True):
        got, _ = tk.graft(new, old, **eval(f"dict({arguments})", {"k": k}), strict=False)
        assert [float(x[0]) for x in jax.tree.leaves(got) if np.shape(x) == (1,)] == expected


@pytest.mark.parametrize(
    "as_restored", [lambda x: x, lambda x: x | {"layers": {str(i): y for i, y in enumerate(x["layers"])}}]
)
def test_rename_says_where_a_layer_was_inserted(as_restored: Any) -> None:
    old = as_restored(layers(12, 5.0))
    rename = {f"**.layers.{i}.**": f"**.layers.{i + 1}.**" for i in range(1, 12)}
    got, report = tk.graft(layers(13, 0.0), old, rename=rename, strict=False)
    assert [float(x["w"][0]) for x in got["layers"]] == [5.0, 1.0, *range(6, 17)]
    assert paths(report.fresh) == ["layers.1.w"]


@pytest.mark.parametrize(
    ("rename", "is_silent"),
    [
        ({"layers.**": "layers.**"}, True),
        ({"layers.4.**": "layers.5.**"}, True),  # inserted before the last
        ({"layers.*.w": "layers.*.w"}, True),
        ({"layers.1.**": "layers.2.**"}, False),  # the layers after it stay where they were
        ({"layers.0.**": "layers.0.**"}, False),
        ({"head": "head"}, False),
    ],
)
def test_a_rename_of_some_layers_does_not_say_where_those_after_them_go(rename: Any, is_silent: bool) -> None:
    trees = layers(6, 0.0), layers(5, 5.0)
    if is_silent:
        tk.graft(*trees, rename=rename, strict=False)
    else:
        with pytest.warns(UserWarning, match=r"lengths of lists differ: layers \(new 6, old 5\)"):
            tk.graft(*trees, rename=rename, strict=False)


def test_lengths_are_those_of_the_list_with_the_same_labels() -> None:
    def pair(gen: int, critic: int) -> Any:
        return {k: CountState(0, {"layers": entries(0, n)}) for k, n in (("gen", gen), ("critic", critic))}

    tk.graft(pair(3, 2), pair(3, 2))
    with pytest.warns(UserWarning, match=r"lengths of lists differ: mu.layers \(new 3, old 2\)\. "):
        tk.graft(pair(3, 3), pair(3, 2), strict=False)


def test_trees_that_have_nothing_in_common() -> None:
    with pytest.raises(ValueError, match=r"no leaf in common. Old: params.w. The nearest new paths: w, b"):
        tk.graft({"w": 0, "b": 0}, {"params": {"w": 1}}, strict=False)


def test_an_old_tree_without_values() -> None:
    with pytest.raises(TypeError, match="at w: the old tree has a shape and dtype, but no value"):
        tk.graft({"w": zeros(2)}, jax.eval_shape(lambda: {"w": ones(2)}), strict=False)


def test_two_leaves_of_one_name() -> None:
    with pytest.raises(ValueError, match=r"graft needs a different name for each leaf, but two leaves are called a\.b"):
        tk.graft({"a": 1}, {"a": {"b": 1}, "a.b": 2}, strict=False)


# ------------------------------------------------------------------------ states, as the core sees them: named tuples


class CountState(NamedTuple):
    count: Any
    mu: Any


class WrapState(NamedTuple):
    steps: Any
    inner_state: Any


Masked = namedtuple("Masked", ())


class StepsState(NamedTuple):
    mini_step: Any
    acc_grads: Any
    inner_state: Any


class CounterState(NamedTuple):
    count: Any


class GroupState(NamedTuple):
    inner_states: Any


def state(by: float, *names: str) -> Any:
    return CountState(jnp.float32(by), {name: jnp.float32(by) for name in names})


def test_a_wrapped_state_is_found_by_its_class() -> None:
    new = WrapState(jnp.float32(0), ((), state(0, "a", "b")))
    got, report = tk.graft(new, (state(1, "a"), ()), strict=False)
    assert float(got.inner_state[1].mu["a"]) == float(got.inner_state[1].count) == 1
    assert paths(report.fresh) == ["steps", "inner_state.1.mu.b"]
    back, report = tk.graft((state(0, "a"),), new._replace(inner_state=(state(2, "a"),)), strict=False)
    assert float(back[0].count) == 2 and paths(report.dropped) == ["steps"]


def test_equal_states_are_matched_by_their_names_or_not_at_all() -> None:
    old = (ones(1), state(1, "a"), {"x": 0}, state(2, "a"))
    got, _ = tk.graft(jax.tree.map(lambda x: 0 * x, old), old)
    tk.assert_trees_same(got, old)
    for moved in ((state(1, "a"), state(2, "a")), old[1:], WrapState(zeros(), old)):
        with pytest.raises(ValueError, match="graft cannot decide which old value goes where"):
            tk.graft(old, moved)


@pytest.mark.parametrize(
    ("new", "old", "message", "kept"),
    [
        (
            (state(0, "a"),),
            (state(1, "a"), state(2, "a")),
            r"The new leaves:\n  0.mu.a\nThe old leaves:\n  0.mu.a\n  1.mu.a\nDrop .* pass rename=\{'1.\*\*': '0",
            ["0.count", "0.mu.a"],
        ),
        (
            (state(0, "a"), state(0, "a")),
            (state(1, "a"),),
            r"The new leaves:\n  0.mu.a\n  1.mu.a\nThe old leaves:\n  0.mu.a\nDrop old",
            ["1.count", "1.mu.a"],
        ),
        (
            StepsState(0, {"a": 0.0}, StepsState(0, {"a": 0.0}, state(0, "a"))),
            StepsState(1, {"a": 1.0}, state(1, "a")),
            r"The new leaves:\n  acc_grads.a\n  inner_state.acc_grads.a\nThe old leaves:\n  acc_grads.a\nDrop old",
            [f"inner_state.{x}" for x in ("mini_step", "acc_grads.a", "inner_state.count", "inner_state.mu.a")],
        ),
        (
            state(0, "a", "b"),
            GroupState({"x": state(1, "a"), "y": state(2, "b")}),
            r"The new leaves:\n  count\nThe old leaves:\n  inner_states.x.count\n  inner_states.y.count\nDrop old",
            ["count", "mu.a", "mu.b"],
        ),
    ],
)
def test_what_is_ambiguous_is_an_error_with_a_hint_that_decides(new: Any, old: Any, message: str, kept: Any) -> None:
    with pytest.raises(ValueError, match=f"graft cannot decide which old value goes where. {message}") as caught:
        tk.graft(new, old, strict=False)
    _, report = tk.graft(new, old, rename=eval(str(caught.value).rpartition("rename=")[2]), strict=False)
    assert paths(report.kept) == kept


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ((CounterState(0), CounterState(0)), (CounterState(3),)),
        ((CounterState(0),), (CounterState(3), (), CounterState(3))),
    ],
)
def test_equal_counts_that_belong_to_no_params_are_not_ambiguous(new: Any, old: Any) -> None:
    """As of two schedules, of which one is new."""
    got, _ = tk.graft(new, old)
    assert all(int(x) == 3 for x in jax.tree.leaves(got))


def test_other_counts_that_belong_to_no_params_are_ambiguous() -> None:
    with pytest.raises(ValueError, match=r"cannot decide which old value goes where.*\n  0.count\nThe old"):
        tk.graft((CounterState(0),), (CounterState(3), CounterState(4)), strict=False)


def test_plain_dicts_for_states_are_matched_by_name_alone() -> None:
    """As Orbax restores them, lists for tuples; or as Flax does, strings for indices."""
    new = WrapState(jnp.float32(0), (state(0, "a"), state(0, "a")))
    one, two = ({"count": jnp.float32(i), "mu": {"a": jnp.float32(i)}} for i in (1, 2))
    for inner in ([one, two], {"0": one, "1": two}, {0: one, 1: two}):
        got, _ = tk.graft(new, {"steps": jnp.float32(7), "inner_state": inner})
        assert [float(x) for x in jax.tree.leaves(got)] == [7, 1, 1, 2, 2]
        with pytest.raises(ValueError, match=r"no leaf in common.*restore it into old_optimizer\.init\(old_params\)"):
            tk.graft(new, {"0": inner})
        got, _ = tk.graft(new, {"x": inner}, rename={"x.**": "inner_state.**"}, fresh="steps")
        assert [float(x) for x in jax.tree.leaves(got)] == [0, 1, 1, 2, 2]
        back, _ = tk.graft({"x": inner}, new, rename={"inner_state.**": "x.**", "steps": None})
        assert not any(map(float, jax.tree.leaves(back)))


def test_states_of_labels() -> None:
    new = {"opt": GroupState({"x": state(0, "a"), "y": state(0, "b"), "z": state(0, "c")})}
    moved = {"opt": GroupState({"x": state(1, "a", "b"), "w": state(2, "c")})}
    got, report = tk.graft(new, moved, strict=False)
    groups = got["opt"].inner_states.values()
    assert [(float(s.count), *map(float, s.mu.values())) for s in groups] == [(1, 1), (1, 1), (2, 2)]
    assert report.dropped == () and report.fresh == ()
    fresh = {"opt": GroupState({"x": state(1, "a"), "y": state(2, "b")})}
    got, report = tk.graft(new, fresh, strict=False)
    assert paths(report.fresh) == ["opt.inner_states.z.count", "opt.inner_states.z.mu.c"]


class OtherState(NamedTuple):
    count: Any
    mu: Any


def test_states_of_another_class_are_carried_over_by_rename_only() -> None:
    new, old = OtherState(jnp.float32(0), {"a": jnp.float32(0)}), state(1, "a")
    with pytest.raises(
        ValueError, match=r"no leaf in common\. Both have count, but .*one class to another, use rename"
    ):
        tk.graft(new, old, strict=False)
    got, report = tk.graft(new, old, rename={"mu.**": "mu.**"}, strict=False)
    assert float(got.mu["a"]) == 1 and paths(report.fresh) == paths(report.dropped) == ["count"]


def test_keys_above_a_state_are_names() -> None:
    """As of a generator and its critic: what the one still has is not for the other."""
    old = {"gen": state(1, "a"), "critic": state(2, "a", "b")}
    got, report = tk.graft({"gen": state(0, "a", "b"), "critic": state(0, "a", "b")}, old, strict=False)
    assert paths(report.fresh) == ["gen.mu.b"] and float(got["gen"].mu["b"]) == 0
    new = {"gen": state(0, "a"), "rival": state(0, "a", "b")}
    got, report = tk.graft(new, old, strict=False)
    assert paths(report.fresh) == ["rival.count", "rival.mu.a", "rival.mu.b"]
    got, report = tk.graft(new, old, rename={"critic.**": "rival.**"})
    assert float(got["rival"].count) == float(got["rival"].mu["a"]) == 2


@pytest.mark.parametrize(
    ("new", "old", "rename"),
    [
        ({"opt": state(0, "a")}, state(1, "a"), {"**": "opt.**"}),
        ({"opt": WrapState(zeros(), (state(0, "a"),))}, (state(1, "a"),), {"**": "opt.**"}),
        (WrapState(zeros(), (state(0, "a"),)), {"a": {"b": [state(1, "a")]}}, {"a.b.**": "**"}),
        ({"x": ((), state(0, "a"))}, {"y": state(1, "a")}, {"y.**": "x.**"}),
        ({"x": ((), state(0, "a"))}, {"y": [state(1, "a")]}, {"**.y.**": "**.x.**"}),
    ],
)
def test_rename_of_the_keys_above_a_state_goes_through_wrappers(new: Any, old: Any, rename: Any) -> None:
    with pytest.raises(
        ValueError, match=r"Both have optimizer states, but under other keys, .* use rename=\{"
    ) as caught:
        tk.graft(new, old, strict=False)
    for said in (rename, eval(str(caught.value).rpartition("rename=")[2])):
        got, report = tk.graft(new, old, rename=said, strict=False)
        assert report.dropped == () and len(report.kept) == 2
        assert sum(map(float, jax.tree.leaves(got))) == 2


def test_rename_of_the_keys_above_swaps_states() -> None:
    old = {"a": (state(1, "w"),), "b": (state(2, "w"),)}
    got, _ = tk.graft(old, old, rename={"a.**": "b.**", "b.**": "a.**"})
    assert float(got["a"][0].count) == float(got["a"][0].mu["w"]) == 2 and float(got["b"][0].count) == 1
    got, report = tk.graft(old, old, rename={"a.**": "b.**"}, strict=False)
    assert float(got["b"][0].count) == 1 and paths(report.fresh) == ["a.0.count", "a.0.mu.w"]
    assert paths(report.dropped) == ["b.0.count", "b.0.mu.w"]


def test_a_state_split_in_two_and_put_together_again() -> None:
    split = GroupState({"x": state(0, "a"), "y": state(0, "b")})
    got, _ = tk.graft(split, state(3, "a", "b"), strict=False)
    assert all(float(x) == 3 for x in jax.tree.leaves(got))
    whole, report = tk.graft(state(0, "a", "b"), got, strict=False)
    assert all(float(x) == 3 for x in jax.tree.leaves(whole)) and report.dropped == ()
    with pytest.raises(ValueError, match="cannot decide"):
        jax.jit(lambda old: tk.graft(state(0, "a", "b"), old, strict=False)[0])(split)


@pytest.mark.parametrize("masks", [("a", "b"), ("ac", "bc"), ("abc", "b")])
def test_states_that_have_changed_places_do_not_get_the_values_of_each_other(masks: tuple[str, str]) -> None:
    """Their names are those of each other. Parameters decide if only one of them has them; else it is an error."""
    one, two = (WrapState(zeros(), (state(i, *mask),)) for i, mask in enumerate(masks, 1))
    fresh = jax.tree.map(lambda x: 0 * x, (two, one))
    if set(masks[0]) & set(masks[1]):
        with pytest.raises(ValueError, match="cannot decide"):
            tk.graft(fresh, (one, two))
    else:
        tk.assert_trees_same(tk.graft(fresh, (one, two))[0], (two, one))
    counters = (WrapState(zeros(), (x.inner_state[0], CounterState(i))) for i, x in enumerate((one, two), 1))
    new, old = jax.tree.map(lambda x: 0 * x, (two, one)), tuple(counters)
    with pytest.raises(ValueError, match="cannot decide"):
        tk.graft(tuple(x._replace(inner_state=(x.inner_state[0], CounterState(0))) for x in new), old)


def test_params_that_are_a_bare_array() -> None:
    """Their momentum is not a counter, which several states may share."""

    class TraceState(NamedTuple):
        trace: Any

    for x in (ones(), ones(3)):
        old = GroupState({"a": TraceState(x), "b": CounterState(1)})
        got, _ = tk.graft(GroupState({"a": TraceState(0 * x), "b": CounterState(0)}), old)
        tk.assert_trees_same(got, old)
        with pytest.raises(ValueError, match=r"(?s)cannot decide.*\n  0.trace\n  1.trace\nThe old leaves:\n  trace\n"):
            tk.graft((TraceState(x), TraceState(x)), TraceState(x), strict=False)


def test_a_number_is_not_taken_for_a_parameter_where_the_other_tree_has_params_with_names() -> None:
    """As of reduce_on_plateau, in an optimizer that gets a wrapper with an accumulator."""

    class ScaleState(NamedTuple):
        scale: Any

    new = WrapState(jnp.zeros(()), (ScaleState(jnp.zeros(())), state(0, "a")))
    for old in (ScaleState(jnp.ones(())), [WrapState(jnp.ones(()), ScaleState(jnp.ones(())))]):
        got, _ = tk.graft(new, old, strict=False)
        assert float(got.inner_state[0].scale) == 1
        back, _ = tk.graft(old, got, strict=False)
        tk.assert_trees_same(back, old)


def test_types() -> None:
    assert_type(tk.graft(Point(1, 2), {"x": 1}, strict=False)[0], Point)
    model: Any = eqx.nn.Linear(1, 1, key=jax.random.key(0))
    assert isinstance(tk.graft(model, model, strict=False)[0], eqx.nn.Linear)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"resize": 2}, "resize must be a function of the new leaf and the old one, .*found 2"),
        ({"resize": {"w": 2}}, r"resize must be a function .*found \{'w': 2\}"),
        ({"rename": ["w"]}, r"rename must be a dict that maps old paths to new ones.*found \['w'\]"),
        ({"rename": {"w": []}}, r"to a list of new ones, or to None; found \{'w': \[\]\}"),
        ({"rename": {"w": ["a", 2]}}, r"to a list of new ones, or to None; found \{'w': \['a', 2\]\}"),
        ({"convert": jnp.transpose}, r"convert must be a dict from patterns .*found <function transpose>"),
        ({"convert": {"w": 2}}, r"convert must be a dict from patterns .*found \{'w': 2\}"),
        ({"rename": {2: "w"}}, r"rename must be a dict .*found \{2: 'w'\}"),
    ],
)
def test_arguments_of_another_type_are_errors_that_name_them(arguments: Any, message: str) -> None:
    tree = {"w": jnp.ones(2)}
    unchecked: Any = tk.graft
    with pytest.raises(TypeError, match=message):
        unchecked.__wrapped__(tree, {"w": jnp.ones(3)}, **arguments)


def test_the_warning_names_the_line_that_calls_graft() -> None:
    # In a process of its own: beartype, which checks treekit in these tests, adds calls between the two.
    source = "import numpy as np; import treekit as tk; tk.graft([np.ones(1), np.ones(1)], [np.ones(1)], strict=False)"
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", "-c", source], capture_output=True, text=True
    )
    assert "UserWarning: graft: lengths of lists differ" in run.stderr and run.returncode == 1
