"""inject_hyperparams: what is a hyperparameter, what a schedule, and what is handed on as it is."""

import functools
import inspect
import pickle
import typing
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
import treekit.typing as typed
from tests.optax import cases
from tests.trees import FLOAT
from treekit import optax as tko


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "inject": lambda tx: tko.inject_hyperparams(lambda scale: optax.chain(tx, optax.scale(scale)))(0.5),
    "scheduled": lambda tx: tko.inject_hyperparams(lambda scale: optax.chain(tx, optax.scale(scale)))(cases.schedule),
    "of_masked": lambda tx: tko.inject_hyperparams(
        lambda scale, mask: optax.chain(tko.masked(optax.add_decayed_weights(0.1), mask), tx, optax.scale(scale))
    )(0.5, matrices),
    "masked": lambda tx: tko.masked(tko.inject_hyperparams(lambda s: optax.chain(tx, optax.scale(s)))(0.5), True),
}


def cells() -> list[Any]:
    return [
        pytest.param(wrap, *cell, id="-".join((name, *cell)))
        for i, (name, wrap) in enumerate(WRAPPERS.items())
        for j, cell in enumerate(cases.sample(i + 4))
        if cell not in cases.NOT_OPTAX and (name == "inject" or j % 4 == i)
    ]


@pytest.mark.parametrize("wrap, name, kind", cells())
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


FACTORIES: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda o: o.inject_hyperparams(optax.sgd)(0.1, momentum=0.9),
    "sgd_scheduled": lambda o: o.inject_hyperparams(optax.sgd)(cases.schedule),
    "adamw": lambda o: o.inject_hyperparams(optax.adamw)(0.01),
    "adam_cosine": lambda o: o.inject_hyperparams(optax.adam)(optax.cosine_decay_schedule(0.1, 10), b1=0.8),
    "static_args": lambda o: o.inject_hyperparams(optax.adamw, static_args=("b1", "mask"))(
        0.1, mask={"w": True, "b": False}
    ),
    "rmsprop": lambda o: o.inject_hyperparams(optax.rmsprop)(learning_rate=0.1, centered=True),
    "lamb": lambda o: o.inject_hyperparams(optax.lamb)(0.1),
}


# The mask of static_args is for the dict alone.
@pytest.mark.parametrize(
    "name, kind", [(n, k) for n in FACTORIES for k in ("f32", "none", "nnx") if n != "static_args" or k == "f32"]
)
def test_on_plain_params_it_is_optax(name: str, kind: str) -> None:
    cases.same_as_optax(FACTORIES[name](tko), FACTORIES[name](optax), kind)


# ------------------------------------------------------------------------------------------------------- classification


def any_factory(x: Any, static: Callable[[Any], Any] = len, count: int = 3, named: "int" = 1) -> Any:
    """A factory that says what it was handed, and nothing of `x`."""
    handed.append(x)
    return optax.identity()


handed: list[Any] = []


def sort(value: Any, params: Any = None, factory: Any = any_factory, **kwargs: Any) -> tuple[str, Any]:
    """What the first argument is taken for, and what the factory is handed."""
    handed.clear()
    name = next(iter(inspect.signature(factory).parameters))
    tx = tko.inject_hyperparams(factory, **kwargs)(value)
    state = tx.init(cases.arrays() if params is None else params)
    if name in state.hyperparams_states:
        return "schedule", handed[-1]
    return ("number" if name in state.hyperparams else "static"), handed[-1]


def factory_of(name: str, annotation: Any = inspect.Parameter.empty, default: Any = inspect.Parameter.empty) -> Any:
    """A factory of one parameter, which has this name, annotation and default."""

    def factory(*args: Any, **kwargs: Any) -> Any:
        handed.extend((*args, *kwargs.values()))
        return optax.identity()

    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameter = inspect.Parameter(name, keyword, annotation=annotation, default=default)
    vars(factory)["__signature__"] = inspect.Signature([parameter])
    return factory


class Named(eqx.Module):
    """An Equinox module that is a schedule."""

    rate: jax.Array

    def __call__(self, count: Any) -> Any:
        return self.rate / (1 + count)


class Warmup(eqx.Module):
    """One that is made of Python numbers."""

    peak: float
    steps: int

    def __call__(self, count: Any) -> Any:
        return self.peak * jnp.minimum(1.0, count / self.steps)


class Stateful(optax.schedules.StatefulSchedule):
    """A schedule that halves with every step, and knows its state."""

    def init(self) -> Any:
        return {"value": jnp.array(1.0)}

    def update(self, state: Any, **extra: Any) -> Any:
        return {"value": state["value"] / 2}

    def __call__(self, state: Any, **extra: Any) -> Any:
        return state["value"]


class StatefulVector(Stateful):
    """One that does not return one number."""

    def init(self) -> Any:
        return {"value": jnp.ones(2)}


SCHEDULES = {
    "def": cases.schedule,
    "lambda": lambda count: 0.1,
    "array": lambda count: jnp.array(0.1),
    "int": lambda count: 3,
    "partial": functools.partial(lambda rate, count: rate / (1 + count), 0.1),
    "Partial": cases.Partial(lambda rate, count: rate / (1 + count), jnp.array(0.1)),
    "jit": jax.jit(cases.schedule),
    "method": Named(jnp.array(0.1)).__call__,
    "filter_jit": eqx.filter_jit(Named(jnp.array(0.1))),
    "branching": lambda count: 0.1 if count < 10 else 0.01,
    "piecewise": optax.piecewise_constant_schedule(0.1, {5: 0.5}),
    "cosine": optax.cosine_decay_schedule(0.1, 10),
    "joined": optax.join_schedules([optax.constant_schedule(0.1), optax.constant_schedule(0.2)], [3]),
    "stateful": Stateful(),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", ["f32", "bare", "eqx_raw", "nnx"])
def test_schedules(name: str, kind: str) -> None:
    found, value = sort(SCHEDULES[name], cases.PARAMS[kind]())
    assert found == "schedule"
    assert isinstance(value, jax.Array) and value.shape == ()


def test_a_schedule_on_a_scalar_param_is_a_schedule() -> None:
    """Called with the params, which are a scalar, it returns a number as well."""
    assert sort(cases.schedule, jnp.array(1.0))[0] == "schedule"
    assert sort(lambda count: 0.1, jnp.array(1.0))[0] == "schedule"


STATIC = {
    "None": None,
    "bool": True,
    "numpy_bool": np.True_,
    "str": "adam",
    "class": dict,
    "scalar_type": jnp.bfloat16,
    "dtype": jnp.dtype(jnp.float32),
    "numpy_type": np.float32,
    "default": len,
    "mask_tree": {"w": True, "b": False},
    "path_mask": tk.path_mask("**.w"),
    "path_labels": tk.path_labels({"**": 1}),
    "bytes": b"adam",
    "array_of_objects": np.array(["a", None], object),
    "model": cases.model().mlp,
    "callable_mask": jax.tree.map(lambda x: eqx.is_array(x) and x.ndim > 1, cases.model().mlp),
    "callable_labels": jax.tree.map(lambda x: 1, cases.model().mlp),
    "transformation": optax.sgd(0.1),
    "tuple": (0.9, 0.999),
    "list": ["a", "b"],
}


@pytest.mark.parametrize("name", [name for name in STATIC if name != "default"])
def test_what_is_handed_on_as_it_is(name: str) -> None:
    found, value = sort(STATIC[name])
    assert found == "static" and value is STATIC[name]


def never(_: Any) -> Any:
    """A function that must not be called."""
    raise AssertionError


MASK: Any = functools.partial(never)
PARAMS = optax.Params
TYPED = typed
# What a parameter is called, and how it is annotated; a function, and an int, that are passed for it.
SAYS: dict[str, tuple[Any, str, str]] = {
    "nothing": (factory_of("x"), "schedule", "number"),
    "a mask by name": (factory_of("decay_mask"), "static", "static"),
    "labels by name": (factory_of("param_labels"), "static", "static"),
    "a mask": (factory_of("x", TYPED.Mask), "static", "static"),
    "labels": (factory_of("x", TYPED.Labels), "static", "static"),
    "rates": (factory_of("x", inspect.signature(tko.scale_by_tree).parameters["rates"].annotation), "static", "static"),
    "optax's mask": (factory_of("x", inspect.signature(optax.adamw).parameters["mask"].annotation), "static", "static"),
    "a function of the params": (factory_of("x", Callable[[PARAMS], Any]), "static", "static"),
    "or None": (factory_of("x", Callable[[PARAMS], Any] | None), "static", "static"),
    "of typing": (factory_of("x", typing.Callable[[PARAMS], Any] | None), "static", "static"),
    "a tree or a function": (factory_of("x", Callable[[Any], Any] | object), "static", "static"),
    "of two arguments": (factory_of("x", Callable[[PARAMS, Any], Any]), "schedule", "number"),
    "of any arguments": (factory_of("x", Callable[..., Any]), "schedule", "number"),
    "of anything": (factory_of("x", Callable[[Any], Any]), "schedule", "number"),
    "Any": (factory_of("x", Any), "schedule", "number"),
    "a schedule": (factory_of("x", optax.Schedule), "schedule", "number"),
    "a rate": (factory_of("x", optax.ScalarOrSchedule), "schedule", "number"),
    "a float": (factory_of("x", float), "schedule", "number"),
    "a float, by default an int": (factory_of("x", float, 2), "schedule", "number"),
    "nothing, by default an int": (factory_of("x", default=2), "schedule", "number"),
    "an array, by default an int": (factory_of("x", jax.typing.ArrayLike, 2), "schedule", "number"),
    "an int": (factory_of("x", int), "schedule", "static"),
    "an int or None": (factory_of("x", int | None), "schedule", "static"),
    "an optional int": (factory_of("x", typing.Optional[int]), "schedule", "static"),  # noqa: UP045
    "an int or a float": (factory_of("x", int | float), "schedule", "number"),
    "an int or an array": (factory_of("x", int | jax.Array), "schedule", "number"),
    "an int or a string": (factory_of("x", int | str), "schedule", "number"),
}


@pytest.mark.parametrize("factory, of_function, of_int", SAYS.values(), ids=SAYS)
def test_the_parameter_says_what_a_function_and_an_int_are(factory: Any, of_function: str, of_int: str) -> None:
    function: Any = cases.schedule if of_function == "schedule" else never
    assert sort(function, factory=factory)[0] == of_function
    for value in (2, np.int64(2)):
        assert sort(value, factory=factory)[0] == of_int
    assert sort(True, factory=factory)[0] == "static"
    assert sort(0.5, factory=factory)[0] == ("static" if of_function == "static" else "number")


@pytest.mark.parametrize("rate", [Named(jnp.array(0.1)), Warmup(0.1, 4)], ids=["Module", "numbers"])
def test_a_callable_pytree_is_a_schedule_for_a_rate_and_static_for_another_parameter(rate: Any) -> None:
    """Its parameter says that it is one; else a model, or a mask made from one, would be called."""
    ours, plain = tko.inject_hyperparams(optax.sgd)(rate), optax.inject_hyperparams(optax.sgd)(lambda n: rate(n))
    params = cases.arrays()
    (updates, state), (expected, _) = (tx.update(params, tx.init(params), params) for tx in (ours, plain))
    cases.assert_close(updates, expected)
    assert list(state.hyperparams_states) == ["learning_rate"]
    assert sort(rate) == ("static", rate)


def test_no_function_is_called_to_find_out_what_it_is() -> None:
    """Making it calls nothing; init calls schedules, once, and nothing else."""
    calls: list[str] = []

    def schedule(count: Any) -> Any:
        calls.append("schedule")
        return 0.1 + 0 * count

    def mask(params: Any) -> Any:
        calls.append("mask")
        return matrices(params)

    tx = tko.inject_hyperparams(lambda rate, mask: tko.adamw(rate, mask=mask))(schedule, mask)
    assert not calls
    tx.init(cases.arrays())
    assert calls == ["schedule", "mask"]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.1, "float32"),
        (np.float32(0.1), "float32"),
        (np.array(0.1), FLOAT),
        (jnp.array(0.1), "float32"),
        (1e-3, "float32"),
    ],
)
def test_numbers_are_hyperparameters(value: Any, dtype: str) -> None:
    found, handed_on = sort(value)
    assert found == "number"
    assert isinstance(handed_on, jax.Array) and handed_on.dtype == dtype


def test_ints_are_static_where_the_annotation_is_an_int() -> None:
    def factory(plain: Any, annotated: int, quoted: "int", default: Any = 3, either: "int | None" = None) -> Any:
        return optax.identity()

    state = tko.inject_hyperparams(factory)(1, 2, 3, default=4, either=5).init(jnp.ones(2))
    assert set(state.hyperparams) == {"plain", "default"}


@pytest.mark.parametrize("make", [lambda lr=2, wd=1: optax.chain(optax.add_decayed_weights(wd), optax.sgd(lr))])
def test_ints_by_default_are_injected_as_optax_does(make: Any) -> None:
    params = jnp.ones(2)
    for given in ({}, {"lr": 2, "wd": 1}):
        ours, theirs = (o.inject_hyperparams(make)(**given) for o in (tko, optax))
        state, expected = ours.init(params), theirs.init(params)
        assert state.hyperparams.keys() == expected.hyperparams.keys() == {"lr", "wd"}
        assert {x.dtype for x in state.hyperparams.values()} == {jnp.dtype(jnp.float32)}
        cases.assert_close(ours.update(params, state, params)[0], theirs.update(params, expected, params)[0])


def test_a_callable_left_at_the_default_is_static() -> None:
    def factory(rate: float, f: Callable[[Any], Any] = jnp.tanh) -> Any:
        return optax.scale(rate)

    assert set(tko.inject_hyperparams(factory)(0.1).init(jnp.array(1.0)).hyperparams) == {"rate"}


NOT_SCHEDULES: dict[str, tuple[Any, str]] = {
    "of two arguments": (lambda a, b: 0.1, "it raised TypeError: .*missing 1 required"),
    "a vector": (lambda count: jnp.array([0.1, 0.2]), r"it returned f32\[2\], but a schedule returns a real number"),
    "complex": (lambda count: jnp.array(0.1j), r"it returned c64\[\], but"),
    "a mask function": (matrices, "it returned False, but"),
    "a prefix of a mask": (lambda params: True, "it returned True, but"),
    "a label function": (lambda params: jax.tree.map(lambda x: "a", params), "it returned 'a', but"),
    "a path_mask in a function": (lambda params: tk.path_mask("**")(params), "it returned True, but"),
    "a Partial": (cases.Partial(lambda n, params: matrices(params), jnp.array(2)), "it returned False, but"),
    "None": (lambda count: None, "it returned None, but"),
    "a stateful one": (StatefulVector(), r"it returned f32\[2\], but"),
}


@pytest.mark.parametrize("value, found", NOT_SCHEDULES.values(), ids=NOT_SCHEDULES)
def test_a_function_that_is_not_a_schedule_is_an_error_that_says_static_args(value: Any, found: str) -> None:
    tx = tko.inject_hyperparams(any_factory)(value)
    with pytest.raises(TypeError, match=rf"^the argument 'x' of any_factory is .*{found}.* static_args='x'$"):
        tx.init(cases.arrays())
    assert sort(value, static_args="x") == ("static", value)
    assert sort(value, static_args=["x"]) == ("static", value)


def test_a_model_for_a_rate_is_not_written_out() -> None:
    tx = tko.inject_hyperparams(tko.adam)(cases.model().mlp)
    with pytest.raises(TypeError, match=r"^the argument 'learning_rate' of adam is an MLP, .*it raised") as caught:
        tx.init(cases.arrays())
    assert len(str(caught.value)) < 700


def test_a_schedule_that_changes_what_it_returns_is_an_error_in_update() -> None:
    answers = iter([0.1, None])
    tx = tko.inject_hyperparams(any_factory)(lambda count: next(answers))
    state = tx.init(cases.arrays())
    with pytest.raises(TypeError, match=r"'x' of any_factory is .* it returned None, but"):
        tx.update(cases.arrays(), state)


def test_static_args_that_name_no_parameter_are_an_error() -> None:
    with pytest.raises(ValueError, match="static_args"):
        tko.inject_hyperparams(optax.adamw, static_args=("nope",))
    with pytest.raises(ValueError, match="static_args"):
        tko.inject_hyperparams(optax.adamw, static_args="nope")


def test_a_string_of_static_args_is_one_name() -> None:
    state = tko.inject_hyperparams(optax.adamw, static_args="b1")(0.1).init(cases.arrays())
    assert "b1" not in state.hyperparams and "b2" in state.hyperparams


# ------------------------------------------------------------------------------------------------------------ the cases


def test_the_mask_of_a_callable_model_decays_what_it_says() -> None:
    model = cases.model()
    mask = jax.tree.map(lambda x: np.ndim(x) > 1, model)
    for spec in (mask, matrices, lambda _: mask):
        tx = tko.inject_hyperparams(optax.adamw)(0.1, weight_decay=0.5, mask=spec)
        zero = jax.tree.map(jnp.zeros_like, cases.gradient(model))
        updates, _ = tx.update(zero, tx.init(model), model)
        assert {x.ndim: bool(x.any()) for x in jax.tree.leaves(updates)} == {2: True, 1: False}


def test_b2_stays_what_it_is_on_bf16_params() -> None:
    model = cases.cast(cases.model(), jnp.bfloat16)
    tx = tko.inject_hyperparams(tko.adamw)(1e-3)
    updates, state = None, tx.init(model)
    for _ in range(2):
        updates, state = eqx.filter_jit(tx.update)(cases.gradient(model), state, model)
        model = tko.apply_updates(model, updates)
    assert float(state.hyperparams["b2"]) == pytest.approx(0.999, abs=1e-6)
    assert {x.dtype for x in jax.tree.leaves(updates)} == {jnp.dtype(jnp.bfloat16)}
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, state)))


@pytest.mark.parametrize(
    "name", ["adamw", "amsgrad", "lamb", "nadamw", "contrib.ademamix", "contrib.schedule_free_adamw"]
)
def test_bf16_params_train_with_numbers_injected(name: str) -> None:
    factory: Any = functools.reduce(getattr, name.split("."), tko)
    tx = tko.inject_hyperparams(factory)(0.01)
    cases.check_laws(tx, "bf16", steps=2)


def test_numbers_are_held_in_f32_at_least_and_in_f64_for_f64_params() -> None:
    tx = tko.inject_hyperparams(optax.adam)(1e-3, b1=jnp.bfloat16(0.5))
    hyperparams = tx.init(cases.arrays(jnp.bfloat16)).hyperparams
    assert (hyperparams["learning_rate"].dtype, hyperparams["b1"].dtype) == (jnp.float32, jnp.bfloat16)
    with jax.enable_x64(True):
        assert tx.init({"w": jnp.ones(1, jnp.float64)}).hyperparams["learning_rate"].dtype == jnp.float64
        assert tx.init({"w": jnp.ones(1, jnp.complex128)}).hyperparams["learning_rate"].dtype == jnp.float64
        assert tx.init({"w": jnp.ones(1, jnp.float32)}).hyperparams["learning_rate"].dtype == jnp.float32


@pytest.mark.parametrize("value", [jnp.array(0.5, jnp.bfloat16), np.array(0.5, np.float16), np.float16(0.5)])
def test_an_array_keeps_the_dtype_it_states(value: Any) -> None:
    state = tko.inject_hyperparams(optax.sgd)(value).init(cases.arrays())
    assert state.hyperparams["learning_rate"].dtype == value.dtype


@pytest.mark.usefixtures("nans")
def test_hyperparam_dtype_is_kept_through_updates() -> None:
    tx = tko.inject_hyperparams(optax.adam, hyperparam_dtype=jnp.bfloat16)(cases.schedule, b1=0.5)
    state = tx.init(cases.arrays())
    for _ in range(2):
        _, state = tx.update(cases.arrays(), state)
        assert {state.hyperparams[k].dtype for k in ("learning_rate", "b1")} == {jnp.dtype(jnp.bfloat16)}


def test_hyperparameters_are_read_and_written_in_the_state() -> None:
    model = cases.model()
    tx = tko.inject_hyperparams(tko.sgd)(0.5)
    traces = 0

    @eqx.filter_jit
    def step(grads: Any, state: Any, model: Any) -> Any:
        nonlocal traces
        traces += 1
        return tx.update(grads, state, model)

    grads = jax.tree.map(jnp.ones_like, cases.gradient(model))
    state = tx.init(model)
    dtype = state.hyperparams["learning_rate"].dtype
    assert float(state.hyperparams["learning_rate"]) == 0.5
    updates, state = step(grads, state, model)
    assert {float(x.min()) for x in jax.tree.leaves(updates)} == {-0.5}
    for value in (jnp.array(0.25, dtype), dtype.type(0.125)):
        state.hyperparams["learning_rate"] = value
        updates, state = step(grads, state, model)
        assert {float(x.min()) for x in jax.tree.leaves(updates)} == {-float(value)}
    assert traces == 1
    state.hyperparams["learning_rate"] = 0.75  # a Python number has no dtype of its own: one more trace, then none
    for _ in range(2):
        updates, state = step(grads, state, model)
        assert {float(x.min()) for x in jax.tree.leaves(updates)} == {-0.75}
    state = optax.tree.set(state, learning_rate=jnp.array(1.0))
    assert float(optax.tree.get(state, "learning_rate")) == 1.0
    updates, state = step(grads, state, model)
    assert {float(x.min()) for x in jax.tree.leaves(updates)} == {-1.0}
    assert traces <= 3


def test_the_caller_s_state_is_not_written_to() -> None:
    tx = tko.inject_hyperparams(optax.sgd)(cases.schedule)
    state = tx.init(cases.arrays())
    before = dict(state.hyperparams)
    _, after = tx.update(cases.arrays(), state)
    assert state.hyperparams == before and after.hyperparams is not state.hyperparams


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("branching", "stateful")])
def test_schedules_are_followed_as_optax_follows_them(name: str) -> None:
    schedule = SCHEDULES[name]
    plain = (lambda count: schedule(count)) if name in ("filter_jit", "Partial") else schedule
    params = cases.arrays()
    a, b = tko.inject_hyperparams(optax.sgd)(schedule), optax.inject_hyperparams(optax.sgd)(plain)
    state_a, state_b = a.init(params), b.init(params)
    for _ in range(3):
        updates_a, state_a = jax.jit(a.update)(params, state_a, params)
        updates_b, state_b = jax.jit(b.update)(params, state_b, params)
        cases.assert_close(updates_a, updates_b)
        np.testing.assert_allclose(state_a.hyperparams["learning_rate"], state_b.hyperparams["learning_rate"], 1e-6)
    assert cases.structure(state_a) == cases.structure(state_b)


def test_a_schedule_that_branches_on_the_count_works_where_nothing_is_jitted() -> None:
    tx = tko.inject_hyperparams(optax.sgd)(lambda count: 0.5 if count < 1 else 0.25)
    params = jnp.ones(2)
    state = tx.init(params)
    seen = []
    for _ in range(3):
        updates, state = tx.update(params, state, params)
        seen.append(-float(updates[0]))
    assert seen == [0.5, 0.25, 0.25]


def test_a_stateful_schedule_keeps_its_state_and_sees_the_extra_arguments() -> None:
    class Follows(Stateful):
        def update(self, state: Any, **extra: Any) -> Any:
            return {"value": extra["value"]}

    tx = tko.inject_hyperparams(optax.sgd)(Follows())
    state = tx.init(jnp.ones(2))
    assert float(state.hyperparams["learning_rate"]) == 1.0
    for value in (0.5, 0.25):
        _, state = tx.update(jnp.ones(2), state, jnp.ones(2), value=jnp.array(value))
        assert float(state.hyperparams_states["learning_rate"]["value"]) == value


def test_mu_dtype_is_a_dtype_and_no_schedule() -> None:
    tx = tko.inject_hyperparams(optax.adam)(1e-3, mu_dtype=jnp.bfloat16)
    state = tx.init(cases.arrays())
    assert "mu_dtype" not in state.hyperparams
    assert optax.tree.get(state, "mu")["w"].dtype == jnp.bfloat16


@pytest.mark.usefixtures("nans")  # Optax divides 0 by 0 in the first step, and does not use it
@pytest.mark.parametrize("o", [pytest.param(optax, marks=pytest.mark.slow), tko], ids=["of_optax", "of_ours"])
def test_the_memory_size_of_lbfgs_stays_an_int(o: Any) -> None:
    model = cases.model()
    tx = tko.inject_hyperparams(o.lbfgs)(0.1, memory_size=3)
    state = tx.init(model)
    assert "memory_size" not in state.hyperparams
    grads = cases.gradient(model)
    _, after = tx.update(grads, state, model, **cases.extra_for(model, grads))
    assert cases.signature(after) == cases.signature(state)


def test_a_schedule_that_closes_over_a_traced_value() -> None:
    """A learning rate under differentiation, in a schedule made inside the traced function."""

    def after(rate: jax.Array) -> jax.Array:
        tx = tko.inject_hyperparams(optax.sgd)(lambda count: rate * 0.5**count)
        params = jnp.ones(2)
        updates, _ = tx.update(params, tx.init(params), params)
        return jnp.sum(optax.apply_updates(params, updates))

    assert float(jax.jit(after)(jnp.array(0.1))) == pytest.approx(1.8)
    assert float(jax.grad(after)(jnp.array(0.1))) == pytest.approx(-2.0)


def test_a_number_may_be_traced() -> None:
    def after(rate: jax.Array) -> jax.Array:
        tx = tko.inject_hyperparams(tko.sgd)(rate)
        updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))
        return jnp.sum(updates)

    assert float(jax.grad(after)(jnp.array(0.1))) == pytest.approx(-2.0)


def test_the_factory_keeps_its_signature_and_its_name() -> None:
    factory = tko.inject_hyperparams(tko.adamw)
    assert inspect.signature(factory) == inspect.signature(tko.adamw)
    assert factory.__name__ == "adamw"
    with pytest.raises(TypeError, match="learning_rate"):
        factory()


def test_arguments_gathered_by_stars_are_handed_on() -> None:
    def factory(rate: float, *names: str, **options: Any) -> optax.GradientTransformation:
        assert names == ("a", "b") and options == {"flag": True}
        return optax.sgd(rate)

    tx = tko.inject_hyperparams(factory, static_args="names")(0.5, "a", "b", flag=True)
    updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)))
    assert float(updates[0]) == -0.5


def test_the_state_is_that_of_optax_and_survives_pickle() -> None:
    tx = tko.inject_hyperparams(optax.adam)(cases.schedule)
    params = cases.arrays()
    _, state = tx.update(params, tx.init(params), params)
    assert isinstance(state, optax.InjectStatefulHyperparamsState)
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    restored = pickle.loads(pickle.dumps(state))
    a, b = (tx.update(params, s, params) for s in (state, restored))
    assert all(bool((x == y).all()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_inside_multi_steps_the_count_goes_up_once_a_round() -> None:
    ms = tko.MultiSteps(tko.inject_hyperparams(optax.sgd)(cases.schedule), 2)
    params = cases.arrays()
    state = ms.init(params)
    for _ in range(4):
        _, state = ms.update(params, state, params)
    assert int(state.inner_opt_state.count) == 2


def test_a_hyperparameter_that_is_misspelt_is_an_error() -> None:
    params = jnp.ones(2)
    tx = tko.inject_hyperparams(optax.adamw)(0.1)
    state: Any = tx.init(params)
    state.hyperparams["learning_rat"] = 0.1
    with pytest.raises(TypeError, match=r"hyperparams have learning_rat, .* its arguments are learning_rate, b1"):
        tx.update(params, state, params)


@pytest.mark.parametrize("wrap", [lambda f: f, tko.inject_hyperparams])
def test_an_argument_that_is_misspelt_is_named_with_its_function(wrap: Any) -> None:
    misspelt: Any = {"learnin_rate": 0.1}
    with pytest.raises(TypeError, match=r"adamw\(\) got an unexpected keyword argument 'learnin_rate'"):
        wrap(tko.adamw)(**misspelt)


def test_a_signature_of_the_users_own_is_what_counts() -> None:
    def told(*, learning_rate: float) -> Any:
        return optax.sgd(learning_rate)

    @functools.wraps(told)
    def takes_more(**kwargs: Any) -> Any:
        return told(learning_rate=kwargs["learning_rate"])

    with pytest.raises(TypeError, match="unexpected keyword argument 'rate'"):
        tko.inject_hyperparams(takes_more)(learning_rate=0.1, rate=0.2)


def test_a_schedule_is_told_where_transfers_are_forbidden() -> None:
    params = cases.arrays()
    tx = tko.inject_hyperparams(tko.sgd)(lambda count: 0.1 / (count + 1))
    state = tx.init(params)
    with jax.transfer_guard("disallow"):
        jax.jit(tx.update)(params, state, params)


@pytest.mark.parametrize("only", [None, "learning_rate"])
def test_a_schedule_of_another_shape_is_told_its_shape(only: Any) -> None:
    tx = tko.inject_hyperparams(tko.sgd, only=only)(lambda count: jnp.array([0.1]))
    with pytest.raises(TypeError, match=r"it returned f32\[1\], but a schedule returns a real number of shape \(\)"):
        tx.init(jnp.ones(2))


def test_what_a_schedule_raises_is_told() -> None:
    def schedule(count: Any) -> Any:
        raise KeyError("warmup")

    with pytest.raises(TypeError, match="Called with a count, it raised KeyError: 'warmup'") as caught:
        tko.inject_hyperparams(tko.sgd)(schedule).init(cases.arrays())
    assert isinstance(caught.value.__cause__, KeyError)


# --------------------------------------------------------------------------------------- how often a schedule is called


class Counted:
    """A schedule that counts how often it is called, however it is made."""

    def __init__(self, f: Callable[[Any], Any]) -> None:
        self.f = f
        self.calls = 0

    def __call__(self, count: Any) -> Any:
        self.calls += 1
        return self.f(count)


def scaled(scale: Any, mask: Any = None) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(0.5, mask), optax.scale(scale))


COUNTED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "array": (scaled, cases.schedule),
    "cosine": (tko.sgd, optax.cosine_decay_schedule(0.1, 10)),
    "python_number_for_a_learning_rate": (optax.adam, lambda count: 0.1),
    "branching_for_a_learning_rate": (tko.adam, lambda count: 0.1 if count < 10 else 0.01),
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("kind", ["f32", "eqx_raw", "nnx", "node"])
def test_a_schedule_is_called_once_by_init_and_once_by_each_update(name: str, kind: str) -> None:
    factory, f = COUNTED[name]
    schedule = Counted(f)
    params = cases.make(kind)
    tx = tko.inject_hyperparams(factory)(schedule)
    state = tx.init(params)
    assert schedule.calls == 1
    for calls in (2, 3):
        _, state = tx.update(cases.gradient(params), state, params)
        assert schedule.calls == calls


def test_a_stateful_schedule_is_called_as_often() -> None:
    class Noted(Stateful):
        calls = 0

        def __call__(self, state: Any, **extra: Any) -> Any:
            Noted.calls += 1
            return super().__call__(state)

    tx = tko.inject_hyperparams(optax.sgd)(Noted())
    _, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    assert (Noted.calls, float(state.hyperparams["learning_rate"])) == (2, 1.0)


def test_the_params_in_a_state_are_found_where_there_is_a_mask_function_and_a_schedule() -> None:
    params = cases.arrays()
    for rate in (cases.schedule, lambda count: 0.1):
        tx = tko.inject_hyperparams(optax.adamw)(rate, mask=matrices)
        state = tx.init(params)
        zero = tko.tree_map_params(tx, lambda x: x + 1, state)
        assert float(optax.tree.get(zero, "mu")["b"][0]) == 1.0
        assert cases.structure(zero) == cases.structure(state)


@pytest.mark.parametrize(("then", "now"), [(0.1, cases.schedule), (cases.schedule, 0.1)])
def test_the_state_of_a_number_is_not_that_of_a_schedule(then: Any, now: Any) -> None:
    params = cases.arrays()
    state = tko.inject_hyperparams(tko.sgd)(then).init(params)
    words = ["a number", "a schedule"] if then == 0.1 else ["a schedule", "a number"]
    with pytest.raises(
        TypeError, match=f"made with {words[0]} for 'learning_rate', and the optimizer now has {words[1]}"
    ):
        tko.inject_hyperparams(tko.sgd)(now).update(params, state, params)


# ----------------------------------------------------------------------------------------------------------------- only


@pytest.mark.parametrize("rate", [1e-3, cases.schedule], ids=["number", "schedule"])
@pytest.mark.parametrize(
    ("name", "kind"), [("adam", "f32"), ("adam", "nnx"), ("adamw", "none"), ("rmsprop", "f32"), ("lion", "f32")]
)
def test_only_the_learning_rate_is_injected_and_the_numbers_are_the_plain_ones(name: str, kind: str, rate: Any) -> None:
    factory = getattr(optax, name)
    ours = tko.inject_hyperparams(factory, only="learning_rate")(rate)
    plain = factory(rate)
    a = b = cases.make(kind)
    state_a, state_b = ours.init(a), plain.init(b)
    assert list(state_a.hyperparams) == ["learning_rate"]
    for jit in (jax.jit, lambda f: f):
        update_a, update_b = jit(ours.update), jit(plain.update)
        for _ in range(3):
            updates_a, state_a = update_a(cases.gradient(a), state_a, a)
            updates_b, state_b = update_b(cases.gradient(b), state_b, b)
            for x, y in zip(jax.tree.leaves(updates_a), jax.tree.leaves(updates_b), strict=True):
                np.testing.assert_array_equal(x, y)
            a, b = tko.apply_updates(a, updates_a), tko.apply_updates(b, updates_b)


def test_only_may_name_several() -> None:
    tx = tko.inject_hyperparams(tko.adamw, only=("learning_rate", "weight_decay"))
    state = tx(0.1, mask=matrices).init(cases.arrays())
    assert set(state.hyperparams) == {"learning_rate", "weight_decay"}
    assert set(tko.inject_hyperparams(tko.adamw, only=())(0.1).init(cases.arrays()).hyperparams) == set()


def test_only_makes_a_callable_static() -> None:
    def strange(a: Any, b: Any) -> Any:
        return a

    state = tko.inject_hyperparams(any_factory, only="count")(strange, count=4).init(jnp.ones(2))
    assert list(state.hyperparams) == ["count"]  # an int whose default is one, which only names


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"only": "rate"}, r"`only` must specify a subset .* Given `only`: \['rate'\]"),
        ({"only": ("b1", "rate")}, r"Given `only`: \['b1', 'rate'\]"),
        ({"only": "b1", "static_args": ("b1", "b2")}, "`static_args` and `only` both name b1$"),
    ],
)
def test_only_names_parameters(kwargs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tko.inject_hyperparams(optax.adam, **kwargs)


@pytest.mark.parametrize(("name", "value"), [("mask", None), ("mask", matrices), ("nesterov", True)])
def test_only_names_what_can_be_a_hyperparameter(name: str, value: Any) -> None:
    make = tko.inject_hyperparams(optax.adamw, only=("learning_rate", name))
    with pytest.raises(TypeError, match=f"names '{name}', which is neither a number nor a schedule: "):
        make(0.1, **{name: value})


@pytest.mark.parametrize("annotation", [int, TYPED.Labels, "int | None"])
def test_only_makes_any_number_a_hyperparameter(annotation: Any) -> None:
    assert sort(2, factory=factory_of("x", annotation), only="x")[0] == "number"


# --------------------------------------------------------------------------------------------------------------- float8


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2], ids=lambda d: jnp.dtype(d).name)
@pytest.mark.parametrize("rate", [0.5, lambda count: 0.5 / (1 + count)], ids=["number", "schedule"])
def test_float8_params(dtype: Any, rate: Any) -> None:
    params = cases.arrays(dtype)
    for factory in (optax.sgd, tko.sgd):
        tx = tko.inject_hyperparams(factory)(rate, momentum=0.5)
        state = tx.init(params)
        updates, after = jax.jit(tx.update)(params, state, params)
        assert state.hyperparams["learning_rate"].dtype == jnp.float32
        assert cases.signature(after) == cases.signature(state)
        assert {x.dtype for x in jax.tree.leaves((updates, optax.tree.get(after, "trace")))} == {jnp.dtype(dtype)}
        expected = (-0.5 * params["w"].astype(jnp.float32)).astype(dtype)
        assert (updates["w"] == expected).all()


INTS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "by the default": (optax.adamw, {"learning_rate": 0.1, "weight_decay": 0}, jnp.float32),
    "by the annotation": (optax.sgd, {"learning_rate": 1}, jnp.float32),
    "a schedule": (optax.sgd, {"learning_rate": lambda _: 1}, jnp.float32),
    "by a quoted annotation": (lambda rate: optax.sgd(rate), {"rate": 1}, jnp.float32),
    "nothing says float": (lambda rate: optax.sgd(rate), {"rate": 1}, jnp.float32),
    "by keyword": (lambda **kwargs: optax.sgd(**kwargs), {"learning_rate": 1}, jnp.float32),
    "in a union": (optax.clip_by_global_norm, {"max_norm": 1}, jnp.float32),
    "a seed by its name": (lambda seed: optax.noisy_sgd(0.1, key=seed), {"seed": 1}, jnp.int32),
    "a key, though it may be a float": (optax.noisy_sgd, {"learning_rate": 0.1, "key": 1}, jnp.int32),
    "an int by its annotation": (optax.add_noise, {"eta": 0.1, "gamma": 0.5, "key": 1}, jnp.int32),
    "an array that states its dtype": (optax.sgd, {"learning_rate": jnp.asarray(1, jnp.int32)}, jnp.int32),
}
INTS["by a quoted annotation"][0].__annotations__["rate"] = "float"
REAL = (0.5, 2, np.float32(0.5), np.int64(3), np.float64(0.25), jnp.asarray(2), jnp.asarray(0.5, jnp.bfloat16))


@pytest.mark.parametrize("factory, arguments, dtype", INTS.values(), ids=INTS)
def test_an_int_is_stored_as_a_float_unless_its_parameter_takes_only_ints(
    factory: Any, arguments: Any, dtype: Any
) -> None:
    tx, params = tko.inject_hyperparams(factory)(**arguments), {"w": jnp.ones(2)}
    state = tx.init(params)
    name = list(arguments)[-1]
    assert state.hyperparams[name].dtype == dtype
    if dtype == jnp.float32 and not callable(arguments[name]):
        state = tko.set_hyperparams(state, **{name: 0.5})
        assert state.hyperparams[name] == 0.5


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("value", REAL, ids=repr)
@pytest.mark.parametrize("wrap", ["no wrapper", "MultiSteps", "apply_if_finite", "masked"])
def test_any_real_number_can_replace_one_that_is_injected(wrap: str, value: Any, jit: Any) -> None:
    """In a jitted update too, where a Python number is traced, and in a scan."""
    wrappers: dict[str, Callable[[Any], Any]] = {
        "no wrapper": lambda tx: tx,
        "MultiSteps": lambda tx: tko.MultiSteps(tx, 1).gradient_transformation(),
        "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 2),
        "masked": lambda tx: tko.masked(tx, True),
    }
    params = {"w": jnp.ones(2)}
    tx = wrappers[wrap](tko.inject_hyperparams(tko.sgd)(1, momentum=0))
    state = tx.init(params)
    optax.tree.get(state, "hyperparams")["learning_rate"] = value
    for _ in range(2):
        updates, state = jit(tx.update)(params, state, params)
        np.testing.assert_array_equal(updates["w"], -float(value) * params["w"])
    jax.lax.scan(lambda state, _: (tx.update(params, state, params)[1], None), state, None, 2)


def test_each_argument_that_stars_gather_is_injected() -> None:
    def factory(**kwargs: Any) -> Any:
        return optax.adamw(**kwargs)

    params = cases.arrays()
    make = tko.inject_hyperparams(factory, static_args="b1")
    tx = make(learning_rate=cases.schedule, b1=0.5, b2=0.9, mask=matrices, nesterov=True)
    state = tx.init(params)
    assert set(state.hyperparams) == {"learning_rate", "b2"} and set(state.hyperparams_states) == {"learning_rate"}
    plain = optax.adamw(cases.schedule, b1=0.5, b2=0.9, mask=matrices, nesterov=True)
    cases.assert_close(tx.update(params, state, params)[0], plain.update(params, plain.init(params), params)[0])
    state = tko.set_hyperparams(state, b2=0.5)
    assert float(tx.update(params, state, params)[1].hyperparams["b2"]) == 0.5
    only = tko.inject_hyperparams(factory, only="b2")(learning_rate=0.1, b2=0.9)
    assert set(only.init(params).hyperparams) == {"b2"}
    with pytest.raises(TypeError, match="names rate, which was not passed; the arguments are learning_rate, b2"):
        tko.inject_hyperparams(factory, only="rate")(learning_rate=0.1, b2=0.9)


def test_a_keyword_with_the_name_of_a_positional_only_parameter_is_static() -> None:
    def factory(rate: float, /, **kwargs: Any) -> Any:
        return optax.sgd(rate, momentum=kwargs["rate"])

    tx = tko.inject_hyperparams(factory)(0.5, rate=0.25)
    state = tx.init(jnp.ones(2))
    plain = optax.sgd(0.5, momentum=0.25)
    assert state.hyperparams == {"rate": 0.5}
    cases.assert_close(tx.update(jnp.ones(2), state)[0], plain.update(jnp.ones(2), plain.init(jnp.ones(2)))[0])


@pytest.mark.parametrize("name", ["static_args", "only"])
@pytest.mark.parametrize("value", [1e-3, [1e-3], cases.schedule])
def test_names_that_are_numbers_are_an_error_that_says_where_they_go(name: str, value: Any) -> None:
    unchecked: Any = inspect.unwrap(tko.inject_hyperparams)  # beartype has an error of its own
    with pytest.raises(TypeError, match=rf"`{name}` must be the name, .* inject_hyperparams\(optax.adamw\)\(1e-3\)"):
        unchecked(optax.adamw, **{name: value})


@pytest.mark.parametrize("make", [tko.adam, tko.inject_hyperparams(tko.adam), tko.inject_hyperparams(optax.adam)])
@pytest.mark.parametrize("value", ["1e-3", b"1e-3", {"rate": 1e-3}, [1e-3]])
def test_a_rate_that_is_not_a_number_is_named(make: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="learning_rate of adam must be a number or a schedule, found "):
        make(value)
    with pytest.raises(TypeError, match="b1 of adam must be a number, found "):
        make(1e-3, b1="0.9")


def test_the_annotation_decides_before_the_value_is_called() -> None:
    """A rate is a schedule, though it has the structure of the params; a mask is not, whatever it returns."""

    class Rate(eqx.Module):
        value: float

        def __call__(self, count: Any) -> Any:
            assert jnp.shape(count) == ()  # not the params
            return self.value

    rate = Rate(0.5)
    state = tko.inject_hyperparams(optax.adamw)(rate, mask=lambda params: True).init(Rate(2.0))
    assert "mask" not in state.hyperparams and float(state.hyperparams["learning_rate"]) == 0.5
    wrong = tko.inject_hyperparams(optax.adamw)(matrices)
    with pytest.raises(TypeError, match=r"'learning_rate' of adamw is .*Called with a count, it returned False"):
        wrong.init(cases.arrays())


# --------------------------------------------------------------------------------------------- what a dtype cannot hold


UNFIT: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "an int that f32 rounds": (optax.sgd, {"learning_rate": 2**24 + 1}, None),
    "a negative one": (optax.sgd, {"learning_rate": -(2**24) - 1}, None),
    "of NumPy": (optax.sgd, {"learning_rate": np.int64(2**31)}, None),
    "an int that is infinite in f32": (optax.sgd, {"learning_rate": 10**400}, None),
    "by a schedule": (optax.sgd, {"learning_rate": lambda count: 2**24 + 1}, None),
    "by keyword": (lambda **kwargs: optax.sgd(**kwargs), {"learning_rate": 2**24 + 1}, None),
    "with a dtype": (optax.sgd, {"learning_rate": 257}, jnp.bfloat16),
    "a seed": (lambda seed: optax.noisy_sgd(0.1, key=seed), {"seed": 2**40}, None),
    "a float that is infinite": (optax.sgd, {"learning_rate": 1e50}, None),
    "with a dtype, a longer one": (optax.sgd, {"learning_rate": 2**70 + 1}, jnp.bfloat16),
    "a fraction for an int": (optax.sgd, {"learning_rate": 0.5}, jnp.int32),
    "nan for an int": (optax.sgd, {"learning_rate": float("nan")}, jnp.int32),
    "with a dtype, a float": (optax.sgd, {"learning_rate": 1e6}, jnp.float16),
}


@pytest.mark.parametrize("factory, arguments, dtype", UNFIT.values(), ids=UNFIT)
def test_a_number_that_its_dtype_cannot_hold_is_named(factory: Any, arguments: Any, dtype: Any) -> None:
    (name,) = arguments
    tx = tko.inject_hyperparams(factory, hyperparam_dtype=dtype)(**arguments)
    with pytest.raises(TypeError, match=rf"'{name}' of .*, which \w+ cannot hold.*static_args='{name}'") as caught:
        tx.init(cases.arrays())
    assert len(str(caught.value)) < 300


def test_what_f32_holds_exactly_and_what_f64_does() -> None:
    params = cases.arrays()
    for value in (2**24, 2**40, 3 * 2**30):
        state = tko.inject_hyperparams(optax.sgd)(value).init(params)
        assert float(state.hyperparams["learning_rate"]) == value
    with jax.enable_x64(True):
        tx = tko.inject_hyperparams(optax.sgd)(2**24 + 1)
        state = tx.init({"w": jnp.ones(2, jnp.float64)})
        assert int(state.hyperparams["learning_rate"]) == 2**24 + 1
        assert cases.structure(tko.tree_map_params(tx, lambda x: x, state)) == cases.structure(state)


# ------------------------------------------------------------------------------------ what has no name cannot be stored


def gathers(*args: Any) -> Any:
    return optax.sgd(*args)


def gathers_more(rate: Any, *names: Any) -> Any:
    return optax.sgd(rate)


@pytest.mark.parametrize(
    "factory, args",
    [
        (gathers, (0.1,)),
        (gathers, (cases.schedule,)),
        (gathers, ("a",)),
        (gathers_more, (0.1, 0.2)),
        (gathers_more, (0.1, "a", cases.schedule)),
        (optax.chain, (optax.sgd(0.1),)),
        (tko.chain, (tko.sgd(0.1),)),
    ],
)
def test_numbers_that_stars_gather_have_no_names(factory: Any, args: Any) -> None:
    """Optax raises too."""
    with pytest.raises(TypeError, match=r"stores arguments by name, and \*\w+ of \w+ gathers them without names"):
        tko.inject_hyperparams(factory)(*args)
    with pytest.raises(TypeError, match=r"unexpected keyword argument|takes [01] positional"):
        optax.inject_hyperparams(factory)(*args).init(cases.arrays())


def test_what_stars_gather_is_passed_on_where_it_is_named() -> None:
    params = cases.arrays()
    ways: list[dict[str, Any]] = [{"static_args": "args"}, {"only": ()}]
    for kwargs in ways:
        state = tko.inject_hyperparams(gathers, **kwargs)(0.1).init(params)
        assert not state.hyperparams


def test_a_default_need_not_fit_its_annotation() -> None:
    state = tko.inject_hyperparams(factory_of("x", float, None))().init(cases.arrays())
    assert state.hyperparams == {}


# ----------------------------------------------------------------------------------------------------- strict promotion


STRICT: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tko.inject_hyperparams(tko.sgd)(0.5),
    "momentum": lambda: tko.inject_hyperparams(tko.sgd)(0.5, momentum=0.9),
    "of optax": lambda: tko.inject_hyperparams(optax.sgd)(0.5, momentum=0.9),
    "a schedule": lambda: tko.inject_hyperparams(tko.sgd)(lambda count: 0.5 ** count.astype(jnp.float32)),
    "two dtypes": lambda: tko.inject_hyperparams(tko.sgd)(jnp.bfloat16(0.5), momentum=0.9),
    "stated": lambda: tko.inject_hyperparams(tko.sgd, hyperparam_dtype=jnp.bfloat16)(0.5, momentum=0.5),
    "decay": lambda: tko.inject_hyperparams(
        lambda rate, decay: tko.chain(tko.add_decayed_weights(decay), tko.scale(rate))
    )(0.5, 0.125),
    "MultiSteps": lambda: tko.MultiSteps(tko.inject_hyperparams(tko.sgd)(0.5), 2).gradient_transformation(),
    "masked": lambda: tko.masked(tko.inject_hyperparams(tko.sgd)(0.5), matrices),
}


@pytest.mark.parametrize("make", STRICT.values(), ids=STRICT)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32], ids=lambda d: jnp.dtype(d).name)
def test_strict_promotion(make: Any, dtype: Any) -> None:
    """What treekit promotes itself, it casts: the results are those of standard promotion."""
    params = cases.arrays(dtype)
    tx = make()

    def run() -> Any:
        state = tx.init(params)
        out = []
        for _ in range(2):
            updates, state = jax.jit(tx.update)(params, state, params)
            out.append(updates)
        return out, state

    expected = run()
    with jax.numpy_dtype_promotion("strict"):
        found = run()
    assert cases.signature(found) == cases.signature(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)
