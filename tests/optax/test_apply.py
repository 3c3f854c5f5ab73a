"""apply_updates and tree_map_params: over any leaf, with dtypes kept."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from treekit import assert_trees_same
from treekit import optax as tko

# --------------------------------------------------------------------------------------------------- apply_updates


@pytest.mark.parametrize("kind", cases.PARAMS)
def test_apply_updates_keeps_structure_and_dtypes(kind: str) -> None:
    params = cases.PARAMS[kind]()
    after = tko.apply_updates(params, cases.grads_of(kind, params))
    assert cases.signature(after) == cases.signature(params)
    moved = [bool((x != y).any()) for x, y in zip(*(cases.inexact(t) for t in (params, after)), strict=True)]
    assert moved and all(moved)


@pytest.mark.parametrize(
    "kind", ["f32", "bf16", "f16", "mixed", "bf16_f32_grads", "c64", "none", "empty", "bare", "nnx"]
)
def test_apply_updates_is_optax_where_optax_works(kind: str) -> None:
    params = cases.PARAMS[kind]()
    grads = cases.grads_of(kind, params)
    cases.assert_close(tko.apply_updates(params, grads), optax.apply_updates(params, grads))


def test_a_sum_is_taken_in_the_wider_dtype_and_rounded_once() -> None:
    params, updates = jnp.array(1.0, jnp.bfloat16), jnp.array(2**-9 + 2**-12, jnp.float32)
    assert float(tko.apply_updates(params, 3 * updates)) == float((jnp.float32(1) + 3 * updates).astype(jnp.bfloat16))


class HasArray:
    """A leaf that stands for an array, as Flax's variables do."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    def __jax_array__(self) -> jax.Array:
        return self.value


@pytest.mark.parametrize("promotion", ["standard", "strict"])
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "float8_e5m2"), ("float8_e4m3fn", "float32")])
def test_what_stands_for_an_array_is_added_and_averaged_as_that_array(dtypes: Any, promotion: Any) -> None:
    param, update = (jnp.full(2, 1.5, dtype) for dtype in dtypes)
    a, b = HasArray(param), HasArray(update)
    pairs: list[tuple[Any, Any]] = [(param, b), (a, update), (a, b)]
    with jax.numpy_dtype_promotion(promotion):
        for x, dx in pairs:
            for got, expected in (
                (tko.apply_updates(x, dx), tko.apply_updates(param, update)),
                (tko.incremental_update(dx, x, 0.25), tko.incremental_update(update, param, 0.25)),
            ):
                assert got.dtype == expected.dtype == param.dtype and (got == expected).all()


def test_a_reference_is_read() -> None:
    new, old = jax.new_ref(jnp.ones(2)), jnp.zeros(2)
    assert (tko.apply_updates(old, new) == 1).all()
    pairs: list[tuple[Any, Any]] = [(new, old), (jnp.ones(2), jax.new_ref(old)), (new, HasArray(old))]
    for x, y in pairs:
        assert (tko.incremental_update(x, y, 0.5) == 0.5).all()
        assert (tko.periodic_update(x, y, 1, 2) == 0).all() and (tko.periodic_update(x, y, 2, 2) == 1).all()


def test_python_numbers_are_averaged_by_python_as_in_optax() -> None:
    """In JAX, an integer of more than 32 bits would raise."""
    new, old = {"n": 2**41}, {"n": 2**40}
    assert tko.incremental_update(new, old, 0.5) == optax.incremental_update(new, old, 0.5) == {"n": 1.5 * 2**40}


def test_an_integer_that_something_stands_for_is_not_averaged() -> None:
    new: Any = HasArray(jnp.array(5))
    assert tko.incremental_update({"n": new}, {"n": HasArray(jnp.array(1))}, 0.5) == {"n": new}


def test_what_has_no_update_stays_the_object_it_was() -> None:
    params: dict[str, Any] = {
        "f": jnp.tanh,
        "s": "name",
        "n": 3,
        "p": 0.5,
        "w": jnp.ones(2),
        "a": HasArray(jnp.ones(2)),
    }
    arrays = {"k": jax.random.key(0), "i": jnp.arange(2)}
    none = {name: np.zeros(x.shape, jax.dtypes.float0) for name, x in arrays.items()} | dict.fromkeys(params)
    params |= arrays
    after = tko.apply_updates(params, none)
    assert all(after[k] is params[k] for k in params)


@pytest.mark.parametrize("updates", [None, {"w": None, "inner": None}, {"w": jnp.ones(2), "inner": None}])
def test_none_above_params_is_no_update_for_any_of_them(updates: Any) -> None:
    """As Equinox has it; Optax raises."""
    params: dict[str, Any] = {"w": jnp.zeros(2), "inner": {"b": jnp.ones(2), "f": jnp.tanh}}
    after = tko.apply_updates(params, updates)
    assert_trees_same(after, eqx.apply_updates(params, updates))
    assert after["inner"]["b"] is params["inner"]["b"]


def test_python_numbers_and_ints_are_updated() -> None:
    params: dict[str, Any] = {"p": 0.5, "i": jnp.array(3, jnp.int32)}
    after = tko.apply_updates(params, {"p": jnp.array(0.25), "i": jnp.array(2)})
    assert (float(after["p"]), int(after["i"]), after["i"].dtype) == (0.75, 5, jnp.int32)


def test_no_param_and_no_average_changes_its_shape() -> None:
    """As in NumPy's `a += b`: b may be broadcast, and a may not."""
    one, more = jnp.ones((1, 3)), jnp.ones((2, 3))
    assert optax.apply_updates(one, more).shape == (2, 3)
    assert tko.apply_updates(more, one).shape == (2, 3)

    def average(old: Any, new: Any) -> Any:
        return tko.incremental_update(new, old, 0.5)

    for change in (tko.apply_updates, average):
        for new in (more, more.T, jnp.ones((1, 1, 3))):
            with pytest.raises(ValueError, match=rf"\bw\b.*{re.escape(str(new.shape))} for a leaf of shape \(1, 3\)"):
                change({"w": one}, {"w": new})
    np.testing.assert_array_equal(average(0, jnp.ones(3)), [0.5, 0.5, 0.5])  # as in Optax, an average may start from 0
    with pytest.raises(ValueError, match=r"\bw\b.*\(1, 3\) for a leaf of shape \(2, 3\)"):
        average({"w": more}, {"w": one})  # another model's
    with pytest.raises(ValueError, match=r"(?s)does not fit.*\bw\b.*dict.*None"):
        average({"w": {"x": one}}, {"w": None})


# An update that does not fit its param, by the words of the error.
WRONG: dict[str, tuple[Any, Any]] = {
    r"\bw\b.*complex64.*float32": ({"w": jnp.ones(2, jnp.float32)}, {"w": jnp.ones(2, jnp.complex64)}),
    "at the root, the params have 1 child: w, and the updates 1 child: v": ({"w": jnp.ones(2)}, {"v": jnp.ones(2)}),
    r"at k: an update \(f32\[\]\) for key": ({"k": jax.random.key(0)}, {"k": jnp.ones((), jnp.float32)}),
    r"at w: an update \(MaskedNode\) for f32\[2\]\. .*None for leaves without": (
        {"w": jnp.ones(2)},
        {"w": optax.MaskedNode()},
    ),
    r"\bn\b.*\(3,\) for a leaf of shape \(\)": ({"n": 1.0}, {"n": jnp.ones(3)}),
    r"\bw\b: shape \(3, 2\) for a leaf of shape \(2,\)": (
        {"w": HasArray(jnp.ones(2))},
        {"w": HasArray(jnp.ones((3, 2)))},
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_an_update_that_does_not_fit_is_an_error_with_the_path(message: str) -> None:
    params, updates = WRONG[message]
    with pytest.raises((TypeError, ValueError), match=message):
        tko.apply_updates(params, updates)


def test_apply_updates_under_jit_grad_and_vmap() -> None:
    params, updates = cases.arrays(), cases.arrays()
    cases.assert_close(jax.jit(tko.apply_updates)(params, updates), jax.tree.map(lambda x: 2 * x, params))
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    assert jax.vmap(tko.apply_updates)(stacked, stacked)["w"].shape == (2, 2, 3)
    assert float(jax.grad(lambda p: jnp.sum(tko.apply_updates(p, p)))(jnp.ones(()))) == 2.0


# ------------------------------------------------------------------------------------------------- tree_map_params


def test_is_leaf_is_asked_as_in_optax() -> None:
    params = cases.arrays()
    mask = {"w": True, "b": False}
    tx, theirs = (o.masked(optax.adam(0.1), mask) for o in (tko, optax))

    def f(x: Any) -> Any:
        return "masked" if isinstance(x, optax.MaskedNode) else "param"

    def is_leaf(x: Any) -> bool:
        return isinstance(x, optax.MaskedNode)

    ours = tko.tree_map_params(tx, f, tx.init(params), is_leaf=is_leaf)
    assert ours == optax.tree_map_params(theirs, f, theirs.init(params), is_leaf=is_leaf)
    assert ours.inner_state[0].mu == {"w": "param", "b": "masked"}


def test_an_init_alone_will_do() -> None:
    tx = tko.adam(0.1)
    state = tx.init(cases.arrays())
    assert tko.tree_map_params(tx.init, lambda x: "p", state)[0].mu == {"w": "p", "b": "p"}
