"""apply_gradients: a whole step, equal to `update` then `apply_updates`."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda tx: tko.filtered(tx, lambda x: eqx.is_array_like(x)),
    "multi_steps": lambda tx: tko.MultiSteps(tx, 2),
    "schedule": lambda tx: tko.MultiSteps(tx, lambda n: 1 + n).gradient_transformation(),
    "skipping": lambda tx: tko.MultiSteps(tx, 2, should_skip_update_fn=tko.skip_not_finite),
    "of_multi_steps": lambda tx: tko.MultiSteps(tko.MultiSteps(tx, 2), 2),
    "of_chain": lambda tx: tko.MultiSteps(tko.chain(optax.scale_by_adam(), tko.apply_if_finite(tx, 2)), 2),
    "masked": lambda tx: tko.masked(tko.MultiSteps(tx, 2), cases.mask_of),
    "optax_multi_steps": lambda tx: optax.MultiSteps(tko.chain(tx), 2),
}


@pytest.mark.table
@pytest.mark.parametrize("wrap, name, kind", cases.cells(WRAPPERS, 0, whole=("multi_steps", "of_chain"), every=5))
def test_it_is_update_then_apply_updates(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    optimizer = wrap(cases.OPTIMIZERS[name](tko))
    tx = optimizer.gradient_transformation() if isinstance(optimizer, optax.MultiSteps) else optimizer
    tx = tko.filtered(tx, lambda x: eqx.is_array_like(x)) if isinstance(optimizer, optax.MultiSteps) else tx
    params = cases.make(kind)
    state = tko.chain(tx).init(params)[0]

    def extra(params: Any, grads: Any) -> dict[str, Any]:
        return cases.extra_for(params, grads) if name.startswith("lbfgs") else {}

    @eqx.filter_jit
    def whole(params: Any, state: Any) -> Any:
        grads = cases.grads_of(kind, params)
        return tko.apply_gradients(optimizer, grads, state, params, **extra(params, grads))

    @eqx.filter_jit
    def in_two(params: Any, state: Any) -> Any:
        grads = cases.grads_of(kind, params)
        updates, state = tko.chain(tx).update(grads, (state,), params, **extra(params, grads))
        return tko.apply_updates(params, updates), state[0]

    ours = theirs = (params, state)
    for _ in range(3):
        ours, theirs = whole(*ours), in_two(*theirs)
        assert cases.signature(ours) == cases.signature(theirs)
        cases.assert_close(cases.arrays_of(ours), cases.arrays_of(theirs), rtol=1e-5)


def gradients(steps: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        {k: jnp.asarray(rng.normal(size=x.shape), x.dtype) for k, x in cases.arrays().items()} for _ in range(steps)
    ]


HOLDING: dict[str, Callable[[Any], Any]] = {
    "multi_steps": lambda o: o.MultiSteps(o.adam(0.1), 2),
    "finite": lambda o: o.apply_if_finite(o.adam(0.1), 5),
    "chain": lambda o: o.chain(o.scale(2.0), o.MultiSteps(o.adam(0.1), 2).gradient_transformation()),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", HOLDING)
def test_a_step_that_holds_leaves_params_as_they_are(name: str) -> None:
    """Up to the sign of zero: adding 0.0 to -0.0 gives 0.0."""
    optimizer = HOLDING[name](tko)
    params = {"w": jnp.array([[-0.0, 1.0, jnp.inf]] * 2), "b": jnp.array([-0.0, jnp.nan])}
    grads = jax.tree.map(lambda x: x * jnp.nan, gradients(1)[0])
    after, _ = jax.jit(lambda g, s, p: tko.apply_gradients(optimizer, g, s, p))(grads, optimizer.init(params), params)
    for k, x in jax.tree.map(np.asarray, params).items():
        np.testing.assert_array_equal(after[k], x)


@pytest.mark.table
@pytest.mark.parametrize("kind", ["bf16", "f32", "int_key", "eqx_bf16"])
def test_with_a_key_it_rounds_as_apply_updates_does(kind: str) -> None:
    optimizer, params, key = tko.MultiSteps(tko.sgd(0.01), 2), cases.make(kind), jax.random.key(3)
    ours = theirs = (params, optimizer.init(params))
    for _ in range(4):
        grads = cases.grads_of(kind, params)
        ours = tko.apply_gradients(optimizer, grads, ours[1], ours[0], key=key)
        updates, state = optimizer.update(grads, theirs[1], theirs[0])
        theirs = (tko.apply_updates(theirs[0], updates, key=key), state)
    cases.assert_close(cases.arrays_of(ours), cases.arrays_of(theirs), rtol=1e-5)


@pytest.mark.table
@pytest.mark.parametrize("name", HOLDING)
def test_derivatives_go_through(name: str) -> None:
    """Of what comes out after some steps, with respect to the gradients' scale, as with plain Optax."""

    def after(scale: jax.Array, o: Any, whole: bool) -> jax.Array:
        optimizer, params = HOLDING[name](o), cases.arrays()
        state = optimizer.init(params)
        for g in gradients(4):
            grads = jax.tree.map(lambda x: x * scale + x**2, g)
            if whole:
                params, state = tko.apply_gradients(optimizer, grads, state, params)
            else:
                updates, state = optimizer.update(grads, state, params)
                params = o.apply_updates(params, updates)
        return sum((jnp.sum(x**2) for x in jax.tree.leaves(params)), jnp.float32(0))

    want = float(jax.grad(after)(jnp.float32(1.5), optax, False))
    assert want != 0
    jitted = jax.jit(after, static_argnums=(1, 2))  # so that whether a step is due is not known, as in a loop
    for derivative, whole in itertools.product((jax.grad, jax.jacfwd), (True, False)):
        assert float(derivative(jitted)(jnp.float32(1.5), tko, whole)) == pytest.approx(want, rel=1e-4)


PARAMS: Any = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
ADAM = tko.adam(0.1)
ROUNDS = tko.MultiSteps(ADAM, 2)
STATE: Any = ADAM.init(PARAMS)
SMALLER: Any = {**PARAMS, "w": jnp.ones((2, 2))}
# The words of an error, and the arguments.
WRONG: dict[str, tuple[Any, Any, Any, Any]] = {
    r"the gradient at w has shape \(2, 2\), and its parameter \(2, 3\)": (
        ADAM,
        SMALLER,
        STATE,
        PARAMS,
    ),
    "the root, the params have dict, and the updates tuple.*in this order": (
        ADAM,
        STATE,
        PARAMS,
        PARAMS,
    ),
    "(?s)the updates do not fit.*in this order": (ADAM, PARAMS, PARAMS, STATE),
    "params is None": (ADAM, PARAMS, STATE, None),
    r"(?s)the state does not fit.*inner_opt_state\.0\.mu\.w  shape": (ROUNDS, PARAMS, ROUNDS.init(SMALLER), PARAMS),
    # In a step that only accumulates, too.
    r"(?s)the state does not fit.*inner_opt_state\.0 .*has no attribute 'mu'|(?s:inner_opt_state\.0 )": (
        ROUNDS,
        PARAMS,
        tko.MultiSteps(tko.sgd(0.1), 2).init(PARAMS),
        PARAMS,
    ),
    "gradient at w is complex, and the param is real": (
        ROUNDS,
        {**PARAMS, "w": jnp.ones((2, 3), jnp.complex64)},
        ROUNDS.init(PARAMS),
        PARAMS,
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_named_with_its_key_path(message: str) -> None:
    for jit in (lambda f: f, jax.jit):
        with pytest.raises((AttributeError, TypeError, ValueError), match=message):
            jit(functools.partial(tko.apply_gradients, WRONG[message][0]))(*WRONG[message][1:])


def test_integers_of_numpy_are_converted_as_by_apply_updates() -> None:
    tx = tko.MultiSteps(tko.sgd(0.1), 1)
    params, grads = {"n": np.arange(2), "w": jnp.ones(2)}, {"n": None, "w": jnp.ones(2)}
    whole, _ = tko.apply_gradients(tx, grads, tx.init(params), params)
    in_two = tko.apply_updates(params, tx.update(grads, tx.init(params), params)[0])
    assert cases.same_bits(whole, in_two) and isinstance(whole["n"], jax.Array)
