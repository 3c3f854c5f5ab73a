"""A dtype for each accumulator: dtype_preserving(tx, state_dtype={name: dtype})."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko

MU_NU: Any = {"mu": jnp.bfloat16, "nu": jnp.float32}


def dtypes(state: Any, name: str) -> set[Any]:
    return {x.dtype for x in jax.tree.leaves(optax.tree.get(state, name))}


@pytest.mark.parametrize(
    ("kind", "rounding"),
    [
        *[(kind, "nearest") for kind in ("f32", "bf16_f32_grads", "c64", "eqx_raw")],
        *[(kind, "stochastic") for kind in ("bf16", "mixed", "nnx")],
    ],
)
def test_laws(kind: str, rounding: Any) -> None:
    adamw: Any = (optax if kind in ("f32", "mixed", "eqx_raw") else tko).adamw(0.01)
    tx: Any = tko.dtype_preserving(adamw, state_dtype=MU_NU, rounding=rounding)
    _, state = cases.check_laws(tx, kind, steps=2)
    assert dtypes(state, "mu") - {jnp.dtype(jnp.complex64)} == {jnp.dtype(jnp.bfloat16)}
    assert dtypes(state, "nu") - {jnp.dtype(jnp.complex64)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    ("names", "mu", "nu", "trace"),
    [
        ({"mu": jnp.bfloat16}, "bfloat16", "float32", "float32"),
        ({"0.**": jnp.bfloat16}, "bfloat16", "bfloat16", "float32"),
        ({re.compile(".*"): jnp.float16}, "float16", "float16", "float16"),
        ({re.compile(r"0\.mu\..*"): jnp.float16, "0.**": jnp.bfloat16}, "float16", "bfloat16", "float32"),
        ({"trace": jnp.bfloat16, "**.trace.w": jnp.float16, "mu": "float16"}, "float16", "float32", "float16"),
        ({re.compile(r"0\.nu\.w"): jnp.float16}, "float32", "float16", "float32"),
        ({"trace": "bfloat16", re.compile(".*mu.*"): "float16"}, "float16", "float32", "bfloat16"),
        ({"**.nu.**": "bfloat16", "?.trace.w": "float16"}, "float32", "bfloat16", "float16"),
    ],
)
def test_by_name_or_by_pattern(names: Any, mu: str, nu: str, trace: str) -> None:
    tx = tko.dtype_preserving(optax.chain(optax.scale_by_adam(), optax.trace(0.9)), state_dtype=names)
    params = {"w": jnp.ones(3, jnp.float32)}
    state = tx.init(params)
    _, after = jax.jit(tx.update)(params, state, params)
    assert [optax.tree.get(after, name)["w"].dtype for name in ("mu", "nu", "trace")] == [mu, nu, trace]
    assert cases.signature(after) == cases.signature(state)


@jax.tree_util.register_pytree_node_class
class Unnamed:
    """A class that has no key paths."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> "Unnamed":
        return cls(*children)


def test_params_without_key_paths_have_no_names_of_accumulators() -> None:
    state: Any = tko.dtype_preserving(optax.scale_by_adam(), state_dtype=MU_NU).init(Unnamed({"mu": jnp.ones(2)}))
    assert (state.mu.value["mu"].dtype, state.nu.value["mu"].dtype) == (jnp.bfloat16, jnp.float32)


def test_a_hyperparameter_is_found_by_its_path() -> None:
    adam = tko.inject_hyperparams(tko.adam)(0.1)
    params = {"learning_rate": jnp.ones(2)}
    tx = tko.dtype_preserving(adam, state_dtype={"hyperparams.learning_rate": jnp.bfloat16})
    state: Any = tx.init(params)
    assert state.hyperparams["learning_rate"].dtype == jnp.bfloat16 and state.hyperparams["b1"].dtype == jnp.float32
    assert {x.dtype for x in jax.tree.leaves(optax.tree.get(state, "mu"))} == {jnp.dtype(jnp.float32)}
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("state_dtype", [float, np.float64, {"mu": float, "nu": "float64"}])
def test_a_dtype_of_64_bits_is_what_jax_makes_of_it(state_dtype: Any, x64: bool) -> None:
    tx = tko.dtype_preserving(tko.adam(0.1), state_dtype=state_dtype)
    with jax.enable_x64(x64):
        params = {"w": jnp.ones(2, jnp.float32)}
        _, state = tx.update(params, tx.init(params), params)
        assert state[0].mu["w"].dtype == state[0].nu["w"].dtype == jnp.asarray(1.0).dtype


def test_it_computes_in_f32() -> None:
    """The new first moment is rounded once, where bf16 arithmetic would round each term."""
    tx = tko.dtype_preserving(optax.trace(0.9), state_dtype={"trace": jnp.bfloat16})
    grads = jnp.asarray(np.linspace(0.1, 1, 50), jnp.float32)
    _, state = tx.update(grads, tx.init(grads))
    updates, state = tx.update(grads, state)
    first = grads.astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_allclose(updates, grads + 0.9 * first, rtol=1e-6)
    assert (state.trace == (grads + 0.9 * first).astype(jnp.bfloat16)).all()


def test_in_a_group_of_a_partition() -> None:
    adam = tko.dtype_preserving(tko.adam(0.1), state_dtype=MU_NU)
    tx = tko.partition({"a": adam, "none": adam, "b": tko.sgd(0.1)}, {"w": "a", "b": "b"})
    params = cases.arrays()
    state = tx.init(params)
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("names", "message"),
    [
        # Part of a path is neither a field nor a pattern: the error says how a pattern is written.
        ({"0": jnp.bfloat16}, r"names '0', which matches nothing .* A pattern matches a whole path .*'0\.mu\.w'"),
        ({re.compile("mu"): jnp.bfloat16}, r"which matches nothing .* A pattern matches a whole path"),
        ({"w": jnp.bfloat16}, r"names 'w', which matches nothing .* A pattern matches a whole path"),
        ({"**.embed.**": jnp.bfloat16}, r"names '\*\*\.embed\.\*\*', which matches nothing"),
        # What no other entry leaves to a pattern.
        ({"**": jnp.float32, "**.w": jnp.bfloat16}, r"names '\*\*\.w', which matches nothing"),
        # What decides nothing, though it matches.
        ({"1.params_ema.**": jnp.bfloat16}, r"1\.params_ema\.w is an average of the params, which needs float32"),
    ],
)
def test_an_entry_that_decides_nothing(names: Any, message: str) -> None:
    tx = tko.dtype_preserving(tko.chain(tko.scale_by_adam(), tko.params_ema(0.9)), state_dtype=names)
    with pytest.raises(ValueError, match=message):
        tx.init({"w": jnp.ones(3)})


COMPLEX = {"w": jnp.ones(5_000, jnp.complex64)}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"mu": jnp.int8},
            r"\['mu'\] is int8, and .*0\.mu\.w is complex64, and complex numbers are not rounded: leave",
        ),
        ({"**.nu.**": jnp.uint8}, r"is uint8, and .*0\.nu\.w is complex64"),
        ({"mu": jnp.bfloat16}, r"\['mu'\] is bfloat16, and .*0\.mu\.w is complex64"),
        ({"mv": jnp.bfloat16}, r"names 'mv', which matches nothing in the state; its fields .* are mu, nu\."),
    ],
)
def test_params_that_are_all_complex(names: Any, message: str) -> None:
    tx = tko.dtype_preserving(tko.adam(0.1), state_dtype=names, rounding="stochastic")
    with pytest.raises(ValueError, match=message):
        tx.init(COMPLEX)
    mixed: Any = {**COMPLEX, "b": jnp.ones(5_000)}
    if "mv" not in names:
        assert {str(x.dtype) for x in jax.tree.leaves(tx.init(mixed))} >= {
            "complex64",
            str(jnp.dtype(next(iter(names.values())))),
        }


def test_a_python_number_in_the_state_has_no_dtype() -> None:
    """As users set a hyperparameter: it has the dtype of its array from the next update on."""
    for names in ({"mu": jnp.bfloat16, "**.learning_rate": jnp.float32}, jnp.float32):
        tx: Any = tko.dtype_preserving(tko.inject_hyperparams(tko.adam)(0.1), state_dtype=names)
        params = {"w": jnp.ones(2)}
        state = tx.init(params)
        state.hyperparams["learning_rate"] = 0.5
        updates, after = tx.update(params, state, params)
        np.testing.assert_allclose(updates["w"], -0.5, rtol=1e-2)
        assert after.hyperparams["learning_rate"].dtype == jnp.float32


def test_a_dtype_that_complex_params_have_already() -> None:
    tx = tko.dtype_preserving(tko.adam(0.1), state_dtype={"mu": jnp.float32})
    assert dtypes(tx.init(COMPLEX), "mu") == {jnp.dtype(jnp.complex64)}


# Without the bias corrections of Adam, which raise under strict promotion in Optax, for params of any dtype.
OPTIMIZERS: Any = {
    "rmsprop": (lambda: tko.rmsprop(0.1, momentum=0.9), {"nu": jnp.float32, "trace": jnp.bfloat16}),
    "sgd": (lambda: tko.sgd(0.1, momentum=0.9), {"trace": jnp.bfloat16}),
    "lion": (lambda: tko.lion(0.1), {"mu": jnp.float32}),
    "decayed": (lambda: tko.chain(tko.add_decayed_weights(0.1), tko.trace(0.9)), {"trace": jnp.float32}),
    "MultiSteps": (lambda: tko.MultiSteps(tko.rmsprop(0.1), 2), {"nu": jnp.float32}),
}


CHOICES = [jnp.float32, jnp.bfloat16, "by name"]
# Each optimizer with each dtype, and some of the dtypes of the state.
STRICT = [
    (name, dtype, CHOICES[(i + j) % 3], ("nearest", "stochastic")[(i + j) % 2])
    for i, name in enumerate(OPTIMIZERS)
    for j, dtype in enumerate([jnp.bfloat16, jnp.float16, jnp.float32])
]


@pytest.mark.parametrize("name, dtype, state_dtype, rounding", STRICT)
def test_it_computes_under_strict_promotion(name: str, dtype: Any, state_dtype: Any, rounding: Any) -> None:
    """What it widens itself is cast explicitly, and the results are those of the usual promotion."""
    make, by_name = OPTIMIZERS[name]
    params = {"w": jnp.linspace(-1, 1, 40).astype(dtype)}
    chosen = by_name if state_dtype == "by name" else state_dtype

    def two_steps() -> Any:
        tx = tko.dtype_preserving(make(), state_dtype=chosen, rounding=rounding)
        updates, state = tx.update(params, tx.init(params), params)
        return tx.update(updates, state, params)

    expected = two_steps()
    with jax.numpy_dtype_promotion("strict"):
        found = two_steps()
    assert cases.same_bits(found, expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_state_that_was_made_without_it(rounding: Any) -> None:
    params = cases.arrays()
    tx = tko.dtype_preserving(optax.adam(0.1), state_dtype=MU_NU, rounding=rounding)
    state = tko.dtype_preserving(optax.adam(0.1), rounding=rounding).init(params)
    with pytest.raises(TypeError, match=r"state_dtype\['mu'\] is bfloat16, .* has float32 at 0\.mu\.b"):
        tx.update(params, state, params)


def test_a_param_with_the_name_of_an_accumulator_is_not_taken_for_it() -> None:
    params = {"mu": jnp.ones(2), "nu": {"mu": jnp.ones(2)}}
    tx = tko.dtype_preserving(tko.chain(tko.clip(1.0), tko.adam(0.1)), state_dtype={"mu": jnp.bfloat16})
    state: Any = tx.init(params)
    adam = state[1][0]
    assert {x.dtype for x in jax.tree.leaves(adam.mu)} == {jnp.dtype(jnp.bfloat16)}
    assert {x.dtype for x in jax.tree.leaves(adam.nu)} == {jnp.dtype(jnp.float32)}
    _, new_state = tx.update(params, state, params)
    assert cases.signature(new_state) == cases.signature(state)
    with pytest.raises(ValueError, match="'w', which matches nothing"):
        tko.dtype_preserving(tko.adam(0.1), state_dtype={"w": jnp.bfloat16}).init({"w": jnp.ones(2)})


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("state_dtype", [jnp.bfloat16, {"**": jnp.bfloat16}, {"trace": jnp.bfloat16}])
def test_averages_and_sums_of_gradients_stay_in_float32(state_dtype: Any, dtype: Any, rounding: Any) -> None:
    """An average of bf16 cannot move, and a sum of many gradients loses them."""
    sums = tko.MultiSteps(optax.sgd(0.1, momentum=0.9), 2).gradient_transformation()
    tx = tko.dtype_preserving(tko.chain(sums, tko.params_ema(0.999)), state_dtype=state_dtype, rounding=rounding)
    params = {"w": jnp.ones(3, dtype)}
    state = tx.init(params)
    _, after = jax.jit(tx.update)(params, state, params)
    assert cases.signature(after) == cases.signature(state)
    assert [dtypes(after, name) for name in ("acc_grads", "params_ema")] == [{jnp.dtype(jnp.float32)}] * 2
    assert dtypes(after, "trace") == {jnp.dtype(jnp.bfloat16)}


def test_an_average_moves_beside_state_in_16_bits() -> None:
    tx = tko.dtype_preserving(tko.chain(tko.sgd(1e-4), tko.params_ema(0.999)), state_dtype=jnp.bfloat16)
    params = {"w": jnp.ones(3)}
    state = tx.init(params)
    for _ in range(20):
        updates, state = tx.update(params, state, params)
        params = tko.apply_updates(params, updates)
    found = tko.get_ema(state, params)["w"]
    assert bool(((found > params["w"]) & (found < 1 - 5e-4)).all())
