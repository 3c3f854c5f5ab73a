"""apply_updates, incremental_update and periodic_update: over any leaf, with dtypes kept."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from tests.releases import keys, needs, new_ref
from treekit import optax as tko
from treekit.testing import assert_trees_same

ONES = jnp.ones(2)


def pair(kind: str) -> tuple[Any, Any]:
    """Params, and others that are larger by 1, where they are real in float32."""

    def larger(x: Any) -> Any:
        if not eqx.is_inexact_array(x):
            return x
        return x + 1 if jnp.iscomplexobj(x) else (x + 1).astype(jnp.float32)

    old = cases.PARAMS[kind]()
    return old, jax.tree.map(larger, old)


@pytest.mark.parametrize("kind", cases.PARAMS)
def test_structure_and_dtypes_are_kept(kind: str) -> None:
    old, new = pair(kind)
    updated = tko.apply_updates(old, cases.grads_of(kind, old))
    averaged = tko.incremental_update(new, old, 0.5)
    copies = [tko.periodic_update(new, old, steps, jnp.array(2)) for steps in (4, jnp.array(6))]
    copies += [eqx.filter_jit(tko.periodic_update)(new, old, jnp.array(steps), 2) for steps in (6, 5)]
    assert all(cases.signature(x) == cases.signature(old) for x in (updated, averaged, *copies))
    x, y, z = map(cases.inexact, (old, new, averaged))
    assert x and all(bool((a != b).any()) for a, b in zip(x, cases.inexact(updated), strict=True))
    for trio in zip(x, y, z, strict=True):
        a, b, mean = (np.asarray(leaf).astype(complex) for leaf in trio)
        np.testing.assert_allclose(mean, (a + b) / 2, rtol=1e-2, atol=1e-2)
    for copy, wanted in zip(copies, (y, y, y, x), strict=True):
        cases.assert_close(cases.inexact(copy), cases.cast_like(wanted, x))


def test_a_sum_is_taken_in_the_wider_dtype_and_rounded_once() -> None:
    params, updates = jnp.array(1.0, jnp.bfloat16), jnp.array(2**-9 + 2**-12, jnp.float32)
    assert float(tko.apply_updates(params, 3 * updates)) == float((jnp.float32(1) + 3 * updates).astype(jnp.bfloat16))


def test_updates_may_be_integers_of_4_bits() -> None:
    assert tko.apply_updates(ONES, jnp.ones(2, jnp.int4)).tolist() == [2, 2]


@pytest.mark.parametrize("promotion", ["standard", "strict"])
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "float8_e5m2"), ("float8_e4m3fn", "float32")])
def test_what_stands_for_an_array_is_added_and_averaged_as_that_array(dtypes: Any, promotion: Any) -> None:
    param, update = (jnp.full(2, 1.5, dtype) for dtype in dtypes)
    a, b = cases.HasArray(param), cases.HasArray(update)
    pairs: list[tuple[Any, Any]] = [(param, b), (a, update), (a, b)]
    with jax.numpy_dtype_promotion(promotion):
        for x, dx in pairs:
            for got, expected in (
                (tko.apply_updates(x, dx), tko.apply_updates(param, update)),
                (tko.incremental_update(dx, x, 0.25), tko.incremental_update(update, param, 0.25)),
            ):
                assert got.dtype == expected.dtype == param.dtype and (got == expected).all()


@needs("jax.new_ref")
def test_a_reference_is_read() -> None:
    new, old = new_ref(ONES), jnp.zeros(2)
    assert (tko.apply_updates(old, new) == 1).all()
    pairs: list[tuple[Any, Any]] = [(new, old), (ONES, new_ref(old)), (new, cases.HasArray(old))]
    for x, y in pairs:
        assert (tko.incremental_update(x, y, 0.5) == 0.5).all()
        assert (tko.periodic_update(x, y, 1, 2) == 0).all() and (tko.periodic_update(x, y, 2, 2) == 1).all()


# --------------------------------------------------------------------------------------------------- apply_updates


def test_what_has_no_update_stays_the_object_it_was() -> None:
    params: dict[str, Any] = {"f": jnp.tanh, "s": "name", "n": 3, "p": 0.5, "w": ONES, "a": cases.HasArray(ONES)}
    arrays = {"k": jax.random.key(0), "i": jnp.arange(2)}
    none = {name: np.zeros(x.shape, jax.dtypes.float0) for name, x in arrays.items()} | dict.fromkeys(params)
    params |= arrays
    none["s"] = "name"  # what is not a parameter may be its own update
    after = tko.apply_updates(params, none)
    assert all(after[k] is params[k] for k in params)


@pytest.mark.parametrize("updates", [None, {"w": ONES, "inner": None}])
def test_none_above_params_is_no_update_for_any_of_them(updates: Any) -> None:
    """As Equinox has it; Optax raises."""
    params: dict[str, Any] = {"w": jnp.zeros(2), "inner": {"b": ONES, "f": jnp.tanh}}
    after = tko.apply_updates(params, updates)
    assert_trees_same(after, eqx.apply_updates(params, updates))
    assert after["inner"]["b"] is params["inner"]["b"]


def test_python_numbers_and_ints_are_updated() -> None:
    params: dict[str, Any] = {"p": 0.5, "i": jnp.array(3, jnp.int32)}
    after = tko.apply_updates(params, {"p": jnp.array(0.25), "i": jnp.array(2)})
    assert (float(after["p"]), int(after["i"]), after["i"].dtype) == (0.75, 5, jnp.int32)


@pytest.mark.parametrize("name", ["sgd", "adam", "lbfgs"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_weakly_typed_params_remain_so_and_a_step_is_traced_once(name: str, shape: tuple[int, ...]) -> None:
    tx: Any = tko.lbfgs() if name == "lbfgs" else getattr(tko, name)(0.1)
    traces = 0

    def loss(params: Any) -> Any:
        return jnp.sum((params["w"] - 3.0) ** 2)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        nonlocal traces
        traces += 1
        value, grad = jax.value_and_grad(loss)(params)
        extra = {"value": value, "grad": grad, "value_fn": loss} if name == "lbfgs" else {}
        updates, state = tx.update(grad, state, params, **extra)
        return tko.apply_updates(params, updates), state

    params = {"w": jnp.full(shape, 0.0)}
    state = tx.init(params)
    for _ in range(3):
        params, state = step(params, state)
    assert params["w"].weak_type and traces == 1


def test_no_param_and_no_average_changes_its_shape() -> None:
    """As in NumPy's `a += b`: b may be broadcast, and a may not."""
    one, more = jnp.ones((1, 3)), jnp.ones((2, 3))
    assert tko.apply_updates(more, one).shape == (2, 3)

    def average(old: Any, new: Any) -> Any:
        return tko.incremental_update(new, old, 0.5)

    def copy(old: Any, new: Any) -> Any:
        return tko.periodic_update(new, old, 1, 2)

    for change in (tko.apply_updates, average, copy):
        for new in (more, more.T, jnp.ones((1, 1, 3))):
            with pytest.raises(ValueError, match=r"\bw\b"):
                change({"w": one}, {"w": new})
    for change in (average, copy):  # those of another model
        with pytest.raises(ValueError, match=r"\bw\b"):
            change({"w": more}, {"w": one})


# A param and an update that does not fit it.
WRONG: dict[str, tuple[Any, Any]] = {
    "complex": (ONES, ONES + 0j),
    "of a reference": (new_ref and new_ref(ONES), ONES),
    "a placeholder": (ONES, optax.MaskedNode()),
    "of a number": (1.0, jnp.ones(3)),
    "of what stands for an array": (cases.HasArray(ONES), cases.HasArray(jnp.ones((3, 2)))),
}


@pytest.mark.parametrize("name", keys(WRONG, {"of a reference": "jax.new_ref"}))
def test_an_update_that_does_not_fit_is_an_error_with_the_path(name: str) -> None:
    param, update = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=r"\bw\b"):
        tko.apply_updates({"w": param}, {"w": update})


# -------------------------------------------------------------------------------------------------------- averages

AVERAGES = {
    "a number, for an array": (jnp.ones((2, 3)), 0),
    "a number, for an array in 8 bits": (jnp.ones(2, jnp.float8_e4m3fn), 0),
    "an int of a number": (4, 0),
    "a number in bf16": (jnp.array(4, jnp.bfloat16), 0.0),
    "an int array, of floats": (ONES, jnp.zeros(2, jnp.int32)),
    "a bool, of a float": (jnp.array(4.0), True),
    "an int array, of a Python float": (4.0, jnp.array(1)),
    "NumPy": (np.ones(2), np.zeros(2)),
    "complex": (jnp.array(1j), 0.0),
}


@pytest.mark.parametrize("step", [0.25, jnp.array(0.25)], ids=["number", "array"])
@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_may_start_from_any_number(name: str, step: Any) -> None:
    """With the value, the class and the dtype that it has in Optax."""
    ours, theirs = (o.incremental_update(*AVERAGES[name], step) for o in (tko, optax))
    assert type(ours) is type(theirs) and getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
    np.testing.assert_array_equal(np.asarray(ours, complex), np.asarray(theirs, complex))


STEPS: dict[str, Any] = {
    **{"0.9999": 0.9999, "0.999": 0.999, "a third": 1 / 3, "an int": 1},
    **{"NumPy, 64 bits": np.float64(0.9999), "NumPy, 32 bits": np.float32(0.9999), "an array of NumPy": np.array(0.3)},
    **{"f32": jnp.float32(0.9999), "bf16": jnp.bfloat16(0.75)},
}


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jitted"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_an_average_is_that_of_optax_to_the_last_bit(step: Any, jit: Any) -> None:
    """In the dtype of the old average. `1 - step_size` is as exact as Python and NumPy are, also for bf16."""
    dtypes, x = ["float16", "bfloat16", "float32"], jnp.linspace(-2, 3, 41)
    pairs = [(new, old) for new in dtypes for old in dtypes] + [(new, "complex64") for new in (*dtypes, "complex64")]
    news, olds = ([x.astype(dtype) for dtype in names] for names in zip(*pairs, strict=True))

    def theirs(news: Any, olds: Any, step: Any) -> Any:
        return cases.cast_like(optax.incremental_update(news, olds, step), olds)

    assert cases.same_bits(jit(tko.incremental_update)(news, olds, step), jit(theirs)(news, olds, step))


def test_a_step_of_nearly_1_keeps_the_weight_of_the_old_average() -> None:
    old = jnp.ones(3)
    np.testing.assert_allclose(tko.incremental_update(0 * old, old, 0.9999), 1e-4, rtol=1e-7)
    assert (
        tko.incremental_update(0 * old.astype(jnp.bfloat16), old.astype(jnp.bfloat16), 0.999).tolist()
        == [float(jnp.bfloat16(1e-3))] * 3
    )


def renewed(new: Any, old: Any, _: float) -> Any:
    return tko.periodic_update(new, old, 2, 2)


@pytest.mark.parametrize("change", [tko.incremental_update, renewed])
def test_an_average_and_a_copy_outlive_the_trees_they_are_made_of(change: Any) -> None:
    """A later step may donate these, and NumPy arrays may change in place."""
    a, numpy = cases.HasArray(jnp.arange(3)), np.arange(3)
    new: dict[str, Any] = {"w": ONES, "count": jnp.array(3), "key": jax.random.key(1), "a": a, "numpy": numpy}
    new = jax.tree.map(lambda x: jnp.copy(x) if isinstance(x, jax.Array) else x, new)
    average = change(new, {**new, "w": jnp.zeros(2), "key": jax.random.key(0)}, 0.5)
    wanted = jax.tree.map(np.asarray, {**average, "key": jax.random.key_data(average["key"])})
    jax.jit(lambda *arrays: arrays, donate_argnums=(0, 1, 2, 3))(*(new[key] for key in ("w", "count", "key")), a.value)
    numpy += 5
    assert new["count"].is_deleted()
    assert_trees_same(jax.tree.map(np.asarray, {**average, "key": jax.random.key_data(average["key"])}), wanted)


def test_python_numbers_are_averaged_by_python_as_in_optax() -> None:
    """In JAX, an integer of more than 32 bits would raise."""
    new, old = {"n": 2**41}, {"n": 2**40}
    assert tko.incremental_update(new, old, 0.5) == optax.incremental_update(new, old, 0.5) == {"n": 1.5 * 2**40}


def test_what_has_no_average_is_taken_from_the_new() -> None:
    """So are counters and flags, which Optax averages; and a number that does not change stays what it is."""
    pairs: list[tuple[Any, Any]] = [
        *((jnp.array(3), jnp.array(1)), (np.array(4), np.array(1)), (jnp.array(True), jnp.array(False))),
        *((jax.random.key(1), jax.random.key(0)), (jnp.sin, jnp.tanh), (ONES, jnp.tanh), (3, 3)),
    ]
    for new, old in pairs:
        taken = tko.incremental_update({"x": new}, {"x": old}, 0.5)["x"]
        assert_trees_same(taken, new)
        assert (taken is new) == (not eqx.is_array(new))  # an array is a copy
    five, one = (cases.HasArray(jnp.array(n)) for n in (5, 1))
    assert cast(Any, tko.incremental_update(five, one, 0.5)) == 5
    model = {"depth": 3, "train": True, "rate": jnp.array(0.5)}
    assert tko.incremental_update(model, model, 0.25) == model


def test_a_copy_may_be_of_any_arrays_and_takes_the_rest_from_the_new() -> None:
    new: dict[str, Any] = {"i": jnp.array(3), "k": jax.random.key(1), "f": jnp.sin, "s": "new", "n": None, "x": 0.5}
    old: dict[str, Any] = {"i": jnp.array(1), "k": jax.random.key(0), "f": jnp.tanh, "s": "old", "n": None, "x": 0.5}
    held, renewed = (tko.periodic_update(new, old, steps, 2) for steps in (1, 2))
    assert all(x is new[k] for k in "fsxn" for x in (held[k], renewed[k]))
    assert (held["i"], renewed["i"]) == (1, 3) and held["k"] == old["k"] and renewed["k"] == new["k"]
    for old_number, new_number in ((0.5, jnp.array(0.25)), (jnp.array(0.5), 0.25), (0.5, 0.25)):
        assert [float(tko.periodic_update(new_number, old_number, steps, 2)) for steps in (1, 2)] == [0.5, 0.25]
    none: dict[str, Any] = {"w": None}
    assert tko.periodic_update({"w": ONES}, none, 1, 2)["w"].shape == (2,)
    with pytest.raises(TypeError, match=r"\bw\b"):
        tko.periodic_update({"w": ONES + 0j}, {"w": ONES}, 1, 2)
