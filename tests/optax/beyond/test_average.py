"""params_ema with get_ema, and schedule_free_eval_params: averages of the params, wherever in a state they are."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.optax import cases
from tests.releases import keys, needs
from treekit import optax as tko

Decay = float | Callable[[Any], Any]


def expected(history: list[Any], decay: Decay, debias: bool = True) -> Any:
    """By the definition, in float64: `history` has the initial params, then those after each step."""
    start, *rest = (np.asarray(x).astype(np.complex128) for x in history)
    total, weights = (start, 1.0) if not debias else (0 * start, 0.0)
    for i, x in enumerate(rest):
        d = float(decay(i)) if callable(decay) else decay
        total, weights = d * total + (1 - d) * x, d * weights + (1 - d)
    return total / weights


def train(tx: Any, params: Any, steps: int, kind: str = "f32") -> tuple[list[Any], list[Any]]:
    """The initial params and state, and those after each step."""

    @eqx.filter_jit
    def step(params: Any, state: Any) -> Any:
        grads = cases.grads_of(kind, params)
        updates, state = tx.update(grads, state, params)
        return tko.apply_updates(params, updates), state

    state = tx.init(params)
    history, states = [params], [state]
    for _ in range(steps):
        params, state = step(params, state)
        history.append(params)
        states.append(state)
    return history, states


KINDS = ["f32", "c64", "none", "bare", "eqx_raw", "legacy", "nnx", "int_key"]
DECAYS: dict[str, Decay] = {
    "0.5": 0.5,
    "0": 0,
    "nearly 1": 1 - 1e-8,
    "the plain mean": lambda t: t / (t + 1),
    "warm-up": lambda t: jnp.minimum(0.9, (1 + t) / (10 + t)),
    "of NumPy": lambda t: np.float64(0.75),
}


SGD, GROUPS, BF16 = optax.sgd(0.1), {"w": "a", "b": "b"}, {"**": jnp.bfloat16}
# Each returns an optimizer with the transformation somewhere in it, one step of which changes all params.
PLACES: dict[str, Callable[[Any], Any]] = {
    "last": lambda ema: tko.chain(tko.sgd(0.1), ema),
    "first": lambda ema: tko.chain(ema, tko.sgd(0.1)),
    "before a projection": lambda ema: tko.chain(tko.sgd(5.0), ema, tko.keep_params_nonnegative()),
    "chains of Optax": lambda ema: optax.chain(optax.clip(1.0), optax.chain(ema, SGD), optax.scale(0.5)),
    "groups": lambda ema: tko.chain(tko.partition({x: tko.chain(ema, SGD) for x in "ab"}, GROUPS), tko.scale(2.0)),
    "a group that is frozen": lambda ema: tko.chain(ema, tko.partition({"a": SGD, "b": tko.set_to_zero()}, GROUPS)),
    "if finite": lambda ema: tko.apply_if_finite(tko.chain(ema, SGD), 3),
    "injected": lambda ema: tko.inject_hyperparams(lambda rate: tko.chain(ema, tko.sgd(rate)))(0.1),
    "dtype_preserving": lambda ema: tko.dtype_preserving(tko.chain(ema, tko.adam(0.1)), state_dtype=BF16),
    "in schedule_free": lambda ema: optax.contrib.schedule_free(optax.chain(SGD, ema), 0.1),
    "in mechanic": lambda ema: optax.contrib.mechanize(optax.chain(SGD, ema)),
    "around sam": lambda ema: tko.chain(ema, optax.contrib.sam(SGD, optax.sgd(0.05))),
}  # fmt: skip


CELLS = [
    *[
        (place, "f32", name, debias)
        for place in PLACES
        for name in ("0.5", "the plain mean")
        for debias in (True, False)
    ],
    *[("last", "f32", name, debias) for name in DECAYS for debias in (True, False)],
    *[("first", kind, "0.5", i % 2 == 0) for i, kind in enumerate(KINDS)],
]


@pytest.mark.table
@pytest.mark.parametrize("place, kind, name, debias", CELLS)
def test_it_is_exact_wherever_it_is(place: str, kind: str, name: str, debias: bool) -> None:
    decay = DECAYS[name]
    history, states = train(PLACES[place](tko.params_ema(decay, debias)), cases.make(kind), 4, kind)
    for n in (1, 4):
        average, seen = tko.get_ema(states[n], history[n]), history[: n + 1]
        assert cases.signature(average)[0] == cases.signature(seen[-1])[0]
        for x, *xs in zip(jax.tree.leaves(average), *map(jax.tree.leaves, seen), strict=True):
            if eqx.is_inexact_array(x):
                np.testing.assert_allclose(x, expected(xs, decay, debias), rtol=2e-6, atol=1e-7)
            else:
                assert x is xs[-1] or bool(jnp.all(x == xs[-1]))


@pytest.mark.parametrize("place", ["last", "first"])
@pytest.mark.parametrize("in_round", [0, 1, 2])
def test_inside_multi_steps_it_counts_rounds_also_in_the_middle_of_one(place: str, in_round: int) -> None:
    tx = tko.MultiSteps(PLACES[place](tko.params_ema(0.5)), 3)
    history, (*_, state) = train(tx, cases.arrays(), 6 + in_round)
    assert int(optax.tree.get(state, "ema_count")) == 2
    for key in ("w", "b"):
        average = tko.get_ema(state, history[-1])[key]
        np.testing.assert_allclose(average, expected([p[key] for p in history[::3]], 0.5), rtol=2e-6)


@pytest.mark.parametrize("wrap", [tko.conditionally_transform, tko.conditionally_mask])
def test_inside_a_conditional_wrapper_it_has_the_params_before_steps_that_run_it(wrap: Any) -> None:
    tx = wrap(tko.chain(tko.params_ema(0.5), tko.sgd(0.1)), lambda step: step % 2 == 0)
    history, (*_, state) = train(tx, jnp.arange(3.0), 6)
    seen = [history[0], history[2], history[4], history[6]]
    np.testing.assert_allclose(tko.get_ema(state, history[-1]), expected(seen, 0.5), rtol=2e-6)


@pytest.mark.usefixtures("nans")
def test_a_step_that_is_skipped_does_not_count() -> None:
    tx = tko.apply_if_finite(tko.chain(tko.sgd(0.1), tko.params_ema(0.5)), 3)
    params = cases.arrays()
    history, state = [params], tx.init(params)
    for factor in (1.0, jnp.nan, 1.0):
        updates, state = tx.update(jax.tree.map(lambda x, f=factor: x * f, params), state, params)
        params = tko.apply_updates(params, updates)
        history += [params] if factor == 1 else []
        found = tko.get_ema(state, params)
        np.testing.assert_allclose(found["w"], expected([p["w"] for p in history], 0.5), rtol=2e-6)


def test_a_param_without_a_gradient_is_averaged_as_it_is() -> None:
    tx = tko.chain(tko.adamw(0.1, weight_decay=0.5), tko.params_ema(0.5))
    params = cases.arrays()
    state = tx.init(params)
    updates, state = tx.update({**params, "b": None}, state, params)
    params = tko.apply_updates(params, updates)
    np.testing.assert_array_equal(tko.get_ema(state, params)["b"], params["b"])


@pytest.mark.table
@pytest.mark.parametrize("kind", ["bf16", "eqx_bf16", "c64"])
def test_laws(kind: str) -> None:
    _, state = cases.check_laws(tko.chain(tko.adam(0.01), tko.params_ema(0.9)), kind)
    averages = optax.tree.get(state, "params_ema")
    assert all(x.dtype in (jnp.float32, jnp.complex64) for x in jax.tree.leaves(averages))
    cases.check_laws(tko.filtered(tko.chain(tko.adam(0.01), tko.params_ema(lambda t: t / (t + 1)))), kind, steps=2)


def test_updates_pass_and_the_state_can_be_donated() -> None:
    params = cases.arrays()
    tx = tko.params_ema(0.9)
    state = tx.init(params)
    jitted = jax.jit(tx.update, donate_argnums=1)
    for _ in range(3):
        updates, state = jitted(params, state, params)
        cases.assert_close(updates, params)
    cases.assert_close(tko.get_ema(state, params), params)


@pytest.mark.parametrize("debias", [True, False])
def test_before_the_first_step_it_is_the_params_and_shares_nothing_with_them(debias: bool) -> None:
    params = np.ones(2, np.float32)
    state = tko.params_ema(0.9, debias).init(params)
    params[:] = 5
    assert tko.get_ema(state, jnp.full(2, 7.0)).tolist() == [7 if debias else 1] * 2
    assert tko.get_ema(tko.params_ema(0.9, debias).init(params), params).tolist() == [5, 5]


def test_of_16_bit_params_it_is_as_wide_as_the_params_that_get_ema_receives() -> None:
    params = jnp.ones(2, jnp.bfloat16)
    tx = tko.params_ema(lambda t: t / (t + 1))
    state = tx.init(params)
    for value in (1, 1 + 2**-7):
        _, state = tx.update(params, state, params)
        params = jnp.full(2, value, jnp.bfloat16)
    assert tko.get_ema(state, params).dtype == jnp.bfloat16
    assert tko.get_ema(state, params.astype(jnp.float32)).tolist() == [1 + 2**-8] * 2


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("initial", [jnp.nan, 1e30])
def test_the_first_params_that_count_replace_what_was_there(initial: float) -> None:
    tx = tko.params_ema(0.5)
    _, state = tx.update(jnp.zeros(2), tx.init(jnp.full(2, initial)), jnp.full(2, initial))
    assert tko.get_ema(state, jnp.ones(2)).tolist() == [1, 1]
    _, state = tx.update(jnp.zeros(2), state, jnp.ones(2))
    assert tko.get_ema(state, jnp.ones(2)).tolist() == [1, 1]


def test_a_schedule_that_begins_with_1_leaves_the_average_finite() -> None:
    tx = tko.chain(tko.params_ema(lambda t: jnp.where(t < 2, 1.0, 0.5)), tko.sgd(0.1))
    with jax.debug_nans(True):
        history, states = train(tx, jnp.arange(1.0, 4.0), 4)
    np.testing.assert_array_equal(tko.get_ema(states[2], history[2]), history[2])
    np.testing.assert_allclose(tko.get_ema(states[4], history[4]), (history[3] + 2 * history[4]) / 3, rtol=2e-6)


@pytest.mark.parametrize("name", ["0.5", "the plain mean"])
def test_the_decay_may_be_injected(name: str) -> None:
    decay = DECAYS[name]
    tx = tko.chain(tko.sgd(0.1), tko.inject_hyperparams(tko.params_ema)(decay))
    history, (*_, state) = train(tx, cases.arrays(), 3)
    found = tko.get_ema(state, history[-1])["w"]
    np.testing.assert_allclose(found, expected([p["w"] for p in history], decay), rtol=2e-6)


def test_what_masked_leaves_out_is_taken_from_the_params() -> None:
    tx = tko.chain(tko.sgd(0.1), tko.masked(tko.params_ema(0.5), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)))
    history, (*_, state) = train(tx, cases.model(), 3)
    average, *layers = (model.mlp.layers[0] for model in (tko.get_ema(state, history[-1]), *history))
    assert average.bias is layers[-1].bias
    np.testing.assert_allclose(average.weight, expected([layer.weight for layer in layers], 0.5), rtol=2e-6)


@needs("flax.nnx.as_pure")
def test_in_flax_s_optimizer_for_its_params_and_its_model() -> None:
    model: Any = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    optimizer: Any = nnx.Optimizer(model, tko.chain(tko.params_ema(0.5), tko.sgd(0.5)), wrt=nnx.Param)
    history = [nnx.as_pure(nnx.state(model, nnx.Param))]
    for _ in range(3):
        optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
        history.append(jax.tree.map(jnp.copy, nnx.as_pure(nnx.state(model, nnx.Param))))
    wanted = [expected([p[key] for p in history], 0.5) for key in ("bias", "kernel")]
    pairs = [(optimizer.opt_state, x) for x in (model, nnx.state(model, nnx.Param))]
    for state, params in [*pairs, (nnx.as_pure(optimizer.opt_state), history[-1])]:
        average = tko.get_ema(state, params)
        assert type(average) is type(params)
        for x, y in zip(jax.tree.leaves(average), wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-6)
    with pytest.raises(ValueError, match="averages of the params in the state"):
        tko.get_ema(optimizer.opt_state, {"x": jnp.ones(2)})


OUT_OF_RANGE = r"decay must be at least 0 and less than 1, found \S"
# The words of the error, and each decay.
BAD_DECAYS: dict[str, list[Any]] = {
    OUT_OF_RANGE: [1, -0.1, jnp.array(1.0)],
    "decay must be a real number or a schedule, found ": [jnp.ones(2), jnp.array(0.5j)],
    OUT_OF_RANGE.replace("decay must be", "the schedule of params_ema must return"): [lambda t: -0.1, lambda t: 1.5],
    "the schedule of params_ema must return one real number, found ": [lambda t: None, lambda t: jnp.ones(2)],
}


@pytest.mark.parametrize("message", BAD_DECAYS)
def test_what_is_no_decay_is_refused(message: str) -> None:
    for decay in BAD_DECAYS[message]:
        with pytest.raises(ValueError if "at least 0" in message else TypeError, match=message):
            tx = tko.params_ema(decay)
            tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))


def test_it_needs_the_params() -> None:
    tx = tko.params_ema(0.9)
    with pytest.raises(ValueError, match="params_ema averages the params, so update needs them"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))


def test_a_state_without_an_average_with_several_and_with_one_in_sam() -> None:
    params = cases.arrays()
    with pytest.raises(ValueError, match=r"no average of the params: optax.chain\(optimizer, optax.params_ema"):
        tko.get_ema(tko.chain(tko.adam(0.1), tko.ema(0.9)).init(params), params)
    for get, tx in (
        (tko.get_ema, tko.params_ema(0.5)),
        (tko.contrib.schedule_free_eval_params, tko.contrib.schedule_free_sgd(0.1)),
    ):
        with pytest.raises(ValueError, match=r"The arguments are \(state, params\), in this order"):
            get(params, tko.chain(tko.clip(1.0), tx).init(params))
    state = tko.chain(tko.sgd(1.0), tko.params_ema(0.5), tko.params_ema(0.9)).init(params)
    with pytest.raises(ValueError, match=r"several averages of the params, at 1, 2: pass the part"):
        tko.get_ema(state, params)
    cases.assert_close(tko.get_ema(state[1], params), params)
    in_sam = optax.contrib.sam(optax.chain(optax.sgd(0.1), tko.params_ema(0.5)), optax.sgd(0.1)).init(params)
    with pytest.raises(ValueError, match=r"params_ema is at opt_state\.1 of the state, inside sam"):
        tko.get_ema(in_sam, params)


def mlp(width: int) -> Any:
    return eqx.nn.MLP(2, 1, width, depth=1, key=jax.random.key(0))


WRONG: list[tuple[Any, Any, str]] = [
    (cases.arrays(), {"w": {"x": jnp.ones(2)}, "b": jnp.ones(2)}, r"do not fit .*at w, "),
    (mlp(4), mlp(8), r"at width_size, the params have 8, and .* 4"),
    ({"w": jnp.ones(1)}, {"w": jnp.ones(3)}, r"at w, the params have f32\[3\], .*f32\[1\]"),
]


@pytest.mark.parametrize("params, others, message", WRONG)
def test_params_that_do_not_fit_the_average(params: Any, others: Any, message: str) -> None:
    state = tko.chain(tko.params_ema(0.9), tko.sgd(0.1)).init(params)
    with pytest.raises(ValueError, match=message):
        tko.get_ema(state, others)


FREE = tko.contrib.schedule_free_sgd(0.1)


@pytest.mark.parametrize("kind", cases.PARAMS)
def test_params_to_evaluate_with_keep_their_dtypes_and_are_optax_where_that_works(kind: str) -> None:
    history, states = train(FREE, cases.PARAMS[kind](), 3, kind)
    params, state = history[-1], states[-1]
    out = tko.contrib.schedule_free_eval_params(state, params)
    assert cases.signature(out) == cases.signature(params)
    treedef: Any = jax.tree.structure(params)
    pairs = zip(treedef.flatten_up_to(params), treedef.flatten_up_to(state.z), strict=True)
    arrays, z = zip(*[(p, z) for p, z in pairs if eqx.is_inexact_array(p)], strict=True)
    theirs = optax.contrib.schedule_free_eval_params(state._replace(z=list(z)), list(arrays))
    cases.assert_close(cases.inexact(out), cases.cast_like(theirs, cases.inexact(params)))


def test_a_state_of_another_kind_or_for_other_shapes_is_an_error_that_says_so() -> None:
    for state, params, message in (
        (
            tko.adam(0.1).init(jnp.ones(2)),
            jnp.ones(2),
            r"requires a ScheduleFreeState as input, .* found tuple without one",
        ),
        (None, jnp.ones(2), r"requires a ScheduleFreeState as input, or .*, found NoneType without"),
        (FREE.init({"w": jnp.ones(2)}), {"w": jnp.ones(3)}, r"at w, .* f32\[3\], and the states of schedule_free f32"),
    ):
        with pytest.raises(ValueError, match=message):
            tko.contrib.schedule_free_eval_params(state, params)


SCHEDULE_FREE: dict[str, Callable[[Any], Any]] = {
    "chains": lambda tx: tko.chain(tko.clip(9.0), optax.chain(tx)),
    "named_chain": lambda tx: tko.named_chain(("clip", tko.clip(9.0)), ("tx", tx)),
    "averaged": lambda tx: tko.chain(tx, tko.params_ema(0.5), tko.monitor({"norm": optax.tree.norm})),
    "conditional": lambda tx: tko.conditionally_mask(tx, lambda step: step % 2 == 0),
    "rounds": lambda tx: tko.MultiSteps(tx, 2),
    "injected": lambda tx: tko.inject_hyperparams(lambda scale: tko.chain(tko.scale(scale), tx))(1.0),
    "groups": lambda tx: tko.partition({"a": tx, "b": tko.sgd(0.1), "c": tx}, {"w": "a", "b": "b", "c": "c"}),
}


@pytest.mark.parametrize("name", keys(SCHEDULE_FREE, {"averaged": "optax.monitor"}))
def test_its_state_is_found_in_wrappers(name: str) -> None:
    params = {"w": jnp.arange(3.0), "b": jnp.ones(2), "c": jnp.ones(4)}

    def evaluated(tx: Any, steps: int = 4) -> Any:
        history, states = train(tx, params, steps)
        return tko.contrib.schedule_free_eval_params(states[-1], history[-1])

    expected = evaluated(FREE)
    if name == "groups":
        expected["b"] = train(tko.sgd(0.1), params, 4)[0][-1]["b"]
    cases.assert_close(evaluated(SCHEDULE_FREE[name](FREE), 8 if name in ("rounds", "conditional") else 4), expected)


# What applies other updates than those of schedule_free, and the words of the error.
CHANGED: dict[str, tuple[Any, str]] = {
    "followed": (optax.chain(FREE, optax.scale(0.5)), r"schedule_free is at 0 .* last in its chain"),
    "inside": (optax.contrib.mechanize(FREE), r"changes its updates \(MechanicState\)"),
    "two": (tko.chain(*[tko.masked(FREE, {"w": True, "b": i}) for i in (False, True)]), "another .* follows it"),
    "conditional": (
        tko.conditionally_transform(FREE, lambda step: step > 0),
        r"schedule_free is at inner_state .* changes its updates \(ConditionallyTransformState\)",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_where_other_updates_are_applied_it_is_an_error(name: str) -> None:
    tx, message = CHANGED[name]
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    with pytest.raises(ValueError, match=message):
        tko.contrib.schedule_free_eval_params(tx.init(params), params)


def test_of_an_ensemble_it_says_vmap() -> None:
    members = {"w": jnp.ones((3, 3))}
    tx = tko.params_ema(0.5)
    states = jax.vmap(tx.init)(members)
    with pytest.raises(ValueError, match=r"count of shape \(3,\).*jax\.vmap\(optax\.get_ema\)"):
        tko.get_ema(states, members)
    assert not tk.tree_diff(jax.vmap(tko.get_ema)(states, members), members)
