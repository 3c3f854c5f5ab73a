"""graft as a loader: state dicts of PyTorch and others, with names, layouts and layers of their own."""

import re
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treekit as tk
from treekit import optax as tko

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=shape).astype(dtype)


def nested(names: dict[str, Any]) -> Any:
    """Nested dicts with the arrays of a flat dict."""
    out: Any = {}
    for name, x in names.items():
        *above, last = name.split(".")
        node = out
        for part in above:
            node = node.setdefault(part, {})
        node[last] = x
    return out


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


# -------------------------------------------------------------------------------------------------------------- convert


W, SQUARE, B = array(2, 3), array(3, 3), array(3)
# The old arrays, arguments, and what the new leaves get.
CONVERTED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "square arrays too": (
        {"a.w": SQUARE, "b.w": W, "b.b": B},
        {"convert": {"**.w": jnp.transpose}},
        {"a.w": SQUARE.T, "b.w": W.T, "b.b": B},
    ),
    "new names, and the first pattern decides": (
        {"x": W, "z": B},
        {"rename": {"x": "y"}, "convert": {"y": jnp.transpose, "**": jnp.negative}},
        {"y": W.T, "z": -B},
    ),
    "before resize": (
        {"w": W},
        {"convert": {re.compile("w|v"): jnp.transpose}, "resize": lambda new, old: jnp.pad(old, ((0, 1), (0, 0)))},
        {"w": np.pad(W.T, ((0, 1), (0, 0)))},
    ),
    "patterns of targets": ({"x.w": W}, {"rename": {"x.**": ("a.**", "b.**")}}, {"a.w": W, "b.w": W}),
    "no target": ({"w": W, "a.b": B, "a.c": B}, {"rename": {"a.*": None}}, {"w": W}),
    # No name is that of a nested dict.
    "names that begin with others": (
        {"x.y.z": SQUARE, "x": B, "x.y": W}, {}, {"x": B, "x.y": W, "x.y.z": SQUARE}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_convert_and_rename(name: str) -> None:
    old, arguments, expected = CONVERTED[name]
    new = {name: jnp.zeros(x.shape) for name, x in expected.items()}
    for each in [new] if name.startswith("names") else [new, nested(new)]:
        got, report = tk.graft(each, old, **arguments)
        assert not report.fresh and not report.missing and len(report.kept) == len(new)
        traced = jax.jit(lambda old, each=each: tk.graft(each, old, **arguments)[0])(old)
        for tree in (got, traced):
            for (_, want), x in zip(sorted(expected.items()), jax.tree.leaves(tree), strict=True):
                same(x, want)


def test_what_convert_returns_is_cast_or_refused() -> None:
    new = {"w": jnp.zeros((3, 2), jnp.bfloat16), "n": jnp.zeros(3), "v": jnp.zeros(1)}
    old = {"w": W, "n": B, "v": B[:1]}
    convert: Any = {"w": np.transpose, "n": lambda x: x.astype(np.int16), "v": lambda x: x[None]}
    got, report = tk.graft(new, old, convert=convert, cast=True, strict=False)
    same(got["w"], W.T.astype(jnp.bfloat16))
    assert [row.path for row in report.refused] == ["v"]
    assert str(report).splitlines()[3] == "w  kept     bf16[3,2] | f32[2,3](numpy), converted"
    _, report = tk.graft(new, old, convert=convert, strict=False)
    assert len(report.refused) == 3


# ------------------------------------------------------------------------------------------- several targets, and none


def test_a_target_that_is_missing_is_reported() -> None:
    old, new = {"wte.weight": array(5, 2)}, nested({"embed.weight": jnp.zeros((5, 2))})
    rename = {"wte.weight": ["embed.weight", "haed.weight"]}
    _, report = tk.graft(new, old, rename=rename, strict=False)
    assert report.dropped == () and [row.path for row in report.missing] == ["haed.weight"]
    assert "haed.weight   missing  nothing | f32[5,2](numpy) at wte.weight" in str(report)
    with pytest.raises(ValueError, match=r"rename: 'wte.weight' leads to haed.weight, which the new tree does not"):
        tk.graft(new, old, rename=rename)
    tree = {"w": jnp.ones(2), "b": jnp.ones(3)}
    got, report = tk.graft({"a": fresh(tree), "c": {"w": jnp.zeros(2)}}, {"t": tree}, rename={"t.**": ["a.**", "c.**"]})
    assert [row.path for row in report.missing] == ["c.b"] and all(map(jnp.all, jax.tree.leaves(got)))


# ------------------------------------------------------------------------------------------------------------- stacking


LAYERS = {f"layers.{i}.{name}": array(*shape) for i in range(12) for name, shape in {"w": (2, 3), "n.b": (3,)}.items()}
STACKED = {f"layers.{name}": np.stack([LAYERS[f"layers.{i}.{name}"] for i in range(12)]) for name in ("w", "n.b")}
STACK = {"layers.*.**": "layers.**"}
UNSTACK = {"layers.**": "layers.*.**"}


def fresh(names: dict[str, Any]) -> Any:
    return nested({name: jnp.zeros_like(x) for name, x in names.items()})


def test_stacking_and_unstacking_in_the_order_of_integers() -> None:
    """`convert` runs on each array before stacking, and on each part after unstacking."""
    turned = {name: x.T for name, x in sorted(LAYERS.items())}  # 0, 1, 10, 11, 2
    convert = {"**.w": np.transpose}
    got, report = tk.graft(fresh(STACKED), turned, rename=STACK, convert=convert)
    same(got["layers"]["w"], STACKED["layers.w"])
    same(got["layers"]["n"]["b"], STACKED["layers.n.b"])
    assert "layers.w    kept  f32[12,2,3] | 12 stacked f32[3,2](numpy) at layers.*.w, converted" in str(report)
    back, report = tk.graft(fresh(turned), STACKED, rename=UNSTACK, convert=convert)
    tk.assert_trees_same(tk.to_state_dict(back), tk.to_state_dict(nested(turned)))
    assert "layers.3.w     kept  f32[3,2] | entry 3 of f32[12,2,3](numpy) at layers.w, converted" in str(report)


def test_moments_are_stacked_too() -> None:
    tx = tko.adamw(1e-3)
    linears = [eqx.nn.Linear(3, 3, key=jax.random.key(i)) for i in range(4)]
    params = {"layers": linears}
    with jax.numpy_dtype_promotion("standard"):
        _, old = tx.update(params, tx.init(params), params)
    new = tko.MultiSteps(tko.chain(tko.clip(1.0), tx), 2).init({"layers": tk.tree_stack(linears)})
    stack, unstack = {"**.layers.*.**": "**.layers.**"}, {"**.layers.**": "**.layers.*.**"}
    got, _ = tk.graft(new, old, rename=stack, fresh=["acc_grads.**", "*_step"])
    adam = got.inner_opt_state[1][0]
    tk.assert_trees_same(adam.mu["layers"], tk.tree_stack(old[0].mu["layers"]))
    assert int(adam.count) == 1
    back, _ = tk.graft(tx.init(params), got, rename={"acc_grads.**": None, "*_step": None, **unstack})
    tk.assert_trees_same(back[0], old[0])
    # Files have no states: names are those of the same wrappers.
    inner, _ = tk.graft(new.inner_opt_state[1], tk.to_state_dict(old), rename=stack)
    tk.assert_trees_same(inner[0], adam)
    back, _ = tk.graft(tx.init(params), tk.to_state_dict(inner), rename=unstack)
    tk.assert_trees_same(back[0], old[0])


LAYER = r"f32\[2,3\]\(numpy\)"


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({x: LAYERS[x] for x in LAYERS if ".4." not in x}, rf"11 stacked {LAYER}, without 4 at layers\.\*\.w"),
        (LAYERS | {"layers.12.w": array(2, 3)}, rf"f32\[12,2,3\] \| 13 stacked {LAYER} at layers\.\*\.w"),
        (LAYERS | {"layers.3.w": array(3, 3)}, rf"12 stacked {LAYER} and f32\[3,3\]\(numpy\) at layers"),
        (LAYERS | {"layers.1000000000.w": array(2, 3)}, r"13 stacked .*, without 12, 13, 14, 15, 16 at layers"),
        # NumPy's wide numbers among layers of JAX are not wrapped.
        ({f"layers.{i}.w": np.full((2, 3), 1e300) if i else jnp.ones((2, 3)) for i in range(12)}, "layers.w +refused"),
        # Fewer entries than the new tree has layers, and more.
        ({"layers.w": STACKED["layers.w"][1:]}, r"f32\[11,2,3\]\(numpy\), which are not as many as in the new tree at"),
        ({"layers.w": np.ones((13, 2, 3), np.float32)}, r"f32\[13,2,3\]\(numpy\), which are not as many as in the new"),
    ],
)
def test_layers_that_cannot_be_stacked_or_unstacked_are_refused_and_named(old: Any, said: str) -> None:
    stacks = "layers.w" not in old
    new = fresh(STACKED if stacks else LAYERS) | {"x": jnp.zeros(1)}
    got, report = tk.graft(new, old | {"x": array(1)}, rename=STACK if stacks else UNSTACK, strict=False)
    refused = ["layers.w"] if stacks else [f"layers.{i}.w" for i in range(12)]
    assert set(refused) <= {row.path for row in report.refused} and re.search(said, str(report))
    assert not any(x.any() for name, x in tk.to_state_dict(got).items() if name in refused) and got["x"].any()


def test_what_is_not_an_entry_of_a_list_and_two_of_one_index_are_not_stacked() -> None:
    old, new = LAYERS | {"layers.norm.w": array(2, 3)}, fresh(STACKED | {"norm.w": array(2, 3)})
    with pytest.raises(ValueError, match=r"lacks a '\*' of .*integers; at layers.norm.w it matches 'norm'. Put a"):
        tk.graft(new, old, rename=STACK)
    got, _ = tk.graft(new, old, rename={"layers.norm.**": "norm.**"} | STACK)
    same(got["norm"]["w"], old["layers.norm.w"])
    with pytest.raises(ValueError, match=r"rename maps layers\.1\.w and layers\.01\.w to one name: layers\.w"):
        tk.graft(fresh(STACKED), LAYERS | {"layers.01.w": array(2, 3)}, rename=STACK)


# --------------------------------------------------------------------------------------------------------- what is said


class Tensor:
    """What numpy.asarray knows of a tensor of another library."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __array__(self, *_: Any, **__: Any) -> Any:
        if self._x is None:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._x


def test_tensors_of_other_libraries() -> None:
    got, _ = tk.graft({"w": jnp.zeros(2)}, {"w": Tensor(array(2))})
    assert isinstance(got["w"], jax.Array) and got["w"].any()
    with pytest.raises(TypeError, match=r"(?s)BFloat16.*graft converted the Tensor at a\.w to a NumPy array"):
        tk.graft({"a": {"w": jnp.zeros(2)}}, {"a": {"w": Tensor(None)}})
    # In mappings that are not pytrees, as an h5py file has them, one in another.
    files = MappingProxyType({"a": MappingProxyType({"w": Tensor(array(2))}), "b": [MappingProxyType({"w": array(3)})]})
    new: Any = {"a": {"w": jnp.zeros(2)}, "b": [{"w": jnp.zeros(3)}]}
    got, report = tk.graft(new, files)
    assert got["b"][0]["w"].any() and len(report.kept) == 2


def test_bf16_in_npz_is_an_error_that_says_so() -> None:
    raw = np.ones(2, jnp.bfloat16).view("V2")
    with pytest.raises(TypeError, match=r"at w: the old array has the dtype \|V2, .* x\.view\(jnp\.bfloat16\)"):
        tk.graft({"w": jnp.zeros(2, jnp.bfloat16)}, {"w": raw})
    tk.graft({"w": jnp.zeros(2, jnp.bfloat16)}, {"w": raw.view(jnp.bfloat16)})


def test_a_model_that_looks_like_a_state() -> None:
    """With the names of the fields of Adam's state, or of a wrapper's."""
    tx = tko.MultiSteps(tko.adam(1e-3), 2)
    fields = {"mu": jnp.ones(2), "nu": jnp.ones(3), "count": jnp.ones(4), "inner_state": {"w": jnp.ones(5)}}
    tree = {"model": {"a": [fields]}, "opt": tx.init(fields)}
    old = {name: array(*x.shape).astype(x.dtype) for name, x in tk.to_state_dict(tree).items()}
    for form in (old, nested(old)):
        assert not tk.tree_diff(tk.to_state_dict(tk.graft(tree, form)[0]), old)
    rename = {"opt.inner_opt_state.**": "opt.**", "**": None}
    shorter, _ = tk.graft({"opt": tko.adam(1e-3).init(fields)}, old, rename=rename)
    same(shorter["opt"][0].count, old["opt.inner_opt_state.0.count"])


def test_one_value_for_two_leaves_is_two_arrays() -> None:
    new: dict[str, Any] = {"embed": jnp.zeros(5), "head": jnp.zeros(5)}
    committed = jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), new)
    for target in (new, committed):
        tree, _ = tk.graft(target, {"wte": jnp.ones(5)}, rename={"wte": ["embed", "head"]})
        assert tree["embed"] is not tree["head"]
        jax.jit(lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0)(tree)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i2", "i8", "c8", "?"])
def test_arrays_in_the_other_byte_order_are_loaded(dtype: str) -> None:
    native = np.arange(6).reshape(2, 3).astype(dtype)
    other = native.astype(native.dtype.newbyteorder())
    for new in (jnp.asarray(native), jax.eval_shape(jnp.asarray, native), native, other):
        for old in (native, other):
            got = tk.graft({"w": jax.tree.map(lambda x: x, new)}, {"w": old})[0]["w"]
            assert got.dtype == new.dtype and isinstance(got, np.ndarray) == isinstance(new, np.ndarray)
            same(got, native)
    halves = tk.graft({"w": jnp.zeros((2, 3), jnp.complex64)}, {"w": other}, cast=True)[0]["w"]
    same(halves, native)
    arguments: Any = {"rename": {"*.w": "w"}, "convert": {"w": lambda x: jnp.flip(x)}}
    stacked, _ = tk.graft({"w": jnp.asarray(native)}, {"0": {"w": other[0]}, "1": {"w": other[1]}}, **arguments)
    same(stacked["w"], native[:, ::-1])
