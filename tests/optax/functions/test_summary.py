"""summary: what one step does to each leaf, as found by taking it."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko
from treekit._base.key_path import flatten_with_names
from treekit.optax._functions.summary import Summary

PARAMS: Any = {
    "body": {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)},
    "head": np.ones(3, np.float32),
    "scale": np.ones((), np.float32),
}
LABELS = {"body": "adamw", "head": "sgd", "scale": "freeze"}


def params() -> Any:
    return jax.tree.map(jnp.asarray, PARAMS)


def groups(o: Any) -> Any:
    transforms = {"adamw": o.adamw(1e-3, weight_decay=0.1), "sgd": o.sgd(0.5), "freeze": o.set_to_zero()}
    return o.partition(transforms, LABELS)


def of(found: Summary) -> dict[str, tuple[Any, ...]]:
    """Step, decay, accumulators and bytes by key path."""

    def rounded(x: float | None) -> float | None:
        return None if x is None else float(f"{x:.3g}")

    return {
        row.path: (rounded(row.step), rounded(row.decay), " ".join(x.name for x in row.state), row.bytes)
        for row in found.rows
    }


GROUPS = {
    "body.b": (0.001, 0.0001, "mu nu", 24),
    "body.w": (0.001, 0.0001, "mu nu", 48),
    "head": (0.5, 0.0, "", 0),
    "scale": (0.0, 0.0, "", 0),
}
TABLE = """\
leaf   array                     step   decay   state           bytes
body   f32, 2 leaves, 9 numbers  0.001  0.0001  mu f32, nu f32  72
head   f32[3]                    0.5    0                       0
scale  f32[]                     0      0                       0
leaves: 4, frozen: 1; numbers: 13, bytes: 52; bytes of state: 76, shared by all leaves: 4"""


@pytest.mark.parametrize("o", [optax, tko], ids=["of_optax", "of_ours"])
def test_groups_show_their_rates_and_what_is_frozen(o: Any) -> None:
    found = tko.summary(groups(o), params())
    assert of(found) == GROUPS
    assert found.rows[0].state[0].path == "inner_states.adamw.inner_state.0.mu.body.b"
    assert (found.rows[0].shape, found.rows[0].dtype) == ((3,), "float32")
    assert str(found) == TABLE


WRAPPED: dict[str, Any] = {
    "chain": lambda tx: tko.chain(optax.zero_nans(), tx),
    "injected": lambda tx: tko.inject_hyperparams(lambda scale: tko.chain(tx, tko.scale(scale)))(1.0),
    "if_finite": lambda tx: tko.apply_if_finite(tx, 3),
    "multi_steps": lambda tx: tko.MultiSteps(tx, 3),
    "of_optax": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "stochastic": lambda tx: tko.dtype_preserving(tx, rounding="stochastic"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_in_whatever_way(name: str) -> None:
    found = of(tko.summary(WRAPPED[name](groups(tko)), params()))
    assert {path: row[:2] for path, row in found.items()} == {path: row[:2] for path, row in GROUPS.items()}


@pytest.mark.parametrize("kind", ["f32", "node", "legacy", "eqx_raw", "eqx_filtered", "nnx", "bf16", "c64", "int_key"])
def test_every_kind_of_params(kind: str) -> None:
    model = cases.make(kind)
    found = tko.summary(tko.chain(tko.trace(0.9), tko.scale(-0.25)), model)
    paths = dict(flatten_with_names(model))
    for row in found.rows:
        leaf = paths[row.path]
        assert row.shape == np.shape(leaf)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact):
            assert (row.step, row.decay, row.note) == (0.25, 0.0, "")
            assert [(x.name, x.bytes) for x in row.state] == [("trace", leaf.nbytes)]
        else:
            assert (row.step, row.decay, row.note) == (None, None, "has no gradient")
    assert {row.path for row in found.rows} >= {path for path, x in paths.items() if isinstance(x, jax.Array)} - {"key"}


def test_a_mask_of_decay_is_seen_even_where_the_params_are_zero() -> None:
    tx = tko.adamw(0.5, weight_decay=0.25, mask={"body": {"w": True, "b": True}, "head": False, "scale": False})
    decays = {path: row[1] for path, row in of(tko.summary(tx, params())).items()}
    assert decays == {"body.b": 0.125, "body.w": 0.125, "head": 0.0, "scale": 0.0}


def test_a_forgotten_minus_shows() -> None:
    assert {row[0] for row in of(tko.summary(tko.scale_by_adam(), params())).values()} == {-1.0}


def test_a_warm_up_is_not_frozen() -> None:
    tx = tko.partition(
        {"a": tko.sgd(lambda count: 0.25 * count), "b": tko.set_to_zero()},
        {**LABELS, "body": "a", "head": "a", "scale": "b"},
    )
    found = tko.summary(tx, params())
    assert [(row.step, row.note) for row in found.rows] == [(0.25, "in the second step; 0 in the first")] * 3 + [
        (0, "")
    ]
    assert found.totals["frozen"] == 1


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: tko.MultiSteps(tx, 3)], ids=["plain", "rounds"])
def test_decay_is_that_of_the_first_step_that_is_not_zero(wrap: Callable[[Any], Any]) -> None:
    mask = {"body": {"w": True, "b": False}, "head": False, "scale": False}
    tx = wrap(tko.adamw(lambda count: 0.25 * count, weight_decay=0.5, mask=mask))
    found = of(tko.summary(tx, params()))
    assert {path: row[:2] for path, row in found.items()} == {
        path: (0.25, 0.125 if path == "body.w" else 0.0) for path in ("body.b", "body.w", "head", "scale")
    }


@pytest.mark.usefixtures("nans")  # without a gradient, they divide 0 by 0
@pytest.mark.parametrize("name", ["normalize", "prodigy"])
def test_a_step_is_known_where_that_without_a_gradient_is_not_finite(name: str) -> None:
    tx = {"normalize": optax.chain(optax.contrib.normalize(), optax.sgd(0.1)), "prodigy": optax.contrib.prodigy()}[name]
    zeros = jax.tree.map(jnp.zeros_like, params())
    grads = jax.tree.map(jnp.ones_like, zeros)
    updates, _ = tx.update(grads, tx.init(zeros), zeros)
    steps = [row.step for row in tko.summary(tx, zeros).rows]
    assert steps == pytest.approx([-float(jnp.mean(x)) for x in jax.tree.leaves(updates)])


@pytest.mark.parametrize("name", ["centralize", "keep_params_nonnegative"])
def test_a_step_that_is_zero_for_ones_alone_is_not_frozen(name: str) -> None:
    tx = {
        "centralize": optax.chain(optax.centralize(), optax.sgd(0.1)),
        "keep_params_nonnegative": optax.chain(optax.sgd(0.1), optax.keep_params_nonnegative()),
    }[name]
    found = tko.summary(tx, {"w": jnp.zeros((2, 3))})
    assert [(x.step, x.note) for x in found.rows] == [(0.0, "0 for a gradient of ones, but not for others")]
    assert found.totals["frozen"] == 0


LATE = optax.join_schedules([optax.constant_schedule(0.0), optax.constant_schedule(0.5)], [5])
NOW = (0.0, "0 at this count")
ZERO: dict[str, tuple[Callable[[], Any], tuple[float, str]]] = {
    "rate": (lambda: tko.sgd(LATE), NOW),
    "adam": (lambda: tko.adamw(LATE, weight_decay=0.1), NOW),
    "injected": (lambda: tko.inject_hyperparams(tko.adam)(LATE), NOW),
    "if_finite": (lambda: tko.apply_if_finite(tko.adam(LATE), 3), NOW),
    "rounds": (lambda: tko.MultiSteps(tko.adam(LATE), 3), NOW),
    "rounds_of_optax": (lambda: optax.MultiSteps(optax.adam(LATE), 2).gradient_transformation(), NOW),
    "apply_every": (lambda: tko.chain(tko.sgd(0.5), optax.apply_every(4)), NOW),
    "clip": (lambda: tko.clip(0.0), (0.0, "0 for the gradients that were tried")),
    "zero_rate": (lambda: tko.adam(0.0), (0.0, "")),
    "zero_injected": (lambda: tko.inject_hyperparams(tko.adam)(0.0), (0.0, "")),
    "zero_in_tree": (lambda: tko.chain(tko.adam(0.5), tko.scale_by_tree(0.0)), (0.0, "")),
    "frozen_and_clipped": (lambda: tko.chain(tko.set_to_zero(), tko.clip_by_global_norm(1.0)), (0.0, "")),
    "frozen_in_rounds": (lambda: tko.MultiSteps(tko.set_to_zero(), 3), (0.0, "")),
    "frozen_in_rounds_of_optax": (lambda: optax.MultiSteps(optax.set_to_zero(), 2), (0.0, "")),
    "frozen_if_finite": (lambda: tko.apply_if_finite(tko.chain(tko.trace(0.5), tko.set_to_zero()), 3), (0.0, "")),
    "frozen_if_finite_of_optax": (lambda: optax.apply_if_finite(optax.set_to_zero(), 3), (0.0, "")),
    "frozen_or_not": (
        lambda: tko.conditionally_transform(optax.set_to_zero(), lambda step: step % 4 < 2),
        (0.0, "0 at this count"),
    ),
    "frozen_after_momentum": (lambda: optax.chain(optax.trace(0.5), optax.freeze(True)), (0.0, "")),
}  # fmt: skip


@pytest.mark.parametrize("name", ZERO)
def test_frozen_is_what_no_gradient_reaches_at_any_count(name: str) -> None:
    make, expected = ZERO[name]
    found = tko.summary(make(), params())
    assert [(row.step, row.note) for row in found.rows] == [expected] * 4
    assert found.totals["frozen"] == (0 if expected[1] else 4)


def test_an_update_that_cannot_be_traced_is_not_certainly_zero() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda x: x * float(state), updates), state

    tx = optax.GradientTransformation(lambda params: jnp.zeros(()), update)
    (row,) = tko.summary(tx, jnp.ones(3)).rows
    assert (row.step, row.note) == (0.0, "0 for the gradients that were tried")


@pytest.mark.parametrize("make", [tko.noisy_sgd, optax.noisy_sgd], ids=["ours", "of_optax"])
def test_noise_is_random_and_not_decay(make: Any) -> None:
    found = of(tko.summary(make(0.5, key=0), params()))
    assert {row[:2] for row in found.values()} == {(0.5, 0.0)}
    tx = tko.partition(
        {"a": make(0.5, key=jax.random.key(1)), "b": tko.sgd(0.5)},
        {**LABELS, "body": "a"} | dict.fromkeys(["head", "scale"], "b"),
    )
    assert [row.note for row in tko.summary(tx, params()).rows] == ["random"] * 2 + [""] * 2


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_a_random_share_of_the_gradient_is_random(key: Any) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        factors = jax.random.bernoulli(state, 0.5, (3,)).astype(jnp.float32)
        return jax.tree.map(lambda x: x * factors, updates), state

    tx = optax.GradientTransformation(lambda params: key(0), update)
    (row,) = tko.summary(tx, jnp.ones(3)).rows
    assert (row.decay, row.note) == (0.0, "random")


def test_what_moves_without_a_gradient_is_not_decay() -> None:
    found = tko.summary(tko.yogi(0.5), params())
    assert {(row.decay, row.note) for row in found.rows} == {(0.0, "moves by 0.00014 without a gradient")}
    assert str(found).splitlines()[0].endswith("bytes  note")
    tx = tko.adamw(0.5, weight_decay=0.25)
    _, state = tx.update(params(), tx.init(params()), params())
    (row,) = tko.summary(tx, {"w": jnp.ones(3)}, tko.adamw(0.5).init({"w": jnp.ones(3)})).rows
    assert (row.decay, row.note) == (0.125, "")
    head = tko.summary(tx, params(), state).rows[2]
    assert head.decay == pytest.approx(0.125) and head.note.startswith("moves by ")


def test_decay_is_unknown_where_a_given_state_has_copies_of_other_params() -> None:
    tx = tko.contrib.schedule_free_sgd(0.5)
    assert {row.decay for row in tko.summary(tx, params()).rows} == {0.0}
    assert {row.decay for row in tko.summary(tx, params(), tx.init(params())).rows} == {None}


def test_shapes_will_do_for_params() -> None:
    found = tko.summary(groups(tko), jax.eval_shape(params))
    assert of(found) == GROUPS


def test_from_a_state_of_training() -> None:
    tx = tko.chain(tko.inject_hyperparams(tko.sgd)(0.5))
    state = tko.set_hyperparams(tx.init(params()), learning_rate=0.125)
    found = tko.summary(tx, params(), state)
    assert {row[0] for row in of(found).values()} == {0.125}
    assert (found.totals["state_bytes"], found.totals["shared_bytes"]) == (8, 8)


def test_state_dtypes_show() -> None:
    found = tko.summary(tko.adam(0.1, mu_dtype=jnp.bfloat16), params())
    assert [(x.name, x.dtype) for x in found.rows[0].state] == [("mu", "bfloat16"), ("nu", "float32")]
    assert "mu bf16, nu f32" in str(found)


# -------------------------------------------------------------------------------- steps that depend on more, or fail


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", ["lbfgs", "backtracking", "polyak_sgd"])
def test_a_step_that_depends_on_the_loss_says_so(name: str) -> None:
    found = tko.summary(cases.OPTIMIZERS[name](tko), params())
    assert {(row.step, row.note) for row in found.rows} == {(None, "depends on the loss")}
    assert "depends on the loss" in str(found)


@pytest.mark.usefixtures("nans")
def test_and_so_says_one_group_alone() -> None:
    tx = tko.partition({"search": tko.lbfgs(), "sgd": tko.sgd(0.5)}, {"body": "search", "head": "sgd", "scale": "sgd"})
    found = tko.summary(tx, params())
    assert [(row.step, row.note) for row in found.rows] == [(None, "depends on the loss")] * 2 + [(0.5, "")] * 2
    assert [x.name for x in found.rows[0].state][:2] == ["params", "updates"]  # though its init takes no placeholder


def test_what_takes_a_loss_and_does_not_use_it_in_a_step_is_known() -> None:
    tx = tko.chain(tko.sgd(0.5), tko.contrib.reduce_on_plateau())
    assert {(row.step, row.note) for row in tko.summary(tx, params()).rows} == {(0.5, "")}


def test_what_needs_something_else_says_what() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, hessian: Any, **extra: Any) -> Any:
        return updates, state

    tx = optax.GradientTransformationExtraArgs(lambda params: {"mine": jnp.ones(2)}, update)
    (note,) = {row.note for row in tko.summary(tx, params()).rows}
    assert note.startswith("fails: TypeError: ") and "'hessian'" in note


def test_a_round_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treekit.optax._functions.take_rounds._MOST_MINI_STEPS", 4)
    (row,) = tko.summary(tko.MultiSteps(tko.sgd(0.5), 5), {"w": jnp.ones(2)}).rows
    assert (row.step, row.note) == (None, "fails: ValueError: MultiSteps took no step in 4 mini-steps")
    (row,) = tko.summary(tko.MultiSteps(tko.sgd(0.5), 4), {"w": jnp.ones(2)}).rows
    assert (row.step, row.note) == (0.5, "")


def test_an_init_that_takes_no_placeholder_and_params_without_a_path() -> None:
    def init(params: Any) -> Any:
        return {"w": jnp.zeros(jnp.shape(params)), "n": 0}

    tx = optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))
    (found,) = tko.summary(tx, jnp.ones(3)).rows[0].state
    assert (found.name, found.bytes) == ("w", 12)


# ------------------------------------------------------------------------------------------------------------ printing


def test_alike_subtrees_are_one_row() -> None:
    x = jnp.ones(2, jnp.float32)
    model = {"a": [x, x], "b": {"c": {"d": x, "e": jnp.ones((2, 2), jnp.float32)}, "f": x.astype(jnp.bfloat16)}}
    lines = str(tko.summary(tko.sgd(0.5), model)).splitlines()
    assert [re.split(r"\s{2,}", line)[:2] for line in lines[1:-1]] == [
        ["a", "f32, 2 leaves, 4 numbers"],
        ["b.c", "f32, 2 leaves, 6 numbers"],
        ["b.f", "bf16[2]"],
    ]
    assert str(tko.summary(tko.sgd(0.5), x)).splitlines()[1].startswith("(all)  f32[2]  0.5   0 ")


def test_nothing_to_optimize() -> None:
    found = tko.summary(tko.sgd(0.5), {"f": jnp.tanh})
    assert found.rows == ()
    assert str(found).splitlines()[1].startswith("leaves: 0, frozen: 0;")


def test_a_long_table_is_cut() -> None:
    model = {f"{i:02}": jnp.float32(i) for i in range(60)}
    tx = tko.scale_by_tree({key: float(i) for i, key in enumerate(model)})
    found = tko.summary(tx, model)
    assert len(found.rows) == 60
    assert str(found).splitlines()[-2] == "… and 10 more rows"


def test_show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = tko.summary(groups(tko), params())
    found.show()
    assert capsys.readouterr().out == TABLE + "\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    found.show()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("\033[1mleaf ") and shown[3].startswith("\033[33mscale")
    assert not shown[1].startswith("\033")
    monkeypatch.setenv("NO_COLOR", "1")
    found.show()
    assert capsys.readouterr().out == TABLE + "\n"


def test_a_second_step_that_momentum_moves_says_both() -> None:
    def rate(count: Any) -> Any:
        return jnp.where(count < 3, 0.0, 1.0)

    tx = tko.sgd(rate, momentum=0.9)
    given = {"w": jnp.ones((2, 2))}
    state = tx.init(given)
    for _ in range(2):
        _, state = tx.update(given, state, given)
    (row,) = tko.summary(tx, given, state).rows
    assert row.note.startswith("in the second step; 0 in the first; moves by ")
