"""The loss that the command makes up, and the extra arguments that optimizers ask for."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from treekit import optax as tko
from treekit.check._loss import extra_arguments, squares

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 3, dtype=jnp.float32), "b": jnp.zeros(1, jnp.float32)}
ONES = jax.tree.map(jnp.ones_like, PARAMS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "complex64", "float8_e4m3fn"])
def test_the_gradient_is_one(dtype: str) -> None:
    params = {"x": jnp.asarray([0.0, 3.0, -100.0]).astype(dtype), "n": 2, "name": "dense", "f": jax.nn.relu}
    loss = squares(params)
    gradient = jax.grad(lambda x: loss({**params, "x": x}))(params["x"])
    assert gradient.dtype == dtype and gradient.astype(jnp.complex64).tolist() == [1, 1, 1]
    assert loss(params).dtype == jnp.float32 and loss(params) == 1.5


def test_the_loss_of_f64_is_f64() -> None:
    with jax.enable_x64(True):
        assert squares(PARAMS)(PARAMS).dtype == jnp.float32
        assert squares({"x": jnp.ones(2, jnp.float64)})({"x": jnp.ones(2, jnp.float64)}).dtype == jnp.float64


def test_numbers_may_become_arrays_and_shapes_have_no_value() -> None:
    loss = squares({"rate": 0.5, "flag": True, "shape": jax.eval_shape(lambda: jnp.ones(2))})
    assert loss({"rate": jnp.float32(1.5), "flag": jnp.array(True), "shape": None}) == 2.0


SGD = optax.sgd(0.1)
LINE_SEARCH = {"value", "grad", "value_fn"}
ASKS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "adam": (lambda: optax.adam(1e-3), set()),
    "lbfgs": (optax.lbfgs, LINE_SEARCH),
    "treekit.optax.lbfgs": (tko.lbfgs, LINE_SEARCH),
    "in a chain": (lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)), LINE_SEARCH),
    "polyak_sgd": (optax.polyak_sgd, {"value"}),
    "reduce_on_plateau": (lambda: tko.chain(tko.sgd(0.1), tko.contrib.reduce_on_plateau()), {"value"}),
    "MultiSteps": (lambda: tko.MultiSteps(tko.polyak_sgd(), 2), {"value"}),
    "sophia": (lambda: optax.contrib.sophia(1e-3), {"obj_fn"}),
    "an init that raises": (lambda: optax.GradientTransformation(lambda params: params["name"], SGD.update), set()),
}


@pytest.mark.parametrize("name", ASKS)
def test_extra_arguments_are_those_that_update_asks_for(name: str) -> None:
    make, asked = ASKS[name]
    with jax.numpy_dtype_promotion("standard"):
        extra = extra_arguments(make(), PARAMS, ONES, squares(PARAMS))
    assert extra.keys() == asked


def test_what_is_asked_for_and_not_known_is_left_to_the_laws() -> None:
    def update(updates: Any, state: Any, params: Any, *, value: Any, rate: Any) -> Any:
        raise AssertionError("it is never given a rate")

    make: Any = optax.GradientTransformationExtraArgs
    assert extra_arguments(make(lambda _: (), update), PARAMS, ONES, squares(PARAMS)).keys() == {"value"}
