"""What crosses the boundary: which leaves are parameters, missing gradients, specs made from a filtered model."""

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.optax import cases
from tests.releases import as_pure, has, keys, needs, new_ref
from tests.trees import untyped
from treekit import optax as tko
from treekit import training

ADAM: Any = tko.adam(0.1)
ONES = jnp.ones(2)
FLOAT0 = np.zeros(2, jax.dtypes.float0)

# ------------------------------------------------------------------------------------------------ what is a parameter


class Wrapped(cases.HasArray):
    """A leaf that is not to be written as text, which would copy the array from its device."""

    def __repr__(self) -> str:
        raise AssertionError("a leaf was written as text")


@tk.node
class Lazy:
    """A node that stands for an array: its children are the parameters, not itself."""

    x: jax.Array

    def __jax_array__(self) -> jax.Array:
        return 2 * self.x


PARAMETERS: dict[str, Callable[[], Any]] = {
    "ref": lambda: new_ref(ONES),
    "numpy": lambda: np.ones(2, np.float32),
    "number": lambda: 1.0,  # if nothing else can be trained
    "node": lambda: Lazy(ONES),
}


@pytest.mark.parametrize("name", ["sgd", "adam", "adafactor"])
@pytest.mark.parametrize("kind", keys(PARAMETERS, {"ref": "jax.new_ref"}))
def test_an_array_that_can_have_a_gradient_is_trained(kind: str, name: str) -> None:
    params = {"w": PARAMETERS[kind]()}
    grads = jax.tree.map(lambda x: jnp.ones(jnp.shape(x)), params)
    tx = getattr(tko, name)(0.1)
    updates, state = tx.update(grads, tx.init(params), params)
    assert all(bool((x < 0).all()) for x in jax.tree.leaves(updates))
    assert cases.structure(updates) == cases.structure(grads)
    tx.update(grads, state, params)
    if kind != "ref":
        moved = tko.apply_updates(params, updates)
        assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(moved))
        cases.assert_close(jax.tree.leaves(moved), [1 + x for x in jax.tree.leaves(updates)])


@pytest.mark.parametrize(
    "params", [None, {}, 1.5, untyped.ShapeDtypeStruct((2,), jnp.float32)], ids=["None", "no leaf", "number", "shape"]
)
def test_trees_without_leaves_and_single_parameters_are_params_as_in_optax(params: Any) -> None:
    state, theirs = ADAM.init(params), optax.adam(0.1).init(params)
    assert cases.structure(state) == cases.structure(theirs)
    if not jax.tree.leaves(params):
        assert ADAM.update(params, state, params)[0] == params


# Flax 0.12.12 refuses to set variables in transformations of JAX, which 0.12.8 does; outside of them, both do.
SETS_IN_JIT = not has("flax>=0.12.9")


def losses_with_references(o: Any, kind: str) -> list[float]:
    """Train a model whose variables are references, in jit where Flax allows it."""
    flax: Any = nnx  # whose types are incomplete
    with flax.var_defaults(**{kind: True}):
        model = flax.Linear(2, 3, rngs=flax.Rngs(0))
        optimizer = flax.Optimizer(model, o.adam(1e-2), wrt=nnx.Param)

        def step() -> Any:
            graphdef, params = flax.split(model)

            def loss(params: Any) -> Any:
                return jnp.mean((flax.merge(graphdef, params)(jnp.ones((4, 2))) - 1) ** 2)

            value, grads = jax.value_and_grad(loss)(flax.with_vars(params, **{kind: False}))
            optimizer.update(model, grads)
            return value

        taken: Callable[[], Any] = jax.jit(step) if SETS_IN_JIT and kind == "hijax" else step
        return [float(taken()) for _ in range(4)]


@needs("flax.nnx.with_vars")
@pytest.mark.parametrize("kind", ["hijax", "ref"])
def test_variables_of_nnx_that_hold_references_are_trained_as_with_optax(kind: str) -> None:
    losses = losses_with_references(tko, kind)
    assert losses == losses_with_references(optax, kind) and losses[-1] < losses[0]


# ------------------------------------------------------------------------------------------ where a gradient is missing

# What has no gradient: `x`, beside `w`, which has one.
LEFT_OUT: dict[str, Any] = {"array-like": Wrapped(ONES), "number": 3, "function": jnp.tanh}
NOT_X = {"w": False, "x": True}
INSIDE = tko.masked(tko.transforms.selective_transform(tko.trace(0.9), freeze_mask=NOT_X), True)
BLOCKS = optax.GradientTransformation(
    lambda params: {name: jnp.zeros(()) for name in params}, lambda updates, state, params=None: (updates, state)
)


def pair(x: Any) -> Any:
    return {"w": ONES, "x": x}


# What the state has in the place of `x`; such an optimizer, and its params.
IN_STATE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a MaskedNode in the moments, None in the accumulator": (
        tko.MultiSteps(tko.transforms.selective_transform(ADAM, freeze_mask=NOT_X), 1),
        pair,
    ),
    "a MaskedNode in the moments, None in the average": (
        tko.chain(tko.transforms.selective_transform(ADAM, freeze_mask=NOT_X), training.params_ema(0.9)),
        pair,
    ),
    "None in the moments, a MaskedNode inside masked": (tko.chain(tko.scale_by_adam(), INSIDE), pair),
    "a MaskedNode inside masked, None in the moments": (tko.chain(INSIDE, tko.scale_by_adam()), pair),
    "None in a sum, a MaskedNode in the moments": (
        tko.chain(
            tko.scale_by_rss(),
            tko.partition({"a": tko.scale(0.5), "b": tko.scale_by_adam()}, {"w": "b", "x": "a"}),
        ),
        pair,
    ),
    "nothing, but an array for its block": (tko.chain(BLOCKS, tko.sgd(0.1)), lambda x: {"block": pair(x)}),
    # JAX writes a tree that does not fit, such as this tuple and the state of a chain, into its error.
    "None in a tuple": (tko.chain(tko.clip(1.0), tko.chain(ADAM, tko.trace(0.9))), lambda x: (x, ONES, jnp.tanh)),
}


@pytest.mark.parametrize("in_state", IN_STATE)
@pytest.mark.parametrize("kind", LEFT_OUT)
def test_a_leaf_without_a_gradient_has_no_update_whatever_the_state_has_for_it(kind: str, in_state: str) -> None:
    tx, params_with = IN_STATE[in_state]
    params = params_with(LEFT_OUT[kind])
    grads = jax.tree.map(lambda x: x if x is ONES else None, params)
    state = tx.init(params)
    updates, new_state = tx.update(grads, state, params)
    assert cases.structure(updates) == cases.structure(grads)
    assert cases.structure(new_state) == cases.structure(state)
    assert all(bool(x.all()) for x in jax.tree.leaves(updates))


VECTORS = tko.masked(ADAM, lambda params: jax.tree.map(lambda x: jnp.ndim(x) > 0, params))


@pytest.mark.parametrize("tx", [ADAM, tko.MultiSteps(ADAM, 1), VECTORS], ids=["adam", "MultiSteps", "masked"])
@pytest.mark.parametrize("missing", [None, FLOAT0], ids=["None", "float0"])
def test_an_integer_without_an_update_where_params_are_not_passed(missing: Any, tx: Any) -> None:
    state = tx.init({"w": ONES, "n": jnp.arange(2)})
    updates, new_state = tx.update({"w": ONES, "n": missing}, state)
    assert updates["n"] is None and (updates["w"] < 0).all()
    assert cases.structure(new_state) == cases.structure(state)


# ------------------------------------------------------------------------------------------------------------ integers

INTEGERS: dict[str, Any] = {
    "int8": jnp.ones(4, jnp.int8),
    "int4": jnp.ones(2, "int4"),
    "bool": jnp.array([True, False]),
    "NumPy": np.arange(3),
}


TRAINING: dict[str, Any] = {
    "adam": ADAM,
    "chain": tko.chain(tko.clip(1.0), ADAM),
    "MultiSteps": tko.MultiSteps(ADAM, 1),
    "set_to_zero": tko.partition({True: ADAM, False: optax.set_to_zero()}, {"w": True, "n": False}),
    "masked by a function": tko.masked(ADAM, lambda params: jax.tree.map(lambda x: True, params)),
    "masked": tko.masked(ADAM, {"w": True, "n": False}),
    "selective_transform": tko.transforms.selective_transform(ADAM, freeze_mask={"w": False, "n": True}),
    "freeze": tko.chain(ADAM, tko.transforms.freeze({"w": False, "n": True})),
}


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("kind", INTEGERS)
def test_what_is_not_trained_has_no_state(kind: str, name: str) -> None:
    """Quantized weights would otherwise have moments of four times their bytes, though they can never be trained."""
    tx, params = TRAINING[name], {"w": ONES, "n": INTEGERS[kind]}
    state = tx.init(params)
    assert not jax.tree.leaves(optax.tree.get(state, "mu")["n"])
    for update in (tx.update, jax.jit(tx.update)):
        updates, new_state = update({"w": ONES, "n": None}, state, params)
        assert updates["n"] is None and (updates["w"] < 0).all()
        assert cases.signature(new_state) == cases.signature(state)
    assert tko.apply_updates(params, updates)["n"].dtype == jnp.asarray(params["n"]).dtype


# A leaf, and a gradient for it.
UNTRAINED: dict[str, tuple[Any, Any]] = {
    "integers": (jnp.arange(3), jnp.ones(3)),
    "integers, an int": (jnp.arange(3), jnp.arange(3)),
    "a setting": (eqx.nn.Dropout(0.5), dataclasses.replace(eqx.nn.Dropout(), p=jnp.float32(1))),
    "a function": (jnp.tanh, ONES),
    "__jax_array__": (Wrapped(ONES), ONES),
}


@pytest.mark.parametrize("jitted", (True, False), ids=("jitted", "eager"))
@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("kind", UNTRAINED)
def test_a_gradient_of_what_is_not_trained_never_reaches_an_update_rule(kind: str, name: str, jitted: bool) -> None:
    """Also where a mask or a label freezes it."""
    n, gradient = UNTRAINED[kind]
    params, grads = {"w": ONES, "n": n}, {"w": ONES, "n": gradient}
    tx = TRAINING[name]
    update = eqx.filter_jit(tx.update) if jitted else tx.update
    with pytest.raises(TypeError, match="at n"):
        update(grads, tx.init(params), params)


def test_what_is_not_a_number_is_not_a_gradient() -> None:
    """Gradients may have the functions and names of the model."""
    model = {"w": ONES, "f": jnp.tanh, "name": "x"}
    updates, _ = ADAM.update(model, ADAM.init(model), model)
    assert {name for name, x in updates.items() if x is not None} == {"w"}


def test_a_gradient_raises_too_where_nothing_is_trained() -> None:
    n, gradient = UNTRAINED["a function"]
    for wrong in (gradient, 20):
        with pytest.raises(TypeError, match="at n"):
            ADAM.update({"n": wrong}, ADAM.init({"n": n}), {"n": n})


def test_without_params_every_array_of_numbers_is_a_gradient() -> None:
    """As in Optax, integers too."""
    grads = {"n": jnp.arange(3), "k": jnp.ones(2, jnp.int8)}
    for o in (tko.sgd(0.5), optax.sgd(0.5)):
        updates, _ = o.update(grads, o.init(jnp.ones(2)))
        np.testing.assert_array_equal(updates["n"], [0, -0.5, -1])


# ------------------------------------------------------------------------------- masks and labels of a filtered model


def raw() -> dict[str, Any]:
    return {"model": cases.model(), "steps": jnp.arange(2), "flag": True}


def filtered_model() -> dict[str, Any]:
    return tk.filter(raw(), eqx.is_inexact_array)


def is_matrix(x: Any) -> bool:
    return eqx.is_array(x) and x.ndim > 1


SPECS: dict[str, Callable[[Any], Any]] = {
    "masked": lambda mask: tko.masked(ADAM, mask),
    "partition in a chain": lambda mask: tko.chain(tko.partition({True: ADAM, False: tko.sgd(0.1)}, mask)),
    "MultiSteps": lambda mask: tko.MultiSteps(tko.masked(ADAM, mask), 2),
    "apply_if_finite": lambda mask: tko.apply_if_finite(tko.masked(ADAM, mask), 3),
    "inject_hyperparams": lambda mask: tko.inject_hyperparams(tko.adamw)(0.1, mask=mask),
    "inject a partition": lambda mask: tko.inject_hyperparams(
        lambda rate: tko.partition({True: tko.adam(rate), False: tko.sgd(rate)}, mask)
    )(0.1),
    "dtype_preserving": lambda mask: training.store_state(tko.masked(ADAM, mask)),
    "freeze": lambda mask: tko.chain(ADAM, tko.transforms.freeze(mask)),
    "selective_transform": lambda mask: tko.transforms.selective_transform(ADAM, freeze_mask=mask),
}
# Which of the models init, update and the spec are given: each pair of two choices is there.
RAW_OR_FILTERED = [(raw, raw, raw), (raw, filtered_model, filtered_model), (filtered_model, raw, filtered_model)]
RAW_OR_FILTERED += [(filtered_model, filtered_model, raw)]


@pytest.mark.table
@pytest.mark.parametrize("init_of, given, made_of", RAW_OR_FILTERED)
@pytest.mark.parametrize("name", SPECS)
def test_specs_params_and_states_of_raw_and_filtered_models_go_together(
    name: str, init_of: Callable[[], Any], given: Callable[[], Any], made_of: Callable[[], Any]
) -> None:
    """With either gradient of an integer: that of Equinox, None, and that of JAX."""
    tx = SPECS[name](jax.tree.map(is_matrix, made_of()))
    none: Any = jax.tree.map(jnp.ones_like, filtered_model())
    state = tx.init(init_of())
    updates: Any = None
    for grads in (none, {**none, "steps": FLOAT0}):
        updates, new_state = tx.update(grads, state, given())
        cases.assert_close((updates, new_state), tx.update(grads, state, init_of()))
        assert cases.signature(new_state) == cases.signature(state)
        assert cases.structure(updates) == cases.structure(none)
        state = new_state
    layer = updates["model"].mlp.layers[0]
    assert bool((layer.weight != 0).any()) == (name not in ("freeze", "selective_transform"))
    assert (layer.bias != 0).any()


def test_a_mask_or_labels_of_nnx_variables_are_read_by_their_values() -> None:
    """`nnx.Optimizer` shows variables to init, and their values to update."""
    model: Any = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    model.pair = nnx.Param((jnp.ones((2, 3)), jnp.ones(3)))
    grads = nnx.grad(lambda m: sum(map(jnp.sum, jax.tree.leaves(nnx.state(m)))))(model)
    matrices, others = (jax.tree.map(lambda x, n=n: x.ndim == n, nnx.state(model)) for n in (2, 1))
    groups: dict[Any, Any] = {True: tko.sgd(1.0), False: tko.set_to_zero()}
    for tx in (
        tko.chain(tko.masked(tko.set_to_zero(), others), tko.sgd(1.0)),
        tko.chain(tko.transforms.freeze(others), tko.sgd(1.0)),
        tko.partition(groups, matrices),
        tko.chain(tko.sgd(1.0), training.scale_by_tree(jax.tree.map(float, matrices))),
    ):
        trained: Any = nnx.clone(model)
        nnx.Optimizer(trained, tx, wrt=nnx.Param).update(trained, grads)
        for x, new in zip(*(jax.tree.leaves(nnx.state(m)) for m in (model, trained)), strict=True):
            assert (x != new).any() == (x.ndim == 2)


def test_a_mask_may_have_variables_next_to_other_leaves() -> None:
    variables: Any = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    params = {"layer": as_pure(variables), "scale": ONES}
    mask = {"layer": jax.tree.map(lambda x: x.ndim == 2, variables), "scale": True}
    traced = jax.tree.leaves(tko.masked(tko.trace(0.9), mask).init(params))
    assert [x.shape for x in traced] == [(2, 3), (2,)]


BESIDE_COMPLEX: dict[str, Callable[[Any], Any]] = {
    "dadapt_adamw": lambda o: o.contrib.dadapt_adamw(0.1),
    "prodigy": lambda o: o.contrib.prodigy(0.1),
    "momo": lambda o: o.contrib.momo(0.1),
    "noise": lambda o: o.add_noise(0.1, 0.5, jax.random.key(0)),
}


@pytest.mark.parametrize("name", BESIDE_COMPLEX)
def test_an_estimated_rate_stays_real_beside_complex_params_and_a_key_a_key(name: str) -> None:
    params = {"w": ONES, "c": jnp.full(2, 1 + 0.5j, jnp.complex64)}
    tx, theirs = (optax.with_extra_args_support(BESIDE_COMPLEX[name](o)) for o in (tko, optax))
    state = tx.init(params)
    updates, new_state = tx.update(params, state, params, value=jnp.float32(1.0))
    expected, _ = theirs.update(params, theirs.init(params), params, value=jnp.float32(1.0))
    assert cases.signature(new_state) == cases.signature(state)
    cases.assert_close(updates, {"w": jnp.real(expected["w"]), "c": expected["c"]}, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------- errors

PASSING_ON: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: tko.chain(tx),
    "partition": lambda tx: tko.partition({"a": tx, "b": ADAM}, lambda params: jax.tree.map(lambda _: "a", params)),
}


# Those that copy the params or the gradients into their state.
KEEPING: dict[str, Callable[[], Any]] = {
    "prodigy": lambda: tko.contrib.prodigy(0.1),
    "dog": lambda: tko.contrib.dog(0.1),
    "dowg": lambda: tko.contrib.dowg(0.1),
    "madgrad": lambda: tko.contrib.madgrad(0.1),
    "cocob": lambda: tko.contrib.cocob(),
    "sam": lambda: tko.contrib.sam(tko.sgd(0.1), tko.sgd(0.1)),
    "mechanize": lambda: tko.contrib.mechanize(tko.sgd(0.1)),
    "adan": lambda: tko.adan(0.1),
    "a user's own": lambda: tko.chain(optax.GradientTransformation(lambda p: p, lambda u, s, p=None: (u, u))),
}
MISSING = {"dowg": "optax.contrib.dowg", "madgrad": "optax.contrib.madgrad", "adan": "optax.adan"}


@pytest.mark.parametrize("name", keys(KEEPING, MISSING))
def test_nothing_shares_memory_with_the_arrays_of_numpy_that_a_user_passes(name: str) -> None:
    """Large arrays, since small ones are copied anyway."""
    tx = KEEPING[name]()
    params, grads = ({"w": np.ones((128, 128), np.float32)} for _ in range(2))
    first = tx.init(params)
    updates, state = tx.update(grads, first, params)
    kept = [np.array(x) for x in jax.tree.leaves((first, updates, state))]
    params["w"] += 7
    grads["w"] += 7
    assert all(map(np.array_equal, kept, jax.tree.leaves((first, updates, state))))


@pytest.mark.parametrize("params", [{"n": None, "w": jnp.ones((3, 2))}, jnp.ones([])], ids=["dict", "number"])
@pytest.mark.parametrize("wrap", PASSING_ON)
def test_an_error_of_the_transformation_itself_goes_through(wrap: str, params: Any) -> None:
    """It is not explained by the params, be they scalars or None."""

    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("mine")

    fails_in_update, fails_in_both = (
        PASSING_ON[wrap](optax.GradientTransformation(init, fail)) for init in (optax.identity().init, fail)
    )
    state = fails_in_update.init(params)
    for call in (fails_in_update.update, fails_in_both.update, lambda *_: fails_in_both.init(params)):
        with pytest.raises(ValueError, match="mine"):
            call(params, state, params)


def test_an_old_state_with_moments_for_what_is_not_trained_is_carried_over_as_the_error_says() -> None:
    old = optax.adam(0.1).init({"w": ONES, "layer": {"q": jnp.ones(3, jnp.int8), "rate": jnp.float32(0.5)}})
    params = {"w": ONES, "layer": {"q": jnp.ones(3, jnp.int8), "rate": 0.5}}
    state, _ = tk.graft(ADAM.init(params), old, strict=False)
    assert not tk.tree_diff(state, ADAM.init(params))


# -------------------------------------------------------------------------------------------------------- Optimistix

OPTIMISTIX = """
import jax, jax.numpy as jnp, optimistix
from treekit import optax

traces = 0

def fn(y, args):
    global traces
    traces += 1
    return jnp.sum((y - args) ** 2)

def minimise(rate, make):
    solver = optimistix.OptaxMinimiser(make(rate), 1e-3, 1e-3)
    return optimistix.minimise(fn, solver, jnp.array(1.0), jnp.array(3.0), max_steps=20, throw=False).value

MAKE = [
    lambda rate: optax.masked(optax.sgd(rate), True),
    lambda rate: optax.partition({"a": optax.sgd(rate)}, "a"),
    lambda rate: optax.transforms.selective_transform(optax.sgd(rate), freeze_mask=False),
    lambda rate: optax.chain(optax.clip(1.0), optax.adam(rate), optax.transforms.freeze(False)),
]
for make in MAKE:
    minimise(jnp.array(0.1), make)
    first = traces
    minimise(jnp.array(0.2), make)
    print(traces - first)
print(bool(jnp.isfinite(jax.grad(minimise)(jnp.array(0.01), MAKE[-1]))))
"""


def test_optimistix_compiles_once_for_two_rates_and_differentiates_by_one() -> None:
    """As its own test_optax_recompilation: `closure_to_pytree` finds the rate. Beartype would hide it, so not here."""
    ran = subprocess.run([sys.executable, "-c", OPTIMISTIX], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == [*["0"] * 4, "True"], ran.stderr


@pytest.mark.parametrize("make", [tko.adan, tko.lbfgs, lambda rate: tko.sgd(rate, momentum=0.9), tko.lars])
def test_a_step_that_donates_the_state_of_an_eager_one_deletes_nothing_else(make: Any) -> None:
    params, grads = {"w": jnp.ones((2, 3))}, {"w": jnp.full((2, 3), 2.0)}
    tx: Any = tko.chain(make(0.1))
    state = tx.init(params)
    extra: Any = {"value": 1.0, "grad": grads, "value_fn": lambda p: jnp.sum(p["w"])} if make is tko.lbfgs else {}
    updates, state = tx.update(grads, state, params, **extra)
    jax.jit(lambda state: state, donate_argnums=0)(state)
    assert not any(x.is_deleted() for x in jax.tree.leaves((params, grads, updates)))


KEPT = jnp.zeros(3)


def keeping(kept: Any) -> Any:
    """An optimizer whose state is always what it closes over."""
    return tko.chain(optax.GradientTransformation(lambda params: kept, lambda updates, _, params=None: (updates, kept)))


def by_default(updates: Any, state: Any, params: Any = None, *, kept: Any = KEPT[:1]) -> Any:
    return updates, kept


def by_partial(kept: Any, updates: Any, state: Any, params: Any = None) -> Any:
    return updates, kept


KEEPS_ARRAYS: dict[str, Any] = {
    "noisy_sgd": lambda x: tko.noisy_sgd(0.1, key=x["key"]),
    "add_noise": lambda x: tko.add_noise(0.1, 0.1, x["key"]),
    "of the module": lambda x: tko.chain(
        optax.GradientTransformation(lambda params: KEPT, lambda updates, _, params=None: (updates, KEPT))
    ),
    "of no param": lambda x: keeping(x["own"]),
    "of the params": lambda x: keeping(x["anchor"]),
    "a default": lambda x: tko.chain(optax.GradientTransformation(lambda params: jnp.ones(1), by_default)),
    "a partial": lambda x: tko.chain(
        optax.GradientTransformation(lambda params: jnp.zeros(3), functools.partial(by_partial, x["own"]))
    ),
    "masked": lambda x: tko.masked(keeping(x["anchor"]), True),
    "MultiSteps": lambda x: tko.MultiSteps(keeping(x["anchor"]), 1),
    "finite": lambda x: tko.apply_if_finite(keeping(x["anchor"]), 1),
}


@pytest.mark.parametrize("name", KEEPS_ARRAYS)
def test_a_donated_step_leaves_the_arrays_of_the_optimizer_alone(name: str) -> None:
    params = {"w": jnp.ones(4)}
    given = {"key": jax.random.key(0), "own": jnp.zeros(3), "anchor": {"w": jnp.zeros(4)}}
    tx = KEEPS_ARRAYS[name](given)
    step = jax.jit(tx.update, donate_argnums=1)
    step(params, tx.init(params), params)
    _, state = tx.update(params, tx.init(params), params)  # outside of jit
    step(params, state, params)
    assert not any(x.is_deleted() for x in jax.tree.leaves((tx.init(params), given, KEPT, by_default.__kwdefaults__)))


def test_a_donated_step_leaves_an_extra_argument_that_the_state_keeps_alone() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **_: Any) -> Any:
        return updates, value

    keeps = optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)
    params, value = {"w": jnp.ones(4)}, jnp.float32(3)
    tx = tko.chain(tko.sgd(0.1), keeps)
    _, state = tx.update(params, tx.init(params), params, value=value)
    jax.jit(tx.update, donate_argnums=1)(params, state, params, value=jnp.float32(1))
    assert not value.is_deleted()
