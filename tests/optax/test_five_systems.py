"""The five systems: each breaks with plain Optax or Equinox, works with treekit, and so do the old workarounds.

The failures are strict: where one of these tests fails, the other library has mended it.
"""

import functools
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


def callable_mask() -> Any:
    mask = jax.tree.map(lambda x: x.ndim > 1, filtered(model()))
    assert callable(mask)
    return mask


def callable_labels() -> Any:
    return jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "vector", filtered(model()))


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


def zeros() -> Any:
    return jax.tree.map(jnp.zeros_like, filtered(model()))


# What decays, decays alone: with gradients of zero, only the decay moves anything.
DECAYED = {2: True, 1: False}

# -------------------------------------------------------------------------------- 1: masked with a callable tree


def test_1_plain_optax_masks_a_raw_model_with_a_structure_error() -> None:
    with pytest.raises(ValueError, match=r"(?s)different types at key path.*activation|Expected None"):
        train(optax.masked(optax.add_decayed_weights(0.1), callable_mask()), model(), zeros())
    with pytest.raises(TypeError, match="zeros_like requires ndarray or scalar"):
        optax.adamw(0.1, mask=callable_mask()).init(model())


def test_1_plain_optax_takes_callable_labels_for_a_function() -> None:
    labels = callable_labels()
    transforms: dict[Any, Any] = {"matrix": optax.add_decayed_weights(0.1), "vector": optax.identity()}
    with pytest.raises(TypeError, match="unsupported operand"):
        train(optax.partition(transforms, labels), filtered(model()), zeros())


@pytest.mark.parametrize("params", [model, lambda: filtered(model())], ids=["raw", "filtered"])
@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(lambda: callable_mask(), id="tree"),
        pytest.param(lambda: jax.tree.map(lambda x: eqx.is_array(x) and x.ndim > 1, model()), id="tree_of_raw"),
        pytest.param(lambda: lambda params: callable_mask(), id="workaround_lambda"),
        pytest.param(lambda: lambda params: jax.tree.map(lambda x: x.ndim > 1, filtered(params)), id="filters_itself"),
        pytest.param(lambda: lambda params: jax.tree.map(lambda x: x.ndim > 1, params), id="function"),
    ],
)
def test_1_treekit_masks(params: Callable[[], Any], jit: bool, mask: Callable[[], Any]) -> None:
    optimizers: tuple[Any, ...] = (
        tko.masked(optax.add_decayed_weights(0.1), mask()),
        tko.adamw(0.1, mask=mask()),
        tko.partition(
            {True: optax.add_decayed_weights(0.1), False: optax.set_to_zero()},
            mask(),
        ),
    )
    for tx in optimizers:
        state = tx.init(params())
        update = eqx.filter_jit(tx.update) if jit else tx.update
        updates, _ = update(zeros(), state, params())
        assert moved(updates) == DECAYED


def test_1_filtering_params_grads_and_state_as_before_works() -> None:
    tx = tko.masked(optax.adamw(0.1), callable_mask())
    state = eqx.filter(tx.init(filtered(model())), eqx.is_array)
    updates, state = eqx.filter_jit(tx.update)(filtered(zeros()), state, filtered(model()))
    assert moved(updates) == DECAYED
    assert moved(filtered(eqx.apply_updates(model(), updates))) == {2: True, 1: True}


# -------------------------------------------------------------------------------------------- 2: inject_hyperparams


def test_2_plain_optax_calls_the_callable_mask_of_an_injected_adamw() -> None:
    with pytest.raises((TypeError, ValueError), match=r"matmul input operand|not a valid JAX"):
        optax.inject_hyperparams(optax.adamw)(0.1, mask=callable_mask()).init(filtered(model()))


def test_2_plain_optax_takes_a_mask_function_for_a_schedule_and_decays_nothing() -> None:
    """It raises nothing: the figure is wrong."""
    params = cases.arrays()
    mask = functools.partial(jax.tree.map, lambda x: jnp.ndim(x) > 1)
    grads = jax.tree.map(jnp.zeros_like, params)
    _, state = train(optax.inject_hyperparams(optax.adamw)(0.1, weight_decay=0.5, mask=mask), params, grads)
    assert "mask" in state.hyperparams
    updates, _ = train(optax.inject_hyperparams(optax.adamw)(0.1, weight_decay=0.5, mask=mask), params, grads)
    assert moved(updates) == {2: False, 1: False}
    ours, state = train(tko.inject_hyperparams(optax.adamw)(0.1, weight_decay=0.5, mask=mask), params, grads)
    assert moved(ours) == DECAYED and "mask" not in state.hyperparams


@pytest.mark.usefixtures("nans")
def test_2_plain_optax_makes_b2_one_on_bf16_params() -> None:
    params = cases.arrays(jnp.bfloat16)
    updates, state = train(optax.inject_hyperparams(optax.adamw)(1e-3), params, params, steps=1)
    assert float(state.hyperparams["b2"]) == 1.0
    assert all(bool(jnp.isnan(u).any()) for u in jax.tree.leaves(updates))
    updates, state = train(tko.inject_hyperparams(optax.adamw)(1e-3), params, params, steps=1)
    assert float(state.hyperparams["b2"]) == pytest.approx(0.999, abs=1e-6)
    assert all(bool(jnp.isfinite(u).all()) for u in jax.tree.leaves(updates))


@pytest.mark.parametrize(
    "static_args", [(), "mask", ("mask",), ["mask"], {"mask", "b1"}], ids=["none", "str", "tuple", "list", "set"]
)
@pytest.mark.parametrize("params", [model, lambda: filtered(model())], ids=["raw", "filtered"])
@pytest.mark.parametrize("factory", [optax.adamw, tko.adamw], ids=["optax", "treekit"])
def test_2_treekit_injects(static_args: Any, params: Callable[[], Any], factory: Any) -> None:
    """Also with Optax's own factory, which calls whatever can be called."""
    for mask in (callable_mask(), lambda params: callable_mask(), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)):
        tx = tko.inject_hyperparams(factory, static_args=static_args)(0.1, mask=mask)
        updates, state = train(tx, params(), zeros())
        assert moved(updates) == DECAYED
        assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.1)


def test_2_the_rate_is_read_back_from_the_state_while_training() -> None:
    tx = tko.inject_hyperparams(tko.adamw)(optax.linear_schedule(0.1, 0.0, 10), mask=callable_mask())
    params = model()
    state = tx.init(params)
    rates = []
    for _ in range(3):
        updates, state = eqx.filter_jit(tx.update)(filtered(eqx.filter_grad(loss)(params)), state, params)
        params = tko.apply_updates(params, updates)
        rates.append(float(state.hyperparams["learning_rate"]))
    np.testing.assert_allclose(rates, [0.1, 0.09, 0.08], rtol=1e-5)


# ---------------------------------------------------------------------------------- 3: zero_nans inside MultiSteps


def accumulate(o: Any, tx: Any, params: Any, steps: int) -> Any:
    """Params after so many micro-steps of gradients of one, of which the first holds a NaN."""
    ms = o.MultiSteps(tx, every_k_schedule=3)
    state = ms.init(params)
    update = eqx.filter_jit(ms.update)
    for i in range(steps):
        ones = jax.tree.map(jnp.ones_like, filtered(params))
        grads = ones
        if i == 0:
            grads = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.nan), ones)
        updates, state = update(grads, state, params)
        params = tko.apply_updates(params, updates)
    return filtered(params)


def still(before: Any, after: Any) -> list[bool]:
    """Whether the first element of each leaf has stayed where it was."""
    pairs = zip(jax.tree.leaves(filtered(before)), jax.tree.leaves(after), strict=True)
    return [bool(x.ravel()[0] == y.ravel()[0]) for x, y in pairs]


def inner(o: Any, name: str) -> Any:
    if name == "zero_nans":
        return o.chain(o.zero_nans(), o.sgd(0.1))
    return o.apply_if_finite(o.sgd(0.1), 10)


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", ["zero_nans", "apply_if_finite"])
def test_3_one_nan_stops_a_parameter_for_ever_in_plain_optax(name: str) -> None:
    """It raises nothing: these have not moved in three rounds after that of the NaN."""
    params = filtered(model())
    assert all(still(params, accumulate(optax, inner(optax, name), params, 12)))


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", ["zero_nans", "apply_if_finite"])
@pytest.mark.parametrize("params", [model, lambda: filtered(model())], ids=["raw", "filtered"])
def test_3_treekit_forgets_it_after_the_round(name: str, params: Callable[[], Any]) -> None:
    before = params()
    assert all(still(before, accumulate(tko, inner(tko, name), before, 3)))
    after = accumulate(tko, inner(tko, name), before, 12)
    assert not any(still(before, after))
    # Each of the three rounds since is one step of 0.1.
    for x, y in zip(jax.tree.leaves(filtered(before)), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(x.ravel()[0] - y.ravel()[0], 0.3, rtol=1e-5)


@pytest.mark.usefixtures("nans")
def test_3_skipping_the_bad_micro_steps_as_before_works() -> None:
    ms = tko.MultiSteps(tko.sgd(0.1), 2, should_skip_update_fn=tko.skip_not_finite)
    params = model()
    state = ms.init(params)
    ones = jax.tree.map(jnp.ones_like, filtered(params))
    for factor in (jnp.nan, 1.0, 1.0):
        updates, state = ms.update(jax.tree.map(lambda x, f=factor: x * f, ones), state, params)
    assert [float(u.ravel()[0]) for u in jax.tree.leaves(updates)] == pytest.approx([-0.1] * 4)


# -------------------------------------------------------------------------------------------- 4: lbfgs on raw models


def test_4_plain_optax_cannot_start_lbfgs_on_a_raw_model() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'shape'"):
        optax.lbfgs().init(model())


@pytest.mark.usefixtures("nans")  # Optax divides 0 by 0 in the first step, and does not use it
def test_4_plain_optax_loses_the_line_search_inside_masked() -> None:
    params = filtered(model())
    grads = filtered(eqx.filter_grad(loss)(model()))
    tx = optax.masked(optax.lbfgs(), lambda _: callable_mask())
    with pytest.raises(ValueError, match=r"MaskedNode|named tuple"):
        tx.update(grads, tx.init(params), params, value=loss(model()), grad=grads, value_fn=cases.loss)


def polish(tx: Any, params: Any, value_fn: Callable[[Any], jax.Array], whole: Callable[[Any], Any]) -> float:
    """How much of the loss is left after some steps."""
    first = float(loss(whole(params)))
    state = tx.init(params)

    @eqx.filter_jit
    def step(params: Any, state: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(value_fn)(params)
        updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=value_fn)
        return tko.apply_updates(params, updates), state

    for _ in range(8):
        params, state = step(params, state)
    return float(loss(whole(params))) / first


def test_4_treekit_polishes_the_raw_model() -> None:
    assert polish(tko.lbfgs(), model(), loss, lambda m: m) < 0.5


def test_4_filtering_and_combining_as_before_works() -> None:
    params, static = eqx.partition(model(), eqx.is_inexact_array)

    def value_fn(params: Any) -> jax.Array:
        return loss(eqx.combine(params, static))

    assert polish(tko.lbfgs(), params, value_fn, lambda p: eqx.combine(p, static)) < 0.5


def test_4_inside_partition_and_masked() -> None:
    tx = tko.partition({"matrix": tko.lbfgs(), "vector": tko.set_to_zero()}, callable_labels())
    assert polish(tx, model(), loss, lambda m: m) < 0.9
    assert polish(tko.masked(tko.lbfgs(), True), model(), loss, lambda m: m) < 0.5


# ------------------------------------------------------------------------- 5: a class that preprocesses in __init__


class Table:
    """As people register them by hand: unflattening runs `__init__`, which overwrites what it is given."""

    def __init__(self, table: dict[str, Any], scale: Any = 1.0) -> None:
        self.table = table
        self.table["a"] = 42
        self.scale = scale


jax.tree_util.register_pytree_node(Table, lambda x: ((x.table, x.scale), None), lambda _, children: Table(*children))


class Doubling:
    """Unflattening doubles what is there already; nothing raises."""

    def __init__(self, w: Any) -> None:
        self.w = [2 * x for x in w] if all(isinstance(x, (int, float, jax.Array)) for x in w) else w


jax.tree_util.register_pytree_node(Doubling, lambda x: ((x.w,), None), lambda _, children: Doubling(*children))


def test_5_equinox_cannot_edit_a_class_that_preprocesses() -> None:
    with pytest.raises(TypeError, match="Operation undefined, 42 is not a leaf of the pytree"):
        eqx.tree_at(lambda t: t.table["b"], Table({"a": 0, "b": 1}), 7)


def test_5_a_class_that_preprocesses_does_so_again_with_every_rebuilding() -> None:
    """It raises nothing: the figure is wrong."""
    assert jax.tree.map(lambda x: x, Doubling([1.0, 3.0])).w == [4.0, 12.0]


class Registered:
    """The same class, with a treekit registration; a flag says how often `__init__` has run."""

    runs = 0

    def __init__(self, table: dict[str, Any], scale: Any = 1.0) -> None:
        type(self).runs += 1
        self.table = dict(table)
        self.table["a"] = 42
        self.scale = 2 * scale


tk.register_node(Registered, ["table", "scale"], [])


@tk.node
class Node:
    table: dict[str, Any]
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.table["a"] = 42
        self.scale = 2 * self.scale


@tk.node
class Made:
    """With a factory method, as the workaround was."""

    table: dict[str, Any]
    scale: float

    @classmethod
    @tk.node_factory
    def make(cls, table: dict[str, Any], scale: float = 1.0) -> "Made":
        table["a"] = 42
        return cls(table, 2 * scale)


class Flagged:
    """The workaround with a flag that says "rebuilt", under treekit's registration."""

    def __init__(self, table: dict[str, Any], scale: Any = 1.0, rebuilt: bool = False) -> None:
        self.table, self.scale = table, scale
        if not rebuilt:
            self.table = {**table, "a": 42}
            self.scale = 2 * scale


tk.register_node(Flagged, ["table", "scale"], [])


class FlaggedByHand(Flagged):
    """The same, registered by hand as it was: our functions take it too."""


jax.tree_util.register_pytree_node(
    FlaggedByHand, lambda x: ((x.table, x.scale), None), lambda _, children: FlaggedByHand(*children, rebuilt=True)
)


class FactoryByHand:
    """The workaround with a factory method on a class registered by hand."""

    def __init__(self, table: dict[str, Any], scale: Any) -> None:
        self.table, self.scale = table, scale

    @classmethod
    @tk.node_factory
    def make(cls, table: dict[str, Any], scale: float = 1.0) -> "FactoryByHand":
        return cls({**table, "a": 42}, 2 * scale)


jax.tree_util.register_pytree_node(
    FactoryByHand, lambda x: ((x.table, x.scale), None), lambda _, children: FactoryByHand(*children)
)


class Fixed:
    """The workaround with the fixed value as a static one."""

    def __init__(self, table: dict[str, Any], scale: Any = 1.0) -> None:
        self.fixed = 42
        self.table = {"a": 42, **{k: v for k, v in table.items() if k != "a"}}
        self.scale = 2 * scale


tk.register_node(Fixed, ["table", "scale"], ["fixed"])

CLASSES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "register_node": Registered,
    "node": Node,
    "node_factory": Made.make,
    "flag": Flagged,
    "flag_by_hand": FlaggedByHand,
    "factory_by_hand": FactoryByHand.make,
    "static_value": Fixed,
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("tree_at", [tk.tree_at, eqx.tree_at], ids=["treekit", "equinox"])
def test_5_it_is_edited_and_its_preprocessing_is_neither_lost_nor_done_again(name: str, tree_at: Any) -> None:
    given = {"a": 0, "b": 1}
    made = CLASSES[name](given)
    assert (made.table, made.scale) == ({"a": 42, "b": 1}, 2.0)
    assert given == {"a": 0, "b": 1}
    edited = tree_at(lambda t: t.table["b"], made, 7)
    assert (type(edited), edited.table, edited.scale) == (type(made), {"a": 42, "b": 7}, 2.0)
    edited = tree_at(lambda t: t.table["a"], made, 8)
    assert (edited.table, edited.scale) == ({"a": 8, "b": 1}, 2.0)
    edited = tree_at(lambda t: (t.table["b"], t.scale), made, (jnp.ones(2), None))
    assert edited.scale is None and edited.table["b"].shape == (2,)
    assert (made.table, made.scale) == ({"a": 42, "b": 1}, 2.0)


@pytest.mark.parametrize("name", CLASSES)
def test_5_it_trains_and_is_edited_in_the_middle(name: str) -> None:
    layer = CLASSES[name]({"a": 0, "b": jnp.ones(2)})
    tx = tko.adam(0.1)
    state = tx.init(layer)

    def value_fn(layer: Any) -> jax.Array:
        return jnp.sum(layer.table["b"] ** 2)

    for i in range(4):
        updates, state = tx.update(eqx.filter_grad(value_fn)(layer), state, layer)
        layer = tko.apply_updates(layer, updates)
        if i == 1:
            layer = tk.tree_at(lambda t: t.table["b"], layer, jnp.ones(2))
    assert layer.table["a"] == 42 and layer.scale == 2.0
    np.testing.assert_allclose(layer.table["b"], [0.8, 0.8], atol=0.05)


def test_5_init_runs_once() -> None:
    Registered.runs = 0
    made = Registered({"b": 1})
    jax.tree.map(lambda x: x, eqx.tree_at(lambda t: t.table["b"], tk.tree_at(lambda t: t.scale, made, 3.0), 4))
    assert Registered.runs == 1


def test_5_a_factory_on_a_class_that_overwrites_says_what() -> None:
    with pytest.raises(TypeError, match=r"Table overwrote its leaf (0\.)?a\b"):
        tk.node_factory(Table)({"a": 0, "b": 1})
