"""graft on states of real optimizers, through Orbax and Flax: what users change between two runs."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.releases import nnx_list
from treekit import optax as tko

orbax: Any = importlib.import_module("orbax.checkpoint")  # has no types
serialization: Any = flax.serialization

SCHEDULE = optax.linear_schedule(0.1, 0.0, 100)


def make(layers: int = 2, classes: int = 3, seed: int = 0) -> Any:
    keys = iter(jax.random.split(jax.random.key(seed), 20))
    body = [{"w": jax.random.normal(next(keys), (2, 2)), "b": jnp.zeros(2)} for _ in range(layers)]
    return {"layers": body, "head": {"w": jax.random.normal(next(keys), (2, classes)), "b": jnp.zeros(classes)}}


def train(tx: Any, params: Any, state: Any = None, steps: int = 3) -> tuple[Any, Any]:
    @jax.jit
    def step(params: Any, state: Any) -> Any:
        grads = jax.tree.map(lambda x: x + 0.1, params)
        updates, state = tx.update(grads, state, params)
        return tko.apply_updates(params, updates), state

    state = tx.init(params) if state is None else state
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


def through_orbax(tree: Any, path: Path) -> Any:
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path)


def through_flax(tree: Any, path: Path) -> Any:
    path.write_bytes(serialization.to_bytes(tree))
    return serialization.msgpack_restore(path.read_bytes())


THROUGH: dict[str, Callable[[Any, Path], Any]] = {"orbax": through_orbax, "flax": through_flax}


def adams(state: Any) -> list[Any]:
    """The states of Adam in a state, in their order."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState))
    return [x for x in leaves if isinstance(x, optax.ScaleByAdamState)]


# ------------------------------------------------------------------------------------------- nothing changed: a resume


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: optax.chain(
        optax.clip(1.0), optax.ema(0.9), optax.scale_by_amsgrad(), optax.ema(0.5), optax.scale(-0.1)
    ),
    "injected": lambda: tko.inject_hyperparams(tko.adamw)(SCHEDULE, weight_decay=0.1),
    "multi_steps": lambda: tko.MultiSteps(
        tko.masked(tko.sgd(0.1, momentum=0.9), tk.path_mask("**.w")), 2
    ).gradient_transformation(),
    "partition": lambda: tko.partition(
        {"a": tko.adam(0.1), "b": tko.chain(tko.trace(0.9), tko.trace(0.5))}, tk.path_labels({"**.w": "a"}, default="b")
    ),
    "integers": lambda: tko.partition({0: tko.adam(0.1), 1: tko.adam(0.2)}, tk.path_labels({"**.w": 0}, default=1)),
    "named": lambda: tko.named_chain(("clip", tko.clip(1.0)), ("adam", tko.adam(0.1))),
}


# Flax cannot write the OrderedDict of a named chain.
FILES = [(name, through) for name in OPTIMIZERS for through in THROUGH if (name, through) != ("named", "flax")]


@pytest.mark.parametrize(("name", "through"), FILES)
def test_the_same_optimizer_goes_on(name: str, through: str, tmp_path: Path) -> None:
    """What a file gives back goes into the old structure, so the tests below need no files."""
    tx = OPTIMIZERS[name]()
    params, state = train(tx, make())
    old = THROUGH[through]({"params": params, "state": state}, tmp_path / "file")
    new = {"params": make(seed=1), "state": tx.init(make(seed=1))}
    got, report = tk.graft(new, old)
    tk.assert_trees_same(got, {"params": params, "state": state})
    assert len(report.kept) == len(jax.tree.leaves(new))


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
    params, state = train(plain, make())
    got, report = tk.graft(wrapped.init(params), state, strict=False)
    assert report.dropped == () and report.refused == ()
    tk.assert_trees_same(adams(got), adams(state))
    back, report = tk.graft(plain.init(params), got, strict=False)
    tk.assert_trees_same(back, state)
    assert report.fresh == () and report.refused == ()


# ------------------------------------------------------------------------------------ labels, layers, heads, unfreezing


def test_unfreezing_in_the_middle_of_training_keeps_the_moments() -> None:
    """A MaskedNode against an array, in both directions."""
    groups = {"on": tko.adam(0.1), "off": tko.set_to_zero()}
    frozen, thawed = (tko.partition(groups, tk.path_labels({"head.**": x, "**": "on"})) for x in ("off", "on"))
    params, state = train(frozen, make())
    got, report = tk.graft(thawed.init(params), state, fresh="**.head.*")
    assert len(report.fresh) == 4 and int(adams(got)[0].count) == 3
    tk.assert_trees_same(adams(got)[0].mu["layers"], adams(state)[0].mu["layers"])
    train(thawed, params, got)
    back, report = tk.graft(frozen.init(params), got, rename={"**.head.*": None})
    tk.assert_trees_same(back, state)
    assert len(report.dropped) == 4


def test_a_tuple_of_a_model_and_a_state_is_not_a_list_of_layers() -> None:
    tx = tko.adam(0.1)
    params, state = train(tx, make())
    got, _ = tk.graft((make(seed=1), tx.init(params)), (params, state, 3), rename={"2": None})
    tk.assert_trees_same(got[0], params)


def test_filtered_and_masked_leave_out_differently_and_fit_all_the_same() -> None:
    mask = tk.path_mask("**.w")
    params, state = train(tko.filtered(tko.adam(0.1), mask), make())
    got, report = tk.graft(tko.masked(tko.adam(0.1), mask).init(params), state)
    assert [float(np.abs(x).max()) > 0 for x in jax.tree.leaves(adams(got)[0].mu)] == [True] * 3 and report.kept


# ------------------------------------------------------------------------------------------------- hyperparameters


def test_hyperparameters_are_carried_over_unless_their_group_is_new() -> None:
    one, body, head = (tko.inject_hyperparams(tko.adam)(rate) for rate in (0.5, 0.3, 0.2))
    params, state = train(one, make())
    wrapped = tko.MultiSteps(body, 2).gradient_transformation()
    got, _ = tk.graft(wrapped.init(params), state, fresh=["*_step", "acc_grads.**"])
    assert float(got.inner_opt_state.hyperparams["learning_rate"]) == 0.5
    groups = tko.partition({"body": body, "head": head}, tk.path_labels({"head.**": "head"}, default="body"))
    split, report = tk.graft(groups.init(params), state, strict=False)
    rates = {k: float(s.inner_state.hyperparams["learning_rate"]) for k, s in split.inner_states.items()}
    assert rates == pytest.approx({"head": 0.2, "body": 0.3})
    assert [int(adam.count) for adam in adams(split)] == [3, 3]
    assert {row.path.split(".")[-2] for row in report.fresh} == {"hyperparams"}


def test_a_raw_equinox_model_and_its_optimizer(tmp_path: Path) -> None:
    """Orbax takes the arrays only, and restores dicts."""
    model, bigger = (eqx.nn.MLP(2, 3, 4, depth=depth, key=jax.random.key(depth)) for depth in (1, 2))
    tx = tko.MultiSteps(tko.adam(0.1), 1).gradient_transformation()
    saved = through_orbax({"model": tk.filter_arrays(model), "state": tx.init(model)}, tmp_path / "checkpoint")
    rename = {"**.layers.1.**": "**.layers.2.**"}
    got, report = tk.graft({"model": bigger, "state": tx.init(bigger)}, saved, rename=rename, strict=False)
    assert isinstance(got["model"], eqx.nn.MLP) and got["model"].activation is bigger.activation
    tk.assert_trees_same(got["model"].layers[2].weight, model.layers[1].weight)
    assert "model.layers.1.weight" in {row.path for row in report.fresh} and not report.refused and not report.dropped


# ------------------------------------------------------------------------------------------------------------------ NNX


class Net(nnx.Module):
    def __init__(self, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.layers = nnx_list([nnx.Linear(2, 2, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(2, rngs=rngs)


def trainer(tx: Any, steps: int) -> Any:
    model = Net(steps)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    for _ in range(steps):
        optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    return model, optimizer


NNX: dict[str, Callable[[Any, Any], Any]] = {
    "opt_state": lambda _, optimizer: optimizer.opt_state,
    "state": lambda _, optimizer: nnx.state(optimizer),
    "all": lambda model, optimizer: {"model": nnx.state(model), "opt": optimizer.opt_state, "steps": jnp.int32(3)},
}


@pytest.mark.parametrize("name", NNX)
def test_what_orbax_restores_of_nnx_goes_in(name: str, tmp_path: Path) -> None:
    old, new = (NNX[name](*trainer(tko.adam(0.1), steps)) for steps in (3, 0))
    restored = through_orbax(old, tmp_path / "checkpoint")
    got, _ = tk.graft(new, restored, rename={"**.value": "**"})  # of a variable, Orbax makes a dict
    tk.assert_trees_same(got, old)


def test_another_wrapper_in_an_optimizer_of_nnx() -> None:
    first, (model, optimizer) = trainer(tko.adam(0.1), 3)[1], trainer(tko.chain(tko.clip(1.0), tko.adam(0.1)), 0)
    optimizer.opt_state, _ = tk.graft(optimizer.opt_state, first.opt_state)
    optimizer.update(model, nnx.state(model, nnx.Param))
    assert int(adams(optimizer.opt_state)[0].count[...]) == 4


# ------------------------------------------------------------------------------ named tuples that hold a whole program


class TrainState(NamedTuple):
    params: Any
    opt_state: Any
    step: Any


@pytest.mark.parametrize("optimizer", [tko.sgd(0.1), tko.MultiSteps(tko.adam(0.1), 2)], ids=["sgd", "MultiSteps"])
def test_a_named_tuple_of_a_user_that_holds_a_state_is_not_one(optimizer: Any) -> None:
    """Its leaves are matched by name, though the name of its class ends in State."""
    params = make()
    trained, state = train(optimizer, params)
    old = TrainState(trained, state, jnp.int32(3))
    for cls in (TrainState, dict):
        new = cls(params=params, opt_state=optimizer.init(params), step=jnp.int32(0))
        for other in (old, old._asdict(), serialization.to_state_dict(old), tk.to_state_dict(old)):
            got, _ = tk.graft(new, other)
            tk.assert_trees_same(got, cls(**old._asdict()))


def test_a_wrapper_of_another_library_is_a_state() -> None:
    class OtherState(NamedTuple):
        inner: Any
        calls: Any

    params = make()
    _, state = train(tko.adam(0.1), params)
    got, _ = tk.graft(OtherState(tko.adam(0.1).init(params), jnp.int32(0)), state, strict=False)
    tk.assert_trees_same(got.inner, state)
