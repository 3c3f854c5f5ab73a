"""graft as a loader: state dicts of PyTorch and others, with names, layouts and layers of their own."""

import re
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import treekit as tk
from treekit import optax as tko

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=shape).astype(dtype)


def shapes(**leaves: tuple[int, ...]) -> dict[str, Any]:
    return {name.replace("__", "."): jnp.zeros(shape) for name, shape in leaves.items()}


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


def test_convert_is_applied_to_square_arrays_too() -> None:
    old = {"a.weight": array(3, 3), "b.weight": array(2, 3), "b.bias": array(3)}
    new = nested({"a.weight": jnp.zeros((3, 3)), "b.weight": jnp.zeros((3, 2)), "b.bias": jnp.zeros(3)})
    got, report = tk.graft(new, old, convert={"**.weight": np.transpose})
    same(got["a"]["weight"], old["a.weight"].T)
    same(got["b"]["weight"], old["b.weight"].T)
    same(got["b"]["bias"], old["b.bias"])
    assert str(report).splitlines()[1:] == [
        "a.weight  kept  f32[3,3] | f32[3,3](numpy), converted",
        "b.bias    kept  f32[3] | f32[3](numpy)",
        "b.weight  kept  f32[3,2] | f32[2,3](numpy), converted",
    ]


def test_convert_is_for_new_names_and_the_first_pattern_decides() -> None:
    old, new = {"x": array(2, 2), "z": array(2)}, {"y": jnp.zeros((2, 2)), "z": jnp.zeros(2)}
    got, _ = tk.graft(new, old, rename={"x": "y"}, convert={"y": np.transpose, "**": np.negative})
    same(got["y"], old["x"].T)
    same(got["z"], -old["z"])


def test_convert_comes_before_resize_and_cast() -> None:
    old = {"w": array(2, 3)}
    got, _ = tk.graft(
        {"w": jnp.zeros((4, 2), jnp.bfloat16)},
        old,
        convert={"w": lambda x: x.T},
        resize=lambda new, old: np.concatenate([old, np.zeros((1, 2), np.float32)]),
        cast=True,
    )
    same(got["w"][:3], old["w"].T.astype(jnp.bfloat16))


def test_a_conversion_to_another_shape_or_dtype_is_refused() -> None:
    new = {"w": jnp.zeros((3, 2)), "n": jnp.zeros(2)}
    _, report = tk.graft(
        new, {"w": array(2, 3), "n": array(2)}, convert={"w": np.ravel, "n": lambda x: x.astype(int)}, strict=False
    )
    assert [row.path for row in report.refused] == ["n", "w"]


def test_convert_may_be_traced_and_keys_be_regular_expressions() -> None:
    old = {"w": array(2, 3)}
    convert = {re.compile("w|v"): jnp.transpose}
    got = jax.jit(lambda old: tk.graft({"w": jnp.zeros((3, 2))}, old, convert=convert)[0])(old)
    same(got["w"], old["w"].T)


# ------------------------------------------------------------------------------------------- several targets, and none


def test_one_value_for_several_leaves() -> None:
    old = {"wte.weight": array(5, 2), "ln.weight": array(2)}
    new = nested({"embed.weight": jnp.zeros((5, 2)), "head.weight": jnp.zeros((5, 2)), "ln.weight": jnp.zeros(2)})
    for rename in (
        {"wte.weight": ["embed.weight", "head.weight"]},
        {"wte.**": ("embed.**", "head.**")},
    ):
        got, report = tk.graft(new, old, rename=rename)
        same(got["embed"]["weight"], old["wte.weight"])
        same(got["head"]["weight"], old["wte.weight"])
        assert not report.dropped and not report.missing


def test_a_target_that_is_missing_is_reported() -> None:
    """It is a mistake if nothing of it exists."""
    old, new = {"wte.weight": array(5, 2)}, nested({"embed.weight": jnp.zeros((5, 2))})
    rename = {"wte.weight": ["embed.weight", "haed.weight"]}
    _, report = tk.graft(new, old, rename=rename, strict=False)
    assert report.dropped == () and [row.path for row in report.missing] == ["haed.weight"]
    assert "haed.weight   missing  nothing | f32[5,2](numpy) at wte.weight" in str(report)
    with pytest.raises(ValueError, match=r"rename: 'wte.weight' leads to haed.weight, which the new tree does not"):
        tk.graft(new, old, rename=rename)
    tree = {"w": jnp.ones(2), "b": jnp.ones(3)}
    got, report = tk.graft(
        {"a": fresh_like(tree), "c": {"w": jnp.zeros(2)}}, {"t": tree}, rename={"t.**": ["a.**", "c.**"]}
    )
    assert [row.path for row in report.missing] == ["c.b"] and all(map(jnp.all, jax.tree.leaves(got)))


def test_none_drops_on_purpose() -> None:
    old = {f"h.{i}.attn.bias": array(1, 1, 4, 4) for i in range(3)} | {"w": array(2)}
    new = {"w": jnp.zeros(2)}
    _, report = tk.graft(new, old, rename={"**.attn.bias": None})
    assert len(report.dropped) == 3 and "f32[1,1,4,4](numpy), which rename drops" in str(report)
    with pytest.raises(ValueError, match=r"no place for:(\n  h\.\d\.attn\.bias .*){3}\n"):
        tk.graft(new, old)
    with pytest.raises(ValueError, match=r"rename: '\*\*.attn.bais' matches no leaf of the old tree. The nearest"):
        tk.graft(new, old, rename={"**.attn.bais": None})
    dropped = {"v": None, "h.**": None}
    got, _ = tk.graft(new | {"v": jnp.zeros(2)}, old | {"v": array(2)}, rename=dropped, strict=False)
    same(got["v"], np.zeros(2))


# ------------------------------------------------------------------------------------------------------------- stacking


LAYERS = {f"layers.{i}.{name}": array(*shape) for i in range(12) for name, shape in {"w": (2, 3), "n.b": (3,)}.items()}
STACKED = {f"layers.{name}": np.stack([LAYERS[f"layers.{i}.{name}"] for i in range(12)]) for name in ("w", "n.b")}
STACK = {"layers.*.**": "layers.**"}
UNSTACK = {"layers.**": "layers.*.**"}


def fresh_like(names: dict[str, Any]) -> dict[str, Any]:
    return {name: jnp.zeros_like(x) for name, x in names.items()}


def fresh(names: dict[str, Any]) -> Any:
    return nested(fresh_like(names))


def test_stacking_and_unstacking_in_the_order_of_integers() -> None:
    shuffled = dict(sorted(LAYERS.items()))  # 0, 1, 10, 11, 2
    got, report = tk.graft(fresh(STACKED), shuffled, rename=STACK)
    same(got["layers"]["w"], STACKED["layers.w"])
    same(got["layers"]["n"]["b"], STACKED["layers.n.b"])
    assert str(report).splitlines()[2] == ("layers.w    kept  f32[12,2,3] | 12 stacked f32[2,3](numpy) at layers.*.w")
    back, report = tk.graft(fresh(LAYERS), STACKED, rename=UNSTACK)
    tk.assert_trees_same(tk.to_state_dict(back), tk.to_state_dict(nested(LAYERS)))
    assert "layers.3.w     kept  f32[2,3] | entry 3 of f32[12,2,3](numpy) at layers.w" in str(report)


def test_a_model_with_a_list_of_layers_and_one_for_scan() -> None:
    linears = [eqx.nn.Linear(3, 3, key=jax.random.key(i)) for i in range(4)]
    stacked = tk.tree_stack(linears)
    got, _ = tk.graft(
        jax.tree.map(jnp.zeros_like, {"body": stacked}),
        {"layers": linears},
        rename={"layers.*.**": "body.**"},
    )
    tk.assert_trees_same(got["body"], stacked)
    back, _ = tk.graft(
        {"layers": jax.tree.map(jnp.zeros_like, linears)},
        {"body": stacked},
        rename={"body.**": "layers.*.**"},
    )
    tk.assert_trees_same(back["layers"], linears)


def test_moments_are_stacked_too() -> None:
    tx = tko.adamw(1e-3)
    linears = [eqx.nn.Linear(3, 3, key=jax.random.key(i)) for i in range(4)]
    params = {"layers": linears}
    with jax.numpy_dtype_promotion("standard"):
        _, old = tx.update(params, tx.init(params), params)
    after = tko.MultiSteps(tko.chain(tko.clip(1.0), tx), 2)
    new = after.init({"layers": tk.tree_stack(linears)})
    stack: Any = {"**.layers.*.**": "**.layers.**"}
    unstack: Any = {"**.layers.**": "**.layers.*.**"}
    got, _ = tk.graft(new, old, rename=stack, fresh=["acc_grads.**", "*_step"])
    adam = got.inner_opt_state[1][0]
    tk.assert_trees_same(adam.mu["layers"], tk.tree_stack(old[0].mu["layers"]))
    assert int(adam.count) == 1
    back, _ = tk.graft(tx.init(params), got, rename={"acc_grads.**": None, "*_step": None} | unstack)
    tk.assert_trees_same(back[0], old[0])
    # Files have no states: names are those of the same wrappers.
    inner, _ = tk.graft(new.inner_opt_state[1], tk.to_state_dict(old), rename=stack)
    tk.assert_trees_same(inner[0], adam)
    back, _ = tk.graft(tx.init(params), tk.to_state_dict(inner), rename=unstack)
    tk.assert_trees_same(back[0], old[0])


def test_convert_runs_on_each_array_before_stacking_and_on_each_part_after_unstacking() -> None:
    turned = {name: x.T for name, x in LAYERS.items()}
    got, report = tk.graft(fresh(STACKED), turned, rename=STACK, convert={"**.w": np.transpose})
    same(got["layers"]["w"], STACKED["layers.w"])
    assert "stacked f32[3,2](numpy) at layers.*.w, converted" in str(report)
    got, _ = tk.graft(fresh(turned), STACKED, rename=UNSTACK, convert={"**.w": np.transpose})
    same(got["layers"]["3"]["w"], LAYERS["layers.3.w"].T)


def without(*entries: int) -> dict[str, Any]:
    return {name: x for name, x in LAYERS.items() if int(name.split(".")[1]) not in entries}


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (without(4), r"11 stacked f32\[2,3\]\(numpy\), without 4 at layers\.\*\.w"),
        (without(0, 3), r"10 stacked f32\[2,3\]\(numpy\), without 0, 3 at layers\.\*\.w"),
        (without(11), r"f32\[12,2,3\] \| 11 stacked f32\[2,3\]\(numpy\) at layers\.\*\.w"),
        (LAYERS | {"layers.12.w": array(2, 3)}, r"f32\[12,2,3\] \| 13 stacked f32\[2,3\]\(numpy\) at layers\.\*\.w"),
        (LAYERS | {"layers.3.w": array(3, 3)}, r"12 stacked f32\[2,3\]\(numpy\) and f32\[3,3\]\(numpy\) at layers"),
        (LAYERS | {"layers.3.w": array(2, 3, dtype=np.float16)}, r"12 stacked f32\[2,3\]\(numpy\) and f16\[2,3\]"),
        (LAYERS | {"layers.1000000000.w": array(2, 3)}, r"13 stacked .*, without 12, 13, 14, 15, 16 at layers"),
        # NumPy's wide numbers among layers of JAX are not wrapped.
        ({f"layers.{i}.w": np.full((2, 3), 1e300) if i else jnp.ones((2, 3)) for i in range(12)}, "layers.w +refused"),
    ],
)
def test_layers_that_cannot_be_stacked_are_refused_and_named(old: Any, said: str) -> None:
    _, report = tk.graft(fresh(STACKED), old, rename=STACK, strict=False)
    assert "layers.w" in [row.path for row in report.refused]
    assert re.search(said, str(report))


@pytest.mark.parametrize("count", [11, 13])
def test_another_number_of_layers_is_refused(count: int) -> None:
    new = fresh({f"layers.{i}.w": array(2, 3) for i in range(count)} | {"x": array(1)})
    old = {"layers.w": STACKED["layers.w"], "x": array(1)}
    got, report = tk.graft(new, old, rename=UNSTACK, strict=False)
    assert [row.path for row in report.kept] == ["x"] and not got["layers"]["0"]["w"].any()
    assert "f32[12,2,3](numpy), which are not as many as in the new tree at layers.w" in str(report)


def test_two_layers_of_one_index() -> None:
    with pytest.raises(ValueError, match=r"rename maps layers\.1\.w and layers\.01\.w to one name: layers\.w"):
        tk.graft(fresh(STACKED), LAYERS | {"layers.01.w": array(2, 3)}, rename=STACK)


def test_what_is_not_an_entry_of_a_list_is_not_stacked() -> None:
    old = LAYERS | {"layers.norm.w": array(2, 3)}
    new = fresh(STACKED | {"norm.w": array(2, 3)})
    with pytest.raises(ValueError, match=r"lacks a '\*' of .*integers; at layers.norm.w it matches 'norm'. Put a"):
        tk.graft(new, old, rename=STACK)
    got, _ = tk.graft(new, old, rename={"layers.norm.**": "norm.**"} | STACK)
    same(got["norm"]["w"], old["layers.norm.w"])


# ------------------------------------------------------------------------------------------------------ numbers, keys


class Model(eqx.Module):
    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    key: Any

    def __init__(self, rate: float, seed: int) -> None:
        self.linear = eqx.nn.Linear(2, 2, key=jax.random.key(seed))
        self.dropout = eqx.nn.Dropout(rate)
        self.key = jax.random.key(seed)


@pytest.mark.parametrize(
    ("through", "fresh", "expected"),
    [(lambda x: x, (), 0.5), (lambda x: x, "**.p", 0.1), (tk.to_state_dict, (), 0.1)],
)
def test_settings_are_values_that_files_do_not_have(through: Any, fresh: Any, expected: float) -> None:
    old, new = Model(0.5, 0), Model(0.1, 1)
    got, report = tk.graft(new, through(old), fresh=fresh)
    assert got.dropout.p == expected and bool(got.key == (new if through is tk.to_state_dict else old).key)
    same(got.linear.weight, old.linear.weight)
    assert report.dropped == ()


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


def test_mappings_that_are_not_pytrees() -> None:
    """As an h5py file has them, one in another."""
    files = MappingProxyType({"a": MappingProxyType({"w": Tensor(array(2))}), "b": [MappingProxyType({"w": array(3)})]})
    new: Any = {"a": {"w": jnp.zeros(2)}, "b": [{"w": jnp.zeros(3)}]}
    got, report = tk.graft(new, files)
    assert got["b"][0]["w"].any() and len(report.kept) == 2


def test_bf16_in_npz_is_an_error_that_says_so() -> None:
    raw = np.ones(2, jnp.bfloat16).view("V2")
    with pytest.raises(TypeError, match=r"at w: the old array has the dtype \|V2, .* x\.view\(jnp\.bfloat16\)"):
        tk.graft({"w": jnp.zeros(2, jnp.bfloat16)}, {"w": raw})
    tk.graft({"w": jnp.zeros(2, jnp.bfloat16)}, {"w": raw.view(jnp.bfloat16)})


class CountState(NamedTuple):
    count: Any
    mu: Any


def test_a_name_that_begins_with_another() -> None:
    new: Any = {"opt": (CountState(jnp.zeros(()), {"a": jnp.zeros(2)}),), "x": jnp.zeros(1), "x.y": jnp.zeros(2)}
    old = {"x": array(1), "x.y": array(2), "opt.0.count": np.ones((), np.float32), "opt.0.mu.a": array(2)}
    for names in (old, dict(reversed(old.items()))):
        got, _ = tk.graft(new, names)
        same(got["x.y"], old["x.y"])
        same(got["x"], old["x"])
        same(got["opt"][0].mu["a"], old["opt.0.mu.a"])
    z = {"z.y.x": array(1), "z": array(2), "z.y": array(3)}
    got, _ = tk.graft(new | fresh_like(z), old | z)
    same(got["z.y"], z["z.y"])


def test_a_model_that_looks_like_a_state() -> None:
    """With the names of the fields of Adam's state, or of a wrapper's."""

    class Vae(eqx.Module):
        mu: Any
        nu: Any
        count: Any
        inner_state: Any

    tx = tko.MultiSteps(tko.adam(1e-3), 2)
    module = Vae(jnp.ones(2), jnp.ones(3), jnp.ones(4), {"w": jnp.ones(5)})
    for model in (module, {"a": module}, vars(module), {"a": [vars(module)]}):
        tree = {"model": model, "opt": tx.init(model)}
        old = {name: array(*x.shape).astype(x.dtype) for name, x in tk.to_state_dict(tree).items()}
        for form in (old, nested(old)):
            got, _ = tk.graft(tree, form)
            for name, x in tk.to_state_dict(got).items():
                same(x, old[name])
        rename = {"opt.inner_opt_state.**": "opt.**", "**": None}
        shorter, _ = tk.graft({"opt": tko.adam(1e-3).init(model)}, old, rename=rename)
        same(shorter["opt"][0].count, old["opt.inner_opt_state.0.count"])


def test_one_value_for_two_leaves_is_two_arrays() -> None:
    """So that a step may donate them."""
    new: dict[str, Any] = {"embed": jnp.zeros(5), "head": jnp.zeros(5)}
    committed = jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), new)
    for target in (new, committed):
        tree, _ = tk.graft(target, {"wte": jnp.ones(5)}, rename={"wte": ["embed", "head"]})
        assert tree["embed"] is not tree["head"]
        jax.jit(lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0)(tree)


def test_a_reference_is_loaded_as_its_array() -> None:
    new: dict[str, Any] = {"r": jax.new_ref(jnp.ones(2)), "w": jnp.ones(2)}
    tree, report = tk.graft(new, {name: 3 * x for name, x in tk.to_state_dict(new).items()})
    assert isinstance(tree["r"], jax.Ref) and (tree["r"][...] == 3).all() and len(report.kept) == 2
    assert (new["r"][...] == 1).all()


def test_strict_does_not_ask_for_the_counters_of_random_streams() -> None:
    model = nnx.Dropout(0.1, rngs=nnx.Rngs(0))
    both: dict[str, Any] = {"w": jnp.zeros(2), "drop": model}
    tree, report = tk.graft(both, {"w": np.ones(2, np.float32)})
    assert tree["w"].all() and {row.kind for row in report if row.path != "w"} == {"fresh"}
