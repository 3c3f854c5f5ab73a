"""incremental_update and periodic_update: averages and copies of params, with dtypes kept."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko


@pytest.mark.parametrize("kind", cases.PARAMS)
def test_an_average_keeps_its_dtypes(kind: str) -> None:
    old = cases.PARAMS[kind]()
    new = jax.tree.map(
        lambda x: (x + 1).astype(jnp.float32) if eqx.is_inexact_array(x) and not is_complex(x) else x, old
    )
    after = tko.incremental_update(new, old, 0.5)
    assert cases.signature(after) == cases.signature(old)
    for x, y, z in zip(*(cases.inexact(t) for t in (old, new, after)), strict=True):
        np.testing.assert_allclose(wide(z), (wide(x) + wide(y)) / 2, rtol=1e-2, atol=1e-2)


def is_complex(x: Any) -> bool:
    return bool(jnp.iscomplexobj(x))


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.complex128)


@pytest.mark.parametrize("kind", ["f32", "c64", "none", "namedtuple", "nnx", "linen"])
def test_an_average_is_optax_where_optax_works(kind: str) -> None:
    old = cases.PARAMS[kind]()
    new = jax.tree.map(lambda x: 3 * x, old)
    for step in (0.25, jnp.array(0.25), 1):
        cases.assert_close(tko.incremental_update(new, old, step), optax.incremental_update(new, old, step))


def test_python_numbers_are_averaged_as_in_optax() -> None:
    ours, theirs = (o.incremental_update({"a": 1.0}, {"a": 0.0}, 0.25) for o in (tko, optax))
    assert float(ours["a"]) == float(theirs["a"]) == 0.25


AVERAGES = {
    "a number": (jnp.array(4.0), 0),
    "a float": (jnp.array(4.0), 0.0),
    "a number, for an array": (jnp.ones((2, 3)), 0),
    "a number, for an array in 8 bits": (jnp.ones(2, jnp.float8_e4m3fn), 0),
    "an int of a number": (4, 0),
    "a number in bf16": (jnp.array(4, jnp.bfloat16), 0.0),
    "an int array, of a number": (jnp.array(4), 0),
    "an int array, of floats": (jnp.ones(2), jnp.zeros(2, jnp.int32)),
    "a bool, of a float": (jnp.array(4.0), True),
    "an int array, of a Python float": (4.0, jnp.array(1)),
    "NumPy": (np.ones(2), np.zeros(2)),
    "a NumPy number": (np.float64(4), np.float64(0)),
    "NumPy ints, of a number": (np.array(4), 0),
    "complex": (jnp.array(1j), 0.0),
}


@pytest.mark.parametrize("step", [0.25, jnp.array(0.25)], ids=["number", "array"])
@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_may_start_from_any_number(name: str, step: Any) -> None:
    """With the value, the class and the dtype that it has in Optax."""
    ours, theirs = (o.incremental_update(*AVERAGES[name], step) for o in (tko, optax))
    assert type(ours) is type(theirs) and getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
    np.testing.assert_array_equal(np.asarray(ours, complex), np.asarray(theirs, complex))


def test_a_number_that_does_not_change_stays_what_it_is() -> None:
    """So do counters and flags, which Optax averages."""
    model = {"depth": 3, "train": True, "rate": jnp.array(0.5)}
    assert tko.incremental_update(model, model, 0.25) == model
    for new, old in ((jnp.array(4), jnp.array(1)), (np.array(4), np.array(1)), (jnp.array(True), jnp.array(False))):
        assert tko.incremental_update(new, old, 0.25) is new
        assert float(optax.incremental_update(new, old, 0.25)) != float(new)


def test_what_has_no_average_is_taken_from_the_new() -> None:
    new = {"i": jnp.array(3), "k": jax.random.key(1), "f": jnp.sin, "s": "new"}
    old = {"i": jnp.array(1), "k": jax.random.key(0), "f": jnp.tanh, "s": "old"}
    after = tko.incremental_update(new, old, 0.5)
    assert all(after[k] is new[k] for k in new)


def test_an_average_of_many_steps_in_a_scan() -> None:
    old = cases.arrays(jnp.bfloat16)
    new = cases.arrays()
    out, _ = jax.lax.scan(lambda avg, _: (tko.incremental_update(new, avg, 0.5), None), old, None, 20)
    cases.assert_close(out, cases.cast(new, jnp.bfloat16))


@pytest.mark.parametrize("kind", cases.PARAMS)
def test_a_copy_is_renewed_on_its_steps_and_keeps_its_dtypes(kind: str) -> None:
    old = cases.PARAMS[kind]()
    new = jax.tree.map(
        lambda x: (x + 1).astype(jnp.float32) if eqx.is_inexact_array(x) and not is_complex(x) else x, old
    )
    for steps, wanted in ((4, new), (jnp.array(6), new), (jnp.array(5), old)):
        after = tko.periodic_update(new, old, steps, jnp.array(2))
        assert cases.signature(after) == cases.signature(old)
        cases.assert_close(cases.inexact(after), cases.cast_like(cases.inexact(wanted), cases.inexact(old)))


def test_a_copy_of_a_raw_model_is_renewed_in_a_scan() -> None:
    """Optax's is a cond over the whole models, which takes no functions."""
    model = cases.model()
    new = jax.tree.map(lambda x: x + 1 if eqx.is_inexact_array(x) else x, model)
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(arrays: Any, steps: Any) -> tuple[Any, Any]:
        target = tko.periodic_update(new, eqx.combine(arrays, static), steps, 3)
        return eqx.filter(target, eqx.is_array), cases.inexact(target)[0].sum()

    last, sums = jax.lax.scan(step, arrays, jnp.arange(1, 5))
    cases.assert_close(last, eqx.filter(new, eqx.is_array))
    assert [bool(s == sums[-1]) for s in sums] == [False, False, True, True]
    with pytest.raises(TypeError, match=r"not a valid JAX type|JAX type"):
        optax.periodic_update(new, model, 1, 2)


def test_a_copy_may_be_of_any_arrays_and_takes_the_rest_from_the_new() -> None:
    new: dict[str, Any] = {"i": jnp.array(3), "k": jax.random.key(1), "f": jnp.sin, "s": "new", "n": None, "x": 0.5}
    old: dict[str, Any] = {"i": jnp.array(1), "k": jax.random.key(0), "f": jnp.tanh, "s": "old", "n": None, "x": 0.5}
    held, renewed = (tko.periodic_update(new, old, steps, 2) for steps in (1, 2))
    assert all(x is new[k] for k in "fsxn" for x in (held[k], renewed[k]))
    assert (held["i"], renewed["i"]) == (1, 3)
    for old_number, new_number in ((0.5, jnp.array(0.25)), (jnp.array(0.5), 0.25), (0.5, 0.25)):
        assert [float(tko.periodic_update(new_number, old_number, steps, 2)) for steps in (1, 2)] == [0.5, 0.25]
    assert (jax.random.key_data(held["k"]) == jax.random.key_data(old["k"])).all()
    assert (jax.random.key_data(renewed["k"]) == jax.random.key_data(new["k"])).all()
    none: dict[str, Any] = {"w": None}
    assert tko.periodic_update({"w": jnp.ones(2)}, none, 1, 2)["w"].shape == (2,)
    with pytest.raises(TypeError, match=r"\bw\b.*complex64.*float32"):
        tko.periodic_update({"w": jnp.ones(2, jnp.complex64)}, {"w": jnp.ones(2, jnp.float32)}, 1, 2)
    for shape in ((), (3,)):
        with pytest.raises(ValueError, match=r"\bw\b.*\(2,\)"):
            tko.periodic_update({"w": jnp.ones(shape)}, {"w": jnp.ones(2)}, 1, 2)
