"""Extra arguments inside wrappers: trees like the params are selected, and functions see the whole params."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko


def spy(seen: list[dict[str, Any]]) -> optax.GradientTransformationExtraArgs:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        seen.append({**extra, "params": params})
        return updates, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("wrapper", ["masked", "partition", "filtered"])
def test_extra_arguments_like_the_params_are_selected(wrapper: str, flag: bool) -> None:
    seen: list[dict[str, Any]] = []
    tx: Any
    if wrapper == "masked":
        tx = tko.masked(spy(seen), {"w": True, "b": False}, mask_compatible_extra_args=flag)
        hole: Any = optax.MaskedNode()
    elif wrapper == "partition":
        labels = {"w": "spy", "b": "no"}
        tx = tko.partition({"spy": spy(seen), "no": optax.identity()}, labels, mask_compatible_extra_args=flag)
        hole = optax.MaskedNode()
    else:
        tx, hole = tko.filtered(spy(seen), {"w": True, "b": False}), None
    params = cases.arrays()
    tx.update(
        params, tx.init(params), params, grad=params, value=jnp.array(2.0), like=params, other={"x": 1}, flag=True
    )
    (extra,) = seen
    assert extra["grad"]["b"] == extra["like"]["b"] == extra["params"]["b"] == hole
    assert extra["grad"]["w"].shape == (2, 3)
    assert (float(extra["value"]), extra["other"], extra["flag"]) == (2.0, {"x": 1}, True)


@pytest.mark.parametrize("wrapper", ["masked", "partition", "filtered"])
def test_a_batch_in_a_tuple_is_not_taken_for_params_in_one(wrapper: str) -> None:
    """Nor is what a function of both returns: its value beside something else."""
    x, y = jnp.ones((5, 2)), jnp.arange(5.0)
    params = (jnp.ones((2, 1)), jnp.ones(1))
    seen: list[dict[str, Any]] = []
    make: dict[str, Callable[[], Any]] = {
        "masked": lambda: tko.masked(spy(seen), (True, False)),
        "partition": lambda: tko.partition({True: spy(seen), False: optax.identity()}, (True, False)),
        "filtered": lambda: tko.filtered(spy(seen), (True, False)),
    }
    tx = make[wrapper]()
    tx.update(params, tx.init(params), params, batch=(x, y), value_fn=lambda params, batch: (1.0, batch[1].sum()))
    assert seen[0]["batch"][0] is x and seen[0]["batch"][1] is y
    assert seen[0]["value_fn"](seen[0]["params"], seen[0]["batch"]) == (1.0, 10.0)


def test_by_the_flag_the_structure_alone_decides() -> None:
    seen: list[dict[str, Any]] = []
    params, mask, rates = cases.arrays(), {"w": True, "b": False}, {"w": 0.1, "b": 0.2}
    for flag in (False, True):
        tx = tko.masked(spy(seen), mask, mask_compatible_extra_args=flag)
        tx.update(params, tx.init(params), params, rates=rates)
    assert [call["rates"]["b"] for call in seen] == [0.2, optax.MaskedNode()]


def test_a_model_among_the_extra_arguments_stays_one_and_a_loss_that_is_one_sees_the_whole_params() -> None:
    class Loss(eqx.Module):
        scale: jax.Array

        def __call__(self, params: Any) -> Any:
            return self.scale * sum(map(jnp.sum, params.values()))

    seen: list[dict[str, Any]] = []
    params, teacher, loss = {"w": jnp.ones((2, 3)), "b": jnp.ones(4)}, cases.model(), Loss(jnp.array(2.0))
    tx = tko.masked(spy(seen), {"w": True, "b": False})
    tx.update(params, tx.init(params), params, teacher=teacher, value_fn=loss, measure=lambda params: params["b"])
    assert seen[0]["teacher"] is teacher
    assert seen[0]["value_fn"](seen[0]["params"]) == 20
    assert seen[0]["measure"](seen[0]["params"]) is params["b"]


def test_value_fn_sees_the_whole_raw_model_and_its_own_arguments() -> None:
    model = cases.model()
    seen: list[dict[str, Any]] = []

    def value_fn(model: Any, scale: float, *, shift: float = 0.0) -> jax.Array:
        assert model.name == "model" and model.mlp.activation is jnp.tanh and model.dropout.p == 0.25
        return scale * cases.loss(model) + shift

    tx = tko.masked(tko.masked(spy(seen), cases.mask_of), lambda _: True)
    tx.update(cases.gradient(model), tx.init(model), model, value_fn=value_fn)
    inner = seen[0]
    assert float(inner["value_fn"](inner["params"], 2.0, shift=1.0)) == pytest.approx(2 * float(cases.loss(model)) + 1)
    assert inner["value_fn"](model, 1.0) == cases.loss(model)
    grads = jax.grad(lambda p: inner["value_fn"](p, 1.0))(
        jax.tree.map(lambda x: x, inner["params"], is_leaf=lambda x: x is None)
    )
    cases.assert_close(
        [x for x in jax.tree.leaves(grads)], [x for x in jax.tree.leaves(cases.gradient(model)) if x.ndim == 2]
    )
