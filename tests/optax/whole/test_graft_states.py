"""graft on states of real optimizers: what users change between two runs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import optax
import pytest

import treekit as tk
from tests.saved import numbered, zeroed
from treekit import optax as tko
from treekit.testing import assert_trees_same

SCHEDULE = optax.linear_schedule(0.1, 0.0, 100)
LAYER = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
PARAMS: Any = {"layers": [LAYER, LAYER, LAYER], "head": LAYER}


def adams(state: Any) -> list[Any]:
    """The states of Adam in a state, in their order."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState))
    return [x for x in leaves if isinstance(x, optax.ScaleByAdamState)]


# ------------------------------------------------------------------------------------------------- other wrappers


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 3),
    "masked": lambda tx: tko.masked(tx, tk.path_mask("**")),
    "another schedule": lambda tx: tko.chain(tx, tko.scale_by_schedule(SCHEDULE)),
    "all": lambda tx: tko.MultiSteps(
        tko.inject_hyperparams(
            lambda scale: tko.partition({"a": tko.chain(tko.clip(scale), tx)}, tk.path_labels({"**": "a"}))
        )(1.0),
        2,
    ).gradient_transformation(),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_checkpoint_of_plain_optax_goes_into_a_wrapped_optimizer_and_back(wrapper: str) -> None:
    plain, wrapped = optax.adamw(SCHEDULE), WRAPPERS[wrapper](tko.adamw(SCHEDULE))
    state = numbered(plain.init(PARAMS))
    got, report = tk.graft(wrapped.init(PARAMS), state, strict=False)
    assert report.dropped == () and report.refused == ()
    assert_trees_same(adams(got), adams(state))
    back, report = tk.graft(plain.init(PARAMS), got, strict=False)
    assert_trees_same(back, state)
    assert report.fresh == () and report.refused == ()


def test_states_whose_names_do_not_end_in_state_are_found_behind_another_link() -> None:
    def links() -> list[Any]:
        return [optax.add_decayed_weights(SCHEDULE), optax.scale_by_adam(), optax.apply_every(3)]

    state = numbered(optax.chain(*links()).init(PARAMS))
    got, report = tk.graft(optax.chain(optax.clip_by_global_norm(1.0), *links()).init(PARAMS), state)
    assert_trees_same(got[1:], state)
    assert report.fresh == report.dropped == report.refused == ()


# ---------------------------------------------------------------------------------------- labels, layers, unfreezing


def test_unfreezing_in_the_middle_of_training_keeps_the_moments() -> None:
    """A MaskedNode against an array, in both directions."""
    groups = {"on": tko.adam(0.1), "off": tko.set_to_zero()}
    frozen, thawed = (tko.partition(groups, tk.path_labels({"head.**": x, "**": "on"})) for x in ("off", "on"))
    state = numbered(frozen.init(PARAMS))
    got, report = tk.graft(thawed.init(PARAMS), state, fresh="**.head.*")
    assert len(report.fresh) == 4
    assert_trees_same(adams(got)[0].count, adams(state)[0].count)
    assert_trees_same(adams(got)[0].mu["layers"], adams(state)[0].mu["layers"])
    back, report = tk.graft(frozen.init(PARAMS), got, rename={"**.head.*": None})
    assert_trees_same(back, state)
    assert len(report.dropped) == 4


def test_counts_follow_moments_that_are_renamed_one_by_one_to_another_label() -> None:
    def optimizer(a: str, b: str) -> Any:
        return tko.partition({"x": tko.adam(0.1), "y": tko.adam(0.1)}, {"a": a, "b": b})

    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    old = numbered(optimizer("x", "y").init(params))
    name = "inner_states.{}.inner_state.0.{}.{}".format
    pairs = [("x", "y", "a"), ("y", "x", "b")]
    rename = {name(was, m, key): name(now, m, key) for was, now, key in pairs for m in ("mu", "nu")}
    got, report = tk.graft(optimizer("y", "x").init(params), old, rename=rename)
    assert report.fresh == report.dropped == report.refused == ()
    for was, now, _ in pairs:
        assert_trees_same(got.inner_states[now].inner_state, old.inner_states[was].inner_state)


def test_a_state_of_params_that_were_filtered_by_hand_fits_one_of_masked_and_of_selective_transform() -> None:
    """None and MaskedNode leave out alike. So was the state that `filtered` made, which treekit had once."""
    mask = tk.path_mask("**.w")
    state = numbered(optax.adam(0.1).init(tk.filter(PARAMS, mask)))
    selective, _ = tk.graft(tko.transforms.selective_transform(tko.adam(0.1), freeze_mask=~mask).init(PARAMS), state)
    assert [bool(x.any()) for x in jax.tree.leaves(adams(selective)[0].mu)] == [True] * 4
    got, _ = tk.graft(tko.masked(tko.adam(0.1), mask).init(PARAMS), state)
    assert [bool(x.any()) for x in jax.tree.leaves(adams(got)[0].mu)] == [True] * 4


def test_hyperparameters_are_carried_over_unless_their_group_is_new() -> None:
    one, body, head = (tko.inject_hyperparams(tko.adam)(rate) for rate in (0.5, 0.3, 0.2))
    state = one.init(PARAMS)
    wrapped = tko.MultiSteps(body, 2).init(PARAMS)
    got, _ = tk.graft(wrapped, state, fresh=["*_step", "acc_grads.**"])
    assert float(got.inner_opt_state.hyperparams["learning_rate"]) == 0.5
    groups = tko.partition({"body": body, "head": head}, tk.path_labels({"head.**": "head"}, default="body"))
    split, report = tk.graft(groups.init(PARAMS), numbered(state), strict=False)
    rates = {k: float(s.inner_state.hyperparams["learning_rate"]) for k, s in split.inner_states.items()}
    assert rates == pytest.approx({"head": 0.2, "body": 0.3})
    assert [int(adam.count) for adam in adams(split)] == [int(adams(numbered(state))[0].count)] * 2
    assert {row.path.split(".")[-2] for row in report.fresh} == {"hyperparams"}


def test_moments_are_stacked_too() -> None:
    tx, stacked = tko.adam(0.1), {"layers": tk.tree_stack(PARAMS["layers"])}
    old = numbered(tx.init({"layers": PARAMS["layers"]}))
    stack, unstack = {"**.layers.*.**": "**.layers.**"}, {"**.layers.**": "**.layers.*.**"}
    new = tko.MultiSteps(tko.chain(tko.clip(1.0), tx), 2).init(stacked)
    got, _ = tk.graft(new, old, rename=stack, fresh=["acc_grads.**", "*_step"])
    (adam,), (old_adam,) = adams(got), adams(old)
    assert_trees_same(adam.mu["layers"], tk.tree_stack(old_adam.mu["layers"]))
    back, _ = tk.graft(zeroed(old), got, rename={"acc_grads.**": None, "*_step": None, **unstack})
    assert_trees_same(back, old)
    # Files have no states: names are those of the same wrappers.
    inner, _ = tk.graft(tx.init(stacked), tk.to_state_dict(old), rename=stack)
    assert_trees_same(adams(inner), [adam])


# ------------------------------------------------------------------------------ named tuples that hold a whole program


class TrainState(NamedTuple):
    params: Any
    opt_state: Any
    step: Any


@pytest.mark.parametrize("optimizer", [tko.sgd(0.1), tko.MultiSteps(tko.adam(0.1), 2)], ids=["sgd", "MultiSteps"])
def test_a_named_tuple_of_a_user_that_holds_a_state_is_not_one(optimizer: Any) -> None:
    """Its leaves are matched by name, though the name of its class ends in State."""
    start = TrainState(PARAMS, optimizer.init(PARAMS), jnp.int32(0))
    old = numbered(start)
    to_state_dict: Any = flax.serialization.to_state_dict
    for other in (old, old._asdict(), to_state_dict(old), tk.to_state_dict(old)):
        assert_trees_same(tk.graft(start, other)[0], old)
        assert_trees_same(tk.graft(start._asdict(), other)[0], old._asdict())


def test_one_key_does_not_go_to_two_states() -> None:
    """They would draw the same numbers. A count may."""
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}

    def noise() -> Any:
        return tko.add_noise(0.1, 0.5, jax.random.key(0))

    new = tko.partition({"x": noise(), "y": noise()}, {"w": "x", "b": "y"}).init(params)
    with pytest.raises(ValueError, match="cannot decide"):
        tk.graft(new, noise().init(params), strict=False)
