"""summary: what the first step does to each leaf, as found by taking it."""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.optax import cases
from tests.releases import as_pure, keys, needs
from tests.trees import untyped
from treekit import optax as tko
from treekit import training
from treekit._names.key_path import flatten_with_names

PARAMS: Any = {
    "body": {"w": jnp.linspace(-1, 1, 6, dtype=jnp.float32).reshape(2, 3), "b": jnp.zeros(3, jnp.float32)},
    "head": jnp.ones(3, jnp.float32),
    "scale": jnp.ones((), jnp.float32),
}
LABELS = {"body": "adamw", "head": "sgd", "scale": "freeze"}


def groups(o: Any) -> Any:
    transforms = {
        "adamw": o.adamw(1e-3, weight_decay=0.1, mu_dtype=jnp.bfloat16),
        "sgd": o.sgd(0.5),
        "freeze": o.set_to_zero(),
    }
    return o.partition(transforms, LABELS)


Seen = tuple[float | None, float | None, str]
ZERO, OF_LOSS, SGD = (0, 0, "0 in the first step"), (None, 0, "depends on the loss"), (0.5, 0, "")
FROZEN = (0, 0, "frozen")


def seen(found: Any) -> list[Seen]:
    """Step, decay and note of each leaf."""

    def rounded(x: float | None) -> float | None:
        return None if x is None else float(f"{x:.3g}")

    return [(rounded(row.step), rounded(row.decay), row.note) for row in found.rows]


GROUPS = [(0.001, 0.0001, "")] * 2 + [SGD, FROZEN]


@pytest.mark.parametrize("o", [optax, tko], ids=["of_optax", "of_ours"])
def test_groups_show_their_rates_and_what_does_not_move(o: Any) -> None:
    found = training.summary(groups(o), PARAMS)
    assert seen(found) == GROUPS and [row.bytes for row in found.rows] == [18, 36, 0, 0]
    assert str(found) == str(training.summary(groups(o), jax.eval_shape(lambda: PARAMS)))
    first = found.rows[0]
    assert (first.path, first.type, first.shape, first.dtype) == ("body.b", "f32[3]", (3,), "float32")
    assert first.state[0][:3] == ("mu", "inner_states.adamw.inner_state.0.mu.body.b", "bfloat16")


WRAPPED: dict[str, Any] = {
    "injected": lambda tx: tko.inject_hyperparams(lambda scale: tko.chain(tx, tko.scale(scale)))(1.0),
    "of_optax": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "stochastic": lambda tx: training.store_state(tx, rounding="stochastic"),
}


@pytest.mark.table
@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_in_whatever_way(name: str) -> None:
    assert seen(training.summary(WRAPPED[name](groups(tko)), PARAMS)) == GROUPS


@pytest.mark.parametrize("kind", ["node", "eqx_raw", "nnx", "bf16", "c64", "int_key"])
def test_every_kind_of_params(kind: str) -> None:
    model = cases.make(kind)
    found = training.summary(tko.chain(tko.trace(0.9), tko.scale(-0.25)), model)
    paths = dict(flatten_with_names(model))
    for row in found.rows:
        leaf = paths[row.path]
        assert row.shape == np.shape(leaf)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact):
            assert (row.step, row.decay, row.note) == (0.25, 0.0, "")
            assert [(x.name, x.bytes) for x in row.state] == [("trace", leaf.nbytes)]
        else:
            assert (row.step, row.decay) == (None, None) and row.note in ("has no gradient", "not a parameter")
    assert {row.path for row in found.rows} == {path for path, x in paths.items() if not callable(x)}


@pytest.mark.parametrize("k", [1, 3])
def test_a_warm_up_is_zero_in_the_first_step_and_a_later_state_shows_a_later_one(k: int) -> None:
    tx = tko.MultiSteps(tko.sgd(lambda count: 0.25 * count), k)
    state = tx.init(PARAMS)
    for i in range(3):
        rows = training.summary(tx, PARAMS, state).rows
        assert {(row.step, row.note) for row in rows} == {(0.25 * i, "" if i else "0 in this step")}
        assert {(row.step, row.note) for row in training.summary(tx, PARAMS, step=i).rows} == {
            (0.25 * i, "" if i else "0 at step 0")
        }
        for _ in range(k):
            _, state = tx.update(PARAMS, state, PARAMS)


@pytest.mark.usefixtures("nans")  # without a gradient, they divide 0 by 0
@pytest.mark.parametrize("tx", [optax.chain(optax.contrib.normalize(), optax.sgd(0.1)), optax.contrib.prodigy()])
def test_a_step_is_known_where_that_without_a_gradient_is_not_finite(tx: Any) -> None:
    ones = jax.tree.map(jnp.ones_like, PARAMS)
    updates, _ = tx.update(ones, tx.init(ones), ones)
    rows = training.summary(tx, PARAMS).rows
    assert [row.step for row in rows] == pytest.approx([-float(jnp.mean(x)) for x in jax.tree.leaves(updates)])
    assert {(row.decay, row.note) for row in rows} == {(None, "is not finite without a gradient")}


def split(a: Any, b: Any) -> Any:
    return tko.partition({"a": a, "b": b}, {"body": "a", "head": "b", "scale": "b"})


ASCENDS = "along the gradient, not against it: masked out?"
GROWS = "grows without a gradient"
DECAYED = {"body": True, "head": False, "scale": False}
LATE = optax.join_schedules([optax.constant_schedule(0.0), optax.constant_schedule(0.5)], [5])
# An optimizer, and the step, the decay and the note of the first two leaves and of the other two.
SEEN: dict[str, tuple[Callable[[], Any], Seen, Seen]] = {
    "late, in rounds of Optax": (lambda: optax.MultiSteps(optax.adam(LATE), 2).gradient_transformation(), ZERO, ZERO),
    "waits": (lambda: tko.chain(tko.sgd(0.5), optax.apply_every(4)), ZERO, ZERO),
    "frozen in rounds": (lambda: tko.MultiSteps(tko.set_to_zero(), 3), FROZEN, FROZEN),
    "frozen, and then clipped and scheduled": (
        lambda: tko.chain(split(tko.sgd(0.5), tko.set_to_zero()), tko.clip_by_global_norm(9.0), tko.scale(1.0)),
        (0.5, 0, ""),
        FROZEN,
    ),
    "frozen beside a warm-up": (
        lambda: split(
            tko.sgd(LATE), tko.inject_hyperparams(lambda rate: tko.chain(tko.set_to_zero(), tko.scale(rate)))(0.5)
        ),
        ZERO,
        FROZEN,
    ),
    "held until a later step": (lambda: tko.conditionally_mask(tko.sgd(0.5), lambda step: step >= 3), ZERO, ZERO),
    "frozen before it is counted": (
        lambda: tko.chain(tko.transforms.freeze({**dict.fromkeys(DECAYED, True), "body": False}), tko.adam(0.5)),
        (0.5, 0, ""),
        FROZEN,
    ),
    "frozen beside held rounds": (
        lambda: split(
            tko.conditionally_transform(tko.MultiSteps(tko.sgd(0.5), 3), lambda step: step >= 0), tko.set_to_zero()
        ),
        (0.5, 0, ""),
        FROZEN,
    ),
    "held beside held rounds": (
        lambda: split(
            tko.conditionally_transform(tko.MultiSteps(tko.sgd(0.5), 3), lambda step: step >= 0),
            tko.conditionally_mask(tko.sgd(0.5), lambda step: step >= 3),
        ),
        (0.5, 0, ""),
        ZERO,
    ),
    "a sign of a warm-up": (lambda: tko.sign_sgd(LATE), ZERO, ZERO),
    "frozen by a mask, in 16 bits": (
        lambda: training.store_state(
            tko.transforms.selective_transform(
                tko.sgd(0.5, momentum=0.9), freeze_mask={**dict.fromkeys(DECAYED, True), "body": False}
            ),
            rounding="stochastic",
        ),
        (0.5, 0, ""),
        FROZEN,
    ),
    "a forgotten minus": (tko.scale_by_adam, (-1, 0, ASCENDS), (-1, 0, ASCENDS)),
    "masked out, which passes gradients on": (
        lambda: tko.masked(tko.sgd(0.5), {**DECAYED, "body": True}),
        (0.5, 0, ""),
        (-1, 0, ASCENDS),
    ),
    "moves without a gradient": (lambda: split(tko.yogi(0.5), tko.sgd(0.5)), (0.499, 0.000138, ""), SGD),
    "infinite": (lambda: split(tko.scale(jnp.inf), tko.sgd(0.5)), (None, None, "is not finite"), SGD),
    "a search": (lambda: split(tko.lbfgs(), tko.sgd(0.5)), OF_LOSS, SGD),
    "takes a loss, and does not use it": (lambda: tko.chain(tko.sgd(0.5), tko.contrib.reduce_on_plateau()), SGD, SGD),
    "decay": (lambda: tko.adamw(0.5, weight_decay=0.25, mask=DECAYED), (0.5, 0.125, ""), SGD),
    "decay alone": (
        lambda: split(tko.chain(tko.set_to_zero(), tko.add_decayed_weights(0.5), tko.scale(-1.0)), tko.sgd(0.5)),
        (0, 0.5, "0 in the first step"),
        SGD,
    ),
    "decay after the optimizer": (
        lambda: split(tko.chain(tko.sgd(0.5), tko.add_decayed_weights(0.25)), tko.sgd(0.5)),
        (0.5, -0.25, GROWS),
        SGD,
    ),
    "decay that is negative, in rounds": (
        lambda: split(tko.MultiSteps(tko.adamw(0.5, weight_decay=-0.25), 2), tko.sgd(0.5)),
        (0.5, -0.125, GROWS),
        SGD,
    ),
    "two rounds": (
        lambda: split(tko.MultiSteps(tko.sgd(0.25), 3), tko.MultiSteps(tko.sgd(0.5), 2)),
        (0.25, 0, ""),
        SGD,
    ),
    "a round beside steps": (lambda: split(tko.sgd(0.25), tko.MultiSteps(tko.sgd(0.5), 4)), (0.25, 0, ""), SGD),
    "a round beside a longer one": (
        lambda: split(tko.MultiSteps(tko.sgd(0.25), 2), tko.MultiSteps(tko.sgd(0.5), 4)),
        (0.25, 0, ""),
        SGD,
    ),
    "a round of rounds": (lambda: tko.MultiSteps(tko.MultiSteps(tko.sgd(0.5), 3), 2), SGD, SGD),
    "a flat round": (lambda: tko.flatten(tko.MultiSteps(tko.sgd(0.5), 3)), SGD, SGD),
    "a round of sam": (
        lambda: tko.contrib.sam(tko.adamw(0.5, weight_decay=0.25), tko.sgd(2.0)),
        (0.5, 0.125, ""),
        (0.5, 0.125, ""),
    ),
    "a longer round of Optax's sam": (
        lambda: optax.contrib.sam(optax.sgd(0.5), optax.sgd(2.0), sync_period=3),
        SGD,
        SGD,
    ),
    "rounds of sam": (lambda: tko.MultiSteps(tko.contrib.sam(tko.sgd(0.5), tko.sgd(2.0)), 2), SGD, SGD),
    "sam of rounds": (
        lambda: tko.contrib.sam(tko.MultiSteps(tko.sgd(0.5), 3).gradient_transformation(), tko.sgd(2.0)),
        SGD,
        SGD,
    ),
    "sam beside steps": (lambda: split(tko.sgd(0.25), tko.contrib.sam(tko.sgd(0.5), tko.sgd(2.0))), (0.25, 0, ""), SGD),
    "noise": (lambda: split(tko.noisy_sgd(0.5, key=jax.random.key(1)), tko.sgd(0.5)), (0.5, None, "random"), SGD),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("make, body, others", SEEN.values(), ids=SEEN)
def test_rows_say_what_was_seen(make: Callable[[], Any], body: Seen, others: Seen) -> None:
    found = training.summary(make(), PARAMS)
    assert seen(found) == [body] * 2 + [others] * 2
    assert found.totals["unmoved"] == 2 * (body[:2] == (0, 0)) + 2 * (others[:2] == (0, 0))
    assert body[2] in str(found)


def test_what_depends_on_the_loss_and_what_is_random_are_told_apart() -> None:
    noise = tko.noisy_sgd(0.5, key=jax.random.key(1))
    assert seen(training.summary(split(tko.lbfgs(), noise), PARAMS)) == [OF_LOSS] * 2 + [(0.5, None, "random")] * 2
    (row,) = training.summary(tko.chain(tko.add_noise(1.0, 0.0, jax.random.key(1)), tko.lbfgs()), jnp.ones(3)).rows
    assert (row.step, row.note) == (None, "random, depends on the loss")


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_a_random_share_of_the_gradient_is_random(key: Any) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        factors = jax.random.bernoulli(state, 0.5, (3,)).astype(jnp.float32)
        return jax.tree.map(lambda x: x * factors, updates), state

    tx = optax.GradientTransformation(lambda params: key(0), update)
    (row,) = training.summary(tx, jnp.ones(3)).rows
    assert (row.decay, row.note) == (0.0, "random")


def test_the_loss_of_a_search_is_of_what_has_a_gradient() -> None:
    rows = training.summary(tko.lbfgs(), {"n": jnp.arange(2), "w": jnp.ones(2)}).rows
    assert [row.note for row in rows] == ["has no gradient", "depends on the loss"]


def test_from_a_state_of_training() -> None:
    tx = tko.chain(tko.inject_hyperparams(tko.sgd)(0.5, momentum=0.5))
    for grads in (PARAMS, jax.tree.map(jnp.negative, PARAMS)):
        _, state = tx.update(grads, tx.init(PARAMS), PARAMS)
        found = training.summary(tx, PARAMS, training.set_hyperparams(state, learning_rate=0.125))
        assert seen(found)[2] == (0.125, 0.0625, "")  # the momentum shows as decay, without a sign
    assert found.totals["shared_bytes"] == 12


def test_a_later_state_shows_sizes_and_says_that_they_are_no_rates() -> None:
    tx = tko.chain(tko.inject_hyperparams(tko.sgd)(0.5, momentum=0.5))
    state = tx.init(PARAMS)
    later = training.summary(tx, PARAMS, state)
    assert later.note.startswith("From this state") and " ".join(str(later).split()).endswith(later.note)
    assert later.note in later._repr_html_()
    for without in (training.summary(tx, PARAMS), training.summary(tx, PARAMS, state, step=3)):
        assert without.note == "" and "From this state" not in str(without)


def rate(count: Any) -> Any:
    return 0.25 * count


# Optimizers of plain Optax and of treekit, whose rate is `rate` of the step, with a weight decay of 0.125 of that.
AT_STEP: dict[str, Callable[[Any], Any]] = {
    "sgd with momentum": lambda o: o.chain(o.add_decayed_weights(0.125), o.sgd(rate, momentum=0.9)),
    "adamw": lambda o: o.adamw(rate, weight_decay=0.125),
    "scheduled decay": lambda o: o.chain(
        o.scale_by_adam(), o.add_decayed_weights(lambda n: 0.125 * n / n), o.sgd(rate)
    ),
    "injected": lambda o: o.inject_hyperparams(o.adamw)(rate, weight_decay=0.125),
    "injected twice": lambda o: o.inject_hyperparams(lambda decay: o.adamw(rate, weight_decay=decay))(0.125),
    "rounds": lambda o: o.MultiSteps(
        o.adamw(rate, weight_decay=0.125), lambda n: 1 + n // 20
    ).gradient_transformation(),
    "groups": lambda o: o.partition({"a": o.adamw(rate, weight_decay=0.125)}, "a"),
    "from step 3 on": lambda o: o.chain(
        o.adamw(rate, weight_decay=0.125), o.conditionally_mask(o.identity(), lambda step: step >= 3)
    ),
    "in 16 bits": lambda o: training.store_state(o.adamw(rate, weight_decay=0.125), rounding="stochastic"),
    "rates of leaves": lambda o: o.chain(
        o.adamw(1.0, weight_decay=0.125), training.scale_by_tree({"body": rate, "head": rate, "scale": rate})
    ),
}


@pytest.mark.parametrize("o", [optax, tko], ids=["of_optax", "of_ours"])
@pytest.mark.parametrize("name", keys(AT_STEP, {"scheduled decay": "optax>=0.2.6"}))
def test_at_a_step_schedules_show_and_moments_do_not(name: str, o: Any) -> None:
    tx = AT_STEP[name](o)
    _, later = jax.jit(tx.update)(PARAMS, tx.init(PARAMS), PARAMS)
    for step in (3, 40, np.int64(40), jnp.array(40)):
        for state in (None, later):
            found = training.summary(tx, PARAMS, state, step=step)
            assert [row.step for row in found.rows] == pytest.approx([rate(float(step))] * 4, rel=1e-4)
            assert [row.decay for row in found.rows] == pytest.approx([rate(float(step)) / 8] * 4, rel=1e-4)


def test_at_a_step_a_state_gives_the_hyperparameters_that_no_schedule_sets() -> None:
    tx = tko.chain(tko.inject_hyperparams(tko.sgd)(0.5, momentum=0.5), tko.inject_hyperparams(tko.scale)(rate))
    _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    state = training.set_hyperparams(state, learning_rate=0.125)
    assert [row.step for row in training.summary(tx, PARAMS, state, step=4).rows] == [0.125] * 4


class CountState(NamedTuple):
    """A state of the user's own, with a count."""

    count: Any


def test_a_count_of_the_user_s_own_is_not_set() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda x: -x * (1 + state.count), updates), CountState(state.count + 1)

    tx = optax.GradientTransformation(lambda params: CountState(jnp.zeros([], int)), update)
    assert {row.step for row in training.summary(tx, PARAMS, step=9).rows} == {1.0}


def test_what_is_frozen_is_not_known_of_code_that_reads_a_count() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        factor = 0.0 if int(state.count) < 3 else -1.0
        return jax.tree.map(lambda x: factor * jnp.zeros_like(x), updates), CountState(state.count + 1)

    tx = optax.GradientTransformation(lambda params: CountState(jnp.zeros([], int)), update)
    assert set(seen(training.summary(tx, PARAMS))) == {ZERO}


TRAINED: dict[str, Callable[[], Any]] = {
    "adamw": lambda: tko.adamw(rate),
    "rounds": lambda: tko.MultiSteps(tko.adamw(rate), 2).gradient_transformation(),
    "injected": lambda: tko.inject_hyperparams(tko.adamw)(0.25),
    "averaged": lambda: tko.chain(tko.adamw(rate), training.params_ema(0.5)),
    "groups": lambda: tko.partition(
        {"a": tko.adamw(rate), "b": tko.sgd(0.5)}, tk.path_labels({"**.bias": "b"}, default="a")
    ),
    "plain Optax": lambda: optax.adamw(rate),
    "16 bits": lambda: training.store_state(tko.adamw(rate), rounding="stochastic"),
}


@needs("flax>=0.12")  # before, its optimizer rejects tuples in a state
@pytest.mark.parametrize("name", TRAINED)
def test_of_flax_s_optimizer_it_shows_what_that_of_the_same_arrays_shows(name: str) -> None:
    model: Any = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    trainer: Any = nnx.Optimizer(model, TRAINED[name](), wrt=nnx.Param)
    params = nnx.state(model, nnx.Param)
    for _ in range(2):
        found = training.summary(trainer.tx, params, trainer.opt_state)
        plain = training.summary(trainer.tx, as_pure(params), as_pure(trainer.opt_state))
        assert (found.rows, str(found)) == (plain.rows, str(plain))
        assert [row.note for row in found.rows if row.note.startswith("fails")] == []
        assert [(row.path, row.type) for row in found.rows] == [("bias", "f32[2]"), ("kernel", "f32[3,2]")]
        assert training.summary(trainer.tx, params, trainer.opt_state, step=2).rows[1].step == pytest.approx(
            0.25 if name == "injected" else 0.5, rel=1e-4
        )
        trainer.update(model, jax.tree.map(jnp.ones_like, params))


def test_decay_is_unknown_where_a_given_state_has_copies_of_other_params() -> None:
    copies = tko.contrib.schedule_free_sgd(0.5)
    frozen = split(copies, tko.set_to_zero())
    assert seen(training.summary(frozen, PARAMS, frozen.init(PARAMS))) == [(0.5, None, "")] * 2 + [FROZEN] * 2
    tx = copies
    assert {row.decay for row in training.summary(tx, PARAMS).rows} == {0.0}
    assert {row.decay for row in training.summary(tx, PARAMS, tx.init(PARAMS)).rows} == {None}


# -------------------------------------------------------------------------------- steps that depend on more, or fail


def test_what_needs_something_else_says_what() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, hessian: Any, **extra: Any) -> Any:
        return updates, state

    tx = optax.GradientTransformationExtraArgs(lambda params: {"mine": jnp.ones(2)}, update)
    (note,) = {row.note for row in training.summary(tx, PARAMS).rows}
    assert note.startswith("fails: TypeError: ") and "'hessian'" in note


def test_a_round_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treekit.training._round._MOST_MINI_STEPS", 4)
    (row,) = training.summary(tko.MultiSteps(tko.sgd(0.5), 5), {"w": jnp.ones(2)}).rows
    assert (row.step, row.note) == (None, "fails: ValueError: MultiSteps took no step in 4 mini-steps")
    (row,) = training.summary(tko.MultiSteps(tko.sgd(0.5), 4), {"w": jnp.ones(2)}).rows
    assert (row.step, row.note) == (0.5, "")


@pytest.mark.usefixtures("nans")
def test_an_init_that_takes_no_placeholder_and_params_without_a_path() -> None:
    def init(params: Any) -> Any:
        return {"w": jnp.zeros(jnp.shape(params)), "n": 0}

    tx = optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))
    (found,) = training.summary(tx, jnp.ones(3)).rows[0].state
    assert (found.name, found.bytes) == ("w", 12)


# ------------------------------------------------------------------------------------------------------------ printing


def test_alike_subtrees_are_one_row() -> None:
    x = jnp.ones(2, jnp.float32)
    model = {"a": [x, x], "b": {"c": {"d": x, "e": jnp.ones((2, 2), jnp.float32)}, "f": x.astype(jnp.bfloat16)}}
    lines = str(training.summary(tko.sgd(0.5), model)).splitlines()
    assert [re.split(r"\s{2,}", line)[:2] for line in lines[1:-1]] == [
        ["a", "2 leaves, 4 f32"],
        ["b.c", "2 leaves, 6 f32"],
        ["b.f", "bf16[2]"],
    ]
    assert str(training.summary(tko.sgd(0.5), x)).splitlines()[1].startswith("(all)  f32[2]  0.5   0 ")


class Config: ...


def test_leaves_that_are_not_parameters_are_listed_as_what_they_are() -> None:
    model = {"c": Config(), "f": jnp.tanh, "i": jnp.arange(3), "k": jax.random.key(0), "n": None, "s": "a", "x": 0.5}
    found = training.summary(tko.adam(0.5), {"model": model, "w": jnp.ones(2)})
    assert [(row.path.removeprefix("model."), row.type, row.note) for row in found.rows] == [
        ("c", "Config", "not a parameter"),
        ("i", "i32[3]", "has no gradient"),
        ("k", "key<fry>[]", "not a parameter"),
        ("s", "str", "not a parameter"),
        ("x", "f32[]", ""),  # a number in a dict is trained, as in Optax
        ("w", "f32[2]", ""),
    ]
    assert found.rows[-1].bytes == 16  # although a None stands before it
    assert found.totals["leaves"] == 3 and found.totals["elements"] == 6
    assert "Config" in str(found)


@pytest.mark.parametrize("hole", [None, optax.MaskedNode()])
def test_the_state_of_a_leaf_after_a_hole_is_its_own(hole: Any) -> None:
    rows = training.summary(optax.adam(0.1), {"a": hole, "w": jnp.ones(2)}).rows
    assert [(row.path, [x.path for x in row.state]) for row in rows] == [("w", ["0.mu.w", "0.nu.w"])]


def test_a_state_of_another_optimizer_fails() -> None:
    for optimizer in (tko.adam(0.5), optax.adam(0.5)):
        rows = training.summary(optimizer, PARAMS, tko.sgd(0.5, momentum=0.5).init(PARAMS)).rows
        assert {row.step for row in rows} == {None} and rows[0].note.startswith("fails: ")


def test_a_class_without_a_module() -> None:
    odd = type("Odd", (), {"__module__": None})()
    assert [row.path for row in training.summary(tko.sgd(0.5), {"a": jnp.ones(2), "b": odd}).rows] == ["a", "b"]


def test_nothing_to_optimize() -> None:
    for model in ({}, {"f": jnp.tanh}, {"f": None}, nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))[0]):
        found = training.summary(tko.sgd(0.5), model)
        assert found.rows == ()
        assert str(found).splitlines()[1] == "0 leaves, 0 not moving; 0 numbers, 0 bytes; state: 0 bytes"
        assert str(found).splitlines()[2:] == ["nothing is trained"]


def test_it_says_so_if_nothing_is_trained() -> None:
    frozen = tko.transforms.selective_transform(tko.adam(0.5), freeze_mask=dict.fromkeys(PARAMS, True))
    warm_up = tko.sgd(lambda count: 0.5 * count)
    for optimizer, is_trained in ((frozen, False), (tko.set_to_zero(), False), (warm_up, True), (tko.sgd(0.5), True)):
        assert (training.summary(optimizer, PARAMS).note == "nothing is trained") is not is_trained


def test_a_long_table_is_cut() -> None:
    model = {f"{i:02}": jnp.float32(i) for i in range(60)}
    tx = training.scale_by_tree({key: float(i) for i, key in enumerate(model)})
    found = training.summary(tx, model)
    assert len(found.rows) == 60
    lines = str(found).splitlines()
    notes = [line for line in lines if line.startswith("    along the gradient")]
    assert len(lines) - len(notes) == 53 and lines[-2] == "… and 10 more rows"


def test_in_a_terminal_what_does_not_move_is_highlighted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    training.summary(groups(tko), PARAMS).show()
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in shown] == ["\033[1mleaf", "body", "head", "\033[33mscale", "4"]


def test_in_a_notebook_it_is_a_table() -> None:
    model = {"w": jnp.ones(3, jnp.bfloat16), "c": Config(), "<b>": jnp.ones(2)}
    html = training.summary(tko.sgd(0.5), model)._repr_html_()
    assert html.count("<tr>") == 4 and html.count("<th ") == 7
    assert ">&lt;b&gt;</td>" in html and ">Config</td>" in html and html.endswith("state: 0 bytes</p>")


def test_keys_of_one_name_have_a_row_each() -> None:
    """The int 1 and the string "1": the path of the first is the beginning of that of the other."""
    model = OrderedDict([(1, jnp.ones(2)), ("1", {"y": jnp.ones(2, jnp.bfloat16)})])
    shown = str(training.summary(optax.sgd(0.1), model)).splitlines()
    assert [line.split()[:2] for line in shown[1:3]] == [["1", "f32[2]"], ["1.y", "bf16[2]"]]


def test_two_children_of_one_key_have_a_row_each() -> None:
    class Twins:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

    key = jax.tree_util.GetAttrKey("x")
    untyped.tree_util.register_pytree_with_keys(
        Twins, lambda t: (((key, t.a), (key, t.b)), None), lambda _, children: Twins(*children)
    )
    shown = str(training.summary(optax.sgd(0.1), Twins(jnp.ones(2), jnp.ones(2, jnp.bfloat16))))
    assert "f32[2]" in shown and "bf16[2]" in shown
