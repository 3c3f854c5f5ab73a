"""dtype_preserving: users' own transformations, with the dtypes of their state kept, or stated for all or by name."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from tests.releases import enable_x64
from tests.trees import INT
from treekit import optax as tko

F32 = jnp.dtype(jnp.float32)
MU_NU: Any = {"mu": jnp.bfloat16, "nu": jnp.float32}
by_name: Any = functools.partial(tko.dtype_preserving, state_dtype=MU_NU)
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "dtype_preserving": lambda tx: tko.dtype_preserving(tx),
    "of_filtered": lambda tx: tko.dtype_preserving(tko.filtered(tx)),
    "f32": lambda tx: tko.dtype_preserving(tx, state_dtype=jnp.float32),
}
CELLS = [
    *cases.cells(WRAPPERS, 1, whole=("dtype_preserving",), every=3),
    *[(tko.dtype_preserving, name, "bf16_f32_grads") for name in ("adam", "radam", "amsgrad", "rmsprop", "yogi")],
    *[(by_name, "adamw", kind) for kind in ("bf16_f32_grads", "c64", "eqx_raw")],
    *[(functools.partial(by_name, rounding="stochastic"), "adamw", kind) for kind in ("bf16", "mixed", "nnx")],
]


def dtypes(state: Any, name: str) -> set[str]:
    return {str(x.dtype) for x in jax.tree.leaves(optax.tree.get(state, name))}


@pytest.mark.table
@pytest.mark.parametrize("wrap, name, kind", CELLS)
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


def test_state_dtype_leaves_ints_bools_and_keys_alone() -> None:
    tx = tko.dtype_preserving(optax.chain(cases.of_numbers(), optax.add_noise(0.1, 0.5, 0)), state_dtype=jnp.float32)
    params = cases.arrays(jnp.bfloat16)
    state = tx.init(params)
    assert (state[0].steps.dtype, state[0].seen.dtype) == (INT, jnp.bool_)
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


@pytest.mark.parametrize(
    ("names", "mu", "nu", "trace"),
    [
        ({"mu": jnp.bfloat16}, "bfloat16", "float32", "float32"),
        ({re.compile(r"0\.mu\..*"): jnp.float16, "0.**": jnp.bfloat16}, "float16", "bfloat16", "float32"),
        ({"trace": jnp.bfloat16, "**.trace.w": jnp.float16, "mu": "float16"}, "float16", "float32", "float16"),
    ],
)
def test_by_name_or_by_pattern(names: Any, mu: str, nu: str, trace: str) -> None:
    tx = tko.dtype_preserving(optax.chain(optax.scale_by_adam(), optax.trace(0.9)), state_dtype=names)
    params = {"w": jnp.ones(3, jnp.float32)}
    state = tx.init(params)
    _, after = jax.jit(tx.update)(params, state, params)
    assert [dtypes(after, name) for name in ("mu", "nu", "trace")] == [{mu}, {nu}, {trace}]
    assert cases.signature(after) == cases.signature(state)


@pytest.mark.parametrize(
    "params",
    [{"mu": jnp.ones(2), "nu": {"mu": jnp.ones(2)}}, [cases.Partial(jnp.add, mu=jnp.ones(2))]],
    ids=["named", "without key paths"],
)
def test_a_param_with_the_name_of_an_accumulator_is_not_taken_for_it(params: Any) -> None:
    tx = tko.dtype_preserving(optax.chain(optax.clip(1.0), optax.scale_by_adam()), state_dtype=MU_NU)
    mu, nu = (jax.tree.leaves(x) for x in tx.init(params)[1][1:])
    assert ({x.dtype for x in mu}, {x.dtype for x in nu}) == ({jnp.dtype(jnp.bfloat16)}, {F32})


def test_a_hyperparameter_is_found_by_its_path() -> None:
    params = {"learning_rate": jnp.ones(2)}
    names = {"hyperparams.learning_rate": jnp.bfloat16}
    tx = tko.dtype_preserving(tko.inject_hyperparams(tko.adam)(0.1), state_dtype=names)
    state: Any = tx.init(params)
    assert state.hyperparams["learning_rate"].dtype == jnp.bfloat16 and state.hyperparams["b1"].dtype == F32
    assert dtypes(state, "mu") == {"float32"}
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("state_dtype", [float, {"mu": np.float64, "nu": "float64"}])
def test_a_dtype_of_64_bits_is_what_jax_makes_of_it(state_dtype: Any, x64: bool) -> None:
    tx = tko.dtype_preserving(tko.adam(0.1), state_dtype=state_dtype)
    with enable_x64(x64):
        params = {"w": jnp.ones(2, jnp.float32)}
        _, state = tx.update(params, tx.init(params), params)
        assert dtypes(state, "mu") == dtypes(state, "nu") == {jnp.asarray(1.0).dtype.name}


def test_it_computes_in_f32() -> None:
    """The new first moment is rounded once, where bf16 arithmetic would round each term."""
    tx = tko.dtype_preserving(optax.trace(0.9), state_dtype={"trace": jnp.bfloat16})
    grads = jnp.asarray(np.linspace(0.1, 1, 50), jnp.float32)
    _, state = tx.update(grads, tx.init(grads))
    updates, state = tx.update(grads, state)
    first = grads.astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_allclose(updates, grads + 0.9 * first, rtol=1e-6)
    assert (state.trace == (grads + 0.9 * first).astype(jnp.bfloat16)).all()


def test_a_group_of_a_partition_may_be_empty() -> None:
    adam = tko.dtype_preserving(tko.adam(0.1), state_dtype=MU_NU)
    tx = tko.partition({"a": adam, "none": adam, "b": tko.sgd(0.1)}, {"w": "a", "b": "b"})
    params = cases.arrays()
    state = tx.init(params)
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


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


# Without the bias corrections of Adam, which raise under strict promotion in Optax, for params of any dtype.
STRICT: Any = {
    "rmsprop": (lambda: tko.rmsprop(0.1, momentum=0.9), {"nu": jnp.float32, "trace": jnp.bfloat16}),
    "lion": (lambda: tko.lion(0.1), {"mu": jnp.float32}),
    "decayed": (lambda: tko.chain(tko.add_decayed_weights(0.1), tko.trace(0.9)), jnp.bfloat16),
    "MultiSteps": (lambda: tko.MultiSteps(tko.rmsprop(0.1), 2), jnp.float32),
}


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("name", STRICT)
def test_it_computes_under_strict_promotion(name: str, dtype: Any, rounding: Any) -> None:
    """What it widens itself is cast explicitly, and the results are those of the usual promotion."""
    make, state_dtype = STRICT[name]
    params = {"w": jnp.linspace(-1, 1, 40).astype(dtype)}

    def two_steps() -> Any:
        tx = tko.dtype_preserving(make(), state_dtype=state_dtype, rounding=rounding)
        updates, state = tx.update(params, tx.init(params), params)
        return tx.update(updates, state, params)

    expected = two_steps()
    with jax.numpy_dtype_promotion("strict"):
        assert cases.same_bits(two_steps(), expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("state_dtype", [jnp.bfloat16, {"**": jnp.bfloat16}, {"trace": jnp.bfloat16}])
def test_averages_and_sums_of_gradients_stay_in_float32(state_dtype: Any, rounding: Any) -> None:
    """An average of bf16 cannot move, and a sum of many gradients loses them."""
    sums = tko.MultiSteps(optax.sgd(0.1, momentum=0.9), 2).gradient_transformation()
    tx = tko.dtype_preserving(tko.chain(sums, tko.params_ema(0.999)), state_dtype=state_dtype, rounding=rounding)
    for dtype in (jnp.float32, jnp.bfloat16):
        params = {"w": jnp.ones(3, dtype)}
        state = tx.init(params)
        _, after = jax.jit(tx.update)(params, state, params)
        assert cases.signature(after) == cases.signature(state)
        assert dtypes(after, "acc_grads") == dtypes(after, "params_ema") == {"float32"}
        assert dtypes(after, "trace") == {"bfloat16"}


CODES: Any = {"mu": jnp.int8, "nu": jnp.uint8}
MUST_BE = "must be a floating dtype of 16 bits or more, .*, found"
# The words of the error, and what dtype_preserving is called with.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    f"^state_dtype {MUST_BE}": [{"state_dtype": x} for x in (jnp.int32, bool, jnp.complex64, "bf16", jnp.uint16)],
    rf"state_dtype\['mu'\] {MUST_BE}": [{"state_dtype": {"mu": x}} for x in (None, jnp.int16, jnp.int4)],
    f"{MUST_BE} 'uint8'. For 8 bits, name the moments: .*'mu'": [{"state_dtype": "uint8"}],
    f"{MUST_BE} .*float8_e4m3fn": [{"state_dtype": jnp.float8_e4m3fn}],
    rf"\['nu'\] {MUST_BE} .*float8_e5m2.*'nu': jnp.uint8": [{"state_dtype": {"nu": jnp.float8_e5m2}}],
    "state_dtype must map fields or patterns to dtypes, found the key None": [{"state_dtype": {None: jnp.float32}}],
    "seed must be an int, found": [{"seed": jax.random.key(0)}, {"seed": True}],
    "rounding must be 'nearest' or 'stochastic', found 'up'": [{"rounding": "up"}],
    r"\['mu'\] is int8, which needs rounding='stoch": [{"state_dtype": CODES, "rounding": "nearest"}],
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_arguments_that_cannot_work(message: str) -> None:
    anything = inspect.unwrap(tko.dtype_preserving)  # beartype would be the first to say so
    for options in ARGUMENTS[message]:
        with pytest.raises((TypeError, ValueError), match=message):
            anything(optax.adam(0.1), **{"rounding": "stochastic", **options})


MATCHES_NOTHING = "which matches nothing in the state; its fields .* are .*mu, nu"


@pytest.mark.parametrize(
    ("dtype", "names", "message"),
    [
        # Part of a path is neither a field nor a pattern: the error says how a pattern is written.
        ("float32", {"0": jnp.bfloat16}, r"names '0', which .* A pattern matches a whole path .*'0\.mu\.w'"),
        ("float32", {re.compile("mu"): jnp.bfloat16, "w": jnp.bfloat16}, f"names .*, 'w', {MATCHES_NOTHING}"),
        # What no other entry leaves to a pattern.
        (
            "float32",
            {"**": jnp.float32, "**.w": jnp.bfloat16},
            r"\['\*\*\.w'\] decides about no array, since '\*\*' before it",
        ),
        # What decides nothing, though it matches.
        ("float32", {"1.params_ema.**": jnp.bfloat16}, r"params_ema\.w is an average .*, which needs float32"),
        ("float32", {"acc_grads": jnp.int8}, r"acc_grads\.w is .*accumulator of gradients, .*: leave 'acc_grads' out"),
        ("complex64", {"mu": jnp.int8}, r"\['mu'\] is int8, and .*0\.mu\.w is complex64, and complex .*: leave"),
        ("complex64", {"mu": jnp.bfloat16}, r"\['mu'\] is bfloat16, and .*0\.mu\.w is complex64"),
    ],
)
def test_an_entry_that_decides_nothing(dtype: str, names: Any, message: str) -> None:
    inner = tko.chain(tko.scale_by_adam(), tko.params_ema(0.9), tko.MultiSteps(tko.sgd(0.1), 2))
    tx = tko.dtype_preserving(inner, state_dtype=names, rounding="stochastic")
    params = {"w": jnp.ones(5_000, dtype)}
    with pytest.raises(ValueError, match=message):
        tx.init(params)
    if dtype == "complex64":  # beside a real param, they are left as they are
        assert dtypes(tx.init({**params, "b": jnp.ones(5_000)}), "mu") == {dtype, str(jnp.dtype(names["mu"]))}


def test_a_dtype_that_complex_params_have_already() -> None:
    tx = tko.dtype_preserving(tko.adam(0.1), state_dtype={"mu": jnp.float32})
    assert dtypes(tx.init({"w": jnp.ones(2, jnp.complex64)}), "mu") == {"complex64"}
