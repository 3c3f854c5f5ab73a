"""Gradients of single examples, with an axis more than their params, beside what is frozen, missing or skipped."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from treekit import optax as tko
from treekit.testing import assert_trees_same

PARAMS = {"a": jnp.ones(2), "b": jnp.ones(3)}
GRADS = {"a": jnp.arange(8.0).reshape(4, 2), "b": jnp.arange(12.0).reshape(4, 3)}


def private(o: Any, clip: float = 1.0) -> Any:
    return o.chain(o.contrib.differentially_private_aggregate(clip, 0.0, key=0), o.sgd(1.0))


def update(tx: Any, grads: Any = GRADS) -> Any:
    return jax.jit(lambda grads: tx.update(grads, tx.init(PARAMS), PARAMS)[0])(grads)


def test_a_missing_gradient() -> None:
    grads = {**GRADS, "a": None}
    assert_trees_same(update(private(tko), grads), update(private(optax), grads))


def test_a_frozen_part() -> None:
    got = update(tko.transforms.selective_transform(private(tko), freeze_mask={"a": True, "b": False}))
    assert_trees_same(got, {"a": jnp.zeros(2), "b": update(private(optax), {**GRADS, "a": None})["b"]})


SKIPPED: dict[str, Callable[[Any], Any]] = {
    "finite": lambda tx: tko.apply_if_finite(tx, 2),
    "conditionally_mask": lambda tx: tko.conditionally_mask(tx, lambda step: step > 0),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_a_step_that_is_skipped(name: str) -> None:
    grads = jax.tree.map(lambda x: x / 0, GRADS)
    assert_trees_same(update(SKIPPED[name](private(tko)), grads), jax.tree.map(jnp.zeros_like, PARAMS))


BOUNDS: dict[str, Callable[[Any], Any]] = {"plain": lambda tx: tx, **SKIPPED}
BOUNDS["conditionally_mask"] = lambda tx: tko.conditionally_mask(tx, lambda step: step >= 0)


@pytest.mark.parametrize("name", BOUNDS)
def test_two_bounds_in_a_chain(name: str) -> None:
    """Also where each may be skipped, which returns the gradients that it leaves out as they are."""

    def two(o: Any, around: Any) -> Any:
        each = [o.contrib.differentially_private_aggregate(clip, 0.0, key=0) for clip in (1.0, 2.0)]
        masks = {"a": True, "b": False}, {"a": False, "b": True}
        return o.chain(*map(around, map(o.masked, each, masks)), o.sgd(1.0))

    assert_trees_same(update(two(tko, BOUNDS[name])), update(two(optax, BOUNDS["plain"])))


@pytest.mark.parametrize("name", BOUNDS)
def test_a_missing_gradient_of_what_is_masked_out(name: str) -> None:
    tx = BOUNDS[name](tko.masked(private(tko), {"a": True, "b": False}))
    got = update(tx, {**GRADS, "b": None})
    assert_trees_same(got, update(private(optax), {**GRADS, "b": None}))
