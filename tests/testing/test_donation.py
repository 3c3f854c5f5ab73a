"""check_donation: each leaf that is not usable, and leaves that share a buffer, by name."""

import functools
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treekit import optax, training
from treekit.testing import check_donation

X, Y = jnp.ones(3, jnp.float32), jnp.zeros(3, jnp.float32)
MODEL = eqx.nn.MLP(2, 1, 3, depth=1, dtype=jnp.float32, key=jax.random.key(0))
TX = optax.sgd(1e-3, momentum=0.9)
BATCH = jnp.ones((4, 2), jnp.float32)


def step(model: Any, state: Any) -> Any:
    grads = eqx.filter_grad(lambda m: jnp.mean(jax.vmap(m)(BATCH)))(model)
    return training.apply_gradients(TX, grads, state, model)


# function, arguments
USABLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a step of a whole model": (step, (MODEL, TX.init(MODEL))),
    "jitted already": (jax.jit(lambda x: x + 1, donate_argnums=0), (X,)),
    "a key": (lambda key: jax.random.split(key)[0], (jax.random.key(0),)),
    "NumPy and a constant": (lambda x, y: x + y, (np.ones(3, np.float32), 2.0)),
    "two leaves of one name": (lambda p: p, ({"a": {"b": X}, "a.b": Y},)),
    "a builtin without a signature": (dict, ({"a": X},)),
    "nothing to reuse": (lambda x: x.sum(), (jnp.ones((2, 0)),)),
}

# function, arguments, the lines of the error
UNUSABLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "two for one": (lambda x, y: x + y, (X, Y), "1 of 2 .* was.*x, y +f32[3] +2 leaves have .* dtype, and 1 result"),
    "another dtype, beside one that comes back": (
        lambda p: {"a": p["a"].astype(jnp.bfloat16), "b": p["b"]},
        ({"a": X, "b": Y},),
        "1 of 2 donated leaves was not usable:\n  p.a +f32[3] +the result at its place is bf16[3]\nReturn",
    ),
    "not read": (lambda x: jnp.zeros(3, jnp.float32), (X,), "x +f32[3] +f does not read it"),
    "none of two": (lambda x, y: x[0] * y[0], (X, Y), "2 of 2 donated leaves were not usable.* x .* y "),
    "without a signature": (functools.partial(max, key=jnp.ndim), (X, Y), "0, 1 +f32[3] +2 leaves have"),
    "positional": (lambda *xs: xs[0], (X, Y), "xs.1 +f32[3]"),
    "one buffer": (lambda x, y: (x, y), ({"a": X}, X), "share a buffer, which cannot be donated twice.*x.a, y$"),
}


@pytest.mark.parametrize("name", USABLE)
def test_silent_if_all_is_reused(name: str) -> None:
    f, args = USABLE[name]
    check_donation(f, *args)
    assert not any(x.is_deleted() for x in jax.tree.leaves(args) if isinstance(x, jax.Array))


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_is_not_usable_is_named(name: str) -> None:
    f, args, words = UNUSABLE[name]
    pattern = "(?s)" + re.sub(r"([\[\]])", r"\\\1", words)
    with pytest.raises(AssertionError, match=pattern):
        check_donation(f, *args)
