"""The second kernel: whatever a transformation returns, state and updates keep their dtypes and structure."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from tests.releases import keys, needs
from tests.trees import FLOAT, untyped
from treekit import optax as tko

preserve_dtypes = tko.dtype_preserving


def returning(updates: Any, state: Any, initial: Any) -> optax.GradientTransformation:
    """A transformation that returns what it is told to."""

    def update(*_: Any, **__: Any) -> Any:
        return updates, state

    return optax.GradientTransformation(lambda params: initial, update)


@pytest.mark.parametrize("value", [0, True, 1j, np.float64(2), np.ones(2), jnp.asarray(3)])
def test_init_makes_state_strong(value: Any) -> None:
    """Python numbers, weak types and NumPy's 64 bits: all become what jit would hand back."""
    state = preserve_dtypes(returning(None, None, {"x": value})).init(jnp.ones(2))
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
        (jnp.array(3, jnp.int8), jnp.array(4, jnp.int32)),
        (jnp.ones(2, jnp.complex64), jnp.ones(2)),
        (jax.random.key(0), jax.random.key(1)),
    ],
)
def test_every_leaf_of_the_state_keeps_its_dtype(old: Any, new: Any) -> None:
    tx = preserve_dtypes(returning(jnp.ones(2), {"x": new}, {"x": old}))
    _, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    assert state["x"].dtype == old.dtype


@pytest.mark.parametrize("new", [jnp.array(1j), jax.random.key(0)])
def test_what_may_not_be_cast_is_an_error_that_says_where(new: Any) -> None:
    tx = preserve_dtypes(returning(jnp.ones(2), {"x": new}, {"x": jnp.array(1.0)}))
    with pytest.raises(TypeError, match=r"\bx\b.*float32"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))


def totals() -> optax.GradientTransformation:
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        total = state["total"] + updates["w"].sum()
        return jax.tree.map(lambda x: x * total, updates), {"total": total}

    return optax.GradientTransformation(lambda params: {"total": 0}, update)


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f])
def test_an_int_that_becomes_a_float_is_as_in_optax(jit: Any) -> None:
    """Outside of scan, which rejects it with an error that names the leaf."""
    params = cases.arrays()
    ours, theirs = (o.chain(totals(), o.sgd(0.1)) for o in (tko, optax))
    states = [tx.init(params) for tx in (ours, theirs)]
    assert cases.structure(states[0]) == cases.structure(states[1])
    for _ in range(3):
        steps = [jit(tx.update)(params, state, params) for tx, state in zip((ours, theirs), states, strict=True)]
        states = [state for _, state in steps]
        cases.assert_close(*steps)
    assert [x.dtype for x in jax.tree.leaves(states[0])] == [x.dtype for x in jax.tree.leaves(states[1])]
    with pytest.raises(TypeError, match=r"(?s)carry.*int32\[\].*float32\[\]"):
        cases.run(ours, params, params, 2)
    with pytest.raises(TypeError, match=r"int32.*float32|float32.*int32"):
        held = tko.MultiSteps(ours, 2)
        jax.jit(held.update)(params, held.init(params), params)


DTYPES = [jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64]


@pytest.mark.parametrize("inner", [jnp.float16, jnp.float32])
def test_updates_have_the_wider_of_the_gradient_s_and_the_param_s_dtype(inner: Any) -> None:
    tx = preserve_dtypes(returning(jnp.ones(2, inner), (), ()))
    for grads, params in itertools.product([jnp.ones(2, dtype) for dtype in DTYPES], repeat=2):
        if jnp.iscomplexobj(grads) and not jnp.iscomplexobj(params):
            with pytest.raises(TypeError, match="gradient at the root is complex, and the param is real"):
                tx.update(grads, tx.init(params), params)
            continue
        updates, _ = tx.update(grads, tx.init(params), params)
        assert updates.dtype == jnp.promote_types(grads.dtype, params.dtype)
        updates, _ = tx.update(grads, tx.init(params))
        assert updates.dtype == grads.dtype


def test_a_structure_that_changes_is_an_error_with_the_difference() -> None:
    tx = preserve_dtypes(returning(jnp.ones(2), {"a": (jnp.ones(1), jnp.ones(1))}, {"a": [jnp.ones(1)]}))
    with pytest.raises(TypeError, match=r"(?s)state.*\na  type"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    tx = preserve_dtypes(returning({"a": jnp.ones(2), "c": jnp.ones(1)}, (), ()))
    with pytest.raises(TypeError, match=r"(?s)updates.*a, b \| 2 children: a, c"):
        tx.update({"a": jnp.ones(2), "b": jnp.ones(1)}, tx.init(jnp.ones(2)))


def test_strict_promotion_does_not_get_in_the_way() -> None:
    params = cases.PARAMS["mixed"]()
    grads = cases.cast(params, FLOAT)
    with jax.numpy_dtype_promotion("strict"):
        tx = preserve_dtypes(returning(grads, (), ()))
        updates, _ = tx.update(grads, tx.init(params), params)
    assert {u.dtype for u in jax.tree.leaves(updates)} == {jnp.dtype(FLOAT)}


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


SHAPES: list[tuple[Any, Any]] = [((4, 1), (4, 10)), ((4, 10), (4, 1)), ((), (3,))]


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("name", WRAPS)
def test_a_state_of_other_shapes_is_an_error(name: str, jitted: bool) -> None:
    """Arithmetic would broadcast it."""
    tx = WRAPS[name]()
    update = jax.jit(tx.update) if jitted else tx.update
    for made_for, given in SHAPES if name == "adam" else SHAPES[:1]:
        with pytest.raises(
            (TypeError, ValueError),
            match=r"(?s)state.*\bw +shape",
        ):
            update({"w": jnp.ones(given)}, tx.init({"w": jnp.ones(made_for)}), {"w": jnp.ones(given)})


# What a state has where the optimizer makes floats: it would be cast in each step.
OTHER_KINDS: dict[str, Callable[[Any], Any]] = {
    "uint8": lambda x: x.astype(jnp.uint8),
    "uint32": lambda x: x.astype(jnp.uint32),
    "int8": lambda x: x.astype(jnp.int8),
    "int32": lambda x: x.astype(jnp.int32),
    "bool": lambda x: x.astype(bool),
    "complex": lambda x: x.astype(jnp.complex64),
}


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.parametrize("name", WRAPS)
def test_a_state_of_another_kind_is_an_error(name: str, kind: str, jitted: bool) -> None:
    """Of the moments, and of what MultiSteps accumulates, which it would cut to ints."""
    tx, params = WRAPS[name](), {"w": jnp.ones((2, 3))}
    cast = OTHER_KINDS[kind]
    state: Any = jax.tree.map(lambda x: cast(x) if x.shape == (2, 3) else x, tx.init(params))
    with pytest.raises((TypeError, ValueError), match=r"(?s)does not fit.*\bmu\.w +dtype"):
        (jax.jit(tx.update) if jitted else tx.update)(params, state, params)


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int32, bool])
def test_a_second_moment_of_another_kind_is_an_error(dtype: Any, jitted: bool) -> None:
    """Which Adam casts back itself, so that it would stay 0."""
    tx, params = tko.adam(0.1), {"w": jnp.ones((2, 3))}
    first: Any = tx.init(params)
    adam, *others = first
    state: Any = (adam._replace(nu={"w": adam.nu["w"].astype(dtype)}), *others)
    with pytest.raises((TypeError, ValueError), match=r"(?s)does not fit.*0\.nu\.w +dtype"):
        (jax.jit(tx.update) if jitted else tx.update)(params, state, params)


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
def test_an_accumulator_of_ints_is_an_error(jitted: bool) -> None:
    tx, params = tko.MultiSteps(tko.sgd(0.1), 2), {"w": jnp.ones((2, 3))}
    state: Any = tx.init(params)
    state = state._replace(acc_grads={"w": jnp.zeros((2, 3), jnp.int32)})
    with pytest.raises((TypeError, ValueError), match=r"(?s)does not fit.*\bacc_grads\.w +dtype +i32\[2,3\] \| f32"):
        (jax.jit(tx.update) if jitted else tx.update)({"w": jnp.full((2, 3), 0.25)}, state, params)


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("name", WRAPS)
def test_counts_of_several_members_are_an_error_outside_of_vmap(name: str, jitted: bool) -> None:
    tx, params = WRAPS[name](), {"w": jnp.ones((2, 3))}
    state: Any = jax.tree.map(lambda x: jnp.stack([x] * 3) if x.dtype == jnp.int32 else x, tx.init(params))
    with pytest.raises((TypeError, ValueError), match=r"(?s)does not fit.*count +shape +i32\[3\] \| i32\[\]"):
        (jax.jit(tx.update) if jitted else tx.update)(params, state, params)


def test_an_update_that_does_not_fit_its_gradient_is_named() -> None:
    grads = {"a": jnp.ones(2), "b": jnp.ones(3)}
    tx = preserve_dtypes(returning({"a": jnp.ones(2), "b": jnp.ones((2, 3))}, (), ()))
    message = r"of shape \(2, 3\) at b, where the param has shape \(3,\)"
    with pytest.raises(ValueError, match=message):
        tx.update(grads, tx.init(grads), grads)
