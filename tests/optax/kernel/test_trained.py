"""What can be trained: one answer, whoever asks; and what init says of params of which nothing can be."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.optax import cases
from tests.releases import keys, needs, new_ref
from tests.trees import untyped
from treekit import optax as tko
from treekit import training

ONES = jnp.ones(2)


class ShapedObject:
    """A leaf that a large project wraps each param in: it has a shape and a dtype, and is not a pytree."""

    shape, dtype = (2,), np.dtype(np.float32)


@tk.node
class Frozen:
    x: jax.Array = tk.field(trainable=False)


@tk.node
class Quantized:
    q: jax.Array


# ------------------------------------------------------------------------------------------------------- one predicate

# A leaf, and whether it can be trained.
INEXACT = ("float32", "bfloat16", "float16", "float8_e4m3fn", "complex64")
LEAVES: dict[str, tuple[Callable[[], Any], bool]] = {
    **{f"JAX {dtype}": (partial(jnp.ones, 2, dtype), True) for dtype in INEXACT},
    **{f"JAX {dtype}": (partial(jnp.ones, 2, dtype), False) for dtype in ("int32", "uint8", "int4", "bool")},
    **{f"NumPy {x}": (partial(np.ones, 2, x), True) for x in ("float32", "float64", ml_dtypes.bfloat16, "complex64")},
    **{f"NumPy {x}": (partial(np.ones, 2, x), False) for x in ("int32", "bool")},
    "a NumPy scalar": (lambda: np.float32(1), True),
    "a NumPy integer": (lambda: np.int64(1), False),
    "an object array": (lambda: np.array([None, 1]), False),
    "strings of NumPy": (lambda: np.array(["a"]), False),
    "a Python float": (lambda: 0.5, True),
    "a setting": (lambda: eqx.nn.Dropout(0.5), False),
    "a Python int": (lambda: 1, False),
    "a bool": (lambda: True, False),
    "a ref": (lambda: new_ref(ONES), True),
    "a ref of integers": (lambda: new_ref(jnp.arange(2)), False),
    "a shape": (lambda: untyped.ShapeDtypeStruct((2,), jnp.float32), True),
    "a shape of integers": (lambda: untyped.ShapeDtypeStruct((2,), jnp.int32), False),
    "a key": (lambda: jax.random.key(0), False),
    "__jax_array__": (lambda: cases.HasArray(ONES), False),
    "a function": (lambda: jnp.tanh, False),
    "a string": (lambda: "name", False),
}
REFS = {"a ref": "jax.new_ref", "a ref of integers": "jax.new_ref"}


def asked_boundary(tree: Any) -> bool:
    return bool(jax.tree.leaves(tko.trace(0.9).init(tree).trace["x"]))


def asked_trainable(tree: Any) -> bool:
    return any(jax.tree.leaves(tk.trainable(tree)["x"]))


def asked_labels(tree: Any) -> bool:
    """Whether a leaf must have a label."""
    try:
        tk.path_labels({"w": "a"})(tree)
    except ValueError:
        return True
    return False


def asked_average(tree: Any) -> bool:
    return bool(jax.tree.leaves(training.params_ema(0.9).init(tree).params_ema["x"]))


def asked_summary(tree: Any) -> bool:
    rows = {row.path: row for row in training.summary(tko.sgd(1.0), tree).rows}
    return "x" in rows and rows["x"].step == 1.0


def asked_gradient(tree: Any) -> bool:
    """Whether a line search differentiates by it."""

    def loss(params: Any) -> jax.Array:
        x = params["x"]
        is_number = tk.is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact)
        return jnp.sum(jnp.asarray(x).real.astype(jnp.float32)) if is_number else jnp.zeros(())

    value_and_grad: Any = tko.value_and_grad_from_state(loss)
    _, grad = value_and_grad(tree, state=tko.lbfgs().init(tree))
    return bool(jax.tree.leaves(grad["x"]))


ASK: dict[str, Callable[[Any], bool]] = {
    "value_and_grad_from_state": asked_gradient,
    "the boundary": asked_boundary,
    "trainable": asked_trainable,
    "path_labels": asked_labels,
    "params_ema": asked_average,
    "summary": asked_summary,
}


@pytest.mark.parametrize("who", ASK)
@pytest.mark.parametrize("leaf", keys(LEAVES, REFS))
def test_whoever_asks_gets_one_answer(leaf: str, who: str) -> None:
    make, trained = LEAVES[leaf]
    if leaf in ("a shape", "complex64") and who in ("params_ema", "value_and_grad_from_state"):
        pytest.skip("these need values, which a shape does not have")
    assert ASK[who]({"w": ONES, "x": make()}) is trained


@pytest.mark.parametrize("who", [who for who in ASK if who not in ("summary", "value_and_grad_from_state")])
def test_a_setting_is_trained_where_no_array_can_be(who: str) -> None:
    assert ASK[who]({"x": eqx.nn.Dropout(0.5), "n": jnp.arange(2)})
    assert not ASK[who]({"x": eqx.nn.Dropout(0.5), "w": ONES})


def test_the_average_of_a_python_float_is_returned() -> None:
    tx = training.params_ema(0.5)
    state = tx.init({"x": 0.0})
    for x in (0.0, 1.0):
        _, state = tx.update({"x": jnp.ones(())}, state, {"x": x})
    assert float(training.get_params_ema(state, {"x": 3.0})["x"]) == pytest.approx((0.5 + 3) / 1.5, rel=1e-6)


# -------------------------------------------------------------------------------------------------- nothing to train

# Params of which nothing can be trained, and the path that the error names; None where init succeeds.
NOTHING: dict[str, tuple[Callable[[], Any], str | None]] = {
    "integers": (lambda: {"a": {"n": jnp.arange(3)}}, "a.n, which is i32[3]"),
    "bools of NumPy": (lambda: [np.ones(2, bool)], "0, which is bool[2]"),
    "an array of integers": (lambda: jnp.arange(3), "the root"),
    "a shape of integers": (lambda: {"n": untyped.ShapeDtypeStruct((2,), jnp.int32)}, "n, which is i32[2]"),
    "quantized weights": (lambda: {"w": Quantized(jnp.ones(2, jnp.int8))}, "w.q, which is i8[2]"),
    "objects with a shape and a dtype": (lambda: {"w": ShapedObject()}, "w, which is ShapedObject"),
    "__jax_array__": (lambda: {"w": cases.HasArray(ONES)}, "w, which is HasArray"),
    "an integer next to other leaves": (lambda: {"n": jnp.arange(2), "f": jnp.tanh, "k": jax.random.key(0)}, "n"),
    "a model of integers": (
        lambda: jax.tree.map(lambda x: x.astype(int), cases.arrays_of(cases.model())),
        "weight, which is i32[3,2]",
    ),
    # Where init succeeds.
    "a Python float": (lambda: {"w": 0.5}, None),
    "integers next to a Python float": (lambda: {"w": 0.5, "n": jnp.arange(2)}, None),
    "Python ints": (lambda: {"a": 1, "b": 2}, None),
    "a key": (lambda: {"k": jax.random.key(0)}, None),
    "functions and strings": (lambda: {"f": jnp.tanh, "name": "x"}, None),
    "an empty tree": (dict, None),
    "None": (lambda: None, None),
    "a tree of None": (lambda: {"w": None}, None),
    "what a class freezes": (lambda: Frozen(ONES), None),
    "integers next to what a class freezes": (lambda: [Frozen(ONES), jnp.arange(2)], None),
    "strings of NumPy": (lambda: {"names": np.array(["a"])}, None),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: tko.adam(0.1),
    "chain of plain Optax": lambda: tko.chain(optax.adam(0.1)),
    "MultiSteps": lambda: tko.MultiSteps(tko.adam(0.1), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", NOTHING)
def test_init_of_params_with_nothing_to_train(kind: str, name: str) -> None:
    make, path = NOTHING[kind]
    tx = OPTIMIZERS[name]()
    if path is None:
        tx.init(make())
    else:
        with pytest.raises(TypeError, match="nothing that can be trained") as raised:
            tx.init(make())
        assert path in str(raised.value)


# A part of the params has nothing that can be trained, or nothing that is.
PARTS: dict[str, Callable[[Any], Any]] = {
    "a group": lambda tx: tko.partition({"n": tx, "w": tko.sgd(0.1)}, {"n": "n", "w": "w"}),
    "a group of plain Optax": lambda tx: optax.partition({"n": tx, "w": optax.sgd(0.1)}, {"n": "n", "w": "w"}),
    "a mask": lambda tx: tko.masked(tx, {"n": True, "w": False}),
    "a mask of plain Optax": lambda tx: optax.masked(tx, {"n": True, "w": False}),
    "all is frozen": lambda tx: tko.transforms.selective_transform(tx, freeze_mask=True),
    "all is masked out": lambda tx: tko.masked(tx, False),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_with_nothing_to_train_is_not_an_error(name: str) -> None:
    params = {"n": jnp.arange(2), "w": ONES}
    PARTS[name](tko.adam(0.1)).init(params)


# ---------------------------------------------------------------------------------------- what is mistaken for params


@needs("flax>=0.11.2")
@pytest.mark.parametrize("module", [nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0))])
def test_init_of_a_module_of_nnx_is_that_of_its_params(module: Any) -> None:
    states = [tko.adam(0.1).init(tree) for tree in (module, nnx.state(module, nnx.Param))]
    assert tk.to_state_dict(states[0]).keys() == tk.to_state_dict(states[1]).keys()


@needs("flax>=0.12")
def test_init_of_a_module_of_nnx_that_is_no_pytree_says_what_to_pass() -> None:
    class Net(nnx.Module, pytree=False):
        def __init__(self) -> None:
            self.w = nnx.Param(ONES)

    with pytest.raises(TypeError, match=r"nnx\.state\(model, nnx\.Param\)"):
        tko.adam(0.1).init(Net())


STATES: dict[str, tuple[Any, bool]] = {
    "a state": (tko.trace(0.9).init(ONES), True),
    "the state of a chain": (tko.adam(0.1).init(ONES), True),
    "params and a state, as in meta-learning": ((ONES, optax.TraceState(ONES)), False),
    "a dict of params and a state": ({"params": ONES, "state": tko.adam(0.1).init(ONES)}, False),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_not_params_unless_there_is_something_else(name: str) -> None:
    given, raises = STATES[name]
    if raises:
        with pytest.raises(TypeError, match="state of an optimizer"):
            tko.sgd(0.1).init(given)
    else:
        tx, grads = tko.sgd(0.1), tk.filter(given, tk.is_inexact_array)
        updates, _ = tx.update(grads, tx.init(given), given)
        assert cases.structure(updates) == cases.structure(grads)


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("params", [{"w": ONES}, ONES, {"w": ONES, "n": 3}], ids=["dict", "array", "mixed"])
def test_none_in_place_of_all_updates_raises_and_a_tree_of_none_does_not(params: Any, jitted: bool) -> None:
    tx = tko.adam(0.1)
    state = tx.init(params)
    update = eqx.filter_jit(tx.update) if jitted else tx.update
    with pytest.raises(ValueError, match="None in place of all updates"):
        update(None, state, params)
    if not tk.is_array(params):
        missing = jax.tree.map(lambda _: None, params)
        updates, _ = update(missing, state, params)
        assert cases.structure(updates) == cases.structure(missing)


def test_none_is_a_tree_without_params() -> None:
    tx = tko.adam(0.1)
    assert tx.update(None, tx.init(None), None)[0] is None
    assert tx.update({"f": None}, tx.init({"f": jnp.tanh}), {"f": jnp.tanh})[0] == {"f": None}
