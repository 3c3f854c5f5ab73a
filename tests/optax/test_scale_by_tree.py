"""scale_by_tree: each leaf's updates are scaled by a rate of its own."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import treekit as tk
from tests.optax import cases
from treekit import optax as tko


def by_rank(params: Any) -> Any:
    """A function of the params: another rate for matrices."""
    return jax.tree.map(lambda x: 0.5 if getattr(x, "ndim", 0) > 1 else 0.25, params)


def by_path(params: Any) -> Any:
    """One that decides by key path."""
    return jax.tree_util.tree_map_with_path(lambda path, x: 0.5 if getattr(x, "ndim", 0) > 1 else 0.25, params)


class Table:
    """An object that maps the params to rates."""

    def __call__(self, params: Any) -> Any:
        return by_rank(params)


RATES: dict[str, Callable[[Any], Any]] = {
    "function": lambda params: by_rank,
    "by_path": lambda params: by_path,
    "object": lambda params: Table(),
    "tree_of_the_raw_model": by_rank,
    "tree_of_the_filtered_model": lambda params: by_rank(eqx.filter(params, eqx.is_inexact_array)),
    "with_the_other_leaves": lambda params: jax.tree.map(
        lambda x: x if callable(x) or isinstance(x, str) else by_rank(x), params
    ),
    "schedules": lambda params: jax.tree.map(
        lambda x: lambda count: 0.5 if getattr(x, "ndim", 0) > 1 else 0.25, params
    ),
    "arrays": lambda params: jax.tree.map(lambda x: jnp.array(0.5 if getattr(x, "ndim", 0) > 1 else 0.25), params),
}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("kind", ["f32", "none", "namedtuple", "node", "legacy", "eqx_raw", "nnx", "mixed", "int_key"])
def test_each_leaf_has_its_rate(name: str, kind: str) -> None:
    params = cases.make(kind)
    tx = tko.scale_by_tree(RATES[name](params))
    grads = cases.grads_of(kind, params)
    state = tx.init(params)
    updates, after = eqx.filter_jit(tx.update)(grads, state, params)
    assert cases.signature(after) == cases.signature(state)

    def check(param: Any, grad: Any, update: Any) -> None:
        if grad is None or grad.dtype == jax.dtypes.float0:
            assert update is None
        else:
            assert update.dtype == param.dtype
            assert bool((update == (0.5 if param.ndim > 1 else 0.25) * grad).all())

    jax.tree.map(check, params, grads, updates, is_leaf=lambda x: x is None)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: tko.chain(tko.adam(0.1), tx),
    "optax_chain": lambda tx: optax.chain(optax.trace(0.9), tx),
    "masked": lambda tx: tko.masked(tx, lambda params: jax.tree.map(lambda x: x.ndim > 1, params)),
    "filtered": lambda tx: tko.filtered(tko.chain(tx, tko.sgd(0.1))),
    "multi_steps": lambda tx: tko.MultiSteps(tko.chain(tko.sgd(0.1), tx), 2).gradient_transformation(),
    "if_finite": lambda tx: tko.apply_if_finite(tko.chain(tko.sgd(0.1), tx), 3),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("kind", ["eqx_raw", "bf16_f32_grads"])
def test_laws(name: str, kind: str) -> None:
    tx = WRAPPED[name](tko.scale_by_tree(by_rank))
    cases.check_laws(tx if name != "optax_chain" else tko.filtered(tx), kind, steps=2)


def test_it_is_what_partition_does_with_a_transformation_each() -> None:
    rates: dict[str, Any] = {"w": 0.1, "b": lambda count: 0.1 / (1 + count)}
    plain = optax.partition(
        {"w": optax.sgd(rates["w"], momentum=0.9), "b": optax.sgd(rates["b"], momentum=0.9)}, {"w": "w", "b": "b"}
    )
    ours = tko.chain(tko.trace(0.9), tko.scale_by_tree(rates), tko.scale(-1.0))
    params = cases.arrays()
    state_a, state_b = ours.init(params), plain.init(params)
    for _ in range(3):
        updates_a, state_a = ours.update(params, state_a, params)
        updates_b, state_b = plain.update(params, state_b, params)
        cases.assert_close(updates_a, updates_b)


def test_a_rate_covers_a_subtree_and_none_leaves_it() -> None:
    params = {"body": {"w": jnp.ones(2), "b": jnp.ones(2)}, "head": jnp.ones(2), "rest": [jnp.ones(2)]}
    for rates, expected in (({"body": 0.5, "head": 2, "rest": None}, [0.5, 0.5, 2, 1]), (0.5, [0.5] * 4)):
        tx: Any = tko.scale_by_tree(rates)
        updates, _ = tx.update(params, tx.init(params))
        assert [float(x[0]) for x in jax.tree.leaves(updates)] == expected


INJECTED: dict[str, Any] = {
    **{name: rates for name, rates in RATES.items() if name != "schedules"},
    "one number": lambda params: 0.5,
    "decays": lambda params: lambda params: jax.tree.map(lambda x: jnp.where(x.ndim > 1, 0.5, 0.25), params),
    "of arrays": lambda params: lambda params: jnp.float32(0.5),
    "by_name": lambda params: tk.path_labels({"**": 0.5}, default=0.25),
}


@pytest.mark.parametrize("rates", INJECTED.values(), ids=INJECTED)
@pytest.mark.parametrize("kind", ["f32", "eqx_raw"])
def test_injected_rates_are_passed_on(rates: Any, kind: str) -> None:
    """Their parameter says that they are a tree or a function of the params, so no function of them is a schedule."""
    params = cases.make(kind)
    grads = cases.grads_of(kind, params)
    plain = tko.scale_by_tree(rates(params))
    tx = tko.inject_hyperparams(tko.scale_by_tree)(rates(params))
    state = tx.init(params)
    assert tko.get_hyperparams(state) == {}
    cases.assert_close(tx.update(grads, state, params)[0], plain.update(grads, plain.init(params), params)[0])


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("rates", "error", "message"),
    [
        ({"w": 0.1}, ValueError, r"(?s)^rates does not fit.*2 children: b, w.*Make rates with jax.tree.map"),
        ({"w": {"x": 0.1}, "b": 0.1}, ValueError, r"(?s)rates does not fit.*\bw\b"),
        (lambda p: {"w": {"x": 0.1}, "b": 0.1}, ValueError, r"(?s)^rates\(params\) does not fit.*\bw\b"),
        ({"w": "fast", "b": 0.1}, TypeError, r"rates\.w must be a real number or a schedule, found 'fast'"),
        ({"w": True, "b": 0.1}, TypeError, r"rates\.w must be a real number or a schedule, found True"),
        ({"w": 1j, "b": 0.1}, TypeError, r"rates\.w must be a real number or a schedule, found 1j"),
        ({"w": jnp.ones(3), "b": 0.1}, TypeError, r"rates\.w must be a real number .* found Array\(\[1"),
        (jnp.ones(3), TypeError, r"rates must be a real number or a schedule, found Array\(\[1"),
    ],
)
def test_rates_that_do_not_fit(rates: Any, error: Any, message: str) -> None:
    params = cases.arrays()
    tx = tko.scale_by_tree(rates)
    with pytest.raises(error, match=message):
        tx.init(params)
    with pytest.raises(error, match=message):
        tx.update(params, tko.scale_by_tree(1.0).init(params), params)


@pytest.mark.parametrize("value", [None, jnp.ones(2), "a"])
def test_a_schedule_that_gives_no_number(value: Any) -> None:
    params = cases.arrays()
    tx = tko.scale_by_tree({"w": lambda count: value, "b": 0.1})
    with pytest.raises(TypeError, match=r"the schedule rates\.w must return a real number of shape \(\), found"):
        tx.update(params, tx.init(params), params)


def test_an_error_of_the_function_is_told() -> None:
    def rates(params: Any) -> Any:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match=r"^the function given as rates raised ValueError: no such layer"):
        tko.scale_by_tree(rates).init(cases.arrays())


def test_integer_updates_times_a_rate_are_floats() -> None:
    params = {"w": jnp.ones(2)}
    tx = tko.scale_by_tree({"w": 0.5})
    updates, _ = tx.update({"w": jnp.array([5, 10])}, tx.init(params), params)
    assert updates["w"].tolist() == [2.5, 5.0]


def test_rates_by_name() -> None:
    params = {"body": {"w": jnp.ones(2), "b": jnp.ones(2)}, "head": jnp.ones(2)}
    tx = tko.scale_by_tree(tk.path_labels({"**.b": lambda count: 0.5 + count, "head": 0.25}, default=1.0))
    state = tx.init(params)
    for count in range(2):
        updates, state = jax.jit(tx.update)(params, state, params)
        assert [float(x[0]) for x in (updates["body"]["w"], updates["body"]["b"], updates["head"])] == [
            1.0,
            0.5 + count,
            0.25,
        ]


def test_the_count_of_an_optimizer_is_found_beside_its_own() -> None:
    tx = tko.chain(tko.adam(0.1), tko.scale_by_tree({"w": 1.0, "b": 0.5}))
    assert int(optax.tree.get(tx.init(cases.arrays()), "count")) == 0
