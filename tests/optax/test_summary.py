"""summary: what the first step does to each leaf, as found by taking it."""

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

PARAMS: Any = {
    "body": {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)},
    "head": np.ones(3, np.float32),
    "scale": np.ones((), np.float32),
}
LABELS = {"body": "adamw", "head": "sgd", "scale": "freeze"}


def params() -> Any:
    return jax.tree.map(jnp.asarray, PARAMS)


def groups(o: Any) -> Any:
    transforms = {
        "adamw": o.adamw(1e-3, weight_decay=0.1, mu_dtype=jnp.bfloat16),
        "sgd": o.sgd(0.5),
        "freeze": o.set_to_zero(),
    }
    return o.partition(transforms, LABELS)


def of(found: Any) -> dict[str, tuple[Any, ...]]:
    """Step, decay, accumulators and bytes by key path."""

    def rounded(x: float | None) -> float | None:
        return None if x is None else float(f"{x:.3g}")

    return {
        row.path: (rounded(row.step), rounded(row.decay), " ".join(x.name for x in row.state), row.bytes)
        for row in found.rows
    }


GROUPS = {
    "body.b": (0.001, 0.0001, "mu nu", 18),
    "body.w": (0.001, 0.0001, "mu nu", 36),
    "head": (0.5, 0.0, "", 0),
    "scale": (0.0, 0.0, "", 0),
}
TABLE = """\
leaf   array                     step   decay   state            bytes  note
body   f32, 2 leaves, 9 numbers  0.001  0.0001  mu bf16, nu f32  54
head   f32[3]                    0.5    0                        0
scale  f32[]                     0      0                        0      0 in the first step
leaves: 4, unmoved: 1; numbers: 13, bytes: 52; bytes of state: 58, shared by all leaves: 4"""


@pytest.mark.parametrize("o", [optax, tko], ids=["of_optax", "of_ours"])
def test_groups_show_their_rates_and_what_does_not_move(o: Any) -> None:
    found = tko.summary(groups(o), params())
    assert of(found) == of(tko.summary(groups(o), jax.eval_shape(params))) == GROUPS
    first = found.rows[0]
    assert first.state[0][:3] == ("mu", "inner_states.adamw.inner_state.0.mu.body.b", "bfloat16")
    assert (first.type, first.shape, first.dtype) == ("f32[3]", (3,), "float32")
    assert [row.note for row in found.rows] == ["", "", "", "0 in the first step"]
    assert found.totals["unmoved"] == 1
    assert str(found) == TABLE


WRAPPED: dict[str, Any] = {
    "injected": lambda tx: tko.inject_hyperparams(lambda scale: tko.chain(tx, tko.scale(scale)))(1.0),
    "multi_steps": lambda tx: tko.MultiSteps(tx, 3),
    "of_optax": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "stochastic": lambda tx: tko.dtype_preserving(tx, rounding="stochastic"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_in_whatever_way(name: str) -> None:
    found = of(tko.summary(WRAPPED[name](groups(tko)), params()))
    assert {path: row[:2] for path, row in found.items()} == {path: row[:2] for path, row in GROUPS.items()}


@pytest.mark.parametrize("kind", ["node", "eqx_raw", "nnx", "bf16", "c64", "int_key"])
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
            assert (row.step, row.decay) == (None, None) and row.note in ("has no gradient", "not a parameter")
    assert {row.path for row in found.rows} == {path for path, x in paths.items() if not callable(x)}


def test_a_mask_of_decay_is_seen_even_where_the_params_are_zero() -> None:
    tx = tko.adamw(0.5, weight_decay=0.25, mask={"body": {"w": True, "b": True}, "head": False, "scale": False})
    decays = {path: row[1] for path, row in of(tko.summary(tx, params())).items()}
    assert decays == {"body.b": 0.125, "body.w": 0.125, "head": 0.0, "scale": 0.0}


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: tko.MultiSteps(tx, 3)], ids=["plain", "rounds"])
def test_a_warm_up_is_zero_in_the_first_step_and_a_later_state_shows_a_later_one(wrap: Callable[[Any], Any]) -> None:
    tx = wrap(tko.sgd(lambda count: 0.25 * count))
    state = tx.init(params())
    for i in range(3):
        rows = tko.summary(tx, params(), state).rows
        assert {(row.step, row.note) for row in rows} == {(0.25 * i, "" if i else "0 in the first step")}
        for _ in range(1 if wrap(tx) is tx else 3):
            _, state = tx.update(params(), state, params())


@pytest.mark.usefixtures("nans")  # without a gradient, they divide 0 by 0
@pytest.mark.parametrize("name", ["normalize", "prodigy"])
def test_a_step_is_known_where_that_without_a_gradient_is_not_finite(name: str) -> None:
    tx = {"normalize": optax.chain(optax.contrib.normalize(), optax.sgd(0.1)), "prodigy": optax.contrib.prodigy()}[name]
    ones = jax.tree.map(jnp.ones_like, params())
    updates, _ = tx.update(ones, tx.init(ones), ones)
    rows = tko.summary(tx, params()).rows
    assert [row.step for row in rows] == pytest.approx([-float(jnp.mean(x)) for x in jax.tree.leaves(updates)])
    assert {(row.decay, row.note) for row in rows} == {(None, "is not finite without a gradient")}


LATE = optax.join_schedules([optax.constant_schedule(0.0), optax.constant_schedule(0.5)], [5])
ZERO, OF_LOSS = (0, 0, "0 in the first step"), (None, None, "depends on the loss")
# An optimizer, and the step, the decay and the note of all leaves.
SEEN: dict[str, tuple[Callable[[], Any], tuple[float | None, float | None, str]]] = {
    "late": (lambda: tko.adamw(LATE, weight_decay=0.1), ZERO),
    "late, in rounds of Optax": (lambda: optax.MultiSteps(optax.adam(LATE), 2).gradient_transformation(), ZERO),
    "waits": (lambda: tko.chain(tko.sgd(0.5), optax.apply_every(4)), ZERO),
    "frozen in rounds": (lambda: tko.MultiSteps(tko.set_to_zero(), 3), ZERO),
    "frozen after momentum": (lambda: optax.chain(optax.trace(0.5), optax.freeze(True)), ZERO),
    "a forgotten minus": (tko.scale_by_adam, (-1, 0, "")),
    "moves without a gradient": (lambda: tko.yogi(0.5), (0.5, 0.000138, "")),
    "infinite": (lambda: tko.scale(jnp.inf), (None, None, "is not finite")),
    "backtracking": (lambda: cases.OPTIMIZERS["backtracking"](tko), OF_LOSS),
    "polyak_sgd": (lambda: cases.OPTIMIZERS["polyak_sgd"](tko), OF_LOSS),
    "takes a loss, and does not use it": (
        lambda: tko.chain(tko.sgd(0.5), tko.contrib.reduce_on_plateau()),
        (0.5, 0, ""),
    ),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("make, seen", SEEN.values(), ids=SEEN)
def test_all_rows_say_what_was_seen(make: Callable[[], Any], seen: tuple[Any, ...]) -> None:
    found = tko.summary(make(), params())
    assert {(*of(found)[row.path][:2], row.note) for row in found.rows} == {seen}
    assert found.totals["unmoved"] == (4 if seen == ZERO else 0)
    assert seen[2] in str(found)


def test_groups_whose_rounds_have_different_lengths_show_a_step_each() -> None:
    tx = tko.partition(
        {"a": tko.MultiSteps(tko.sgd(0.5), 2), "b": tko.MultiSteps(tko.sgd(0.25), 3)}, {"w": "a", "b": "b"}
    )
    found = tko.summary(tx, {"w": jnp.ones(2), "b": jnp.ones(2)})
    assert {row.path: row.step for row in found.rows} == {"w": 0.5, "b": 0.25}


def test_noise_is_random_and_not_decay() -> None:
    tx = tko.partition(
        {"a": tko.noisy_sgd(0.5, key=jax.random.key(1)), "b": tko.sgd(0.5)}, {"body": "a", "head": "b", "scale": "b"}
    )
    rows = tko.summary(tx, params()).rows
    assert [(row.decay, row.note) for row in rows] == [(None, "random")] * 2 + [(0, "")] * 2
    assert [row.step for row in rows] == pytest.approx([0.5] * 4)


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_a_random_share_of_the_gradient_is_random(key: Any) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        factors = jax.random.bernoulli(state, 0.5, (3,)).astype(jnp.float32)
        return jax.tree.map(lambda x: x * factors, updates), state

    tx = optax.GradientTransformation(lambda params: key(0), update)
    (row,) = tko.summary(tx, jnp.ones(3)).rows
    assert (row.decay, row.note) == (0.0, "random")


def test_from_a_state_of_training() -> None:
    tx = tko.chain(tko.inject_hyperparams(tko.sgd)(0.5, momentum=0.5))
    _, state = tx.update(params(), tx.init(params()), params())
    found = tko.summary(tx, params(), tko.set_hyperparams(state, learning_rate=0.125))
    assert of(found)["head"][:2] == (0.125, 0.0625)  # the momentum shows as decay
    assert found.totals["shared_bytes"] == 12


def test_decay_is_unknown_where_a_given_state_has_copies_of_other_params() -> None:
    tx = tko.contrib.schedule_free_sgd(0.5)
    assert {row.decay for row in tko.summary(tx, params()).rows} == {0.0}
    assert {row.decay for row in tko.summary(tx, params(), tx.init(params())).rows} == {None}


# -------------------------------------------------------------------------------- steps that depend on more, or fail


@pytest.mark.usefixtures("nans")
def test_one_group_alone_depends_on_the_loss() -> None:
    tx = tko.partition({"search": tko.lbfgs(), "sgd": tko.sgd(0.5)}, {"body": "search", "head": "sgd", "scale": "sgd"})
    found = tko.summary(tx, params())
    assert [(row.step, row.note) for row in found.rows] == [(None, "depends on the loss")] * 2 + [(0.5, "")] * 2
    assert [x.name for x in found.rows[0].state][:2] == ["params", "updates"]  # though its init takes no placeholder


def test_what_needs_something_else_says_what() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, hessian: Any, **extra: Any) -> Any:
        return updates, state

    tx = optax.GradientTransformationExtraArgs(lambda params: {"mine": jnp.ones(2)}, update)
    (note,) = {row.note for row in tko.summary(tx, params()).rows}
    assert note.startswith("fails: TypeError: ") and "'hessian'" in note


def test_a_round_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treekit.optax._summary._MOST_MINI_STEPS", 4)
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


class Config:
    """Not registered as a pytree."""

    def __init__(self) -> None:
        self.w = jnp.ones(3)


def test_leaves_that_are_not_parameters_are_listed_as_what_they_are() -> None:
    model = {"c": Config(), "f": jnp.tanh, "i": jnp.arange(3), "k": jax.random.key(0), "n": None, "s": "a", "x": 0.5}
    found = tko.summary(tko.adam(0.5), {"model": model, "w": jnp.ones(2)})
    assert [(row.path.removeprefix("model."), row.type, row.note) for row in found.rows] == [
        ("c", "Config", "not a parameter"),
        ("i", "i32[3]", "has no gradient"),
        ("k", "key<fry>[]", "not a parameter"),
        ("s", "str", "not a parameter"),
        ("x", "f32[]", "has no gradient"),
        ("w", "f32[2]", ""),
    ]
    assert of(found)["w"] == (0.5, 0.0, "mu nu", 16)  # although a None stands before it
    assert found.totals["leaves"] == 3 and found.totals["elements"] == 6
    assert "Config" in str(found)


def test_nothing_to_optimize() -> None:
    for model in ({}, {"f": jnp.tanh}, {"f": None}):
        found = tko.summary(tko.sgd(0.5), model)
        assert found.rows == ()
        assert str(found).splitlines()[1].startswith("leaves: 0, unmoved: 0;")


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


def test_in_a_notebook_it_is_a_table() -> None:
    model = {"w": jnp.ones(3, jnp.bfloat16), "c": Config(), "<b>": jnp.ones(2)}
    html = tko.summary(tko.sgd(0.5), model)._repr_html_()
    assert html.count("<tr>") == 4 and html.count("<th ") == 7
    assert ">&lt;b&gt;</td>" in html and ">Config</td>" in html and html.endswith("shared by all leaves: 0</p>")
