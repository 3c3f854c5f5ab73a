"""What treekit mends in Optax, one law each: it holds here and fails there, with the error that is named.

Where one of the expected failures passes, Optax has mended it: the test goes red and names what may become an alias.
benchmarks/results/upstream.md has the threads; test_five_systems.py has the failures of the five systems.
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
from tests.releases import keys, needs
from treekit import optax as tko


def step(tx: Any, params: Any, grads: Any, **extra: Any) -> tuple[Any, Any, Any]:
    """The state before a step, the updates, and the state after it."""
    before = tx.init(params)
    updates, after = optax.with_extra_args_support(tx).update(grads, before, params, **extra)
    return before, updates, after


def dtypes(tree: Any) -> list[Any]:
    return [x.dtype for x in jax.tree.leaves(tree)]


def a_partial_is_a_mask_function(o: Any) -> None:
    """Though it is a tree, of what it binds."""

    def larger(bound: Any, params: Any) -> Any:
        return jax.tree.map(lambda x: x.ndim > bound.ndim, params)

    params = cases.arrays()
    _, updates, _ = step(o.masked(o.scale(2.0), cases.Partial(larger, jnp.ones(2))), params, params)
    np.testing.assert_allclose(updates["w"], 2 * params["w"])
    np.testing.assert_allclose(updates["b"], params["b"])


def state_keeps_its_dtype(o: Any) -> None:
    params = cases.arrays(jnp.bfloat16)
    before, _, after = step(o.adam(0.1), params, cases.cast(params, jnp.float32))
    assert dtypes(after) == dtypes(before)


def updates_of_mixed_params_keep_their_dtypes(o: Any) -> None:
    params = cases.make("mixed")
    _, updates, _ = step(o.inject_hyperparams(o.sgd)(0.1), params, params)
    assert dtypes(updates) == dtypes(params)


def lbfgs_is_traced_once(o: Any) -> None:
    params = cases.arrays()
    grads = cases.gradient(params)
    before, _, after = step(o.lbfgs(), params, grads, **cases.extra_for(params, grads))
    assert cases.signature(after) == cases.signature(before)


def memory_size_stays_an_int(o: Any) -> None:
    tx = o.inject_hyperparams(o.lbfgs)(0.1, memory_size=3, linesearch=None)
    state = jax.jit(tx.init)(cases.arrays())
    assert "memory_size" not in state.hyperparams


def a_dtype_is_no_schedule(o: Any) -> None:
    state = o.inject_hyperparams(o.adam)(0.1, mu_dtype=jnp.bfloat16).init(cases.arrays())
    assert "mu_dtype" not in state.hyperparams


def a_round_that_holds_runs_nothing(o: Any) -> None:
    """What the inner transformation would make of half of the gradients, here NaN, is nobody's business."""
    tx = o.MultiSteps(o.stateless(lambda g, _: jax.tree.map(lambda x: x / (x - 1), g)), 2)
    params = jnp.zeros(2)
    updates, _ = tx.update(jnp.ones(2), tx.init(params), params)
    np.testing.assert_array_equal(updates, jnp.zeros(2))


def multi_steps_hands_on_extra_arguments(o: Any) -> None:
    params = cases.arrays()
    step(o.MultiSteps(o.polyak_sgd(), 2).gradient_transformation(), params, params, value=jnp.ones([]))


def multi_steps_keeps_imaginary_parts(o: Any) -> None:
    params = jnp.ones(2) * (1 + 2j)
    tx = o.MultiSteps(o.sgd(1.0), 2)
    _, state = tx.update(params, tx.init(params), params)
    updates, _ = tx.update(params, state, params)
    np.testing.assert_allclose(updates, -params)


def updates_apply_to_a_raw_model(o: Any) -> None:
    model = cases.model()
    o.apply_updates(model, eqx.filter(model, eqx.is_inexact_array))


def updates_apply_beside_keys(o: Any) -> None:
    params = {"w": jnp.ones(2), "key": jax.random.key(0)}
    o.apply_updates(params, {"w": jnp.ones(2), "key": np.zeros((), jax.dtypes.float0)})


def an_average_keeps_its_dtype(o: Any) -> None:
    assert o.incremental_update(jnp.ones(2), jnp.ones(2, jnp.bfloat16), 0.5).dtype == jnp.bfloat16


def a_copy_of_a_raw_model_is_renewed(o: Any) -> None:
    model = cases.model()
    o.periodic_update(model, model, 1, 2)


def a_raw_model_can_be_evaluated_with(o: Any) -> None:
    model = cases.model()
    state = tko.contrib.schedule_free_sgd(0.1).init(model)
    o.contrib.schedule_free_eval_params(state, model)


def params_in_a_masked_state_are_mapped(o: Any) -> None:
    params = cases.arrays()
    tx = o.masked(o.adam(0.1), {"w": True, "b": False})
    state = o.tree_map_params(tx, lambda _, name: name, tx.init(params), {"w": "W", "b": "B"})
    assert state.inner_state[0].mu["w"] == "W"


def a_first_state_can_be_donated(o: Any) -> None:
    params = cases.arrays()
    buffers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, o.contrib.prodigy().init(params)))]
    assert len(set(buffers)) == len(buffers)


def a_monitor_runs_in_scan(o: Any) -> None:
    tx, grads = o.monitor({"norm": o.tree.norm}), cases.arrays()
    state, _ = jax.lax.scan(lambda state, _: (tx.update(grads, state)[1], None), tx.init(grads), length=3)
    assert o.tree.get(state, "norm") == o.tree.norm(grads)


def an_optimizer_takes_a_raw_model(o: Any) -> None:
    o.adam(0.1).init(cases.model())


def apply_if_finite_takes_two_dtypes(o: Any) -> None:
    params = cases.arrays(jnp.bfloat16)
    step(o.apply_if_finite(o.adam(0.1), 3), params, cases.cast(params, jnp.float32))


# A law that plain Optax breaks, what of ours may go when it holds, and how it fails until then.
FIXES: list[tuple[Callable[[Any], None], str, type[Exception]]] = [
    (a_partial_is_a_mask_function, "masked", ValueError),
    (state_keeps_its_dtype, "dtype_preserving", AssertionError),
    (updates_of_mixed_params_keep_their_dtypes, "inject_hyperparams", AssertionError),
    (lbfgs_is_traced_once, "lbfgs", AssertionError),
    (memory_size_stays_an_int, "inject_hyperparams", TypeError),
    (a_dtype_is_no_schedule, "inject_hyperparams", TypeError),
    (a_round_that_holds_runs_nothing, "MultiSteps", AssertionError),
    (multi_steps_hands_on_extra_arguments, "MultiSteps", TypeError),
    (multi_steps_keeps_imaginary_parts, "MultiSteps", DeprecationWarning),
    (updates_apply_to_a_raw_model, "apply_updates", TypeError),
    (updates_apply_beside_keys, "apply_updates", TypeError),
    (apply_if_finite_takes_two_dtypes, "apply_if_finite", TypeError),
    (an_average_keeps_its_dtype, "incremental_update", AssertionError),
    (a_copy_of_a_raw_model_is_renewed, "periodic_update", TypeError),
    (a_raw_model_can_be_evaluated_with, "contrib.schedule_free_eval_params", TypeError),
    (params_in_a_masked_state_are_mapped, "tree_map_params", ValueError),
    (a_first_state_can_be_donated, "contrib.prodigy", AssertionError),
    (a_monitor_runs_in_scan, "monitor", TypeError),
    (an_optimizer_takes_a_raw_model, "filtered", TypeError),
]
REASON = "Optax breaks it; when fixed, treekit.optax.{} may be an alias (benchmarks/results/upstream.md)"
SINCE: dict[Any, Any] = {
    multi_steps_keeps_imaginary_parts: needs("optax>=0.2.8"),
    a_monitor_runs_in_scan: needs("optax.monitor"),
}
BROKEN = [
    pytest.param(
        law,
        marks=[
            pytest.mark.xfail(strict=True, raises=raises, reason=REASON.format(alias)),
            *([SINCE[law]] if law in SINCE else []),
        ],
    )
    for law, alias, raises in FIXES
]


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("law", keys([law for law, *_ in FIXES], {a_monitor_runs_in_scan: "optax.monitor"}))
def test_treekit(law: Callable[[Any], None]) -> None:
    law(tko)


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("law", BROKEN)
def test_optax(law: Callable[[Any], None]) -> None:
    law(optax)
