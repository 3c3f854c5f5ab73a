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

WRAPPERS: dict[str, Callable[..., Any]] = {
    "masked": tko.masked,
    "partition": lambda tx, mask, **options: tko.partition({True: tx, False: optax.identity()}, mask, **options),
    "selective_transform": lambda tx, mask, **_: tko.transforms.selective_transform(
        tx, freeze_mask=jax.tree.map(lambda trained: not trained, mask)
    ),
}


def spy(seen: dict[str, Any]) -> optax.GradientTransformationExtraArgs:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        seen.update(extra, params=params)
        return updates, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def seen_inside(wrapper: str, mask: Any, params: Any, options: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """The params and the extra arguments that the inner transformation of a wrapper is given."""
    seen: dict[str, Any] = {}
    tx = WRAPPERS[wrapper](spy(seen), mask, **options)
    tx.update(params, tx.init(params), params, **extra)
    return seen


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_extra_arguments_like_the_params_are_selected(wrapper: str, flag: bool) -> None:
    """By structure and shapes; by the flag, the structure alone decides."""
    params, hole = cases.arrays(), optax.MaskedNode()
    others = {"value": jnp.array(2.0), "other": {"x": 1}, "flag": True}
    given = {"grad": params, "like": cases.arrays(), "rates": {"w": 0.1, "b": 0.2}, **others}
    seen = seen_inside(wrapper, {"w": True, "b": False}, params, {"mask_compatible_extra_args": flag}, **given)
    assert all(seen[name]["b"] == hole and seen[name]["w"].shape == (2, 3) for name in ("grad", "like", "params"))
    assert seen["rates"] == {"w": 0.1, "b": hole if flag and wrapper in ("masked", "partition") else 0.2}
    assert all(seen[name] is x for name, x in others.items())


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_batch_in_a_tuple_is_not_taken_for_params_in_one(wrapper: str) -> None:
    """Nor is what a function of both returns: its value beside something else."""
    batch = jnp.ones((5, 2)), jnp.arange(5.0)
    params = (jnp.ones((2, 1)), jnp.ones(1))
    seen = seen_inside(
        wrapper, (True, False), params, {}, batch=batch, value_fn=lambda params, batch: (1.0, batch[1].sum())
    )
    assert all(x is y for x, y in zip(seen["batch"], batch, strict=True))
    assert seen["value_fn"](seen["params"], seen["batch"]) == (1.0, 10.0)


@pytest.mark.parametrize("name", ["value", "step"])
def test_a_number_beside_params_that_are_a_number_is_not_taken_for_params(name: str) -> None:
    x = jnp.float32(1.0)
    seen = seen_inside("masked", False, x, {}, **{name: x, "grad": x})
    assert seen[name] is x and isinstance(seen["grad"], optax.MaskedNode)


def test_a_group_whose_updates_get_another_shape_does_not_change_what_later_ones_see() -> None:
    def mean(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda x: x.mean(0), updates), state

    seen, first = dict[str, Any](), optax.GradientTransformation(lambda params: optax.EmptyState(), mean)
    tx = tko.partition({"a": first, "b": optax.chain(spy(seen), first)}, {"w": "a", "v": "b"})
    params, grads = {"w": jnp.ones(3), "v": jnp.ones(3)}, {"w": jnp.ones((5, 3)), "v": jnp.ones((5, 3))}
    updates, _ = tx.update(grads, tx.init(params), params, grad=grads)
    assert seen["grad"]["v"].shape == (5, 3) and seen["grad"]["w"] == optax.MaskedNode()
    assert jax.tree.map(jnp.shape, updates) == {"w": (3,), "v": (3,)}


class Loss(eqx.Module):
    """A model too, which is called as a loss only where the argument's name says that it is a function."""

    scale: jax.Array

    def __call__(self, params: Any) -> Any:
        return self.scale * sum(map(jnp.sum, params.values()))

    def method(self, params: Any) -> Any:
        return self(params)


LOSS = Loss(jnp.array(2.0))
FUNCTIONS: dict[str, Any] = {
    "function": lambda params: LOSS(params),
    "method": LOSS.method,
    "jitted": jax.jit(lambda params: LOSS(params)),
    "filter_jit": eqx.filter_jit(LOSS.method),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_among_the_extra_arguments_sees_the_whole_params(name: str) -> None:
    """What it returns that is like the params is selected. Whatever else is an argument does not change."""
    params, teacher = {"w": jnp.ones((2, 3)), "b": jnp.ones(4)}, cases.model()
    given = {"objective": FUNCTIONS[name], "value_fn": LOSS, "measure": lambda params: params}
    seen = seen_inside("masked", {"w": True, "b": False}, params, {}, **given, teacher=teacher, model=LOSS, kind=Loss)
    assert seen["objective"](seen["params"]) == seen["value_fn"](seen["params"]) == 20
    assert seen["measure"](seen["params"]) == {"w": params["w"], "b": optax.MaskedNode()}
    assert seen["teacher"] is teacher and seen["model"] is LOSS and seen["kind"] is Loss


def test_what_a_function_is_called_with_besides_the_params_does_not_change() -> None:
    def shown(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(4)}
    seen = seen_inside("masked", {"w": True, "b": False}, params, {}, shown=shown)
    assert seen["shown"](seen["params"], 2.0, shift=1.0) == ((params, 2.0), {"shift": 1.0})
    for args in ((), (None,), (3.0,), ({"other": None},), ({"w": params["w"]},)):
        assert seen["shown"](*args, step=3.0) == (args, {"step": 3.0})


def test_a_raw_model_like_the_params_is_selected_by_a_mask_in_a_mask() -> None:
    seen, model = dict[str, Any](), cases.model()
    tx = tko.masked(tko.masked(spy(seen), cases.mask_of), lambda _: True)
    tx.update(cases.gradient(model), tx.init(model), model, teacher=model)
    assert cases.structure(seen["teacher"]) == cases.structure(seen["params"])
