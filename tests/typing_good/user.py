"""What checkers know of treekit, and through it of Optax: never run; tests/test_typing.py checks it with the wheel.

Here are the types that are inferred, and what is right though it looks wrong. A type that a signature states alone is
in tests/data/public_api.txt, and what must be refused, in tests/typing_bad.
"""

import re
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, assert_type

import jax
import numpy as np
from jax.typing import ArrayLike

import treekit as tk
import treekit.optax.losses
from treekit import optax, training
from treekit.optax import contrib, losses, schedules, transforms
from treekit.testing import check_donation, check_pytree
from treekit.typing import Batched, GradientTransformation, Typed

T = TypeVar("T")


@tk.node
class Dense:
    weight: jax.Array
    name: str = tk.field(default="dense", static=True)


@tk.node(kw_only=True, check=True)
class Pair(Generic[T]):
    left: jax.Array
    right: T
    steps: list[int] = tk.field(default_factory=list[int])

    def __call__(self: Typed["Pair[T]"], x: jax.Array) -> T:
        return self.right


Activation = Callable[[jax.Array], jax.Array]
L = TypeVar("L", bound="Layer")
S = TypeVar("S")


@tk.node
class Layer:
    name: str = tk.field(default="layer", static=True, kw_only=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        raise NotImplementedError

    def named(self, name: str) -> Self:
        return tk.replace(self, name=name)


@tk.node
class Residual(Layer, Generic[L]):
    inner: L
    activation: Activation = jax.numpy.tanh
    scale: ArrayLike = tk.field(converter=jax.numpy.asarray, default=1.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.scale * self.activation(self.inner(x))


@tk.node
class TrainState(Generic[S]):
    model: Dense
    optimizer_state: S
    step: jax.Array


def start(model: Dense, optimizer: GradientTransformation[S]) -> TrainState[S]:
    return TrainState(model, optimizer.init(model), jax.numpy.zeros([], int))


def nodes(array: jax.Array) -> None:
    dense = Dense(array)
    assert_type(dense.weight, jax.Array)
    assert_type(dense.name, str)
    assert_type(Pair(left=array, right=1).right, int)
    assert_type(tk.replace(dense, name="out"), Dense)
    assert_type(tk.tree_at(lambda d: d.weight, dense, None), Dense)
    assert_type(tk.tree_at(lambda d: d.weight, dense, replace_fn=lambda w: w.T, is_leaf=lambda x: x is None), Dense)
    assert_type(tk.tree_at(["weight", jax.Array], dense, (1, 2)), Dense)
    block = Residual(Residual(Layer(), name="inner"), jax.nn.relu)
    assert_type(block.inner, Residual[Layer])
    assert_type(block.named("first"), Residual[Residual[Layer]])
    assert_type(start(dense, optax.masked(optax.sgd(0.1), True)), TrainState[optax.MaskedState])
    check_pytree(dense)
    check_donation(Dense, array)


def shapes(model: Typed[Dense], pair: Typed[Pair[int]], either: Typed["Dense"] | None) -> Typed[Dense]:
    assert_type(model, Dense)
    assert_type(pair(model.weight), int)
    assert_type(either, Dense | None)
    return shapes(model, pair, model)


def batched(
    models: Batched[Dense, "batch"],
    pair: Batched[Pair[int], "batch time"],
    either: Batched["Dense", "n"] | None,
) -> Batched[Dense, "batch"]:
    assert_type(models, Dense)
    assert_type(pair(models.weight), int)
    assert_type(either, Dense | None)
    return batched(models, pair, models)


def leaves(x: object, model: Dense, models: list[Dense], function: Callable[[int], str]) -> None:
    if tk.is_array(x):
        assert_type(x, jax.Array | np.ndarray[Any, Any] | np.number[Any] | np.bool_)
    if tk.is_inexact_array(x):
        assert_type(x, jax.Array | np.ndarray[Any, Any] | np.inexact[Any])
    if tk.is_truly_callable(x):
        assert_type(x("anything"), Any)
    if tk.is_truly_callable(function):
        assert_type(function(1), str)
    assert_type(tk.filter(model, lambda leaf: leaf.ndim > 1, inverse=True), Dense)
    assert_type(tk.combine(*tk.partition(model)), Dense)
    assert_type(
        tk.dtype_preserving_tree_map(lambda leaf: -leaf / 2 if tk.is_inexact_array(leaf) else leaf, model), Dense
    )
    assert_type(tk.dtype_preserving_tree_map(lambda x, y: x - y, model, model), Dense)
    assert_type(tk.dtype_preserving_tree_map(lambda x, y, z: x - y + z, model, model, model), Dense)
    assert_type(tk.dtype_preserving_tree_map(lambda *xs: sum(xs), model, *models), Dense)
    assert_type(tk.path_mask("**.weight")(model), Dense)
    assert_type(tk.tree_unstack(tk.tree_stack(models)), tuple[Dense, ...])
    assert_type(tk.tree_ravel(model)[1](model.weight), Dense)
    assert_type(tk.filter_scan(lambda carry, x: (carry, "y"), model, model.weight), tuple[Dense, str])
    assert_type(tk.graft(model, model)[0], Dense)


def ours(model: Dense, tx: GradientTransformation[int], other: optax.GradientTransformation) -> None:
    frozen = optax.selective_transform(tx, freeze_mask=tk.leaf_mask(lambda x: x.ndim > 1) | ~tk.path_mask("head.**"))
    kept: GradientTransformation[int] = training.store_state(tx, "float32")
    by_name = {"mu": jax.numpy.bfloat16, re.compile("nu"): jax.numpy.float32}
    kept = training.store_state(tx, by_name)
    training.store_state(tx, {"mu": jax.numpy.bfloat16, "nu": "float32"}, rounding="stochastic")
    assert_type(frozen, GradientTransformation[optax.PartitionState])
    assert_type(optax.partition({"a": tx, "b": other}, "a"), GradientTransformation[optax.PartitionState])
    injected = optax.inject_hyperparams(optax.adamw, only=["b1"])(1e-3, b1=optax.constant_schedule(0.9))
    assert_type(injected, GradientTransformation[schedules.InjectStatefulHyperparamsState])
    optax.chain(
        optax.sgd(0.1), training.scale_by_tree({"weight": 0.1, "bias": 1}), training.scale_by_tree(lambda params: 0.5)
    )
    by_pattern = {"**.bias": {"weight_decay": 0.0}, "head.**": None}
    grouped = training.param_groups(optax.adamw, by_pattern, 1e-3, weight_decay=0.1)
    optax.chain(grouped, optax.sgd(0.1))
    twice = training.times(optax.constant_schedule(2.0))
    training.param_groups(optax.adamw, {("embed", Dense): {"learning_rate": twice}, "head.**": {"b1": 0.5}}, 1e-3)
    small = tk.leaf_mask(lambda x: x.ndim < 2)
    training.param_groups(optax.adamw, {small: {"mu_dtype": "float32", "name": "small"}, "head.**": None}, 1e-3)
    optax.named_chain(("clip", optax.clip(1.0)), ("steps", optax.MultiSteps(tx, 2)))
    masked = optax.masked(tx, True)
    assert_type(masked.update(model, masked.init(model), model, value=1.0), tuple[Dense, optax.MaskedState])
    plain: list[optax.GradientTransformationExtraArgs] = [tx, masked, frozen, kept]
    optax.chain(*plain)
    steps = optax.MultiSteps(tx, every_k_schedule=2)
    assert_type(steps, transforms.MultiSteps)
    assert_type(steps.init(model), optax.MultiStepsState)
    assert_type(optax.apply_updates(model, model), Dense)
    assert_type(optax.contrib.schedule_free_eval_params(None, model), Dense)
    assert_type(training.set_hyperparams(steps.init(model), learning_rate=0.1), optax.MultiStepsState)
    assert_type(training.get_params_ema(training.params_ema(0.9).init(model), model), Dense)


def theirs(model: Dense) -> None:
    optimizer = optax.adamw(1e-3, weight_decay=0.1)
    state = optimizer.init(model)
    assert_type(state[0], optax.ScaleByAdamState)
    assert_type(optimizer.update(model, state, model)[0], Dense)
    optax.sgd(optax.cosine_decay_schedule(1e-3, 10)).init(model)
    chain = optax.chain(optax.clip(1.0), optax.trace(0.9), optax.scale_by_learning_rate(1e-3))
    assert_type(chain, GradientTransformation[tuple[Any, ...]])
    assert_type(optax.MaskedNode(), transforms.MaskedNode)
    assert_type(transforms.zero_nans(), GradientTransformation[Any])
    assert_type(schedules.constant_schedule(1e-3), optax.Schedule)
    assert_type(contrib.muon(1e-3), GradientTransformation[Any])
    for function in (optax.l2_loss, optax.losses.l2_loss, losses.l2_loss, treekit.optax.losses.l2_loss):
        function(1.0)
    optax.tree.norm([1.0])


def trained(optimizer: optax.GradientTransformationExtraArgs, params: optax.Params, model: Dense) -> Dense:
    """Annotated with the names of `treekit.optax`, as code is in which only the import has changed."""
    state: optax.OptState = optimizer.init(params)
    updates, state = optimizer.update(model, state, model)
    model, state = training.apply_gradients(optimizer, model, state, model)
    return optax.apply_updates(model, updates)


def own() -> optax.GradientTransformation:
    def init(params: optax.Params) -> optax.OptState:
        return params

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        return updates, state

    return optax.GradientTransformation(init, update)


def is_due(step: jax.Array) -> jax.Array:
    return step > 0


def trainings(model: Dense) -> list[Dense]:
    injected = optax.inject_hyperparams(optax.adam)(optax.cosine_decay_schedule(1e-3, 10))
    due = optax.conditionally_transform(optax.lbfgs(linesearch=optax.MultiSteps(injected, 2)), is_due)
    optimizers: list[optax.GradientTransformation] = [due, optax.chain(optax.clip(1.0), own())]
    return [trained(optimizer, model, model) for optimizer in optimizers]
