"""What crosses the boundary: which leaves are parameters, missing gradients, specs made from a filtered model."""

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
from tests.trees import untyped
from treekit import optax as tko

# ------------------------------------------------------------------------------------------------ what is a parameter


class Wrapped:
    """A leaf that stands for an array."""

    def __init__(self, x: jax.Array) -> None:
        self.x = x

    def __jax_array__(self) -> jax.Array:
        return self.x


@tk.node
class Lazy:
    """A node that stands for an array: its children are the parameters, not itself."""

    x: jax.Array

    def __jax_array__(self) -> jax.Array:
        return 2 * self.x


def shape_of(x: jax.Array) -> Any:
    return jax.eval_shape(lambda: x)


PARAMETERS: dict[str, Callable[[], Any]] = {
    "array": lambda: jnp.ones(2),
    "ref": lambda: jax.new_ref(jnp.ones(2)),
    "numpy": lambda: np.ones(2, np.float32),
    "__jax_array__": lambda: Wrapped(jnp.ones(2)),
    "number": lambda: 1.0,
    "shape": lambda: shape_of(jnp.ones(2)),
    "node": lambda: Lazy(jnp.ones(2)),
}


@pytest.mark.parametrize("name", ["sgd", "adam", "adafactor"])
@pytest.mark.parametrize("kind", PARAMETERS)
def test_whatever_stands_for_an_array_is_trained(kind: str, name: str) -> None:
    params = {"w": PARAMETERS[kind]()}
    grads = jax.tree.map(lambda x: jnp.ones(jnp.shape(x)), params)
    tx, given = getattr(tko, name)(0.1), grads if kind == "shape" else params
    updates, state = tx.update(grads, tx.init(params), given)
    assert all(bool((x < 0).all()) for x in jax.tree.leaves(updates))
    assert cases.structure(updates) == cases.structure(grads)
    tx.update(grads, state, given)
    if kind not in ("shape", "ref"):
        moved = tko.apply_updates(params, updates)
        assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(moved))
        cases.assert_close(jax.tree.leaves(moved), [1 + x for x in jax.tree.leaves(updates)])


@pytest.mark.parametrize("defaults", [{"hijax": True}, {"ref": True}])
def test_nnx_optimizer_trains_mutable_variables(defaults: dict[str, bool]) -> None:
    """The variables of Flax that are Refs and Hijax types; gradients are those of the same model without them."""
    gradients = nnx.grad(lambda m: jnp.sum(m(jnp.ones((1, 2))) ** 2))(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    before = nnx.var_defaults()
    nnx.var_defaults(**defaults)
    try:
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, tko.adam(0.1), wrt=nnx.Param)
        kernel = jnp.array(model.kernel[...])
        optimizer.update(model, gradients)
    finally:
        nnx.var_defaults(hijax=before.hijax, ref=before.ref)
    assert bool((model.kernel[...] != kernel).all())


@pytest.mark.parametrize("outer", ["MultiSteps", "params_ema"])
def test_an_array_like_leaf_may_have_no_gradient_where_a_part_of_the_state_leaves_it_out(outer: str) -> None:
    inner = tko.filtered(tko.adam(0.1), {"a": False, "b": True})
    average = tko.params_ema(0.9)
    tx: Any = tko.MultiSteps(inner, 1).gradient_transformation() if outer == "MultiSteps" else tko.chain(inner, average)
    params: Any = {"a": Wrapped(jnp.ones(2)), "b": jnp.ones(2)}
    grads: Any = {"a": None, "b": jnp.ones(2)}
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates["a"] is None and bool((updates["b"] < 0).all())


# ------------------------------------------------------------------------ masks and labels of a filtered model


class Model(eqx.Module):
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout
    steps: jax.Array
    flag: bool = True


def raw() -> Model:
    return Model(eqx.nn.MLP(2, 2, 3, depth=1, key=jax.random.key(0)), eqx.nn.Dropout(0.5), jnp.arange(3))


def filtered_model() -> Model:
    return tk.filter(raw(), eqx.is_inexact_array)


def is_matrix(x: Any) -> bool:
    return eqx.is_array(x) and x.ndim > 1


def label(x: Any) -> str:
    return "a" if is_matrix(x) else "b"


SPECS: dict[str, Callable[[Any, Any], Any]] = {
    "masked": lambda mask, _: tko.masked(tko.adam(0.1), mask),
    "chain": lambda mask, _: tko.chain(tko.clip(1.0), tko.masked(tko.adam(0.1), mask)),
    "partition": lambda _, labels: tko.partition({"a": tko.adam(0.1), "b": tko.sgd(0.1)}, labels),
    "partition in a chain": lambda _, labels: tko.chain(tko.partition({"a": tko.adam(0.1), "b": tko.sgd(0.1)}, labels)),
    "MultiSteps": lambda mask, _: tko.MultiSteps(tko.masked(tko.adam(0.1), mask), 2).gradient_transformation(),
    "apply_if_finite": lambda mask, _: tko.apply_if_finite(tko.masked(tko.adam(0.1), mask), 3),
    "inject_hyperparams": lambda mask, _: tko.inject_hyperparams(tko.adamw)(0.1, mask=mask),
    "inject a partition": lambda _, labels: tko.inject_hyperparams(
        lambda rate: tko.partition({"a": tko.adam(rate), "b": tko.sgd(rate)}, labels)
    )(0.1),
    "dtype_preserving": lambda mask, _: tko.dtype_preserving(tko.masked(tko.adam(0.1), mask)),
    "adamw": lambda mask, _: tko.adamw(0.1, mask=mask),
    "freeze": lambda mask, _: tko.chain(tko.adam(0.1), tko.freeze(mask)),
    "selective_transform": lambda mask, _: tko.selective_transform(tko.adam(0.1), freeze_mask=mask),
    "filtered in a chain": lambda mask, _: tko.chain(tko.filtered(tko.adam(0.1)), tko.scale(2.0)),
}


# Which of the models init, update and the spec are given: each pair of two choices is there.
RAW_OR_FILTERED = [(raw, raw, raw), (raw, filtered_model, filtered_model), (filtered_model, raw, filtered_model)]
RAW_OR_FILTERED += [(filtered_model, filtered_model, raw)]


@pytest.mark.parametrize("init_of, given, made_of", RAW_OR_FILTERED)
@pytest.mark.parametrize("name", SPECS)
def test_specs_params_and_states_of_raw_and_filtered_models_go_together(
    name: str, init_of: Callable[[], Any], given: Callable[[], Any], made_of: Callable[[], Any]
) -> None:
    tx = optax.with_extra_args_support(SPECS[name](jax.tree.map(is_matrix, made_of()), jax.tree.map(label, made_of())))
    grads = jax.tree.map(jnp.ones_like, filtered_model())
    state = tx.init(init_of())
    updates: Any = None
    for _ in range(2):
        updates, new_state = tx.update(grads, state, given())
        cases.assert_close((updates, new_state), tx.update(grads, state, init_of()))
        whole, whole_state = tko.apply_gradients(tx, grads, state, given())
        cases.assert_close(cases.inexact(whole), cases.inexact(tko.apply_updates(given(), updates)))
        assert cases.signature(whole_state) == cases.signature(new_state) == cases.signature(state)
        assert cases.structure(updates) == cases.structure(grads)
        state = new_state
    moved = jax.tree.map(lambda u: bool((u != 0).any()), updates)
    assert moved.mlp.layers[0].weight == (name not in ("freeze", "selective_transform"))
    assert moved.mlp.layers[0].bias


@pytest.mark.parametrize("name", SPECS)
def test_float0_beside_a_state_of_filtered_params_means_none(name: str) -> None:
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2), "n": jnp.arange(2)}
    spec = {"w": True, "b": False}
    tx = SPECS[name]({**spec, "n": False}, {"w": "a", "b": "b", "n": "b"})
    state = tx.init(eqx.filter(params, eqx.is_inexact_array))
    for missing in (None, np.zeros(2, jax.dtypes.float0)):
        updates, new_state = tx.update({"w": jnp.ones((2, 2)), "b": jnp.ones(2), "n": missing}, state, params)
        assert updates["n"] is None
        assert cases.signature(new_state) == cases.signature(state)


# ---------------------------------------------------------------------------------------------- functions as arguments


def test_a_filter_that_is_a_function_and_selects_nothing_shows_both_forms() -> None:
    def by_path(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: "layers[1]" in jax.tree_util.keystr(path), params)

    model = raw()
    with pytest.raises(ValueError, match=r"selects no leaf.*lambda leaf: .*leaf\.ndim > 1.*tree_map_with_path"):
        tko.filtered(tko.adam(0.1), by_path).init(model)
    with pytest.raises(TypeError, match=r"filter_spec must be a predicate.*not None.*pass False"):
        tko.filtered(tko.adam(0.1), None).init(model)
    tx = tko.filtered(tko.adam(0.1), by_path(model))
    grads = jax.tree.map(jnp.ones_like, filtered_model())
    updates, _ = tx.update(grads, tx.init(model), model)
    assert updates.mlp.layers[0].weight is None and updates.mlp.layers[1].weight is not None
    # A tree, callable or not, and the default on a model of integers, may select nothing.
    nothing = jax.tree.map(lambda _: False, model.mlp)
    assert callable(nothing)
    for spec, params in ((False, model), (nothing, model.mlp), (tk.is_inexact_array, {"n": jnp.arange(2)})):
        assert not [x for x in jax.tree.leaves(tko.filtered(tko.trace(0.9), spec).init(params)) if eqx.is_array(x)]


def test_a_filter_is_not_asked_about_functions() -> None:
    state = tko.filtered(tko.trace(0.9), lambda leaf: jnp.ndim(leaf) > 1).init(raw())
    assert len(jax.tree.leaves(state)) == 2


def spy(seen: dict[str, Any]) -> optax.GradientTransformationExtraArgs:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        seen.update(extra)
        return updates, state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


class Loss:
    def __call__(self, params: Any) -> Any:
        return sum(map(jnp.sum, params.values()))

    def method(self, params: Any) -> Any:
        return self(params)


FUNCTIONS: dict[str, Any] = {
    "function": lambda params: Loss()(params),
    "object": Loss(),
    "method": Loss().method,
    "partial": functools.partial(Loss.__call__, Loss()),
    "jitted": jax.jit(Loss().method),
    "filter_jit": eqx.filter_jit(Loss().method),
    "eqx_partial": eqx.Partial(Loss().method),
    "jax_partial": untyped.tree_util.Partial(Loss().method),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_among_the_extra_arguments_sees_the_whole_params(name: str) -> None:
    """And whatever else it is called with, unchanged."""
    seen: dict[str, Any] = {}
    params = {"w": jnp.ones(2), "b": jnp.ones(3)}
    tx = tko.masked(spy(seen), {"w": True, "b": False})
    tx.update(params, tx.init(params), params, objective=FUNCTIONS[name], kind=Loss)
    inside = {"w": jnp.ones(2), "b": optax.MaskedNode()}
    assert seen["objective"](inside) == 5
    assert seen["objective"]({"w": jnp.ones(4)}) == 4
    assert seen["kind"] is Loss


@pytest.mark.parametrize("name", ["value", "loss", "step"])
def test_a_number_beside_params_that_are_a_number_is_not_taken_for_params(name: str) -> None:
    seen: dict[str, Any] = {}
    x = jnp.float32(1.0)
    tx = tko.partition({"a": tko.sgd(0.1), "b": spy(seen)}, "a")
    tx.update(x, tx.init(x), x, **{name: x, "grad": x})
    assert seen[name] is x
    assert isinstance(seen["grad"], optax.MaskedNode)


# ------------------------------------------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize("wrap", ["conditionally_transform", "conditionally_mask", "MultiSteps", "apply_if_finite"])
def test_a_state_restored_as_numpy_arrays(wrap: str) -> None:
    argument = {"MultiSteps": lambda n: np.int32(2), "apply_if_finite": 3}.get(wrap, lambda step: np.bool_(step >= 1))
    tx: Any = getattr(tko, wrap)(tko.adam(0.1), argument)
    params = {"w": np.ones(2, np.float32)}
    state, updates = tx.init(params), params
    for _ in range(2):
        updates, state = tx.update(params, jax.tree.map(np.asarray, state), params)
    np.testing.assert_allclose(updates["w"], -0.1, rtol=1e-4)


def by_shape(params: Any) -> Any:
    return jax.tree.map(lambda x: jnp.ndim(x) > 0, params)


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: tko.MultiSteps(tx, 1), lambda tx: tko.masked(tx, by_shape)])
@pytest.mark.parametrize("missing", [None, np.zeros(2, jax.dtypes.float0)])
def test_an_integer_without_an_update_where_params_are_not_passed(missing: Any, wrap: Callable[..., Any]) -> None:
    params, tx = {"w": jnp.ones(2), "n": jnp.arange(2)}, wrap(tko.adam(0.1))
    state = tx.init(params)
    updates, new_state = tx.update({"w": jnp.ones(2), "n": missing}, state)
    assert updates["n"] is None and (updates["w"] < 0).all()
    assert cases.structure(new_state) == cases.structure(state)


@pytest.mark.parametrize("name", ["dadapt_adamw", "prodigy", "momo"])
def test_an_estimated_rate_stays_real_beside_complex_params(name: str) -> None:
    params = {"w": jnp.ones(2), "c": jnp.full(2, 1 + 0.5j, jnp.complex64)}
    tx = getattr(tko.contrib, name)(0.1)
    theirs = getattr(optax.contrib, name)(0.1)
    state = tx.init(params)
    updates, new_state = tx.update(params, state, params, value=jnp.float32(1.0))
    expected, _ = optax.with_extra_args_support(theirs).update(
        params, theirs.init(params), params, value=jnp.float32(1.0)
    )
    assert not tk.tree_diff(state, new_state, values=False)
    np.testing.assert_allclose(updates["w"], jnp.real(expected["w"]), rtol=1e-5)
    np.testing.assert_allclose(updates["c"], expected["c"], rtol=1e-5)


# --------------------------------------------------------------------------------------------------------- diagnosis


PAIR = {"a": jnp.ones((2, 2)), "b": jnp.ones(2)}
NESTED = {"a": jnp.ones(2), "b": {"x": jnp.ones(2), "y": jnp.ones(2)}}
COMPLEX = {"w": jnp.ones(2, jnp.complex64)}
QUANTIZED = {"w": jnp.ones(2), "q": jnp.ones(3, jnp.int8)}
ADAM: Any = tko.adam(0.1)
ANY: Any = None


def step(tx: Any, grads: Any, params: Any, *, state: Any = None, without_params: bool = False) -> Any:
    return tx.update(grads, tx.init(params) if state is None else state, None if without_params else params)


def leaf_without_gradient(leaf: Any) -> Any:
    return step(ADAM, {"w": jnp.ones(2), "x": jnp.ones([])}, {"w": jnp.ones(2), "x": leaf})


def halves(*groups: str) -> Any:
    return tko.partition({name: tko.adam(0.1) for name in groups}, dict(zip("ab", 2 * groups, strict=False)))


def one_of_two(kept: str) -> Any:
    return tko.filtered(ADAM, {name: name == kept for name in "ab"})


# The words of the error, and what is called.
MISTAKES: dict[str, Callable[[], Any]] = {
    # A leaf of the params.
    r"at w: an update \(f32\[2\]\) for Ref.*ref\[\.\.\.\] \+= update": lambda: tko.apply_updates(
        {"w": jax.new_ref(jnp.ones(2))}, {"w": jnp.ones(2)}
    ),
    "array of Python objects at o": lambda: ADAM.init({"w": jnp.ones(2), "o": np.array([1.0, None], object)}),
    r"a gradient \(f32\[\]\) at x.*Function.* cannot be a parameter": lambda: leaf_without_gradient(jnp.tanh),
    r"a gradient \(f32\[\]\) at x.*str.* cannot be a parameter": lambda: leaf_without_gradient("name"),
    r"a gradient \(f32\[\]\) at x.*key.* cannot be a parameter": lambda: leaf_without_gradient(jax.random.key(0)),
    # Gradients.
    r"gradient at w is c64\[2\], and its parameter f32\[2\].*real part": lambda: step(
        ADAM, COMPLEX, {"w": jnp.ones(2)}
    ),
    r"gradient at w is c64\[2\], and its parameter f32\[2\]": lambda: step(tko.lion(0.1), COMPLEX, {"w": jnp.ones(2)}),
    r"\(i8\[3\]\) at q, which is i8\[3\].*Pass None as the gradient": lambda: step(ADAM, QUANTIZED, QUANTIZED),
    r"\(i8\[3\]\) at q, which is i8\[3\].*Pass None": lambda: step(ADAM, QUANTIZED, QUANTIZED, without_params=True),
    r"gradient at a has shape \(3, 2\), and its parameter \(2, 2\)": lambda: step(
        ADAM, {**PAIR, "a": jnp.ones((3, 2))}, PAIR
    ),
    "params have 2 children: a, b": lambda: step(ADAM, {"z": jnp.ones(2)}, PAIR),
    r"at b, the params have 2 children.*the updates 1 child: x": lambda: step(
        ADAM, {"a": None, "b": {"x": jnp.ones(2)}}, NESTED
    ),
    "at a, the params have a leaf, and the updates a MaskedNode": lambda: step(
        ADAM, {"a": optax.MaskedNode(), "b": None}, NESTED
    ),
    r"at f: an update .*apply_updates takes \(params, updates\)": lambda: tko.apply_updates(
        {"w": jnp.ones(2), "f": None}, {"w": jnp.ones(2), "f": jnp.tanh}
    ),
    # The state.
    "rate": lambda: step(
        ADAM,
        {"w": jnp.ones(2), "rate": jnp.ones([])},
        {"w": jnp.ones(2), "rate": 0.5},
        state=ADAM.init({"w": jnp.ones(2), "rate": None}),
    ),
    r"At 0 of.*TraceState.*AdamState": lambda: step(tko.sgd(0.1, momentum=0.9), PAIR, PAIR, state=ADAM.init(PAIR)),
    r"At inner_states of the state.*2 children.*1 child": lambda: step(
        halves("x", "y"), PAIR, PAIR, state=halves("x").init(PAIR)
    ),
    r"At 0\.mu\.a of the state.*f32\[2,2\].*None": lambda: step(
        one_of_two("a"), PAIR, PAIR, state=one_of_two("b").init(PAIR)
    ),
    r"(?s)At 0\.mu\.a of the state.*f32\[2,2\].*None": lambda: step(
        ADAM, PAIR, PAIR, state=ADAM.init({**PAIR, "a": None}), without_params=True
    ),
    "MultiStepsState.*tuple": lambda: step(tko.MultiSteps(ADAM, 2), PAIR, PAIR, state=ADAM.init(PAIR)),
    "number of updates and states": lambda: step(
        tko.chain(ADAM), PAIR, PAIR, state=tko.chain(tko.sgd(0.1), ADAM).init(PAIR)
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_what_does_not_fit_is_named_with_its_key_path(message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        MISTAKES[message]()
    assert len(str(caught.value).partition("\n")[0]) < 500


@pytest.mark.parametrize("at", ["init", "update"])
@pytest.mark.parametrize("error", [KeyError, ZeroDivisionError, ValueError])
def test_an_error_of_the_transformation_itself_goes_through(error: type[Exception], at: str) -> None:
    """It is not explained by the params, be they scalars, integers or None."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error("mine")

    broken = optax.GradientTransformation(*((fail, ANY) if at == "init" else (lambda params: (), fail)))
    for wrap in (tko.filtered, tko.chain):
        for params in (PAIR, {"n": None, "w": jnp.ones((3, 2))}, jnp.ones([]), {"q": jnp.ones(3, jnp.int8)}):
            with pytest.raises(error, match="mine"):
                step(wrap(broken), params, params)


def test_a_mask_of_nnx_variables_says_how_to_make_one() -> None:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    mask = jax.tree.map(lambda x: x.ndim > 1, nnx.state(model))
    grads = nnx.grad(lambda m: jnp.sum(m(jnp.ones((1, 2))) ** 2))(model)
    optimizer = nnx.Optimizer(model, tko.masked(tko.adam(0.1), mask), wrt=nnx.Param)
    with pytest.raises(ValueError, match=r"flax\.nnx\.as_pure\(mask\)"):
        optimizer.update(model, grads)
    nnx.Optimizer(model, tko.masked(tko.adam(0.1), nnx.as_pure(mask)), wrt=nnx.Param).update(model, grads)
    # A mask of plain dicts is not the reason.
    with pytest.raises(ValueError, match=r"params are variables of Flax: make mask with treekit\.path_mask"):
        tko.masked(tko.adam(0.1), {"kernel": True, "bias": False}).init(nnx.state(model))


# -------------------------------------------------------------------------------------------------------- Optimistix


OPTIMISTIX = """
import jax, jax.numpy as jnp, optimistix
from treekit import optax

traces = 0

def fn(y, args):
    global traces
    traces += 1
    return jnp.sum((y - args) ** 2)

def minimise(rate, make=lambda rate: optax.chain(optax.clip(1.0), optax.adam(rate))):
    tx = make(rate)
    solver = optimistix.OptaxMinimiser(tx, 1e-3, 1e-3)
    return optimistix.minimise(fn, solver, jnp.array(1.0), jnp.array(3.0), max_steps=20, throw=False).value

minimise(jnp.array(0.1))
first = traces
minimise(jnp.array(0.2))
print(traces - first, bool(jnp.isfinite(jax.grad(minimise)(jnp.array(0.01)))))

MAKE = [
    lambda rate: optax.filtered(optax.sgd(rate)),
    lambda rate: optax.masked(optax.sgd(rate), True),
    lambda rate: optax.partition({"a": optax.sgd(rate)}, "a"),
    lambda rate: optax.chain(optax.sgd(rate), optax.freeze(False)),
    lambda rate: optax.selective_transform(optax.sgd(rate), freeze_mask=False),
]
for make in MAKE:
    minimise(jnp.array(0.1), make)
    first = traces
    minimise(jnp.array(0.2), make)
    print(traces - first)
"""


def test_optimistix_compiles_once_for_two_rates_and_differentiates_by_one() -> None:
    """As its own test_optax_recompilation: `closure_to_pytree` finds the rate. Beartype would hide it, so not here."""
    ran = subprocess.run([sys.executable, "-c", OPTIMISTIX], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["0", "True", *["0"] * 5], ran.stderr


NUMBERS = {"rate": 0.5, "w": jnp.ones(3), "b": jnp.ones(2), "activation": jax.nn.relu}
ONE_ARRAY = {"rate": False, "w": True, "b": False, "activation": False}


@pytest.mark.parametrize("order", [1, -1], ids=["array_then_none", "none_then_array"])
def test_a_number_that_one_link_of_a_chain_has_state_for_and_another_has_not(order: int) -> None:
    links = [tko.scale_by_adam(), tko.masked(tko.filtered(tko.trace(0.9), ONE_ARRAY), True)]
    tx = tko.chain(*links[::order])
    state = tx.init(NUMBERS)
    grads = jax.tree.map(lambda x: jnp.ones_like(x) if eqx.is_array(x) else None, NUMBERS)
    updates, new_state = tx.update(grads, state, NUMBERS)
    assert cases.structure(new_state) == cases.structure(state)
    assert updates["rate"] is None and updates["activation"] is None


def test_a_function_that_is_masked_in_one_state_and_none_in_another() -> None:
    params: Any = [jnp.ones(3), jax.nn.relu]
    groups = {"a": tko.scale(0.5), "b": tko.scale_by_adam()}
    tx = tko.chain(tko.scale_by_rss(), tko.partition(groups, ["b", "a"]))
    updates: Any
    updates, _ = tx.update([jnp.ones(3), None], tx.init(params), params)
    assert updates[0] is not None and updates[0].any() and updates[1] is None


def test_a_key_in_the_state_beside_complex_params() -> None:
    params = [jnp.ones(2, jnp.complex64), jnp.ones(2)]
    for o in (optax, tko):
        tx = o.add_noise(0.1, 0.5, jax.random.key(0))
        updates, _ = tx.update(params, tx.init(params), params)
        assert updates[0].dtype == jnp.complex64 and updates[1].dtype == jnp.float32


def test_a_number_that_jit_has_made_an_array_is_named() -> None:
    params = {"rate": 0.5, "w": jnp.ones(3)}
    grads = {"rate": None, "w": jnp.ones(3)}
    steps = tko.MultiSteps(tko.filtered(tko.adam(0.1)), 2)
    update: Any = jax.jit(steps.update)
    with pytest.raises(TypeError, match=r"At rate, the params have a Python number that jax\.jit") as caught:
        update(grads, steps.init(params), params)
    assert "another optimizer" not in str(caught.value)
    array = {**params, "rate": jnp.asarray(0.5)}
    update(grads, steps.init(array), array)


class Loud:
    """Stands for an array, and says when it is written as text, which copies an array from its device."""

    def __init__(self, written: list[object]) -> None:
        self._written = written

    def __jax_array__(self) -> jax.Array:
        return jnp.ones(2)

    def __repr__(self) -> str:
        self._written.append(self)
        return "Loud"


def test_params_are_not_written_as_text() -> None:
    """The state of a chain is a tuple too, and JAX writes the tree that does not fit into its error."""
    written: list[object] = []
    params, grads = (Loud(written), jnp.ones(2), jnp.tanh), (jnp.ones(2), jnp.ones(2), None)
    tx = tko.chain(tko.clip(1.0), tko.chain(tko.adam(0.1), tko.trace(0.9)))
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates[2] is None and not written


def test_a_state_with_an_array_for_each_block_is_not_like_the_params() -> None:
    def init(params: Any) -> dict[str, jax.Array]:
        return {name: jnp.zeros(()) for name in params}

    tx = tko.chain(
        optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state)), tko.sgd(0.1)
    )
    params = {"block": {"w": jnp.ones(2), "f": jnp.tanh}}
    grads: Any = {"block": {"w": jnp.ones(2), "f": None}}
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates["block"]["f"] is None and (updates["block"]["w"] < 0).all()


INTEGERS: dict[str, Any] = {
    "int8": jnp.ones(4, jnp.int8),
    "bool": jnp.array([True, False]),
    "uint32": jnp.array(3, jnp.uint32),
    "NumPy": np.arange(3),
    **{f"quantized {dtype}": jnp.ones(2, dtype) for dtype in ("int2", "uint2", "int4", "uint4")},
}


@pytest.mark.parametrize("wrap", ("adam", "chain", "masked", "MultiSteps", "apply_gradients"))
@pytest.mark.parametrize("kind", INTEGERS)
def test_what_has_no_gradient_has_no_state(kind: str, wrap: str) -> None:
    """Quantized weights would otherwise have moments of four times their bytes, though they can never be trained."""
    wrapped = {"chain": tko.chain(tko.clip(1.0), ADAM), "masked": tko.masked(ADAM, True)}
    tx: Any = tko.MultiSteps(ADAM, 1) if wrap == "MultiSteps" else wrapped.get(wrap, ADAM)
    params = {"w": jnp.ones(2), "q": INTEGERS[kind], "rate": 0.5}
    state = tx.init(params)
    assert optax.tree.get(state, "mu")["q"] is None and optax.tree.get(state, "mu")["rate"].shape == ()

    def step(w: Any, state: Any) -> Any:
        whole = {**params, "w": w}
        grads = {"w": w, "q": None, "rate": None}
        if wrap == "apply_gradients":
            new, state = tko.apply_gradients(tx, grads, state, whole)
        else:
            updates, state = tx.update(grads, state, whole)
            assert updates["q"] is None
            new = tko.apply_updates(whole, updates)
        assert new["q"].dtype == jnp.asarray(params["q"]).dtype
        return new["w"], state

    w = params["w"]
    for take in (step, step, jax.jit(step)):
        before, (w, new_state) = w, take(w, state)
        assert cases.signature(new_state) == cases.signature(state) and (w < before).all()
        state = new_state


def test_an_earlier_state_of_integers_is_kept() -> None:
    params = {"w": jnp.ones(2), "q": jnp.ones(3, jnp.int8)}
    state = optax.adam(0.1).init(params)
    updates, new = tko.adam(0.1).update({"w": jnp.ones(2), "q": None}, state, params)
    assert updates["q"] is None and untyped.tree.structure(new) == untyped.tree.structure(state)


class NotATree:
    weight = jnp.ones(2)


@pytest.mark.parametrize(
    "make", (lambda: tko.adam(0.1), lambda: tko.MultiSteps(tko.sgd(0.1), 2), lambda: tko.masked(tko.adam(0.1), True))
)
@pytest.mark.parametrize(
    "params, advice",
    [
        (eqx.nn.MLP, "an instance of this class"),
        (NotATree(), "must be registered"),
        (jax.nn.relu, "a pytree with arrays"),
        ("weights", "a pytree with arrays"),
        (jax.random.key(0), "a pytree with arrays"),
    ],
)
def test_what_has_no_parameters_is_not_a_model(make: Callable[[], Any], params: Any, advice: str) -> None:
    """The state would be empty, and nothing would be trained."""
    with pytest.raises(
        TypeError, match=rf"init takes the params, or a model, and received .*has no parameters.*{advice}"
    ):
        make().init(params)


PARAMS: tuple[Any, ...] = (None, {}, [], 1.5, jnp.ones(2), untyped.ShapeDtypeStruct((2,), jnp.float32), np.float32(1))


@pytest.mark.parametrize("params", PARAMS)
def test_trees_without_leaves_and_single_parameters_are_params_as_in_optax(params: Any) -> None:
    for o in (optax, tko):
        tx = o.adam(0.1)
        state = tx.init(params)
        if not jax.tree.leaves(params):
            updates, state = tx.update(params, state, params)
            assert updates == params and optax.tree.get(state, "mu") == params


WITH_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda _: tko.sgd(0.6),
    "adam": lambda _: tko.adam(0.1),
    "chain": lambda _: tko.chain(tko.clip(1.0), tko.adam(0.1)),
    "MultiSteps": lambda _: tko.MultiSteps(tko.sgd(0.1), 2),
    "inject": lambda _: tko.inject_hyperparams(tko.sgd)(0.1),
    "apply_if_finite": lambda _: tko.apply_if_finite(tko.adam(0.1), 2),
    "filtered": lambda _: tko.filtered(tko.adam(0.1)),
    "masked": lambda mask: tko.masked(tko.adam(0.1), mask),
    "set_to_zero": lambda mask: tko.partition({True: tko.adam(0.1), False: optax.set_to_zero()}, mask),
}


@pytest.mark.parametrize("jitted", (True, False), ids=("jitted", "eager"))
@pytest.mark.parametrize("name", WITH_INTEGERS)
def test_a_floating_point_gradient_of_integers_never_reaches_an_update_rule(name: str, jitted: bool) -> None:
    params = {"w": jnp.ones(2), "n": jnp.arange(3)}
    grads = {"w": jnp.ones(2), "n": jnp.ones(3)}
    tx = WITH_INTEGERS[name]({"w": True, "n": False})
    update = jax.jit(tx.update) if jitted else tx.update
    if name in ("filtered", "set_to_zero"):
        updates, _ = update(grads, tx.init(params), params)
        assert updates["n"] is None
    elif name == "masked":
        assert update(grads, tx.init(params), params)[0]["n"] is not None
    else:
        with pytest.raises((TypeError, ValueError), match=r"a gradient \(f32\[3\]\) at n, which is i32\[3\].*integers"):
            update(grads, tx.init(params), params)
