"""params_ema and schedule_free_eval_params: averages of the params, wherever in a state they are."""

import itertools
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
from tests.releases import as_pure, keys, needs, new_ref
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same, check_transformation

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
    _, reached = cases.train(tx, kind, steps, params)
    return [params for params, _ in reached], [state for _, state in reached]


DECAYS: dict[str, Decay] = {
    "0.5": 0.5,
    "0": 0,
    "nearly 1": 1 - 1e-8,
    "the plain mean": lambda t: t / (t + 1),
    "warm-up": lambda t: jnp.minimum(0.9, (1 + t) / (10 + t)),
    "of NumPy": lambda t: np.float64(0.75),
}


SGD, GROUPS, BF16 = optax.sgd(0.1), {"w": "a", "b": "b"}, {"**": jnp.bfloat16}
# Each returns an optimizer with the transformation somewhere in it.
PLACES: dict[str, Callable[[Any], Any]] = {
    "last": lambda ema: tko.chain(tko.sgd(0.1), ema),
    "first": lambda ema: tko.chain(ema, tko.sgd(0.1)),
    "before a projection": lambda ema: tko.chain(tko.sgd(5.0), ema, tko.keep_params_nonnegative()),
    "chains of Optax": lambda ema: optax.chain(optax.clip(1.0), optax.chain(ema, SGD), optax.scale(0.5)),
    "groups": lambda ema: tko.chain(tko.partition({x: tko.chain(ema, SGD) for x in "ab"}, GROUPS), tko.scale(2.0)),
    "a group that is frozen": lambda ema: tko.chain(ema, tko.partition({"a": SGD, "b": tko.set_to_zero()}, GROUPS)),
    "if finite": lambda ema: tko.apply_if_finite(tko.chain(ema, SGD), 3),
    "injected": lambda ema: tko.inject_hyperparams(lambda rate: tko.chain(ema, tko.sgd(rate)))(0.1),
    "dtype_preserving": lambda ema: training.store_state(tko.chain(ema, tko.adam(0.1)), BF16),
    "in schedule_free": lambda ema: optax.contrib.schedule_free(optax.chain(SGD, ema), 0.1),
    "in mechanic": lambda ema: optax.contrib.mechanize(optax.chain(SGD, ema)),
    "around sam": lambda ema: tko.chain(ema, optax.contrib.sam(SGD, optax.sgd(0.05))),
}  # fmt: skip


KINDS = ["f32", "c64", "none", "bare", "eqx_raw", "legacy", "nnx", "int_key"]
CELLS = {
    *itertools.product(PLACES, ["f32"], ["0.5", "the plain mean"], [True, False]),
    *itertools.product(["last"], ["f32"], DECAYS, [True, False]),
    *[("first", kind, "0.5", i % 2 == 0) for i, kind in enumerate(KINDS)],
}


@pytest.mark.table
@pytest.mark.parametrize("place, kind, name, debias", sorted(CELLS))
def test_it_is_exact_wherever_it_is(place: str, kind: str, name: str, debias: bool) -> None:
    decay = DECAYS[name]
    history, states = train(PLACES[place](training.params_ema(decay, debias)), cases.make(kind), 4, kind)
    for n in (1, 4):
        average, seen = training.get_params_ema(states[n], history[n]), history[: n + 1]
        assert cases.signature(average)[0] == cases.signature(seen[-1])[0]
        for x, *xs in zip(jax.tree.leaves(average), *map(jax.tree.leaves, seen), strict=True):
            if eqx.is_inexact_array(x):
                np.testing.assert_allclose(x, expected(xs, decay, debias), rtol=2e-6, atol=1e-7)
            else:
                assert x is xs[-1] or bool(jnp.all(x == xs[-1]))


def first_of_two(step: Any) -> Any:
    return step % 2 == 0


def nan_in_the_second(step: Any) -> Any:
    return jnp.where(step == 1, jnp.nan, 1)


# A wrapper, how many steps are taken, and which of the params, the initial ones first, are then in the average.
COUNTED: dict[str, tuple[Callable[[Any], Any], int, list[int]]] = {
    "rounds": (lambda tx: tko.MultiSteps(tx, 3), 6, [0, 3, 6]),
    "the middle of a round": (lambda tx: tko.MultiSteps(tx, 3), 8, [0, 3, 6]),
    "steps that run it": (lambda tx: tko.conditionally_transform(tx, first_of_two), 6, [0, 2, 4, 6]),
    "steps that apply it": (lambda tx: tko.conditionally_mask(tx, first_of_two), 6, [0, 2, 4, 6]),
    "steps that are finite": (
        lambda tx: tko.chain(tko.scale_by_schedule(nan_in_the_second), tko.apply_if_finite(tx, 3)),
        4,
        [0, 1, 3, 4],
    ),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("place", ["last", "first"])
@pytest.mark.parametrize("name", COUNTED)
def test_each_step_that_is_taken_counts_once(name: str, place: str) -> None:
    wrap, steps, counted = COUNTED[name]
    history, (*_, state) = train(wrap(PLACES[place](training.params_ema(0.5))), jnp.arange(3.0), steps)
    np.testing.assert_allclose(
        training.get_params_ema(state, history[-1]), expected([history[i] for i in counted], 0.5), rtol=2e-6
    )


@pytest.mark.table
@pytest.mark.parametrize("kind", ["bf16", "eqx_bf16", "c64"])
def test_laws(kind: str) -> None:
    _, state = cases.check_laws(tko.chain(tko.adam(0.01), training.params_ema(0.9)), kind)
    averages = optax.tree.get(state, "params_ema")
    assert all(x.dtype in (jnp.float32, jnp.complex64) for x in jax.tree.leaves(averages))
    cases.check_laws(tko.chain(tko.adam(0.01), training.params_ema(lambda t: t / (t + 1))), kind, steps=2)


@pytest.mark.parametrize("debias", [True, False])
def test_before_the_first_step_it_is_the_params_and_shares_nothing_with_them(debias: bool) -> None:
    params = np.ones(2, np.float32)
    state = training.params_ema(0.9, debias).init(params)
    params[:] = 5
    assert training.get_params_ema(state, jnp.full(2, 7.0)).tolist() == [7 if debias else 1] * 2
    assert training.get_params_ema(training.params_ema(0.9, debias).init(params), params).tolist() == [5, 5]
    check_transformation(training.params_ema(0.9, debias), jnp.ones(2))


def test_of_16_bit_params_it_is_as_wide_as_the_params_that_get_ema_receives() -> None:
    params = jnp.ones(2, jnp.bfloat16)
    tx = training.params_ema(lambda t: t / (t + 1))
    state = tx.init(params)
    for value in (1, 1 + 2**-7):
        updates, state = tx.update(params, state, params)
        assert cases.same_bits(updates, params)
        params = jnp.full(2, value, jnp.bfloat16)
    assert training.get_params_ema(state, params).dtype == jnp.bfloat16
    assert training.get_params_ema(state, params.astype(jnp.float32)).tolist() == [1 + 2**-8] * 2


@needs("jax.new_ref")
def test_of_references_it_is_arrays_that_do_not_follow_them() -> None:
    params = {"w": new_ref(jnp.ones(2)), "n": new_ref(jnp.arange(2)), "f": jnp.tanh}
    state = training.params_ema(0.5).init(params)
    params["w"][...] = jnp.full(2, 2.0)
    average = training.get_params_ema(state, params)
    params["w"][...], params["n"][...] = jnp.zeros(2), jnp.zeros(2, int)
    assert all(isinstance(average[key], jax.Array) for key in "wn")
    assert (average["w"].tolist(), average["n"].tolist(), average["f"]) == ([2, 2], [0, 1], jnp.tanh)


FREE = tko.contrib.schedule_free_sgd(0.1)
# Of a state and the params, and the optimizer of the state.
READ: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "average": (training.get_params_ema, training.params_ema(0.5)),
    "average of a part": (
        training.get_params_ema,
        tko.masked(training.params_ema(0.5), lambda params: tk.path_mask("w")(params)),
    ),
    "schedule_free": (tko.contrib.schedule_free_eval_params, FREE),
}


@pytest.mark.parametrize("read, tx", READ.values(), ids=READ)
def test_it_outlives_the_params(read: Any, tx: Any) -> None:
    """A later step may donate them, and NumPy arrays may change in place."""
    numpy = np.arange(3)
    params = {"w": jnp.ones(2), "b": jnp.ones(3), "count": jnp.array(3), "key": jax.random.key(1)}
    average = read(tx.init({**params, "numpy": numpy}), {**params, "numpy": numpy})
    jax.jit(lambda x: x, donate_argnums=0)(params)
    numpy += 5
    assert all(x.is_deleted() for x in params.values())
    wanted = {"w": [1, 1], "b": [1, 1, 1], "count": 3, "numpy": [0, 1, 2]}
    assert {key: average[key].tolist() for key in wanted} == wanted
    assert average["key"] == jax.random.key(1)


def test_python_numbers_in_the_state_are_numbers() -> None:
    """As a user may put there, or a file has them."""
    tx, params = training.params_ema(0.5), {"w": jnp.ones(2)}
    first = tx.init(params)
    state: Any = first._replace(ema_count=0, ema_next_weight=float(first.ema_next_weight), ema_weight_sum=0.0)
    assert_trees_same(tx.update(params, state, params)[1], tx.update(params, first, params)[1])
    assert_trees_same(training.get_params_ema(state, params), training.get_params_ema(first, params))


def test_under_jit_no_copy_is_added() -> None:
    params = {"w": jnp.ones(2), "n": jnp.arange(3), "key": jax.random.key(0)}
    tx = tko.chain(tko.inject_hyperparams(tko.sgd)(0.1), training.params_ema(0.5))

    def read(state: Any, params: Any) -> Any:
        average = training.get_params_ema(state, params)
        new = training.set_hyperparams(state, learning_rate=params["w"][0])
        return tko.tree.set(new, learning_rate=params["w"][1]), tko.incremental_update(params, average, 0.5)

    assert "copy" not in str(jax.make_jaxpr(read)(tx.init(params), params))


def test_a_param_that_no_longer_has_a_gradient_is_returned_as_it_is() -> None:
    state = training.params_ema(0.5).init({"w": jnp.ones(2), "n": jnp.ones(2)})
    assert training.get_params_ema(state, {"w": jnp.zeros(2), "n": jnp.arange(2)})["n"].tolist() == [0, 1]


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("initial", [jnp.nan, 1e30])
def test_the_first_params_that_count_replace_what_was_there(initial: float) -> None:
    tx = training.params_ema(0.5)
    _, state = tx.update(jnp.zeros(2), tx.init(jnp.full(2, initial)), jnp.full(2, initial))
    assert training.get_params_ema(state, jnp.ones(2)).tolist() == [1, 1]
    _, state = tx.update(jnp.zeros(2), state, jnp.ones(2))
    assert training.get_params_ema(state, jnp.ones(2)).tolist() == [1, 1]


def test_a_schedule_that_begins_with_1_leaves_the_average_finite() -> None:
    tx = tko.chain(training.params_ema(lambda t: jnp.where(t < 2, 1.0, 0.5)), tko.sgd(0.1))
    with jax.debug_nans(True):
        history, states = train(tx, jnp.arange(1.0, 4.0), 4)
    np.testing.assert_array_equal(training.get_params_ema(states[2], history[2]), history[2])
    np.testing.assert_allclose(
        training.get_params_ema(states[4], history[4]), (history[3] + 2 * history[4]) / 3, rtol=2e-6
    )


@pytest.mark.parametrize("name", ["0.5", "the plain mean"])
def test_the_decay_may_be_injected(name: str) -> None:
    decay = DECAYS[name]
    tx = tko.chain(tko.sgd(0.1), tko.inject_hyperparams(training.params_ema)(decay))
    history, (*_, state) = train(tx, cases.arrays(), 3)
    found = training.get_params_ema(state, history[-1])["w"]
    np.testing.assert_allclose(found, expected([p["w"] for p in history], decay), rtol=2e-6)


def test_what_masked_leaves_out_is_taken_from_the_params() -> None:
    tx = tko.chain(tko.sgd(0.1), tko.masked(training.params_ema(0.5), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)))
    history, (*_, state) = train(tx, cases.model(), 3)
    average, *layers = (model.mlp.layers[0] for model in (training.get_params_ema(state, history[-1]), *history))
    assert cases.same_bits(average.bias, layers[-1].bias)
    np.testing.assert_allclose(average.weight, expected([layer.weight for layer in layers], 0.5), rtol=2e-6)


def test_in_flax_s_optimizer_for_its_params_and_its_model() -> None:
    model: Any = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    optimizer: Any = nnx.Optimizer(model, tko.chain(training.params_ema(0.5), tko.sgd(0.5)), wrt=nnx.Param)
    history = [as_pure(nnx.state(model, nnx.Param))]
    for _ in range(3):
        optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
        history.append(jax.tree.map(jnp.copy, as_pure(nnx.state(model, nnx.Param))))
    wanted = [expected([p[key] for p in history], 0.5) for key in ("bias", "kernel")]
    pairs = [(optimizer.opt_state, x) for x in (model, nnx.state(model, nnx.Param))]
    for state, params in [*pairs, (as_pure(optimizer.opt_state), history[-1])]:
        average = training.get_params_ema(state, params)
        assert type(average) is type(params)
        for x, y in zip(jax.tree.leaves(average), wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-6)
    with pytest.raises(ValueError, match="params"):
        training.get_params_ema(optimizer.opt_state, {"x": jnp.ones(2)})


def test_of_an_ensemble_each_member_has_its_average() -> None:
    members = {"w": jnp.ones((3, 3))}
    states = jax.vmap(training.params_ema(0.5).init)(members)
    assert not tk.tree_diff(jax.vmap(training.get_params_ema)(states, members), members)


# --------------------------------------------------------------------------------------------------- schedule_free


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


SCHEDULE_FREE: dict[str, Callable[[Any], Any]] = {
    "chains": lambda tx: tko.chain(tko.clip(9.0), optax.chain(tx)),
    "named_chain": lambda tx: tko.named_chain(("clip", tko.clip(9.0)), ("tx", tx)),
    "averaged": lambda tx: tko.chain(tx, training.params_ema(0.5), tko.monitor({"norm": optax.tree.norm})),
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


def test_inside_a_wrapper_that_may_skip_its_steps_it_is_refused() -> None:
    params = jnp.ones(2)
    state = tko.conditionally_transform(FREE, lambda step: step > 0).init(params)
    with pytest.raises(ValueError, match="inner_state"):
        tko.contrib.schedule_free_eval_params(state, params)
