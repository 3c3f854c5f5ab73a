"""The five systems: each breaks with plain Optax or Equinox, works with treekit, and so do the old workarounds.

The failures are strict: where one of these tests fails, the other library has mended it.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.optax import cases
from treekit import optax as tko


def model() -> Any:
    return eqx.nn.MLP(2, 1, 4, depth=1, activation=jnp.tanh, key=jax.random.key(0))


def loss(model: Any) -> jax.Array:
    x = jnp.linspace(-1, 1, 16).reshape(8, 2)
    return jnp.mean((jax.vmap(model)(x)[:, 0] - x[:, 0] * x[:, 1]) ** 2)


def filtered(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_inexact_array)


def matrices(params: Any) -> Any:
    """A mask, which can be called if it is of a model."""
    return jax.tree.map(lambda x: x.ndim > 1, filtered(params))


def labels() -> Any:
    return jax.tree.map(lambda is_matrix: "matrix" if is_matrix else "vector", matrices(model()))


def like(tree: Any, value: float) -> Any:
    return jax.tree.map(lambda x: jnp.full_like(x, value), filtered(tree))


def train(tx: optax.GradientTransformation, params: Any, grads: Any, steps: int = 2) -> tuple[Any, Any]:
    """Updates of the last step, and the state, for gradients that do not change."""
    tx = optax.with_extra_args_support(tx)
    updates, state = None, tx.init(params)
    for _ in range(steps):
        updates, state = tx.update(grads, state, params)
    return updates, state


def moved(updates: Any) -> dict[int, bool]:
    """Whether the updates of the matrices and of the vectors are other than zero."""
    return {x.ndim: bool((x != 0).any()) for x in jax.tree.leaves(updates)}


# What decays, decays alone: with gradients of zero, only the decay moves anything.
DECAYED = {2: True, 1: False}
raw_and_filtered = pytest.mark.parametrize("params", [model(), filtered(model())], ids=["raw", "filtered"])

# -------------------------------------------------------------------------------- 1: masked with a callable tree


def test_1_plain_optax_fails_on_a_raw_model_and_calls_callable_labels() -> None:
    mask, zeros = matrices(model()), like(model(), 0)
    assert callable(mask)
    with pytest.raises(ValueError, match=r"(?s)different types at key path.*activation|Expected None"):
        train(optax.masked(optax.add_decayed_weights(0.1), mask), model(), zeros)
    with pytest.raises(TypeError, match="zeros_like requires ndarray or scalar"):
        optax.adamw(0.1, mask=mask).init(model())
    transforms: dict[Any, Any] = {"matrix": optax.add_decayed_weights(0.1), "vector": optax.identity()}
    with pytest.raises(TypeError, match="unsupported operand"):
        train(optax.partition(transforms, labels()), filtered(model()), zeros)


MASKS: dict[str, Any] = {
    "tree": matrices(model()),
    "tree of raw": jax.tree.map(lambda x: eqx.is_array(x) and x.ndim > 1, model()),
    "workaround, a lambda": lambda _: matrices(model()),
    "filters itself": matrices,
    "function": lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
}


@raw_and_filtered
@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_1_treekit_masks(params: Any, jit: bool, mask: Any) -> None:
    optimizers: tuple[Any, ...] = (
        tko.masked(optax.add_decayed_weights(0.1), mask),
        tko.adamw(0.1, mask=mask),
        tko.partition({True: optax.add_decayed_weights(0.1), False: optax.set_to_zero()}, mask),
    )
    for tx in optimizers:
        update = eqx.filter_jit(tx.update) if jit else tx.update
        assert moved(update(like(params, 0), tx.init(params), params)[0]) == DECAYED


def test_1_filtering_params_grads_and_state_as_before_works() -> None:
    tx = tko.masked(optax.adamw(0.1), matrices(model()))
    state = eqx.filter(tx.init(filtered(model())), eqx.is_array)
    updates, state = eqx.filter_jit(tx.update)(like(model(), 0), state, filtered(model()))
    assert moved(updates) == DECAYED
    assert moved(filtered(eqx.apply_updates(model(), updates))) == {2: True, 1: True}


# -------------------------------------------------------------------------------------------- 2: inject_hyperparams


def test_2_plain_optax_calls_a_callable_mask_and_takes_a_mask_function_for_a_schedule() -> None:
    """The second raises nothing: it decays nothing."""
    with pytest.raises((TypeError, ValueError), match=r"matmul input operand|not a valid JAX"):
        optax.inject_hyperparams(optax.adamw)(0.1, mask=matrices(model())).init(filtered(model()))
    tx = optax.inject_hyperparams(optax.adamw)(0.1, weight_decay=0.5, mask=MASKS["function"])
    updates, state = train(tx, cases.arrays(), like(cases.arrays(), 0))
    assert moved(updates) == {2: False, 1: False} and "mask" in state.hyperparams


@pytest.mark.usefixtures("nans")
def test_2_plain_optax_makes_b2_one_on_bf16_params() -> None:
    params = cases.arrays(jnp.bfloat16)
    for o, b2 in ((optax, 1.0), (tko, 0.999)):
        updates, state = train(o.inject_hyperparams(optax.adamw)(1e-3), params, params, steps=1)
        assert float(state.hyperparams["b2"]) == pytest.approx(b2, abs=1e-6)
        assert all(bool(jnp.isfinite(u).all()) == (b2 < 1) for u in jax.tree.leaves(updates))


@pytest.mark.parametrize("static_args", [(), "mask", ("mask",), {"mask", "b1"}], ids=["none", "str", "tuple", "set"])
@raw_and_filtered
@pytest.mark.parametrize("factory", [optax.adamw, tko.adamw], ids=["optax", "treekit"])
def test_2_treekit_injects(static_args: Any, params: Any, factory: Any) -> None:
    """Also with Optax's own factory, which calls whatever can be called."""
    for mask in (MASKS["tree"], MASKS["workaround, a lambda"], MASKS["function"]):
        tx = tko.inject_hyperparams(factory, static_args=static_args)(0.1, mask=mask)
        updates, state = train(tx, params, like(params, 0))
        assert moved(updates) == DECAYED and "mask" not in state.hyperparams
        assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.1)


# ---------------------------------------------------------------------------------- 3: zero_nans inside MultiSteps

INNER: dict[str, Callable[[Any], Any]] = {
    "zero_nans": lambda o: o.chain(o.zero_nans(), o.sgd(0.1)),
    "apply_if_finite": lambda o: o.apply_if_finite(o.sgd(0.1), 10),
}


def distances(o: Any, inner: str, params: Any, steps: int) -> list[float]:
    """How far each first element is moved by micro-steps of gradients of one, in the first of which it gets a NaN."""
    ms = o.MultiSteps(INNER[inner](o), every_k_schedule=3)
    state, after, update = ms.init(params), params, eqx.filter_jit(ms.update)
    ones = like(params, 1)
    for i in range(steps):
        grads = ones if i else jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.nan), ones)
        updates, state = update(grads, state, after)
        after = tko.apply_updates(after, updates)
    pairs = zip(*map(jax.tree.leaves, (filtered(params), filtered(after))), strict=True)
    return [float(x.ravel()[0] - y.ravel()[0]) for x, y in pairs]


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("inner", INNER)
def test_3_one_nan_stops_a_parameter_for_ever_in_plain_optax(inner: str) -> None:
    """It raises nothing: these have not moved in three rounds after that of the NaN."""
    assert distances(optax, inner, filtered(model()), 12) == [0] * 4


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("inner", INNER)
@raw_and_filtered
def test_3_treekit_forgets_it_after_the_round(inner: str, params: Any) -> None:
    """Each of the three rounds since is one step of 0.1."""
    assert distances(tko, inner, params, 3) == [0] * 4
    assert distances(tko, inner, params, 12) == pytest.approx([0.3] * 4)


@pytest.mark.usefixtures("nans")
def test_3_skipping_the_bad_micro_steps_as_before_works() -> None:
    ms = tko.MultiSteps(tko.sgd(0.1), 2, should_skip_update_fn=tko.skip_not_finite)
    params = model()
    state = ms.init(params)
    for gradient in (jnp.nan, 1.0, 1.0):
        updates, state = ms.update(like(params, gradient), state, params)
    assert [float(u.ravel()[0]) for u in jax.tree.leaves(updates)] == pytest.approx([-0.1] * 4)


# -------------------------------------------------------------------------------------------- 4: lbfgs on raw models


@pytest.mark.usefixtures("nans")  # Optax divides 0 by 0 in the first step, and does not use it
def test_4_plain_optax_cannot_start_on_a_raw_model_and_loses_the_line_search_inside_masked() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'shape'"):
        optax.lbfgs().init(model())
    params, grads = filtered(model()), filtered(eqx.filter_grad(loss)(model()))
    tx = optax.masked(optax.lbfgs(), matrices)
    with pytest.raises(ValueError, match=r"MaskedNode|named tuple"):
        tx.update(grads, tx.init(params), params, value=loss(model()), grad=grads, value_fn=cases.loss)


def polish(tx: Any, params: Any, static: Any = None) -> float:
    """How much of the loss is left after some steps."""

    def value_fn(params: Any) -> jax.Array:
        return loss(params if static is None else eqx.combine(params, static))

    @eqx.filter_jit
    def step(params: Any, state: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(value_fn)(params)
        updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=value_fn)
        return tko.apply_updates(params, updates), state

    first, state = float(value_fn(params)), tx.init(params)
    for _ in range(8):
        params, state = step(params, state)
    return float(value_fn(params)) / first


def test_4_treekit_polishes_the_raw_model_in_wrappers_and_as_before() -> None:
    assert polish(tko.lbfgs(), model()) < 0.5
    assert polish(tko.masked(tko.lbfgs(), True), model()) < 0.5
    assert polish(tko.partition({"matrix": tko.lbfgs(), "vector": tko.set_to_zero()}, labels()), model()) < 0.9
    assert polish(tko.lbfgs(), *eqx.partition(model(), eqx.is_inexact_array)) < 0.5


# ------------------------------------------------------------------------- 5: a class that preprocesses in __init__


class Overwrites:
    """As people write it: `__init__` overwrites a part of what it is given."""

    def __init__(self, table: dict[str, Any], scale: Any = 1.0) -> None:
        self.table = {**table, "a": 42}
        self.scale = scale


class Doubles(Overwrites):
    def __init__(self, table: dict[str, Any], scale: Any = 1.0) -> None:
        super().__init__(table, 2 * scale)


def by_hand(cls: type[Any], **options: Any) -> None:
    """Register a class as people do: unflattening runs `__init__`."""
    register: Any = jax.tree_util.register_pytree_node
    register(cls, lambda x: ((x.table, x.scale), None), lambda _, children: cls(*children, **options))


by_hand(Overwrites)
by_hand(Doubles)


def test_5_equinox_cannot_edit_a_class_that_preprocesses_and_jax_runs_it_again() -> None:
    """The second raises nothing: the figure is wrong."""
    with pytest.raises(TypeError, match="Operation undefined, 42 is not a leaf of the pytree"):
        eqx.tree_at(lambda t: t.table["b"], Overwrites({"a": 0, "b": 1}), 7)
    assert jax.tree.map(lambda x: x, Doubles({})).scale == 4.0
    with pytest.raises(TypeError, match=r"Overwrites overwrote its leaf (0\.)?a\b"):
        tk.node_factory(Overwrites)({"a": 0, "b": 1})


class Registered(Doubles):
    """With a static value besides, as one workaround has it."""

    fixed = 42


@tk.node
class Node:
    table: dict[str, Any]
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.table["a"] = 42
        self.scale = 2 * self.scale


class FlaggedByHand(Doubles):
    """The workaround with a flag that says "rebuilt"."""

    def __init__(self, table: dict[str, Any], scale: Any = 1.0, rebuilt: bool = False) -> None:
        self.table, self.scale = table, scale
        if not rebuilt:
            super().__init__(table, scale)


tk.register_node(Registered, ["table", "scale"], ["fixed"])
by_hand(FlaggedByHand, rebuilt=True)
CLASSES: list[Callable[[dict[str, Any]], Any]] = [Registered, Node, FlaggedByHand]


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize("tree_at", [tk.tree_at, eqx.tree_at], ids=["treekit", "equinox"])
def test_5_it_is_edited_and_its_preprocessing_is_neither_lost_nor_done_again(make: Any, tree_at: Any) -> None:
    given = {"a": 0, "b": 1}
    made = make(given)
    assert given == {"a": 0, "b": 1}
    edited = tree_at(lambda t: t.table["b"], made, 7)
    assert (type(edited), edited.table, edited.scale) == (type(made), {"a": 42, "b": 7}, 2.0)
    edited = tree_at(lambda t: t.table["a"], made, 8)
    assert (edited.table, edited.scale) == ({"a": 8, "b": 1}, 2.0)
    edited = tree_at(lambda t: (t.table["b"], t.scale), made, (jnp.ones(2), None))
    assert edited.scale is None and edited.table["b"].shape == (2,)
    assert (made.table, made.scale) == ({"a": 42, "b": 1}, 2.0)


@pytest.mark.parametrize("make", CLASSES)
def test_5_it_trains_and_is_edited_in_the_middle(make: Any) -> None:
    layer, tx = make({"a": 0, "b": jnp.ones(2)}), tko.adam(0.1)
    state = tx.init(layer)
    for i in range(4):
        grads = eqx.filter_grad(lambda layer: jnp.sum(layer.table["b"] ** 2))(layer)
        updates, state = tx.update(grads, state, layer)
        layer = tko.apply_updates(layer, updates)
        if i == 1:
            layer = tk.tree_at(lambda t: t.table["b"], layer, jnp.ones(2))
    assert layer.table["a"] == 42 and layer.scale == 2.0
    np.testing.assert_allclose(layer.table["b"], [0.8, 0.8], atol=0.05)
