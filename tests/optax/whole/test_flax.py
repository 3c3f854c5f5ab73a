"""treekit.optax in Flax: in `nnx.Optimizer` and in Linen's `TrainState`, on trees of every class of mapping."""

import functools
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import treekit as tk
from tests.optax import cases, factories
from tests.releases import as_pure, needs, nnx_list
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same

pytestmark = needs("flax>=0.12")  # before, its optimizer rejects tuples and lists in a state, of plain Optax too


class Net(nnx.Module):
    def __init__(self, width: int = 2, layers: int = 1, **options: Any) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx_list([nnx.Linear(2, width, rngs=rngs, **options) for _ in range(layers)])


SPLIT = "jitted, split and merged between steps"
SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in ("eager", "TrainState")]


def params_of(net: Any) -> Any:
    return as_pure(nnx.state(net, nnx.Param))


def train(net: Any, tx: Any, steps: int = 3, *, how: str = "eager", extra: Any = None, by_example: bool = False) -> Any:
    """The params after some steps of `nnx.Optimizer`, and the trainer; `how` is "eager", "jitted" or `SPLIT`."""
    trainer: Any = nnx.Optimizer(net, optax.with_extra_args_support(tx), wrt=nnx.Param)

    def step(net: Any, trainer: Any) -> None:
        grads = nnx.grad(lambda net: cases.loss(nnx.state(net, nnx.Param)))(net)
        given = cases.extra_for(params_of(net), as_pure(grads)) if extra is None else extra
        trainer.update(net, jax.tree.map(lambda x: x[None], grads) if by_example else grads, **given)

    jitted = step if how == "eager" else nnx.jit(step)
    for _ in range(steps):
        jitted(net, trainer)
        if how == SPLIT:
            net, trainer = nnx.merge(*nnx.split((net, trainer)))
    return params_of(net), trainer


def train_in_linen(params: Any, tx: Any, steps: int = 3, *, by_example: bool = False) -> Any:
    """The params after some jitted steps of `TrainState`."""

    @jax.jit
    def step(state: Any) -> Any:
        grads = jax.grad(cases.loss)(state.params)
        return state.apply_gradients(grads=jax.tree.map(lambda x: x[None], grads) if by_example else grads)

    create: Any = TrainState.create  # has no types
    state = create(apply_fn=cases.loss, params=params, tx=tx)
    for _ in range(steps):
        state = step(state)
    return state.params


# ------------------------------------------------------------------------------------------ every optimizer, everywhere


def reached(o: Any, name: str, how: str) -> Any:
    """The params after three steps with the transformation of a factory of Optax or of treekit.optax."""
    net = Net(use_bias=name != "contrib.scale_by_muon")  # which takes only matrices
    params = params_of(net)
    mask = jax.tree.map(lambda x: x.ndim > 1, params)
    arguments = factories.ARGUMENTS | dict.fromkeys(("freeze_mask", "mask", "param_labels"), lambda _: mask)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        tx = factories.call(o, name, params, arguments)
    by_example = name in factories.BY_EXAMPLE
    if how == "TrainState":
        return train_in_linen(params, tx, by_example=by_example)
    return train(net, tx, how=how, extra=factories.EXTRA.get(name), by_example=by_example)[0]


# What these need besides the gradients, Flax's `TrainState` has no way to pass.
NOT_IN_TRAIN_STATE: dict[str, str] = {
    **dict.fromkeys(("contrib.hutchinson_estimator_diag_hessian", "contrib.sophia"), "obj_fn"),
    **dict.fromkeys(("contrib.momo", "contrib.momo_adam", "contrib.reduce_on_plateau"), "value"),
    **dict.fromkeys(("polyak_sgd", "scale_by_polyak"), "value"),
    **dict.fromkeys(("lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"), "value_fn"),
}


@pytest.mark.table
@pytest.mark.parametrize("how", [SPLIT, *SLOW])
@pytest.mark.parametrize("name", factories.TRANSFORMATIONS)
def test_every_transformation_is_the_same_as_optax(name: str, how: str) -> None:
    if how == "TrainState" and name in NOT_IN_TRAIN_STATE:
        for o in (tko, optax):
            with pytest.raises((TypeError, ValueError), match=NOT_IN_TRAIN_STATE[name]):
                reached(o, name, how)
    else:
        with jax.numpy_rank_promotion("allow"):  # as some of Optax need
            cases.assert_close(reached(tko, name, how), reached(optax, name, how))


# ------------------------------------------------------------------------------------------ containers for each param


class Kept(NamedTuple):
    """A container for one param."""

    sum: Any
    square: Any


@tk.node
class Node:
    sum: Any
    square: Any


class PerParam(NamedTuple):
    kept: Any


def per_param(first: Callable[[Any], Any], step: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """An optimizer as a user writes it, which keeps one container for each param.

    Args:
        first: makes the container of a param.
        step: takes a gradient and the container; returns the update and the next container.
    """

    def init(params: Any) -> PerParam:
        return PerParam(jax.tree.map(first, params))

    def update(updates: Any, state: PerParam, params: Any = None) -> tuple[Any, PerParam]:
        treedef = cases.structure(updates)
        pairs = [step(*each) for each in zip(jax.tree.leaves(updates), treedef.flatten_up_to(state.kept), strict=True)]
        return treedef.unflatten(u for u, _ in pairs), PerParam(treedef.unflatten(kept for _, kept in pairs))

    return optax.GradientTransformation(init, update)


def sums(make: Callable[[Any, Any], Any], take: Callable[[Any], tuple[Any, Any]] = tuple) -> Any:
    """Sums of gradients and of their squares in a container, which `take` takes apart."""

    def step(grad: Any, kept: Any) -> tuple[Any, Any]:
        total, square = take(kept)
        total, square = 0.9 * total + grad, square + grad**2
        return -0.1 * total / (1 + jnp.sqrt(square)), make(total, square)

    return per_param(lambda param: make(jnp.zeros_like(param), jnp.ones_like(param)), step)


def shampoo() -> Any:
    """Statistics of each axis of a param, in a list."""

    def step(grad: Any, kept: Any) -> tuple[Any, Any]:
        kept = [x + jnp.tensordot(grad, grad, (axes, axes)) for x, axes in zip(kept, others(grad), strict=True)]
        update = grad
        for x in kept:  # each brings its axis to the end
            update = jnp.tensordot(update, jnp.linalg.inv(x), (0, 0))
        return -0.1 * update, kept

    def others(x: Any) -> Any:
        return [[j for j in range(x.ndim) if j != i] for i in range(x.ndim)]

    return per_param(lambda param: [jnp.eye(size) for size in param.shape], step)


class Soap(NamedTuple):
    """Moments in the basis of the statistics of each axis."""

    bases: tuple[Any, ...]
    moments: dict[str, Any]
    steps: Any


def soap() -> Any:
    def turned(x: Any, bases: Any, transposed: bool = False) -> Any:
        for basis in bases:
            x = jnp.tensordot(x, basis.T if transposed else basis, (0, 0))
        return x

    def step(grad: Any, kept: Any) -> tuple[Any, Any]:
        bases, moments, steps = kept
        inside = turned(grad, bases)
        moments = {"mu": 0.9 * moments["mu"] + inside, "nu": moments["nu"] + inside**2}
        update = turned(moments["mu"] / (1 + jnp.sqrt(moments["nu"])), bases, transposed=True)
        bases = tuple(jnp.linalg.qr(basis + 0.1 * (1 + jnp.eye(len(basis))))[0] for basis in bases)
        return -0.1 * update, Soap(bases, moments, steps + 1)

    def first(param: Any) -> Any:
        zeros = jnp.zeros_like(param)
        return Soap(tuple(map(jnp.eye, param.shape)), {"mu": zeros, "nu": zeros}, jnp.zeros(param.shape, int))

    return per_param(first, step)


CONTAINERS: dict[str, Callable[[], Any]] = {
    "list": lambda: sums(lambda a, b: [a, b]),
    "list by index": lambda: sums(lambda a, b: [a, b], lambda kept: (kept[0], kept[1])),
    "tuple": lambda: sums(lambda a, b: (a, b)),
    "dict": lambda: sums(lambda a, b: {"b": b, "a": a}, lambda kept: (kept["a"], kept["b"])),
    "dict of ints": lambda: sums(lambda a, b: {10: a, 9: b}, lambda kept: (kept[10], kept[9])),
    "NamedTuple": lambda: sums(Kept),
    "node": lambda: sums(Node, lambda kept: (kept.sum, kept.square)),
    "nested": lambda: sums(lambda a, b: ([a], {"b": (b,)}), lambda kept: (kept[0][0], kept[1]["b"][0])),
    "list of eleven": lambda: sums(lambda a, b: [a, *[jnp.ones(3)] * 9, b], lambda kept: (kept[0], kept[-1])),
    "shampoo": shampoo,
    "soap": soap,
}


def is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "alone": tko.chain,
    "chain": lambda tx: tko.chain(tko.clip(1.0), tx, tko.scale(0.5)),
    "MultiSteps": lambda tx: tko.MultiSteps(tx, 2),
    "partition": lambda tx: tko.partition({True: tx, False: tko.adam(0.1)}, is_matrix),
    "selective_transform": lambda tx: tko.transforms.selective_transform(tx, freeze_mask=is_matrix),
    "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 2),
    "inject_hyperparams": lambda tx: tko.chain(tx, tko.inject_hyperparams(tko.sgd)(0.5)),
    "16 bits": lambda tx: training.store_state(tx, jnp.bfloat16, rounding="stochastic"),
}


def loop(tx: Any, params: Any, steps: int) -> Any:
    """The params after some steps without Flax."""
    tx, state = optax.with_extra_args_support(tx), tx.init(params)
    for _ in range(steps):
        grads = jax.grad(cases.loss)(params)
        updates, state = tx.update(grads, state, params, **cases.extra_for(params, grads))
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.table
@pytest.mark.parametrize("how", [SPLIT, SLOW[0]])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_an_optimizer_may_keep_any_container_for_each_param(name: str, wrapper: str, how: str) -> None:
    """`nnx.Optimizer` hands each back as an `nnx.State`, of which Optax takes the keys for the values of a list."""
    tx, net = CONTAINERS[name](), Net()
    params = params_of(net)
    expected = loop(tx if wrapper == "alone" else WRAPPERS[wrapper](tx), params, 4)
    assert moved(params, expected)
    cases.assert_close(train(net, WRAPPERS[wrapper](tx), 4, how=how)[0], expected)


def moved(before: Any, after: Any) -> dict[str, bool]:
    """For each leaf, by name, whether it changed; {} if none did."""
    names = tk.to_state_dict(before)
    changed = {name: bool((x != names[name]).any()) for name, x in tk.to_state_dict(after).items()}
    return changed if any(changed.values()) else {}


@pytest.mark.parametrize("wrapper", ["alone", "MultiSteps", "apply_if_finite"])
def test_a_state_in_16_bits(wrapper: str) -> None:
    tx = WRAPPERS[wrapper](training.store_state(tko.adamw(0.01), jnp.bfloat16, rounding="stochastic"))
    net = Net()
    expected = loop(tx, params_of(net), 4)
    params, trainer = train(net, tx, 4, how=SPLIT)
    cases.assert_close(params, expected)
    assert jnp.dtype("bfloat16") in {x.dtype for x in jax.tree.leaves(trainer.opt_state)}


def test_the_state_of_a_trainer_keeps_its_structure() -> None:
    """In what `update` returns, as jit, scan and cond ask."""
    for make in CONTAINERS.values():
        tx, net = tko.chain(make()), Net()
        _, trainer = train(net, tx)
        params, state = params_of(net), as_pure(trainer.opt_state)
        _, new_state = tx.update(params, state, params)
        assert cases.signature(new_state) == cases.signature(state)


# ------------------------------------------------------------------------------------------------------- frozen parts

LAYER_0 = {"kernel": True, "bias": True}
LAYER_1 = {"kernel": False, "bias": True}
# Masks of layer 0, and of the bias of layer 1; for Flax's own trees, a function of the params inside.
FROZEN: dict[str, Callable[[Any], Any]] = {
    "function": lambda _: (
        lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: path[1].key in (0, "0") or path[2].key == "bias", params
        )
    ),
    "path_mask": lambda _: tk.path_mask("layers.0.**", "**.bias"),
    "leaf_mask": lambda _: tk.path_mask("layers.0.**") | tk.leaf_mask(lambda x: x.ndim == 1),
    "dict": lambda params: {"layers": {0: LAYER_0, 1: LAYER_1}},
    "dict with keys of text": lambda params: {"layers": {"0": LAYER_0, "1": LAYER_1}},
    "dict, a prefix": lambda params: {"layers": {"0": True, "1": LAYER_1}},
    "FrozenDict": lambda params: flax.core.freeze({"layers": {"0": True, "1": LAYER_1}}),
    "made from the params": lambda params: tk.path_mask("layers.0.**", "**.bias")(params),
}
FREEZE: dict[str, Callable[[Any], Any]] = {
    "selective_transform": lambda mask: tko.transforms.selective_transform(
        tko.adamw(0.1, weight_decay=0.5), freeze_mask=mask
    ),
    "partition": lambda mask: tko.partition({True: tko.set_to_zero(), False: tko.adamw(0.1)}, mask),
    "freeze": lambda mask: tko.chain(tko.adamw(0.1), tko.transforms.freeze(mask)),
    "in wrappers": lambda mask: tko.MultiSteps(
        tko.apply_if_finite(tko.transforms.selective_transform(tko.adamw(0.1), freeze_mask=mask), 2), 2
    ),
}


def check_frozen(before: Any, after: Any) -> None:
    expected = {f"layers.{i}.{name}": (i, name) == (1, "kernel") for i in (0, 1) for name in ("bias", "kernel")}
    assert moved(before, after) == expected


@pytest.mark.table
@pytest.mark.parametrize("how", [SPLIT, *SLOW])
@pytest.mark.parametrize("name", FREEZE)
@pytest.mark.parametrize("mask", FROZEN)
def test_frozen_parts_do_not_change(mask: str, name: str, how: str) -> None:
    net = Net(layers=2)
    before, made_from = params_of(net), nnx.state(net, nnx.Param)
    if how == "TrainState":
        before = {"layers": {str(i): dict(before["layers"][i]) for i in (0, 1)}}
        check_frozen(before, train_in_linen(before, FREEZE[name](FROZEN[mask](before)), 2))
    else:
        check_frozen(before, train(net, FREEZE[name](FROZEN[mask](made_from)), 2, how=how)[0])


def test_what_is_frozen_in_a_trainer_has_no_state() -> None:
    net = Net(layers=2)
    _, trainer = train(net, FREEZE["selective_transform"](tk.path_mask("layers.0.**", "**.bias")))
    moments = [name for name in tk.to_state_dict(as_pure(trainer.opt_state)) if "mu" in name.split(".")]
    assert [name.rpartition("mu.")[2] for name in moments] == ["layers.1.kernel"]


# ---------------------------------------------------------------------------------------------- masks that are mappings

ONES = jnp.ones(2)
MAPPINGS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "FrozenDict": flax.core.FrozenDict,
    "State": nnx.State,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda items: defaultdict(list, items),
}
PARAMS: dict[str, Any] = {"a": {"w": ONES, "b": 2 * ONES}, "layers": {"0": [ONES, {"c": ONES}], "1": ONES}}
MASKS: dict[str, Any] = {
    "of leaves": {"a": {"w": True, "b": False}, "layers": {"0": [False, {"c": True}], "1": True}},
    "a prefix": {"a": False, "layers": {"0": [True, True], "1": False}},
    "with ints for keys": {"a": {"w": True, "b": False}, "layers": {0: [False, {"c": True}], 1: True}},
    "of one value": {"a": True, "layers": True},
}
TAKE_MASKS: dict[str, Callable[[Any], Any]] = {
    "masked": lambda mask: tko.masked(tko.scale(0.5), mask),
    "selective_transform": lambda mask: tko.transforms.selective_transform(tko.sgd(0.1), freeze_mask=mask),
    "partition": lambda mask: tko.partition({True: tko.sgd(0.1), False: tko.adam(0.1)}, mask),
    "a factory of Optax": lambda mask: tko.inject_hyperparams(tko.adamw)(0.1, weight_decay=2.0, mask=mask),
}


def in_mappings(make: Callable[[Any], Any], tree: Any, *, reverse: bool = False) -> Any:
    """A tree of dicts in other mappings, their keys in this order."""
    if isinstance(tree, dict):
        return make({key: in_mappings(make, tree[key], reverse=reverse) for key in sorted(tree, reverse=reverse)})
    return [in_mappings(make, x, reverse=reverse) for x in tree] if isinstance(tree, list) else tree


@pytest.mark.table
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("of_mask", MAPPINGS)
@pytest.mark.parametrize("of_params", MAPPINGS)
def test_a_mask_fits_by_its_keys_whatever_the_classes_of_the_mappings(of_params: str, of_mask: str, mask: str) -> None:
    params = in_mappings(MAPPINGS[of_params], PARAMS)
    given = in_mappings(MAPPINGS[of_mask], MASKS[mask], reverse=True)
    for name, take in TAKE_MASKS.items():
        expected = in_mappings(MAPPINGS[of_params], updates_of_dicts(name, mask))
        for each in (given, lambda _: given):
            assert_trees_same(update(take(each), params), expected)
    assert_trees_same(tk.filter(params, given), in_mappings(MAPPINGS[of_params], tk.filter(PARAMS, MASKS[mask])))


def update(tx: Any, params: Any) -> Any:
    return tx.update(params, tx.init(params), params)[0]


@functools.cache
def updates_of_dicts(name: str, mask: str) -> Any:
    return update(TAKE_MASKS[name](MASKS[mask]), PARAMS)


# ------------------------------------------------------------------------------------------------------------ classes


class Block(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.norm, self.linear = nnx.LayerNorm(2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs)


class Blocks(nnx.Module):
    def __init__(self) -> None:
        self.blocks, self.out = nnx_list([Block(nnx.Rngs(i)) for i in range(2)]), nnx.LayerNorm(2, rngs=nnx.Rngs(2))


# A class, what is called with it, and the names that it selects: in an nnx.state, or in one of values.
CLASSES: dict[str, tuple[Any, Any, list[str], bool]] = {
    "modules, path_mask": (nnx.LayerNorm, tk.path_mask, ["blocks.*.norm.**", "out.**"], False),
    "modules, path_labels": (nnx.LayerNorm, tk.path_labels, ["blocks.*.norm.**", "out.**"], False),
    "variables, path_mask": (nnx.Param, tk.path_mask, ["**"], True),
    "variables, path_labels": (nnx.Param, tk.path_labels, ["**"], True),
}


@pytest.mark.parametrize("name", CLASSES)
def test_what_the_error_says_of_a_class_of_flax_is_what_to_write(name: str) -> None:
    cls, make, patterns, of_values = CLASSES[name]
    model = Blocks()
    state: Any = nnx.state(model, nnx.Param)
    if of_values:
        state = nnx.State(nnx.to_pure_dict(state))
    with pytest.raises(ValueError, match=cls.__name__) as caught:
        (make(cls) if make is tk.path_mask else make({cls: True}, default=False))(state)
    advice = str(caught.value).partition("in the model: ")[2]
    if make is tk.path_labels:
        advice = advice.removesuffix(")") + ", default=False)"
    given = {"treekit": tk, "model": model, cls.__name__: cls, "label": True}
    selected = eval(advice, {**vars(tk), **given})(state)
    assert_trees_same(selected, tk.path_mask(*patterns)(state))


# -------------------------------------------------------------------------------------------------- the guide, and more

X = jax.random.normal(jax.random.key(0), (32, 2), jnp.float32)
Y = X[:, :1] * X[:, 1:]
# Of plain Optax's transformations where the wrapper is ours, so that the wrapper alone has to do it.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "nested": lambda: tko.MultiSteps(
        tko.inject_hyperparams(optax.adamw)(optax.cosine_decay_schedule(0.1, 40), mask=cases.mask_of), 2
    ),
    "partition": lambda: tko.apply_if_finite(
        tko.partition({True: optax.contrib.muon(0.05), False: optax.adam(0.05)}, cases.mask_of), 2
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_with_batch_norm_and_dropout_learns(name: str) -> None:
    rngs: Any = nnx.Rngs(0)
    inner, norm, dropout = nnx.Linear(2, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs), nnx.Dropout(0.02, rngs=rngs)
    net: Any = nnx.Sequential(inner, norm, nnx.gelu, dropout, nnx.Linear(16, 1, rngs=rngs))
    trainer = nnx.Optimizer(net, OPTIMIZERS[name](), wrt=nnx.Param)

    @nnx.jit
    def step(net: Any, trainer: Any) -> Any:
        value, grads = nnx.value_and_grad(lambda net: jnp.mean((net(X) - Y) ** 2) / jnp.var(Y))(net)
        trainer.update(net, grads)
        return value

    losses = [float(step(net, trainer)) for _ in range(80)]
    assert losses[-1] < 0.12 < losses[0], losses  # the best constant has 1


def test_a_variable_of_nnx_is_a_number_for_a_factory() -> None:
    variable: Any = nnx.Param(jnp.asarray(0.5))
    updates, _ = tko.scale(variable).update(jnp.ones(2), optax.EmptyState())
    np.testing.assert_array_equal(updates, [0.5, 0.5])
