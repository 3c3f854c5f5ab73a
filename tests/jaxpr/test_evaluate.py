"""evaluate: a traced function, one operation at a time, also for arrays that are not known."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from treekit._jaxpr.evaluate import TRACKED, UNKNOWN, is_zero, trace_program

X = jnp.arange(3.0)
TWICE = jax.custom_jvp(lambda x: 2 * x)
TWICE.defjvp(lambda x, t: (TWICE(*x), 2 * t[0]))
SQUARE = jax.custom_vjp(lambda x: x * x)
SQUARE.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: {"a": x + 1, "b": jnp.sin(x) * 2},
    "jit": jax.jit(lambda x: jnp.where(x > 1, x, -x)),
    "calls": lambda x: (TWICE(x), SQUARE(x), jax.checkpoint(jnp.cos)(x)),
    "cond": lambda x: lax.cond(x.sum() > 1, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(7, [jnp.sin, jnp.cos, jnp.tan], x),
    "loop": lambda x: lax.fori_loop(0, jnp.int32(x.sum()), lambda i, y: y * 2 + i, x),
    "scan": lambda x: lax.scan(lambda y, z: (y + z, y * z), 0.0, x),
    "keys": lambda x: jax.random.normal(jax.random.key(0), (3,)) + x,
    "constants": lambda x: (X, 1.0, None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_what_is_known_it_is_the_function(name: str) -> None:
    f = FUNCTIONS[name]
    found = trace_program(f, X)(X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, f(X))


def test_leaves_that_are_not_arrays_are_constants() -> None:
    def f(tree: Any) -> Any:
        return tree["f"](tree["x"]) * tree["n"]

    assert (trace_program(f, {"x": X, "f": jnp.negative, "n": 2})({"x": X}) == -2 * X).all()


# Functions of an array x that is not known, of one y that is tracked, and of 1; and what is known of the result.
NOT_KNOWN: dict[str, tuple[Callable[[Any, Any, Any], Any], Any]] = {
    "sum": (lambda x, y, one: x + one, UNKNOWN),
    "of_both": (lambda x, y, one: x + y, TRACKED),
    "known": (lambda x, y, one: one + one, 2.0),
    "product_with_zero": (lambda x, y, one: y * (one - 1), 0.0),
    "zero_divided": (lambda x, y, one: (one - 1) / y, 0.0),
    "and": (lambda x, y, one: (y > 0) & (one > 1), False),
    "contraction": (lambda x, y, one: jnp.dot(y[None], (one - 1)[None]), 0.0),
    "select_known": (lambda x, y, one: jnp.where(one > 1, y, one), 1.0),
    "select_mixed": (lambda x, y, one: lax.select(jnp.array([True, False]), jnp.stack([y, y]), jnp.zeros(2)), TRACKED),
    "select_by_unknown": (lambda x, y, one: jnp.where(x > 1, one, 2 * one), UNKNOWN),
    "select_by_tracked": (lambda x, y, one: jnp.where(y > 1, one, 2 * one), TRACKED),
    "select_same": (lambda x, y, one: jnp.where(y > 1, one, one), 1.0),
    "select_zeros": (lambda x, y, one: jnp.where(y > 1, 0 * one, one - 1), 0.0),
    "cond": (lambda x, y, one: lax.cond(y > 1, lambda: 0 * one, lambda: y * 0.0), 0.0),
    "cond_differs": (lambda x, y, one: lax.cond(y > 1, lambda: one, lambda: 2 * one), TRACKED),
    "cond_known": (lambda x, y, one: lax.cond(one > 1, lambda: y, lambda: 2 * one), 2.0),
    "loop": (
        lambda x, y, one: lax.while_loop(lambda c: c[0] < y, lambda c: (c[0] + 1, c[1]), (one, one)),
        (TRACKED, 1.0),
    ),
    "loop_spreads": (
        lambda x, y, one: lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1, c[0], c[1]), (one, one, one)),
        (UNKNOWN, UNKNOWN, UNKNOWN),
    ),
    "loop_known": (
        lambda x, y, one: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + one, c[1] * y), (one, one)),
        (4.0, TRACKED),
    ),
    "scan": (lambda x, y, one: lax.scan(lambda c, z: (c + z, None), one, y[None])[0], TRACKED),
    "noise": (lambda x, y, one: jax.random.normal(jax.random.key(0)) * y, TRACKED),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_is_known_is_so_for_all_values_of_what_is_not(name: str) -> None:
    f, expected = NOT_KNOWN[name]
    one = jnp.float32(1)
    results = jax.tree.leaves(trace_program(f, one, one, one)(UNKNOWN, TRACKED, one))
    for found, wanted in zip(results, jax.tree.leaves(expected), strict=True):
        if wanted is UNKNOWN or wanted is TRACKED:
            assert found is wanted
        else:
            assert found == wanted
    for x, y in ((0.5, -1.0), (3.0, 2.5)):
        values = jax.tree.leaves(f(jnp.float32(x), jnp.float32(y), one))
        for value, wanted in zip(values, jax.tree.leaves(expected), strict=True):
            assert wanted is UNKNOWN or wanted is TRACKED or value == wanted


def test_is_zero() -> None:
    assert all(map(is_zero, (0.0, -0.0, False, np.zeros(2), jnp.zeros((0,)), jnp.zeros(2, jnp.bfloat16))))
    assert not any(map(is_zero, (1, jnp.array([0.0, 1.0]), jnp.nan, UNKNOWN, TRACKED, jax.random.key(0))))
