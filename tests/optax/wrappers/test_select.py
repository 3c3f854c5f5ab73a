"""masked, partition, selective_transform: a transformation over some of the leaves of any model."""

import enum
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
from treekit import training
from treekit.optax._wrappers.masks_and_labels import MaskFunction
from treekit.testing import assert_trees_same

MODEL = cases.model()


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "selective_transform": lambda tx: tko.transforms.selective_transform(tx, freeze_mask=False),
    "masked": lambda tx: tko.masked(tx, cases.mask_of),
    "partition": lambda tx: tko.partition({True: tx, False: optax.sgd(0.1)}, cases.mask_of),
    "masked_twice": lambda tx: tko.masked(tko.masked(tx, cases.mask_of), lambda params: True),
    "partition_of_finite": lambda tx: tko.partition({True: tko.apply_if_finite(tx, 2), False: tx}, cases.mask_of),
}


@pytest.mark.table
@pytest.mark.parametrize(
    "wrap, name, kind", cases.cells(WRAPPERS, 0, whole=("selective_transform", "masked", "partition"), every=3)
)
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    """Of *plain* Optax's transformation inside: the wrapper alone has to do it."""
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


# ---------------------------------------------------------------------------------------------------------- freezing

# Ways to say that b is frozen, and w is not.
FREEZE_B: dict[str, Any] = {
    "tree": {"w": False, "b": True},
    "function": lambda params: jax.tree_util.tree_map_with_path(lambda path, _: path[0].key == "b", params),
    "path": tk.path_mask("b.**"),
    "leaf": tk.leaf_mask(lambda x: x.ndim < 2),
    "both": ~(tk.path_mask("w") & tk.leaf_mask(lambda x: x.ndim > 1)),
    "made from a filtered model": {"w": False, "b": {"x": True, "f": None}},
}


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("name", FREEZE_B)
def test_what_is_frozen_has_no_state_and_a_zero_update_unless_its_gradient_is_missing(name: str, jitted: bool) -> None:
    params: Any = {"w": cases.matrix(), "b": {"x": jnp.ones(2), "f": jnp.tanh}}
    only = {"w": params["w"]}
    by_norm = optax.stateless(lambda g, p: jax.tree.map(lambda x: optax.tree.norm(p) * x, g))
    alone = optax.chain(optax.trace(0.9), by_norm)
    tx = tko.transforms.selective_transform(alone, freeze_mask=FREEZE_B[name])
    state = tx.init(params)
    assert not jax.tree.leaves(optax.tree.get(state, "trace")["b"])
    update = eqx.filter_jit(tx.update) if jitted else tx.update
    updates, _ = update({"w": params["w"], "b": {"x": jnp.ones(2), "f": None}}, state, params)
    assert updates["b"]["f"] is None and not updates["b"]["x"].any()
    cases.assert_close(updates["w"], alone.update(only, alone.init(only), only)[0]["w"])
    updates, _ = update({"w": params["w"], "b": {"x": None, "f": None}}, state, params)
    assert updates["b"] == {"x": None, "f": None}


# test_boundary_missing.py has more of them, without a gradient.
LINKS: dict[str, Callable[[], Any]] = {
    "of_treekit": lambda: tko.adamw(0.1, weight_decay=0.0),
    "chain_of_optax": lambda: optax.chain(optax.clip(1.0), optax.adam(0.1)),
    "apply_if_finite": lambda: tko.apply_if_finite(tko.MultiSteps(optax.identity(), 2).gradient_transformation(), 2),
}


@pytest.mark.parametrize("name", LINKS)
def test_what_is_frozen_does_not_move_in_a_chain_whose_other_links_only_transform_gradients(name: str) -> None:
    first = params = cases.arrays()
    frozen = tko.transforms.selective_transform(tko.sgd(0.1), freeze_mask={"w": False, "b": True})
    tx = tko.chain(frozen, LINKS[name]())
    state = tx.init(params)
    for _ in range(2):
        params, state = training.apply_gradients(tx, first, state, params)
    np.testing.assert_array_equal(params["b"], first["b"])
    assert not np.allclose(params["w"], first["w"])


# ---------------------------------------------------------------------------------------------------------- masked


def test_masked_out_updates_pass_through_and_a_masked_subtree_is_one_masked_node() -> None:
    params: Any = {"w": jnp.ones(2), "b": {"x": jnp.ones(1), "y": jnp.ones(2)}}
    tx = tko.masked(optax.adam(0.1), {"w": True, "b": False})
    state = tx.init(params)
    updates, new_state = tx.update(params, state, params)
    for x in (state, new_state):
        assert isinstance(x, optax.MaskedState) and x.inner_state[0].mu["b"] == optax.MaskedNode()
    assert all(updates["b"][k] is params["b"][k] for k in "xy")


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_none_above_params_is_none_for_each_of_them(wrap: Callable[[Any], Any]) -> None:
    params = {"a": jnp.ones((2, 2)), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(2), "f": jnp.tanh}}
    grads, none = jnp.ones((2, 2)), dict.fromkeys("cdf")
    tx = wrap(optax.adam(0.1))
    state = tx.init(params)
    short, whole = {"a": grads, "b": None}, {"a": grads, "b": none}
    (updates, after), (expected, expected_after) = (tx.update(x, state, params) for x in (short, whole))
    assert_trees_same(after, expected_after)
    assert_trees_same(tko.apply_updates(params, updates), tko.apply_updates(params, expected))


@pytest.mark.parametrize("kind", ["f32", "eqx_raw", "nnx"])
@pytest.mark.parametrize("keep", [True, False, np.True_, np.array(False), jnp.array(True)])
def test_a_bool_of_any_sort_stands_for_the_whole_tree(kind: str, keep: Any) -> None:
    """Given, or returned by a function of the params."""
    params = cases.PARAMS[kind]()
    for mask in (keep, lambda params: keep):
        tx = tko.masked(optax.scale(0.0), mask)
        updates, _ = tx.update(cases.gradient(params), tx.init(params), params)
        assert all(bool((u == 0).all()) == keep for u in jax.tree.leaves(updates))


TAKE_MASKS: dict[str, Callable[[Any], Any]] = {
    "masked": lambda mask: tko.masked(tko.sgd(0.1), mask),
    "freeze": tko.transforms.freeze,
    "selective_transform": lambda mask: tko.transforms.selective_transform(tko.sgd(0.1), freeze_mask=mask),
    "adamw": lambda mask: tko.adamw(1e-3, mask=mask),
    "inject_hyperparams": lambda mask: tko.inject_hyperparams(tko.adamw)(1e-3, mask=mask),
    "partition": lambda mask: tko.partition({True: tko.sgd(0.1), False: tko.adam(0.1)}, mask),
}


@pytest.mark.parametrize("name", ["masked", "freeze", "selective_transform", "partition"])
def test_a_mask_function_sees_the_params_in_init_and_in_update(name: str) -> None:
    """Once each, as they were passed, whatever the gradients are; without the params, the updates."""
    seen: list[Any] = []

    def mask(tree: Any) -> Any:
        seen.append(tree)
        return jax.tree.map(lambda x: x.ndim > 1, tree)

    params, tx = {**cases.arrays(), "f": jnp.tanh}, TAKE_MASKS[name](mask)
    arrays, grads = {**params, "f": None}, {"w": params["w"] + 1, "b": None, "f": None}
    state = tx.init(params)
    tx.update(grads, state, params)
    others = jax.tree.map(jnp.negative, arrays)
    tx.update(others, state)
    assert not tk.tree_diff(seen, [arrays, arrays, others])


LOW = {"w": jnp.ones(2, jnp.bfloat16), "v": jnp.ones(2)}
INSIDE: dict[str, Callable[[Any], Any]] = {
    "store_state": lambda tx: training.store_state(tx, jnp.float32),
    "stochastic": lambda tx: training.store_state(tx, rounding="stochastic"),
    "chain": tko.chain,
}


@pytest.mark.parametrize("name", TAKE_MASKS)
@pytest.mark.parametrize("inside", INSIDE)
def test_a_mask_function_sees_the_dtypes_that_the_user_passed(inside: str, name: str) -> None:
    mask = tk.leaf_mask(lambda x: x.dtype == jnp.bfloat16)
    grads = jax.tree.map(lambda x: x.astype(jnp.float32), LOW)
    updates = []
    for each in (mask, {"w": True, "v": False}):
        tx = INSIDE[inside](TAKE_MASKS[name](each))
        updates.append(tx.update(grads, tx.init(LOW), LOW)[0])
    assert_trees_same(*updates)


def test_only_functions_of_the_same_mask_are_equal() -> None:
    """Optimistix runs what it has compiled for an equal optimizer."""
    mask: Any = {"w": True}
    function = MaskFunction(mask, "mask")
    assert function == MaskFunction(mask, "mask") and hash(function) == hash(MaskFunction(mask, "mask"))
    assert function not in (MaskFunction({"w": False}, "mask"), MaskFunction(mask, "freeze_mask"), mask)


def test_a_nested_mask_may_be_made_from_what_is_masked() -> None:
    def build(o: Any) -> Any:
        inner = o.masked(optax.trace(0.9), {"w": True, "b": optax.MaskedNode()})
        return o.masked(optax.chain(optax.scale(2.0), inner), {"w": True, "b": False})

    cases.same_as_optax(build(tko), build(optax), "f32")


# ------------------------------------------------------------------------------------------- masks that do not fit


@pytest.mark.parametrize("wrapper", TAKE_MASKS)
def test_a_mask_that_does_not_fit_is_an_error_of_the_argument(wrapper: str) -> None:
    """In which ways it may not fit, tests/errors/leaves.py has."""
    argument = {"partition": "param_labels", "selective_transform": "freeze_mask"}.get(wrapper, "mask")
    mask = {"w": True, "b": {"c": True}}
    for spec in (mask, lambda params: mask):
        with pytest.raises(ValueError, match=rf"(?s)\b{argument}\b.*\bb\b"):
            TAKE_MASKS[wrapper](spec).init(cases.arrays())


@pytest.mark.parametrize("leaf", [0, jnp.ones(()), np.float32(1), jnp.array([True, False])], ids=repr)
def test_a_mask_of_other_leaves_than_bools_is_an_error(leaf: Any) -> None:
    with pytest.raises(TypeError, match=r"mask.*\bb\b"):
        tko.masked(tko.sgd(0.1), {"w": True, "b": leaf}).init(cases.arrays())


def test_a_mask_cannot_be_made_in_jit() -> None:
    with pytest.raises(TypeError, match=r"mask.*\bw\b.*In jit"):
        jax.jit(lambda keep: tko.masked(optax.adam(0.1), {"w": keep, "b": False}).init(cases.arrays()))(True)


# ------------------------------------------------------------------------------------------------------- partition


class Group(enum.Enum):
    BODY = 1
    HEAD = 2


Text = enum.StrEnum("Text", ["A", "B"])
ORDERED: list[Any] = [(1, 2), (False, True), (("lr", 1), ("lr", 2)), (Text.A, Text.B)]
UNORDERED: list[Any] = [(Group.BODY, Group.HEAD), (1, "b"), (("a", 1), 2)]  # JAX cannot sort these keys of a dict


@pytest.mark.parametrize("one, two", ORDERED + UNORDERED)
def test_a_label_is_anything_that_can_be_a_key(one: Any, two: Any) -> None:
    params = {"a": jnp.ones(1), "b": (jnp.ones(1), jnp.ones(1))}
    tx = tko.partition({one: tko.trace(0.5), two: optax.scale(3.0)}, {"a": one, "b": (two, one)})
    state: Any = tx.init(params)
    for update, expected in ((tx.update, 1.0), (jax.jit(tx.update), 1.5)):
        updates, state = update(params, state, params)
        assert list(state.inner_states) == [one, two]
        assert [float(x[0]) for x in jax.tree.leaves(updates)] == [expected, 3.0, expected]
    names = tko.tree_map_params(tx, lambda _, name: name, state, {"a": "A", "b": ("B", "C")})
    assert optax.tree.get(names, "trace") == {"a": "A", "b": (optax.MaskedNode(), "C")}


@pytest.mark.parametrize("keys", [("a", "b"), (0, 1)])
def test_what_has_no_array_to_train_may_have_an_array_for_its_label(keys: Any) -> None:
    """As labels that were made of the params by hand."""
    first, second = keys
    params = {"w": jnp.ones(2), "n": jnp.arange(3)}
    tx = tko.partition({first: optax.sgd(1.0), second: optax.sgd(2.0)}, {"w": first, "n": np.arange(3)})
    updates, _ = tx.update({"w": jnp.ones(2), "n": None}, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], -np.ones(2))
