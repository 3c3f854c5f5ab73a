"""tree_diff: every difference, of the right kind, at the right place, in words a person can read."""

import dataclasses
import functools
import re
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType

import treekit as tk
from tests.releases import HOST_MEMORY, P, needs
from tests.trees import FLOAT, Box, Point, Refusing, Twig, deleted, follow, is_leaf, places, trees, untyped
from treekit._compare.differences import Kind, TreeDiff
from treekit.testing import assert_trees_same

KEY, SAME_KEY, OTHER_KEY = map(jax.random.key, (0, 0, 1))
nan = float("nan")
f32, bf16 = jnp.ones(2, jnp.float32), jnp.ones(2, jnp.bfloat16)
abstract = untyped.ShapeDtypeStruct((2,), jnp.float32)


def namesake() -> Any:
    """An instance of a class whose name another one has too."""
    cls: Any = type("Same", (), {})
    return tk.node(cls)()


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Conv:
    kernel: Any
    stride: Any = dataclasses.field(metadata={"static": True})
    padding: str = dataclasses.field(default="same", metadata={"static": True})


def objects(*items: Any) -> Any:
    """A NumPy array of these objects, which may be arrays themselves."""
    out = np.empty(len(items), object)
    for i, item in enumerate(items):
        out[i] = item
    return out


@dataclasses.dataclass
class Unregistered:
    """Its generated `__eq__` compares arrays by their truth value, which only those of one element have."""

    x: Any


class Named(dict[str, Any]):
    """A dict with an `__eq__` of its own."""

    def __init__(self, name: str, **items: Any) -> None:
        super().__init__(items)
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name


# What has arrays in it, and how it is a leaf or a static part of a node.
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "an unregistered dataclass": Unregistered,
    "objects of NumPy": lambda x: objects([x], x),
    "a static array": lambda x: Conv(1, x),
    "a static list": lambda x: Conv(1, [x]),
    "static: a dict in a dataclass": lambda x: Conv(1, Unregistered({"a": (x, 1)})),
    "static: an `__eq__` of its own": lambda x: Conv(1, Named("a", x=x)),
}


@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize("name", HOLDERS)
def test_arrays_in_objects_are_compared_in_the_same_way_whatever_their_size(name: str, size: int) -> None:
    hold = HOLDERS[name]
    ones = np.ones(size)
    for same in (ones, ones * nan, ones > 0):
        assert not tk.tree_diff({"x": hold(same)}, {"x": hold(same.copy())})
    others = [ones.astype(int), jnp.ones(size), np.ones((size, 2)), 1.0]
    for other in others + [ones * 2, ones * nan] * (size > 0):
        (found,) = tk.tree_diff({"x": hold(ones)}, {"x": hold(other)})
        assert found.kind == ("static value" if name.startswith(("static", "a static")) else "value")


LONG = np.ones(1, np.longdouble)
LONGER, EPS = np.nextafter(LONG, 2 * LONG), float(np.finfo(LONG.dtype).eps)
# kind, a, b: each differs at one place, in one way
PAIRS: dict[str, tuple[Kind, Any, Any]] = {
    "a class and its base": ("type", {"a": 1}, OrderedDict(a=1)),
    "leaf, node": ("type", 1, [1]),
    "number too long to write, string": ("type", 10**5000, "1"),
    "classes of one name": ("type", namesake(), namesake()),
    "key": ("structure", {"a": 1}, {"a": 1, "b": 2}),
    "static of a node": ("static value", Twig(1, name="x"), Twig(1, name="y")),
    "static tuple": ("static value", Twig(1, name=(1, 2)), Twig(1, name=(1, 2.0))),
    "function of a Partial": ("static value", untyped.tree_util.Partial(len, 1), untyped.tree_util.Partial(max, 1)),
    "order of an OrderedDict": ("static value", OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    "None, array": ("array against None", None, f32),
    "shape": ("shape", f32, jnp.ones(3, f32.dtype)),
    "dtype": ("dtype", f32, bf16),
    "dtype that JAX makes one of": ("dtype", np.zeros(2, "f8"), np.zeros(2, "f4")),
    "dtype of NumPy strings": ("dtype", np.array(["a"]), np.array(["a"], "U2")),
    "kind of key": ("dtype", KEY, jax.random.key(0, impl="rbg")),
    "dtype without values": ("dtype", abstract, untyped.ShapeDtypeStruct((2,), jnp.bfloat16)),
    "weak type": ("weak type", jnp.asarray(1.0), jnp.ones(())),
    "number, array": ("type", 1.0, jnp.asarray(1.0)),
    "number, number of NumPy": ("type", 0.1, np.float32(0.1)),
    "bool, array": ("type", True, jnp.asarray(True)),
    "value": ("value", f32, f32.at[1].set(2)),
    "value of complex": ("value", jnp.array([1j]), jnp.array([2j])),
    "imaginary part of NaN": ("value", complex(nan, 1), complex(nan, 2)),
    "NaN in the other part": ("value", np.array([complex(nan, 1)]), np.array([complex(1, nan)])),
    "the last bit of a long double": ("value", LONG, LONGER),
    "value of keys": ("value", KEY, jax.random.key(1)),
    "value of numbers": ("value", 0.1, 0.1 + 1e-12),
    "value of NumPy strings": ("value", np.array(["a", "b"]), np.array(["a", "c"])),
    "arrays in NumPy objects": ("value", objects(np.ones(2), 1), objects(np.zeros(2), 1)),
    "value of times": ("value", np.array(["2020-01-01", "NaT"], "M8[D]"), np.array(["2020-01-02", "NaT"], "M8[D]")),
    "a deleted array": ("value", deleted(), f32),
    "late in a very large array": ("value", jnp.zeros(5000), jnp.zeros(5000).at[2500].set(1)),
    "digits that are not printed": ("value", jnp.array([0.1], "float32"), jnp.array([0.1], "float32") + 1e-8),
    "an `__eq__` of its own": ("value", objects(Named("a", x=1)), objects(Named("b", x=1))),
    "an `__eq__` of its own, with arrays": ("value", objects(Named("a", x=f32)), objects(Named("b", x=f32))),
    "objects that refuse everything": ("value", Refusing(), Refusing()),
    "static parts of them": ("value", objects(Conv(1, Refusing())), objects(Conv(1, Refusing()))),
}


def told(diff: TreeDiff, *, mirrored: bool = False) -> list[tuple[str, str, str, str]]:
    return [(d.path, d.kind, *((d.right, d.left) if mirrored else (d.left, d.right))) for d in diff]


@pytest.mark.parametrize("name", PAIRS)
def test_one_difference_is_found_once_with_its_kind_and_path(name: str) -> None:
    kind, a, b = PAIRS[name]
    static_field = ["name"] if kind == "static value" and isinstance(a, Box | Twig) else []
    deep = [{"m": Box([Twig((1, {"k": Point(x, None)}))])} for x in (a, b)]
    for path, (found,) in (("", tk.tree_diff(a, b)), ("m.value.0.left.1.k.x", tk.tree_diff(*deep))):
        assert (found.kind, found.path) == (kind, ".".join([path] * bool(path) + static_field))
        assert found.left != found.right
        assert "\n" not in found.left + found.right and len(found.left + found.right) < 500
    assert told(tk.tree_diff(a, b)) == told(tk.tree_diff(b, a), mirrored=True)


inf = float("inf")
HUGE = jnp.array(3e38, "bfloat16")
# a, b, and the largest absolute and relative difference: None where there is none. Of arrays, b is the second row.
FAR: dict[str, tuple[Any, Any, tuple[float | None, float | None]]] = {
    "the largest of several": (np.array([1.0, 5.0, 9.0]), np.array([2.0, 5.0, 4.0]), (5, 1.25)),
    "zero on the right": (np.array([1.0, 1.0]), np.array([0.0, 2.0]), (1, inf)),
    "NaN": (nan, 1.0, (inf, inf)),
    "equal infinities and NaN": (np.array([inf, nan, 1.0]), np.array([inf, nan, 2.0]), (1, 0.5)),
    "more than a float can be": (np.array([1e308]), np.array([-1e308]), (inf, inf)),
    "bf16, widened": (HUGE, -HUGE, (2 * float(HUGE), 2)),
    "long doubles": (LONGER, LONG, (EPS, EPS)),
    "uint8": (jnp.array([0], "uint8"), jnp.array([255], "uint8"), (255, 1)),
    "ints at their ends": (np.array([-(2**63), 1]), np.array([2**63 - 1, 1]), (2**64, 2)),
    "ints of Python": (2**70, 2**70 + 1, (1, 2**-70)),
    "ints larger than a float": (10**400, 0, (inf, inf)),
    "bools": (np.array([True]), np.array([False]), (None, None)),
    "strings": ("a", "b", (None, None)),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", FAR)
def test_how_far_values_differ_and_which_tolerances_suffice(name: str) -> None:
    a, b, far = FAR[name]
    (found,) = tk.tree_diff([a], [b])
    assert (found.largest_absolute, found.largest_relative) == (far if None in far else pytest.approx(far, rel=1e-15))
    assert ("off by up to" in " ".join(str(tk.tree_diff([a], [b])).split())) == (far[0] is not None)
    if jnp.issubdtype(getattr(a, "dtype", type(a)), jnp.inexact):
        for name, largest in zip(("atol", "rtol"), far, strict=True):
            if largest is not None and largest < inf:
                enough: dict[str, Any] = {name: largest * (1 + 1e-12)}
                too_little: dict[str, Any] = {name: largest * 0.99}
                assert not tk.tree_diff(a, b, **enough) and tk.tree_diff(a, b, **too_little)


EQUAL: dict[str, tuple[Any, Any]] = {
    "NaN": (nan, float("nan")),
    "NaN of two bit patterns": (np.array([0x7FC00000], "u4").view("f4"), np.array([0x7FC00001], "u4").view("f4")),
    "NaN in both parts": (np.array([complex(nan, 1), complex(1, nan)]), np.array([complex(nan, 1), complex(1, nan)])),
    "NaN of long doubles": (LONG * nan, LONG * nan),
    "static NaN": (Twig(1, name=nan), Twig(1, name=float("nan"))),
    "float0": (np.zeros(2, jax.dtypes.float0), np.zeros(2, jax.dtypes.float0)),
    "NaN in NumPy objects": (np.array([None, nan]), np.array([None, float("nan")])),
    "arrays in NumPy objects": (objects(np.ones(2), {"a": f32}), objects(np.ones(2), {"a": f32 + 0})),
    "NaT": (np.array(["NaT", "2020-01-01"], "M8[D]"), np.array(["NaT", "2020-01-01"], "M8[D]")),
    "f64 of NumPy as JAX has it": (np.array([0.1, 1e300]), jnp.array([0.1, 1e300 if FLOAT == "float64" else jnp.inf])),
    "zeros of bf16": (jnp.zeros(2, "bfloat16"), -jnp.zeros(2, "bfloat16")),
    "abstract and concrete": (abstract, f32),
    "static arrays": (Conv(1, np.ones(2)), Conv(1, np.ones(2))),
    **{f"{type(x).__name__} and itself": (x, x) for x in (deleted(), Refusing(), objects(Refusing()))},
}
with jax.debug_nans(False):
    EQUAL["NaN and infinities in an array"] = (jnp.array([nan, jnp.inf, -jnp.inf]), jnp.array([nan, jnp.inf, -jnp.inf]))


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", EQUAL)
def test_what_counts_as_equal(name: str) -> None:
    a, b = EQUAL[name]
    assert tk.tree_diff({"x": a}, {"x": b}) == ()
    assert tk.tree_diff({"x": b}, {"x": a}) == ()


def test_on_an_accelerator_all_values_are_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy for each array would take its time each. What is compared without values is not copied."""
    copied: list[list[Any]] = []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "device_get", copied.append)
    readable = [jnp.arange(2) + i for i in range(4)]
    found = tk.tree_diff([readable[0], readable[1], deleted()], [readable[2], readable[3], f32])
    assert [d.path for d in found] == ["0", "1", "2"]
    jax.jit(lambda x: tk.tree_diff([x], [f32]) and x)(jnp.arange(2))
    assert sorted(map(id, copied[0])) == sorted(map(id, readable)) and copied[1:] == [[]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_large_array_is_compared_without_copies_of_it(dtype: str) -> None:
    a, b = jnp.ones(1_000_000, dtype), jnp.ones(1_000_000, dtype).at[-1].set(2)
    tracemalloc.start()
    assert len(tk.tree_diff(a, b)) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < a.nbytes


def same_again(leaf: Any) -> Any:
    """The same value in another object."""
    if eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf.copy()
    return leaf


@given(trees(), trees())
def test_laws_of_any_two_trees(a: Any, b: Any) -> None:
    assert str(tk.tree_diff(a, jax.tree.map(same_again, a))) == "no difference"
    diff, back = tk.tree_diff(a, b), tk.tree_diff(b, a)
    assert sorted(told(diff, mirrored=True)) == sorted(told(back))
    same_structure = untyped.tree.structure(a) == untyped.tree.structure(b)
    if not diff:
        assert_trees_same(a, b)
        assert same_structure
        assert all(map(lambda x, y: type(x) is type(y), jax.tree.leaves(a), jax.tree.leaves(b)))
        return
    assert same_structure or {d.kind for d in diff} & {"type", "structure", "static value", "array against None"}
    shown = [f"{found.path or '(root)'}{found.kind}{found.left}|{found.right}" for found in diff]
    assert not Counter("".join("".join(shown).split())) - Counter(str(diff))  # in one line or in several
    assert all(len(found.left) < 500 for found in diff)
    with pytest.raises(AssertionError, match=re.escape(str(diff))):
        assert_trees_same(a, b)


@given(trees(), st.data())
def test_what_was_changed_is_what_is_found(tree: Any, data: st.DataObject) -> None:
    leaves = [path for path, node in places(tree).items() if is_leaf(node)]
    changed = data.draw(st.lists(st.sampled_from(leaves), unique=True)) if leaves else []
    new = object()
    other = tk.tree_at(lambda t: [follow(p, t) for p in changed], tree, [new] * len(changed))
    keystr = functools.partial(untyped.tree_util.keystr, simple=True, separator=".")
    diff = tk.tree_diff(tree, other)
    assert [d.path for d in diff] == [keystr(p) for p in leaves if p in changed], "in the order of the tree"


class OneKey(list[int]):
    """A class that gives all of its children one key."""


jax.tree_util.register_pytree_with_keys(
    OneKey,
    lambda children: ([(jax.tree_util.GetAttrKey("x"), child) for child in children], None),
    lambda _, children: OneKey(children),
)


# a, b, and the path and kind of each difference
SEVERAL: dict[str, tuple[Any, Any, list[tuple[str, Kind]]]] = {
    "ways of a leaf": (jnp.ones(2), jnp.ones(3, jnp.bfloat16), [("", "shape"), ("", "dtype")]),
    "a weak type and a value": (jnp.asarray(1.0), jnp.zeros(()), [("", "weak type"), ("", "value")]),
    "static fields": (Conv(0, 1, "a"), Conv(0, 1.0, "b"), [("stride", "static value"), ("padding", "static value")]),
    "a static array": (Conv(1, np.ones(2)), Conv(2, np.zeros(2)), [("stride", "static value"), ("kernel", "value")]),
    "one key for two children": (OneKey([1, 2]), OneKey([5, 2]), [("0", "value")]),
    "the number of children of one key": (OneKey([1, 2]), OneKey([1]), [("", "structure")]),
    "two deleted arrays": ([deleted()], [deleted()], [("0", "value")]),
    "in the order of the first": ({"b": 1, "a": [2]}, {"a": [0]}, [("", "structure"), ("a.0", "value")]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_all_differences_are_found(name: str) -> None:
    a, b, expected = SEVERAL[name]
    assert [(d.path, d.kind) for d in tk.tree_diff(a, b)] == expected


def test_tracers() -> None:
    """While tracing, shapes and dtypes are compared, and values where both are known."""

    @jax.jit
    def check(x: jax.Array, n: jax.Array) -> None:
        dtype, value = tk.tree_diff([x, n, 1], [x + 1, f32, 2])
        assert (dtype.path, dtype.kind, dtype.left, dtype.right) == ("1", "dtype", "i32[2]", "f32[2]")
        assert (value.path, value.kind) == ("2", "value")
        (of_keys,) = tk.tree_diff([KEY, KEY], [SAME_KEY, OTHER_KEY])
        assert (of_keys.path, of_keys.kind) == ("1", "value")

    check(f32, jnp.arange(2, dtype=jnp.int32))


def test_without_values() -> None:
    a = {"w": f32, "b": "a", "n": 1, "f": len}
    assert_trees_same(a, {"w": f32 * 2, "b": "b", "n": 2, "f": max}, values=False)
    other = {"w": jnp.ones(3, f32.dtype), "b": 1, "n": 1.0, "f": len}
    assert [d.kind for d in tk.tree_diff(a, other, values=False)] == ["type", "dtype", "shape"]


def test_tolerances_are_numpys() -> None:
    a, b = jnp.array([1.0, 100.0]), jnp.array([1.001, 100.1])
    for rtol, atol in ((0.0, 0.0), (0.0015, 0.0), (0.0, 0.01), (0.0, 0.2), (0.0005, 0.0009)):
        same = np.allclose(np.asarray(a, float), np.asarray(b, float), rtol=rtol, atol=atol)
        assert bool(tk.tree_diff(a, b, rtol=rtol, atol=atol)) is not same
    assert_trees_same(a, b, rtol=0.0005, atol=0.06)
    assert tk.tree_diff(jnp.arange(3), jnp.arange(3) + 1, rtol=1.0, atol=10.0), "ints are exact"
    zeros: list[Any] = [0, np.float32(0), np.int64(0), jnp.zeros(()), False]
    for zero in zeros:  # any real number is a tolerance
        assert tk.tree_diff(1.0, 1.5, rtol=zero, atol=zero) and not tk.tree_diff(1.0, 1.5, rtol=zero, atol=1)


def test_tolerances_hold_for_each_part_of_a_complex_number_beside_a_nan() -> None:
    nan = float("nan")
    a = np.array([complex(nan, 1), complex(1, nan), complex(nan, nan), 1 + 1j])
    assert not tk.tree_diff(a, a + (1e-3 + 1e-3j), atol=2e-3)
    for i, other in enumerate([complex(1, nan), complex(2, nan), complex(nan, 1), complex(1, nan)]):
        b = a.copy()
        b[i] = other
        assert tk.tree_diff(a, b, atol=0.1)


DIGITS = "".join(f"{i}," for i in range(1000))
UNLIKE: dict[str, tuple[Any, Any, str, str]] = {
    "in the middle": (f"{DIGITS}x{DIGITS}", f"{DIGITS}y{DIGITS}", "999,x0,1", "999,y0,1"),
    "longer": (f"{DIGITS}", f"{DIGITS}more", "999,'", "999,more'"),
    "spaces": ("a b", "a  b", "'a b'", "'a  b'"),
    "an int": (10**300, 10**300 + 7, "000", "007"),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_of_long_values_what_differs_is_shown(kind: str) -> None:
    a, b, left, right = UNLIKE[kind]
    (found,) = tk.tree_diff(a, b)
    assert left in found.left and right in found.right and max(len(found.left), len(found.right)) < 70


@pytest.mark.parametrize(("count", "more"), [(50, ""), (500, "450 of value, ")])
def test_a_long_text_is_cut_with_a_count(count: int, more: str) -> None:
    diff = tk.tree_diff([1] * count + [None], [2] * count + [1])
    lines = str(diff).splitlines()
    assert (len(diff), len(lines)) == (count + 1, 51) and lines[49].startswith("49 ")
    rows = "row" if count == 50 else "rows"
    assert lines[-1] == f"… and {count - 49} more {rows}: {more}1 of array against None"


def test_of_many_keys_those_are_named_that_the_other_has_not() -> None:
    a: dict[str, int] = {f"layer{i}": 0 for i in range(1000)}
    (found,) = tk.tree_diff(a, {name: 0 for name in a if name != "layer7"})
    assert (found.left, found.right) == ("1,000 children, among them layer7", "999 children")
    (found,) = tk.tree_diff(a, {})
    assert found.left.endswith(" and 976 more") and len(found.left) < 500 and found.right == "no children"


def test_html_is_escaped_and_cut() -> None:
    page = tk.tree_diff({"<b>": 1, "c": f32}, {"<b>": 2, "c": bf16})._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page and page.count("<tr>") == 3
    assert "off by up to 1, relative 0.5" in page and "\033" not in page
    page = tk.tree_diff([1] * 60, [2] * 60)._repr_html_()
    assert page.count("<tr>") == 51 and "<p>… and 10 more rows: 10 of value</p>" in page
    assert tk.tree_diff(1, 1)._repr_html_() == "<p>no difference</p>"


class Quiet(Conv):
    def __repr__(self) -> str:
        return "quiet"


class Unnamed:
    def __call__(self) -> None: ...


# What is shown of a value, wherever one is: functions by name, and no addresses.
SHOWN: list[tuple[Any, str]] = [
    (jax.nn.relu, "<custom_jvp relu>"),
    (jax.nn.silu, "<jitted silu>"),
    (jax.nn.gelu, "<function gelu>"),
    (jax.vmap(follow), "<wrapped function follow>"),
    (Unnamed(), f"<{__name__}.Unnamed object>"),
    (tk.tree_diff(1, 2).show, "<bound method Shown.show>"),
    (functools.partial(jax.nn.relu, 1), "partial(<custom_jvp relu>, 1)"),
    (Conv((jax.nn.silu, None), 1), "Conv(kernel=(<jitted silu>, None), stride=1, padding='same')"),
    (Quiet(jax.nn.silu, 1), "quiet"),
    ((Conv, "a"), f"({__name__}.Conv, 'a')"),
]


@pytest.mark.parametrize(("value", "shown"), SHOWN)
def test_functions_are_shown_by_name(value: Any, shown: str) -> None:
    (found,) = tk.tree_diff(objects(value), objects(None))
    assert found.left == f"{shown} at [0]"


@needs(HOST_MEMORY)
def test_arrays_in_another_kind_of_memory_differ_without_values_too() -> None:
    host = jax.sharding.SingleDeviceSharding(untyped.devices()[0], memory_kind="pinned_host")
    for values in (True, False):
        (found,) = tk.tree_diff([f32], [jax.device_put(f32, host)], values=values)
        assert (found.path, found.kind) == ("0", "sharding")
        assert "device" in found.left and "pinned_host" in found.right
    assert not tk.tree_diff(jax.device_put(f32, host), jax.device_put(f32, host))


def test_a_mesh_of_one_device_is_the_same_place() -> None:
    mesh: Any = untyped.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    assert not tk.tree_diff(f32, jax.device_put(f32, jax.NamedSharding(mesh, P("x"))))
