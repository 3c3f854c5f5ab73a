"""apply_gradients: a whole step, equal to `update` then `apply_updates`."""

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

STEPS = 3


def first_leaves(params: Any) -> Any:
    """A mask of half of the leaves."""
    count, numbers = len(jax.tree.leaves(params)), itertools.count()
    return jax.tree.map(lambda _: 2 * next(numbers) < count, params)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda tx: tko.filtered(tx, lambda x: eqx.is_array_like(x)),
    "multi_steps": lambda tx: tko.MultiSteps(tx, 2),
    "schedule": lambda tx: tko.MultiSteps(tx, lambda n: 1 + n).gradient_transformation(),
    "skipping": lambda tx: tko.MultiSteps(tx, 2, should_skip_update_fn=tko.skip_not_finite),
    "finite": lambda tx: tko.apply_if_finite(tx, 2),
    "finite_of_multi_steps": lambda tx: tko.apply_if_finite(tko.MultiSteps(tx, 2).gradient_transformation(), 2),
    "multi_steps_of_finite": lambda tx: tko.MultiSteps(tko.apply_if_finite(tx, 2), 2),
    "of_multi_steps": lambda tx: tko.MultiSteps(tko.MultiSteps(tx, 2).gradient_transformation(), 2),
    "clipped": lambda tx: tko.chain(tko.clip_by_global_norm(1.0), tko.MultiSteps(tx, 2).gradient_transformation()),
    "clipped_twice": lambda tx: tko.named_chain(
        ("clip", optax.clip(0.5)),
        ("rest", tko.chain(tko.clip_by_global_norm(1.0), tko.MultiSteps(tx, 2).gradient_transformation())),
    ),
    "after_optax": lambda tx: tko.chain(
        optax.scale_by_adam(), optax.scale(0.1), tko.MultiSteps(tx, 2).gradient_transformation()
    ),
    "after_frozen": lambda tx: tko.chain(
        tko.filtered(tko.scale(0.5), lambda x: eqx.is_array(x) and x.ndim > 1),
        tko.MultiSteps(tx, 2).gradient_transformation(),
    ),
    "multi_steps_of_chain": lambda tx: tko.MultiSteps(tko.chain(optax.scale_by_adam(), tko.apply_if_finite(tx, 2)), 2),
    "followed": lambda tx: tko.chain(
        tko.MultiSteps(tx, 2).gradient_transformation(), tko.add_decayed_weights(0.1), tko.scale(-1.0)
    ),
    "masked": lambda tx: tko.masked(tko.MultiSteps(tx, 2).gradient_transformation(), True),
    "masked_in_part": lambda tx: tko.masked(tko.MultiSteps(tx, 2).gradient_transformation(), first_leaves),
    "filtered": lambda tx: tko.filtered(
        tko.chain(tko.masked(tko.MultiSteps(tx, 2).gradient_transformation(), first_leaves)),
        lambda x: eqx.is_inexact_array(x) and x.ndim > 0,
    ),
    "optax_chain": lambda tx: optax.chain(tko.MultiSteps(tx, 2).gradient_transformation(), tko.scale(2.0)),
    "optax_multi_steps": lambda tx: optax.MultiSteps(tko.chain(tx), 2),
}


@pytest.mark.parametrize("wrap, name, kind", cases.cells(WRAPPERS, 0, whole=("multi_steps",), every=5))
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
    for _ in range(STEPS):
        ours, theirs = whole(*ours), in_two(*theirs)
        assert cases.signature(ours) == cases.signature(theirs)
        cases.assert_close(cases.arrays_of(ours), cases.arrays_of(theirs), rtol=1e-5)


def gradients(steps: int, dtype: Any = jnp.float32) -> list[Any]:
    rng = np.random.default_rng(0)
    return [{k: jnp.asarray(rng.normal(size=x.shape), dtype) for k, x in cases.arrays().items()} for _ in range(steps)]


HOLDING: dict[str, Callable[[], Any]] = {
    "multi_steps": lambda: tko.MultiSteps(tko.adam(0.1), 2),
    "finite": lambda: tko.apply_if_finite(tko.adam(0.1), 5),
    "chain": lambda: tko.chain(tko.scale(2.0), tko.MultiSteps(tko.adam(0.1), 2).gradient_transformation()),
    "masked": lambda: tko.masked(tko.MultiSteps(tko.adam(0.1), 2).gradient_transformation(), True),
    "named_chain": lambda: tko.named_chain(
        ("s", tko.scale(2.0)), ("t", tko.chain(tko.apply_if_finite(tko.adam(0.1), 5)))
    ),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", HOLDING)
def test_a_step_that_holds_leaves_params_as_they_are(name: str) -> None:
    """Bit for bit if `MultiSteps` is outermost; nested, it returns zeros, and adding them to -0.0 gives 0.0."""
    optimizer = HOLDING[name]()
    params = {"w": jnp.array([[-0.0, 1.0, jnp.inf]] * 2), "b": jnp.array([-0.0, jnp.nan])}
    grads = jax.tree.map(lambda x: x * jnp.nan, gradients(1)[0])
    after, _ = jax.jit(lambda g, s, p: tko.apply_gradients(optimizer, g, s, p))(grads, optimizer.init(params), params)
    for k, x in jax.tree.map(np.asarray, params).items():
        if name == "multi_steps":
            assert after[k].tobytes() == x.tobytes()
        np.testing.assert_array_equal(after[k], x)


WITH_LINKS: dict[str, Callable[[Any], Any]] = {
    "last": lambda tx: tx,
    "in_multi_steps": lambda tx: tko.MultiSteps(tx, 2),
    "in_masked": lambda tx: tko.masked(tx, True),
    "in_finite": lambda tx: tko.apply_if_finite(tx, 2),
}


@pytest.mark.parametrize("name", WITH_LINKS)
def test_a_link_that_changes_dtypes_does_not_change_those_of_a_whole_step(name: str) -> None:
    """scale_by_adam returns float32 updates and moments for gradients in float32, whatever its moments were."""
    chain = tko.chain(optax.scale_by_adam(), tko.MultiSteps(tko.adam(0.1), 2).gradient_transformation())
    optimizer = WITH_LINKS[name](chain)
    params = {k: x.astype(jnp.bfloat16) for k, x in cases.arrays().items()}
    state = optimizer.init(params)
    step = jax.jit(lambda g, s, p: tko.apply_gradients(optimizer, g, s, p))
    before = cases.signature((params, state))
    for grads in gradients(3):
        params, state = step(grads, state, params)
        assert cases.signature((params, state)) == before


@pytest.mark.parametrize("kind", ["f32", "bf16", "int_key", "eqx_bf16"])
def test_with_a_key_it_rounds_as_apply_updates_does(kind: str) -> None:
    optimizer, params, key = tko.MultiSteps(tko.sgd(0.01), 2), cases.make(kind), jax.random.key(3)
    state = optimizer.init(params)
    ours, theirs = (params, state), (params, state)
    for _ in range(4):
        grads = cases.grads_of(kind, params)
        ours = tko.apply_gradients(optimizer, grads, ours[1], ours[0], key=key)
        updates, state = optimizer.update(grads, theirs[1], theirs[0])
        theirs = (tko.apply_updates(theirs[0], updates, key=key), state)
    cases.assert_close(cases.arrays_of(ours), cases.arrays_of(theirs), rtol=1e-5)


@pytest.mark.parametrize("name", HOLDING)
def test_derivatives_go_through(name: str) -> None:
    """Of what comes out after some steps, with respect to the gradients' scale."""

    def after(scale: jax.Array, whole: bool) -> jax.Array:
        optimizer, params = HOLDING[name](), cases.arrays()
        state = optimizer.init(params)
        for g in gradients(4):
            grads = jax.tree.map(lambda x: x * scale + x**2, g)
            if whole:
                params, state = tko.apply_gradients(optimizer, grads, state, params)
            else:
                updates, state = optimizer.update(grads, state, params)
                params = tko.apply_updates(params, updates)
        return sum((jnp.sum(x**2) for x in jax.tree.leaves(params)), jnp.float32(0))

    want = jax.grad(after)(jnp.float32(1.5), False)
    assert float(want) != 0
    for derivative in (jax.grad, jax.jacfwd):
        assert float(derivative(after)(jnp.float32(1.5), True)) == pytest.approx(float(want), rel=1e-4)


def test_an_inner_step_with_effects_runs_when_it_is_due() -> None:
    """Such as the debug print of a line search."""
    seen: list[int] = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        jax.debug.callback(lambda: seen.append(1))
        return updates, state

    optimizer = tko.MultiSteps(optax.GradientTransformation(lambda params: (), update), 2)
    params, state = jnp.ones(2), optimizer.init(jnp.ones(2))
    for _ in range(4):
        params, state = tko.apply_gradients(optimizer, jnp.ones(2), state, params)
    cases.effects_barrier()
    assert (seen, params.tolist()) == ([1, 1], [3.0, 3.0])


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_leaves_that_are_masked_out_pass_through_on_each_step(kind: str) -> None:
    """The others hold; with a key, each is rounded by the bits of its own."""
    optimizer = tko.masked(tko.MultiSteps(tko.sgd(0.1), 2).gradient_transformation(), {"w": True, "b": False})
    params, grads, key = cases.make(kind), cases.make(kind), jax.random.key(1)
    state = optimizer.init(params)
    ours = tko.apply_gradients(optimizer, grads, state, params, key=key)
    assert ours[0]["w"].tolist() == params["w"].tolist()
    assert ours[0]["b"].tolist() == (2 * params["b"]).tolist()
    ours = tko.apply_gradients(optimizer, grads, ours[1], ours[0], key=key)
    updates, _ = tko.sgd(0.1).update(grads, tko.sgd(0.1).init(params))
    assert ours[0]["w"].tolist() == tko.apply_updates(params, updates, key=key)["w"].tolist()


def test_members_under_vmap_keep_counts_of_their_own() -> None:
    optimizer, params = tko.MultiSteps(tko.sgd(1.0), 2), jnp.ones((2, 3))
    state = jax.vmap(optimizer.init)(params)._replace(mini_step=jnp.array([0, 1], jnp.int32))
    step: Any = jax.vmap(lambda g, s, p: tko.apply_gradients(optimizer, g, s, p))
    params, state = step(jnp.ones((2, 3)), state, params)
    assert params.tolist() == [[1.0] * 3, [0.5] * 3]
    assert state.mini_step.tolist() == [1, 0]


PARAMS: Any = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
ADAM = tko.adam(0.1)
ROUNDS = tko.MultiSteps(ADAM, 2)
STATE: Any = ADAM.init(PARAMS)
SMALLER: Any = {**PARAMS, "w": jnp.ones((2, 2))}
# The words of an error, and the arguments.
WRONG: dict[str, tuple[Any, Any, Any, Any]] = {
    r"^grads .*params have 2 children.* takes \(optimizer, grads, state, params\)": (
        ADAM,
        {"w": PARAMS["w"]},
        STATE,
        PARAMS,
    ),
    r"grads do not fit params: at w: shape \(2, 2\) for a leaf of shape \(2, 3\)": (ADAM, SMALLER, STATE, PARAMS),
    "^grads .*the root, the params have a dict, and the grads a tuple.*in this order": (ADAM, STATE, PARAMS, PARAMS),
    "(?s)grads.*in this order": (ADAM, PARAMS, PARAMS, STATE),
    "params is None": (ADAM, PARAMS, STATE, None),
    "the state does not fit this optimizer.*At 0 of the state.*TraceState": (
        ADAM,
        PARAMS,
        tko.sgd(0.1, momentum=0.9).init(PARAMS),
        PARAMS,
    ),
    r"the state does not fit.*At 0\.mu\.w of the state": (ADAM, PARAMS, ADAM.init(SMALLER), PARAMS),
    r"the state does not fit.*At inner_opt_state\.0\.mu\.w of the state": (
        ROUNDS,
        PARAMS,
        ROUNDS.init(SMALLER),
        PARAMS,
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_named_with_its_key_path(message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        tko.apply_gradients(*WRONG[message])


def test_integers_of_numpy_are_converted_as_by_apply_updates() -> None:
    tx = tko.filtered(tko.MultiSteps(tko.sgd(0.1), 1).gradient_transformation())
    params, grads = {"n": np.arange(2), "w": jnp.ones(2)}, {"n": None, "w": jnp.ones(2)}
    whole, _ = tko.apply_gradients(tx, grads, tx.init(params), params)
    in_two = tko.apply_updates(params, tx.update(grads, tx.init(params), params)[0])
    assert cases.signature(whole) == cases.signature(in_two)
    assert isinstance(whole["n"], jax.Array)


def test_an_error_of_the_optimizer_itself_is_raised_as_it_is() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        raise RuntimeError("my own")

    def init(params: Any) -> Any:
        raise RuntimeError("cannot be asked")

    for make in (lambda params: (), init):
        with pytest.raises(RuntimeError, match="my own"):
            tko.apply_gradients(optax.GradientTransformation(make, update), jnp.ones(2), (), jnp.ones(2))
