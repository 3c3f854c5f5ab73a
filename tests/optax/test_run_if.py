"""apply_if_finite and the conditional wrappers: steps that are skipped, in every mix of dtypes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko

NAN, INF = float("nan"), float("inf")

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "finite": lambda tx: tko.apply_if_finite(tx, 3),
    "masked": lambda tx: tko.masked(tko.apply_if_finite(tx, 3), True),
    "of_masked": lambda tx: tko.apply_if_finite(
        tko.masked(tx, lambda p: jax.tree.map(lambda x: x.ndim > 1, p)), max_consecutive_errors=3
    ),
    "twice": lambda tx: tko.apply_if_finite(tko.apply_if_finite(tx, 3), 3),
}


@pytest.mark.parametrize("wrap, name, kind", cases.cells(WRAPPERS, 6, whole=("finite",), every=4))
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    # Optax's own lbfgs writes f32 gradients into a bf16 memory, which JAX announces to refuse.
    cases.check_laws(wrap(cases.OPTIMIZERS[name](tko if name.startswith("lbfgs") else optax)), kind)


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor", "clipped"])
def test_on_plain_params_it_is_optax(name: str) -> None:
    tx = cases.OPTIMIZERS[name](optax)
    cases.same_as_optax(tko.apply_if_finite(tx, 3), optax.apply_if_finite(tx, 3), "f32")


def follow(o: Any, values: list[float], most: int) -> list[tuple[float, int, int, bool, float]]:
    """The update, the counts and what the inner state has come to, step by step."""
    tx = o.apply_if_finite(optax.trace(1.0), most)
    params = {"a": jnp.ones(1), "b": jnp.ones(1)}
    state = tx.init(params)
    seen = []
    for value in values:
        updates, state = jax.jit(tx.update)({"a": jnp.array([value]), "b": jnp.ones(1)}, state, params)
        seen.append(
            (
                float(updates["b"][0]),
                int(state.notfinite_count),
                int(state.total_notfinite),
                bool(state.last_finite),
                float(state.inner_state.trace["b"][0]),
            )
        )
    return seen


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_what_is_skipped_and_counted_is_what_optax_skips_and_counts(most: int) -> None:
    values = [1.0, NAN, 1.0, INF, -INF, NAN, NAN, 1.0, NAN]
    seen = follow(tko, values, most)
    assert seen == follow(optax, values, most)
    assert (seen[1][0], seen[1][-1]) == ((0, 1) if most else (2, 2))


@pytest.mark.usefixtures("nans")
def test_a_bad_number_in_any_leaf_of_a_raw_model_stops_all() -> None:
    model = cases.model()
    tx = tko.apply_if_finite(tko.adam(0.1), 3)
    grads = cases.gradient(model)
    leaves, treedef = jax.tree.leaves(grads), cases.structure(grads)
    for i in range(len(leaves)):
        bad = treedef.unflatten([x.at[(0,) * x.ndim].set(NAN) if i == j else x for j, x in enumerate(leaves)])
        updates, state = tx.update(bad, tx.init(model), model)
        assert not any(bool(x.any()) for x in jax.tree.leaves(updates))
        assert int(state.total_notfinite) == 1


@pytest.mark.usefixtures("nans")
def test_the_updates_that_are_skipped_have_the_dtype_of_those_that_are_not() -> None:
    params = cases.arrays(jnp.bfloat16)
    tx = tko.apply_if_finite(optax.radam(0.1), 3)
    state = tx.init(params)
    for factor in (1.0, NAN):
        grads = jax.tree.map(lambda x, factor=factor: (x * factor).astype(jnp.float32), params)
        updates, after = tx.update(grads, state, params)
        assert {u.dtype for u in jax.tree.leaves(updates)} == {jnp.dtype(jnp.float32)}
        assert cases.signature(after) == cases.signature(state)


def test_no_leaves_and_int_leaves() -> None:
    tx = tko.apply_if_finite(tko.sgd(0.1), 3)
    params: dict[str, Any] = {}
    updates, state = tx.update(params, tx.init(params), params)
    assert updates == {} and bool(state.last_finite)
    params = cases.PARAMS["int_key"]()
    updates, state = tx.update(cases.grads_of("int_key", params), tx.init(params), params)
    assert updates["n"] is None and bool(state.last_finite)


def test_extra_arguments_reach_the_inner_transformation() -> None:
    params = cases.arrays()
    tx = tko.apply_if_finite(optax.polyak_sgd(0.1), 3)
    bare = optax.polyak_sgd(0.1)
    grads = cases.gradient(params)
    updates, _ = tx.update(grads, tx.init(params), params, value=cases.loss(params))
    expected, _ = bare.update(grads, bare.init(params), params, value=cases.loss(params))
    cases.assert_close(updates, expected)


@pytest.mark.usefixtures("nans")
def test_the_count_is_read_and_reset_by_name_and_nothing_is_traced_again() -> None:
    tx = tko.chain(tko.clip(1.0), tko.apply_if_finite(tko.sgd(1.0), 2))
    params = jnp.ones(2)
    state = tx.init(params)
    traces = 0

    @jax.jit
    def step(grads: Any, state: Any) -> Any:
        nonlocal traces
        traces += 1
        return tx.update(grads, state, params)

    for count in (1, 2, 1, 2):  # a third in a row would be accepted
        updates, state = step(params * NAN, state)
        assert not updates.any()
        assert int(tko.tree.get(state, "notfinite_count")) == count
        if count == 2:
            state = tko.tree.set(state, notfinite_count=jnp.zeros([], jnp.int32))
    assert int(tko.tree.get(state, "total_notfinite")) == 4
    assert traces == 1


@pytest.mark.parametrize("wrap", ["conditionally_transform", "conditionally_mask"])
def test_conditionally_with_gradients_narrower_than_their_params(wrap: str) -> None:
    given, grads = {"w": jnp.ones(2)}, {"w": jnp.ones(2, jnp.bfloat16)}
    tx = getattr(tko, wrap)(tko.adam(0.1), lambda step: step >= 1)
    update = jax.jit(tx.update)
    held, state = update(grads, tx.init(given), given)
    run, _ = update(grads, state, given)
    assert held["w"].dtype == run["w"].dtype == jnp.float32
    assert (held["w"] == (1 if wrap == "conditionally_transform" else 0)).all()
    assert (run["w"] < 0).all()
