"""What treekit mends in Optax, one law each: it holds here and fails there, with the error that is named.

Where one of the expected failures passes, Optax has fixed it: the test goes red and names what may become an alias.
benchmarks/results/upstream.md has the threads.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from tests.releases import needs
from treekit import optax as tko

Law = Callable[[Any], None]  # of treekit.optax, or of optax
LAWS: list[Any] = []  # each for both libraries
REASON = "Optax breaks it; when fixed, treekit.optax.{} may be an alias (benchmarks/results/upstream.md)"


def fixed(alias: str, raises: type[Exception] | tuple[type[Exception], ...], since: str = "") -> Callable[[Law], Law]:
    """Add a law that Optax breaks.

    Args:
        alias: what of treekit.optax may go when Optax holds the law.
        raises: how it fails until then.
        since: a release, or a name of Optax, without which there is nothing to test.
    """

    def add(law: Law) -> Law:
        marks = [needs(since)] if since else []
        fails = pytest.mark.xfail(strict=True, raises=raises, reason=REASON.format(alias))
        LAWS.extend([pytest.param(law, tko, marks=marks), pytest.param(law, optax, marks=[*marks, fails])])
        return law

    return add


def step(tx: Any, params: Any, grads: Any, **extra: Any) -> tuple[Any, Any, Any]:
    """The state before a step, the updates, and the state after it."""
    before = tx.init(params)
    updates, after = optax.with_extra_args_support(tx).update(grads, before, params, **extra)
    return before, updates, after


def dtypes(tree: Any) -> list[Any]:
    return [x.dtype for x in jax.tree.leaves(tree)]


def zeros(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, eqx.filter(params, eqx.is_inexact_array))


def only_matrices_move(updates: Any) -> bool:
    """Of gradients of zero, what decays moves alone."""
    return all(bool((x != 0).any()) == (x.ndim > 1) for x in jax.tree.leaves(updates))


# ----------------------------------------------------------------------------------------- functions and callable trees


@fixed("masked", ValueError)
def a_mask_of_the_filtered_model_fits_the_raw_model(o: Any) -> None:
    model = cases.model()
    _, updates, _ = step(o.masked(o.add_decayed_weights(0.1), cases.mask_of(model)), model, zeros(model))
    assert only_matrices_move(updates)


@fixed("partition", TypeError)
def labels_that_can_be_called_are_labels(o: Any) -> None:
    params = cases.make("eqx_filtered")
    groups = {True: o.add_decayed_weights(0.1), False: o.set_to_zero()}
    _, updates, _ = step(o.partition(groups, cases.mask_of(params)), params, zeros(params))
    assert only_matrices_move(updates)


@fixed("masked", ValueError)
def a_partial_is_a_mask_function(o: Any) -> None:
    """Though it is a tree, of what it binds."""

    def larger(bound: Any, params: Any) -> Any:
        return jax.tree.map(lambda x: x.ndim > bound.ndim, params)

    params = cases.arrays()
    _, updates, _ = step(o.masked(o.scale(2.0), cases.Partial(larger, jnp.ones(2))), params, params)
    np.testing.assert_allclose(updates["w"], 2 * params["w"])
    np.testing.assert_allclose(updates["b"], params["b"])


@fixed("inject_hyperparams", (TypeError, ValueError))
def a_mask_that_can_be_called_is_not_a_schedule(o: Any) -> None:
    params = cases.make("eqx_filtered")
    tx = o.inject_hyperparams(o.adamw)(0.1, weight_decay=0.5, mask=cases.mask_of(params))
    _, updates, state = step(tx, params, zeros(params))
    assert only_matrices_move(updates) and "mask" not in state.hyperparams


@fixed("inject_hyperparams", AssertionError)
def a_mask_function_is_not_a_schedule(o: Any) -> None:
    """Optax raises nothing: it decays nothing."""
    params = cases.arrays()
    tx = o.inject_hyperparams(o.adamw)(0.1, weight_decay=0.5, mask=cases.mask_of)
    _, updates, _ = step(tx, params, zeros(params))
    assert only_matrices_move(updates)


@fixed("inject_hyperparams", TypeError)
def a_dtype_is_not_a_schedule(o: Any) -> None:
    state = o.inject_hyperparams(o.adam)(0.1, mu_dtype=jnp.bfloat16).init(cases.arrays())
    assert "mu_dtype" not in state.hyperparams


@fixed("inject_hyperparams", TypeError)
def memory_size_stays_an_int(o: Any) -> None:
    tx = o.inject_hyperparams(o.lbfgs)(0.1, memory_size=3, linesearch=None)
    state = jax.jit(tx.init)(cases.arrays())
    assert "memory_size" not in state.hyperparams


# ------------------------------------------------------------------------------------- leaves that cannot be parameters


@fixed("adam", TypeError)
def an_optimizer_takes_a_raw_model(o: Any) -> None:
    o.adam(0.1).init(cases.model())


@fixed("lbfgs", AttributeError)
def lbfgs_takes_a_raw_model(o: Any) -> None:
    model = cases.model()
    grads = cases.gradient(model)
    _, updates, _ = step(o.lbfgs(), model, grads, **cases.extra_for(model, grads))
    assert cases.loss(tko.apply_updates(model, updates)) < cases.loss(model)


@fixed("masked", ValueError)
def a_line_search_inside_of_masked_sees_the_arguments_of_its_params(o: Any) -> None:
    params = cases.arrays()
    grads = cases.gradient(params)
    tx = o.masked(o.lbfgs(), cases.mask_of(params))
    _, updates, _ = step(tx, params, grads, **cases.extra_for(params, grads))
    w = {"w": params["w"] + updates["w"]}
    assert cases.loss({**params, **w}) < cases.loss(params)


@fixed("apply_updates", TypeError)
def updates_apply_to_a_raw_model(o: Any) -> None:
    model = cases.model()
    o.apply_updates(model, eqx.filter(model, eqx.is_inexact_array))


@fixed("apply_updates", TypeError)
def updates_apply_beside_keys(o: Any) -> None:
    params = {"w": jnp.ones(2), "key": jax.random.key(0)}
    o.apply_updates(params, {"w": jnp.ones(2), "key": np.zeros((), jax.dtypes.float0)})


@fixed("periodic_update", TypeError)
def a_copy_of_a_raw_model_is_renewed(o: Any) -> None:
    model = cases.model()
    o.periodic_update(model, model, 1, 2)


@fixed("contrib.schedule_free_eval_params", TypeError)
def a_raw_model_can_be_evaluated_with(o: Any) -> None:
    model = cases.model()
    state = tko.contrib.schedule_free_sgd(0.1).init(model)
    o.contrib.schedule_free_eval_params(state, model)


@fixed("tree_map_params", ValueError)
def params_in_a_masked_state_are_mapped(o: Any) -> None:
    params = cases.arrays()
    tx = o.masked(o.adam(0.1), {"w": True, "b": False})
    state = o.tree_map_params(tx, lambda _, name: name, tx.init(params), {"w": "W", "b": "B"})
    assert state.inner_state[0].mu["w"] == "W"


# --------------------------------------------------------------------------------------------------------------- dtypes


@fixed("adam", AssertionError)
def state_keeps_its_dtype(o: Any) -> None:
    params = cases.arrays(jnp.bfloat16)
    before, _, after = step(o.adam(0.1), params, cases.cast(params, jnp.float32))
    assert dtypes(after) == dtypes(before)


@fixed("apply_if_finite", TypeError)
def apply_if_finite_takes_two_dtypes(o: Any) -> None:
    params = cases.arrays(jnp.bfloat16)
    step(o.apply_if_finite(o.adam(0.1), 3), params, cases.cast(params, jnp.float32))


@fixed("inject_hyperparams", AssertionError)
def b2_of_bf16_params_is_less_than_one(o: Any) -> None:
    """It is 0.999, which bf16 rounds to 1; then the first updates are NaN."""
    params = cases.arrays(jnp.bfloat16)
    _, updates, _ = step(o.inject_hyperparams(o.adamw)(1e-3), params, params)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(updates))


@fixed("inject_hyperparams", AssertionError)
def updates_of_mixed_params_keep_their_dtypes(o: Any) -> None:
    params = cases.make("mixed")
    _, updates, _ = step(o.inject_hyperparams(o.sgd)(0.1), params, params)
    assert dtypes(updates) == dtypes(params)


@fixed("lbfgs", AssertionError)
def lbfgs_is_traced_once(o: Any) -> None:
    params = cases.arrays()
    grads = cases.gradient(params)
    before, _, after = step(o.lbfgs(), params, grads, **cases.extra_for(params, grads))
    assert cases.signature(after) == cases.signature(before)


@fixed("incremental_update", AssertionError)
def an_average_keeps_its_dtype(o: Any) -> None:
    assert o.incremental_update(jnp.ones(2), jnp.ones(2, jnp.bfloat16), 0.5).dtype == jnp.bfloat16


# --------------------------------------------------------------------------------------------------------- accumulation


@fixed("MultiSteps", AssertionError)
def one_nan_is_forgotten_after_its_round(o: Any) -> None:
    """Optax raises nothing: what had a NaN once never moves again."""
    multi_steps = o.MultiSteps(o.chain(o.zero_nans(), o.sgd(0.1)), 2)
    params = jnp.zeros(2)
    state, moved = multi_steps.init(params), []
    for gradient in (jnp.nan, 1.0, 1.0, 1.0):
        updates, state = multi_steps.update(jnp.array([gradient, 1.0]), state, params)
        moved.append(updates)
    np.testing.assert_allclose(moved[1], [0, -0.1], rtol=1e-6)
    np.testing.assert_allclose(moved[3], [-0.1, -0.1], rtol=1e-6)


@fixed("MultiSteps", AssertionError)
def a_round_that_holds_runs_nothing(o: Any) -> None:
    """What the inner transformation would make of half of the gradients, here NaN, does not matter."""
    tx = o.MultiSteps(o.stateless(lambda g, _: jax.tree.map(lambda x: x / (x - 1), g)), 2)
    params = jnp.zeros(2)
    updates, _ = tx.update(jnp.ones(2), tx.init(params), params)
    np.testing.assert_array_equal(updates, jnp.zeros(2))


@fixed("MultiSteps", TypeError)
def multi_steps_hands_on_extra_arguments(o: Any) -> None:
    params = cases.arrays()
    step(o.MultiSteps(o.polyak_sgd(), 2).gradient_transformation(), params, params, value=jnp.ones([]))


@fixed("MultiSteps", DeprecationWarning, since="optax>=0.2.8")
def multi_steps_keeps_imaginary_parts(o: Any) -> None:
    params = jnp.ones(2) * (1 + 2j)
    tx = o.MultiSteps(o.sgd(1.0), 2)
    _, state = tx.update(params, tx.init(params), params)
    updates, _ = tx.update(params, state, params)
    np.testing.assert_allclose(updates, -params)


# --------------------------------------------------------------------------------------------------------- first states


@fixed("monitor", TypeError, since="optax.monitor")
def a_monitor_runs_in_scan(o: Any) -> None:
    tx, grads = o.monitor({"norm": o.tree.norm}), cases.arrays()
    state, _ = jax.lax.scan(lambda state, _: (tx.update(grads, state)[1], None), tx.init(grads), length=3)
    assert o.tree.get(state, "norm") == o.tree.norm(grads)


@fixed("contrib.prodigy", AssertionError)
def a_first_state_can_be_donated(o: Any) -> None:
    params = cases.arrays()
    buffers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, o.contrib.prodigy().init(params)))]
    assert len(set(buffers)) == len(buffers)


# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("law, library", LAWS)
def test_it_holds_in_treekit_and_not_in_optax(law: Law, library: Any) -> None:
    law(library)
