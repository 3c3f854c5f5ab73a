"""Whatever a transformation returns, state and updates keep their dtypes and structure."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.errors.kernel import returning
from tests.optax import cases
from tests.releases import keys, needs
from tests.trees import untyped
from treekit import optax as tko
from treekit.optax._kernel.misfit import StateError


@pytest.mark.parametrize("value", [0, True, 1j, np.float64(2), np.ones(2), jnp.asarray(3)])
def test_init_makes_state_strong(value: Any) -> None:
    """Python numbers, weak types and NumPy's 64 bits: all become what jit would hand back."""
    state = returning(None, None, {"x": value}).init(jnp.ones(2))
    out = jax.jit(lambda s: s)(state)
    assert cases.signature(state) == cases.signature(out)
    np.testing.assert_array_equal(np.asarray(state["x"]), np.asarray(value))


@pytest.mark.parametrize(
    "old, new",
    [
        (jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float32)),
        (jnp.ones(2, jnp.float32), jnp.ones(2, jnp.int32)),
        (jnp.array(True), jnp.array(1.0)),
        (jnp.array(3), 4),
        (jnp.array(True), jnp.array(1)),
        (jnp.ones(2, jnp.complex64), jnp.ones(2)),
        (jax.random.key(0), jax.random.key(1)),
    ],
)
def test_every_leaf_of_the_state_keeps_its_dtype(old: Any, new: Any) -> None:
    tx = returning(jnp.ones(2), {"x": new}, {"x": old})
    _, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    assert state["x"].dtype == old.dtype


def test_a_small_int_that_becomes_a_wider_one_is_as_in_optax() -> None:
    """In its old dtype it would wrap around."""

    def update(updates: Any, count: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(lambda x: x * count, updates), count + jnp.int32(100)

    tx = optax.GradientTransformation(lambda _: jnp.zeros((), jnp.int8), update)
    for step in (lambda f: f, jax.jit):
        runs: list[Any] = []
        for o in (tko, optax):
            chained, state, updates = o.chain(tx), o.chain(tx).init(jnp.ones(1)), None
            for _ in range(4):
                updates, state = step(chained.update)(jnp.ones(1), state)
            runs.append((updates, state))
        assert cases.signature(runs[0]) == cases.signature(runs[1])
        assert jax.tree.leaves(runs[0]) == jax.tree.leaves(runs[1]) == [300.0, 400]


def totals() -> optax.GradientTransformation:
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        total = state["total"] + updates["w"].sum()
        return jax.tree.map(lambda x: x * total, updates), {"total": total}

    return optax.GradientTransformation(lambda params: {"total": 0}, update)


def test_an_int_that_becomes_a_float_is_as_in_optax() -> None:
    """Outside of scan and cond, which reject it with an error that names the leaf."""
    params = cases.arrays()
    ours, theirs = (o.chain(totals(), o.sgd(0.1)) for o in (tko, optax))
    for ours_update, theirs_update in ((ours.update, theirs.update), (jax.jit(ours.update), jax.jit(theirs.update))):
        state, expected = ours.init(params), theirs.init(params)
        for _ in range(3):
            updates, state = ours_update(params, state, params)
            theirs_updates, expected = theirs_update(params, expected, params)
            cases.assert_close((updates, state), (theirs_updates, expected))
    held = tko.MultiSteps(ours, 2)
    with pytest.raises(TypeError, match=r"(?s)int32.*float32"):
        cases.run(ours, params, params, 2)
    with pytest.raises(TypeError, match=r"int32.*float32|float32.*int32"):
        jax.jit(held.update)(params, held.init(params), params)


DTYPES = [jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64]


@pytest.mark.parametrize("promotion", ["standard", "strict"])
@pytest.mark.parametrize("computed", DTYPES)
def test_an_update_keeps_the_dtype_in_which_it_is_computed(computed: Any, promotion: Any) -> None:
    tx = returning(jnp.ones(2, computed), (), ())
    for grads, params in itertools.product([jnp.ones(2, dtype) for dtype in DTYPES], repeat=2):
        if not jnp.iscomplexobj(params) and (jnp.iscomplexobj(grads) or computed == jnp.complex64):
            continue  # is an error
        with jax.numpy_dtype_promotion(promotion):
            updates, _ = tx.update(grads, tx.init(params), params)
            assert updates.dtype == computed
            updates, _ = tx.update(params, tx.init(params))
            assert updates.dtype == computed


@pytest.mark.parametrize("number", [0.5, np.float16(0.5), jnp.asarray(0.5)], ids=["float", "NumPy", "weak"])
def test_a_number_has_the_dtype_of_the_gradient_if_it_states_none(number: Any) -> None:
    grads = {str(jnp.dtype(dtype)): jnp.ones(2, dtype) for dtype in DTYPES}
    updates, _ = returning(dict.fromkeys(grads, number), (), ()).update(grads, (), grads)
    for name, update in updates.items():
        assert str(update.dtype) == ("float16" if isinstance(number, np.generic) else name)
        assert not getattr(update, "weak_type", False)


def master_weights(o: Any) -> optax.GradientTransformation:
    """Adam on a copy of the params in f32; its updates lead to that copy."""
    inner = optax.adam(1e-3)

    def init(params: Any) -> Any:
        wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        return wide, inner.init(wide)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        updates, new = inner.update(jax.tree.map(lambda x: x.astype(jnp.float32), grads), state[1], state[0])
        wide = optax.apply_updates(state[0], updates)
        return jax.tree.map(lambda a, b: a - b.astype(jnp.float32), wide, params), (wide, new)

    return optax.GradientTransformation(init, update)


# Optimizers whose updates of 16-bit params are f32, in Optax too; rounded before they are added, params differ.
WIDE: dict[str, Callable[[Any], Any]] = {
    "moments in f32": lambda o: o.adam(1e-3, mu_dtype=jnp.float32),
    "master weights": master_weights,
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "alone": tko.chain,
    "link": lambda tx: tko.chain(tko.identity(), tx),
    "masked": lambda tx: tko.masked(tx, {"w": True}),
    "partition": lambda tx: tko.partition({"a": tx}, "a"),
    "MultiSteps": lambda tx: tko.MultiSteps(tx, 1),
    "finite": lambda tx: tko.apply_if_finite(tx, 3),
    "sometimes": lambda tx: tko.conditionally_transform(tx, lambda step: step >= 0),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", WIDE)
def test_updates_that_are_wider_than_the_params_are_rounded_once(name: str, around: str) -> None:
    def train(tx: Any, apply: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            params, state = carry
            grads = jax.tree.map(lambda x: jnp.sin(3 * x + i.astype(x.dtype)), params)
            updates, state = tx.update(grads, state, params)
            assert updates["w"].dtype == jnp.float32
            return (apply(params, updates), state), None

        params = {"w": jax.random.normal(jax.random.key(0), (1000,), jnp.bfloat16)}
        return jax.lax.scan(step, (params, tx.init(params)), jnp.arange(20))[0][0]

    ours = train(AROUND[around](WIDE[name](tko)), tko.apply_updates)
    assert cases.same_bits(ours, train(WIDE[name](optax), optax.apply_updates))


def test_a_step_that_is_skipped_returns_gradients_as_they_are() -> None:
    """Also where the steps that are not return narrower updates."""
    tx = tko.conditionally_transform(returning(jnp.ones(2, jnp.bfloat16), (), ()), lambda step: step > 0)
    grads = jnp.array([1.001, 2.0])
    for update in (tx.update, jax.jit(tx.update)):
        updates, state = update(grads, tx.init(grads), grads)
        assert cases.same_bits(updates, grads)
        assert cases.same_bits(update(grads, state, grads)[0], jnp.ones(2))


def test_an_update_may_be_smaller_than_its_param() -> None:
    tx = returning(jnp.float32(0.5), (), ())
    updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))
    assert tko.apply_updates(jnp.ones(2), updates).tolist() == [1.5, 1.5]


WRAPS: dict[str, Callable[[], Any]] = {
    "adam": lambda: tko.adam(0.1),
    "masked": lambda: tko.masked(tko.adam(0.1), True),
    "partition": lambda: tko.partition({"a": tko.adam(0.1)}, "a"),
    "inject": lambda: tko.inject_hyperparams(tko.adam)(0.1),
    "MultiSteps": lambda: tko.MultiSteps(tko.adam(0.1), 2),
    "finite": lambda: tko.apply_if_finite(tko.adam(0.1), 2),
}


MADGRAD = pytest.param(lambda: tko.contrib.madgrad(0.1), marks=needs("optax.contrib.madgrad"))


@pytest.mark.parametrize("make", [*WRAPS.values(), tko.lbfgs, MADGRAD])
def test_the_first_state_can_be_donated(make: Callable[[], Any]) -> None:
    """No array stands in it twice, and none of the params."""
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    ids = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, make().init(params)))]
    assert len(set(ids)) == len(ids)


NEED_VALUES = {"flatten", "plateau", "prodigy", "schedule_free", "dog", "momo", "cocob"}  # in Optax too


OF_SHAPES = sorted(cases.OPTIMIZERS.keys() - NEED_VALUES)


@pytest.mark.parametrize("name", keys(OF_SHAPES, dict.fromkeys(("backtracking", "lbfgs"), "optax>=0.2.7")))
def test_init_takes_what_has_only_shapes_and_dtypes(name: str) -> None:
    params = {"w": jnp.ones((2, 3)), "n": jnp.arange(2)}
    shapes = jax.tree.map(lambda x: untyped.ShapeDtypeStruct(x.shape, x.dtype), params)
    for wrap in (lambda tx: tx, lambda tx: tko.masked(tx, {"w": True, "n": False}), lambda tx: tko.MultiSteps(tx, 2)):
        tx = wrap(cases.OPTIMIZERS[name](tko))
        assert cases.signature(tx.init(shapes)) == cases.signature(tx.init(params))


def test_updates_of_real_params_stay_real_without_params() -> None:
    """`flatten` concatenates real and complex params into one complex array."""
    grads = {"c": jnp.ones(2, jnp.complex64), "r": jnp.ones(2)}
    tx = tko.flatten(tko.apply_every(1))
    for params in (None, grads):
        updates, _ = tx.update(grads, tx.init(grads), params)
        cases.assert_close(updates, grads)


def cast(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: x.astype(dtype)


MOMENTS = "mu|nu|acc_grads"
# Parts of a state, by names in their key paths, and how each of their arrays becomes one that does not fit: arithmetic
# would broadcast it, or each step would cast it.
CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "narrow moments": (MOMENTS, lambda x: x[0, 0]),
    "wide moments": (MOMENTS, lambda x: jnp.tile(x, (1, 5))),
    "moments of uint8": (MOMENTS, cast(jnp.uint8)),
    "moments of int32": (MOMENTS, cast(jnp.int32)),
    "moments of bools": (MOMENTS, cast(bool)),
    "complex moments": (MOMENTS, cast(jnp.complex64)),
    "a second moment of int8": ("nu", cast(jnp.int8)),  # Adam casts it back itself, so that it would stay 0
    "an accumulator of int32": ("acc_grads", cast(jnp.int32)),  # MultiSteps would cut what it accumulates
    "counts of several members": ("count", lambda x: jnp.stack([x] * 3)),  # outside of vmap
}
WRAPS_TO_CHANGE = [
    (wrap, change)
    for wrap, change in itertools.product(WRAPS, CHANGES)
    if wrap == "MultiSteps" or CHANGES[change][0] != "acc_grads"
]


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("wrap, change", WRAPS_TO_CHANGE)
def test_a_state_that_does_not_fit_is_an_error_that_names_the_place(wrap: str, change: str, jitted: bool) -> None:
    parts, changed = CHANGES[change]

    def change_part(path: Any, x: Any) -> Any:
        return changed(x) if re.search(rf"\.({parts})\b", jax.tree_util.keystr(path)) else x

    tx, params = WRAPS[wrap](), {"w": jnp.ones((2, 1))}
    state: Any = jax.tree_util.tree_map_with_path(change_part, tx.init(params))
    with pytest.raises(StateError, match=rf"\b({parts})(\.w)? +(shape|dtype) "):
        (jax.jit(tx.update) if jitted else tx.update)(params, state, params)
