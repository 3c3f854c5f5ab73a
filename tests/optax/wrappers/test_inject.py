"""inject_hyperparams: what is a hyperparameter, what a schedule, and what is handed on as it is."""

import gc
import inspect
import types
import typing
import weakref
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
from tests.optax import cases, factories
from tests.releases import enable_x64, needs
from treekit import optax as tko

inject = tko.inject_hyperparams
RATE = "learning_rate"
MLP = cases.model().mlp
F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "inject": lambda tx: inject(lambda scale: optax.chain(tx, optax.scale(scale)))(0.5),
    "scheduled": lambda tx: inject(lambda scale: optax.chain(tx, optax.scale(scale)))(cases.schedule),
    "of_masked": lambda tx: inject(
        lambda scale, mask: optax.chain(tko.masked(optax.add_decayed_weights(0.1), mask), tx, optax.scale(scale))
    )(0.5, cases.mask_of),
    "masked": lambda tx: tko.masked(inject(lambda s: optax.chain(tx, optax.scale(s)))(0.5), True),
}


# Of treekit's, all numbers are injected.
WHOLE = [
    pytest.param(lambda _, make=make: inject(make)(0.01), "sgd", "bf16", id=make.__name__)
    for make in (tko.adamw, tko.contrib.schedule_free_adamw)
]


@pytest.mark.table
@pytest.mark.parametrize("wrap, name, kind", WHOLE + cases.cells(WRAPPERS, 4, whole=("inject",), every=4))
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


# ------------------------------------------------------------------------------------------------------ classification


class Stateful(optax.schedules.StatefulSchedule):
    """A schedule with a state: the extra argument `value`, or half of what it was."""

    def __init__(self, start: Any = 1.0) -> None:
        self.start, self.calls = start, 0

    def init(self) -> Any:
        return {"value": jnp.array(self.start)}

    def update(self, state: Any, **extra: Any) -> Any:
        return {"value": extra.get("value", state["value"] / 2)}

    def __call__(self, state: Any, **extra: Any) -> Any:
        self.calls += 1
        return state["value"]


def branching(count: Any) -> float:
    return 0.1 if count < 10 else 0.01


SCHEDULES: dict[str, Any] = {
    "def": cases.schedule,
    "int": lambda count: 3,
    "Partial": cases.Partial(lambda rate, count: rate / (1 + count), jnp.array(0.1)),
    "filter_jit": eqx.filter_jit(cases.Schedule(0.1)),
}
STATIC = {
    "None": None,
    "bool": True,
    "numpy_bool": np.True_,
    "str": "adam",
    "class": dict,
    "path_mask": tk.path_mask("**.w"),
    "array_of_objects": np.array(["a", None], object),
    "callable_mask": jax.tree.map(lambda x: eqx.is_array(x) and x.ndim > 1, MLP),
    "tuple": (0.9, 0.999),
}
EMPTY: Any = inspect.Parameter.empty
handed: list[Any] = []  # what the last factory was given


def factory_of(annotation: Any = EMPTY, default: Any = EMPTY, name: str = "x") -> Any:
    """A factory of one parameter, which has this name, annotation and default."""

    def factory(*args: Any, **kwargs: Any) -> Any:
        handed.extend((*args, *kwargs.values()))
        return optax.identity()

    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameter = inspect.Parameter(name, keyword, annotation=annotation, default=default)
    vars(factory)["__signature__"] = inspect.Signature([parameter])
    return factory


any_factory = factory_of()


def sort(value: Any, params: Any = None, factory: Any = any_factory, **kwargs: Any) -> tuple[str, Any]:
    """What the first argument is taken for, and what the factory is handed."""
    handed.clear()
    name = next(iter(inspect.signature(factory).parameters))
    state = inject(factory, **kwargs)(value).init(cases.arrays() if params is None else params)
    if name in state.hyperparams_states:
        return "schedule", handed[-1]
    return ("number" if name in state.hyperparams else "static"), handed[-1]


SORTS = {
    "schedule": SCHEDULES | {"branching": branching, "stateful": Stateful()},
    "static": STATIC,
    "number": {"float": 0.1, "int": 3, "numpy_scalar": np.float32(0.1), "array": jnp.array(0.1)},
}


@pytest.mark.parametrize("sort_of, value", [pytest.param(s, x, id=name) for s in SORTS for name, x in SORTS[s].items()])
def test_a_value_is_sorted_whatever_the_params_are(sort_of: str, value: Any) -> None:
    """Functions too on a scalar, where called with the params they would return a number as well."""
    for params in (cases.arrays(), cases.model(), jnp.array(1.0)):
        found, handed_on = sort(value, params)
        assert found == sort_of
        if sort_of == "static":
            assert handed_on is value
        else:
            assert isinstance(handed_on, jax.Array) and handed_on.shape == ()


def never(_: Any) -> Any:
    """A function that must not be called."""
    raise AssertionError


class Measures(typing.Protocol):
    """A function, as a protocol."""

    def __call__(self, x: Any) -> Any: ...


# What a parameter is called, and how it is annotated; a function, and an int, that are passed for it.
SAYS: dict[str, tuple[Any, str, str]] = {
    "nothing": (any_factory, "schedule", "number"),
    "a mask by name": (factory_of(name="decay_mask"), "static", "static"),
    "labels by name": (factory_of(name="param_labels"), "static", "static"),
    "a mask": (factory_of(typed.Mask), "static", "static"),
    "labels": (factory_of(typed.Labels), "static", "static"),
    "optax's mask": (factory_of(inspect.signature(optax.adamw).parameters["mask"].annotation), "static", "static"),
    "a function of the params": (factory_of(Callable[[optax.Params], Any]), "static", "static"),
    "of two arguments": (factory_of(Callable[[Any, Any], Any] | object), "undecided", "number"),
    "of any arguments": (factory_of(Callable[..., Any] | object), "undecided", "number"),
    "of anything": (factory_of(Callable[[Any], Any]), "undecided", "number"),
    "of arrays": (factory_of(Callable[[jax.Array], jax.Array]), "undecided", "number"),
    "a function": (factory_of(Callable), "undecided", "number"),
    "typing's function": (factory_of(typing.Callable), "undecided", "number"),
    "a function or None": (factory_of(typing.Optional[Callable[[Any], Any]]), "undecided", "number"),  # noqa: UP045
    "an annotated function": (factory_of(typing.Annotated[Callable[[Any], Any], "of one"]), "undecided", "number"),
    "a protocol": (factory_of(Measures), "undecided", "number"),
    "an annotated int": (factory_of(typing.Annotated[int | None, "at least 1"]), "schedule", "static"),
    "a rate": (factory_of(optax.ScalarOrSchedule), "schedule", "number"),
    "a schedule": (factory_of(optax.Schedule), "schedule", "number"),
    "a float": (factory_of(float), "schedule", "number"),
    "an int": (factory_of(int), "schedule", "static"),
    "an int or None": (factory_of(int | None), "schedule", "static"),
    "an optional int": (factory_of(typing.Optional[int]), "schedule", "static"),  # noqa: UP045
    "an int or a float": (factory_of(int | float), "schedule", "number"),
}


@pytest.mark.parametrize("factory, of_function, of_int", SAYS.values(), ids=SAYS)
def test_the_parameter_says_what_a_function_and_an_int_are(factory: Any, of_function: str, of_int: str) -> None:
    (name,) = inspect.signature(factory).parameters
    if of_function == "undecided":
        with pytest.raises(TypeError, match=f"{name!r} of factory .* static_args={name!r}.* `only`"):
            inject(factory)(never)
        assert sort(cases.schedule, factory=factory, only=name)[0] == "schedule"
        assert sort(never, factory=factory, static_args=name) == ("static", never)
    else:
        function: Any = cases.schedule if of_function == "schedule" else never
        assert sort(function, factory=factory)[0] == of_function
    for value in (2, np.int64(2)):
        assert sort(value, factory=factory)[0] == of_int
        assert sort(value, factory=factory, only=name)[0] == "number"
    assert sort(True, factory=factory)[0] == "static"
    assert sort(0.5, factory=factory)[0] == ("static" if of_function == "static" else "number")


def test_the_annotation_of_keywords_says_what_each_of_them_is() -> None:
    def factory(**functions: Callable[[Any], Any]) -> Any:
        return optax.identity()

    with pytest.raises(TypeError, match="'f' of factory"):
        inject(factory)(f=never)


def test_one_annotation_that_only_type_checkers_know_does_not_hide_the_others() -> None:
    module: Any = types.ModuleType("with_quoted_annotations")
    body = "def factory(rate: float, n: int, mask_like: 'Absent' = None): return optax.scale(rate * n)"
    exec(f"from __future__ import annotations\nimport optax\n{body}", module.__dict__)
    assert set(inject(module.factory)(0.1, 3).init(jnp.ones(2)).hyperparams) == {"rate"}


@needs("optax.contrib.adopt")
def test_a_function_of_arrays_of_optax_is_passed_on_if_it_is_named() -> None:
    params, clip = cases.arrays(), lambda count: 0.5 * (1 + count)
    given: list[dict[str, Any]] = [{}, {"clip_value_fn": clip}]
    for options in given:
        ours: Any = inject(tko.contrib.adopt, static_args="clip_value_fn")(0.1, **options)
        theirs: Any = optax.contrib.adopt(0.1, **options)
        assert "clip_value_fn" not in ours.init(params).hyperparams
        cases.assert_close(
            ours.update(params, ours.init(params), params)[0], theirs.update(params, theirs.init(params), params)[0]
        )


def with_default(rate: float, f: Callable[[Any], Any] = jnp.tanh, count: int = 3) -> Any:
    return optax.scale(rate)


def by_keyword(**kwargs: Any) -> Any:
    return optax.adamw(**kwargs)


def positional_only(rate: float, /, **kwargs: Any) -> Any:
    return optax.sgd(rate, momentum=kwargs["rate"])


def gathers(*args: Any) -> Any:
    return optax.sgd(*args)


GIVEN = {RATE: 0.1, "b1": 0.5, "b2": 0.9, "mask": cases.mask_of, "nesterov": True}
# What is made, with inject_hyperparams or without, and the names of what is injected.
INJECTED: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "not a callable left at its default": (lambda f: f(with_default)(0.1), {"rate"}),
    "nor one that `only` does not name": (lambda f: f(with_default, only="count")(0.1, never, count=4), {"count"}),
    "`only` names several": (lambda f: f(tko.adamw, only=(RATE, "b1"))(0.1, mask=cases.mask_of), {RATE, "b1"}),
    "`only` names nothing": (lambda f: f(tko.adamw, only=())(0.1), set()),
    "each keyword that stars gather": (lambda f: f(by_keyword, static_args="b1")(**GIVEN), {RATE, "b2"}),
    "the one of them that `only` names": (lambda f: f(by_keyword, only="b2")(**GIVEN), {"b2"}),
    "not a keyword named as a positional-only parameter": (lambda f: f(positional_only)(0.5, rate=0.25), {"rate"}),
    "not what stars gather, if `static_args` names them": (lambda f: f(gathers, static_args="args")(0.1), set()),
    "not what stars gather, if `only` names others": (lambda f: f(gathers, only=())(0.1), set()),
    "not a default, which need not fit its annotation": (lambda f: f(factory_of(float, None))(), set()),
}


@pytest.mark.parametrize("make, names", INJECTED.values(), ids=INJECTED)
def test_these_are_injected_and_all_arguments_arrive(make: Callable[[Any], Any], names: set[str]) -> None:
    params = cases.arrays()
    ours, plain = make(inject), make(lambda factory, **options: factory)
    state = ours.init(params)
    assert set(state.hyperparams) == names
    cases.assert_close(ours.update(params, state, params)[0], plain.update(params, plain.init(params), params)[0])


class Unhashable:
    """A callable object that cannot be the key of a dict."""

    __hash__: Any = None

    def __call__(self, learning_rate: float) -> Any:
        return optax.sgd(learning_rate)


@pytest.mark.parametrize("factory", [tko.adamw, optax.adamw, optax.nadamw, Unhashable().__call__, Unhashable()])
def test_a_factory_of_any_sort_keeps_its_signature(factory: Any) -> None:
    injecting = inject(factory)
    assert inspect.signature(injecting) == inspect.signature(factory)
    assert injecting.__name__ == getattr(factory, "__name__", injecting.__name__)
    for _ in range(2):  # the second time, its signature is known
        assert RATE in inject(factory)(0.1).init(cases.arrays()).hyperparams


def test_a_factory_that_was_read_is_freed() -> None:
    def factory(rate: float) -> Any:
        return optax.sgd(rate)

    inject(factory)(0.1)
    alive = weakref.ref(factory)
    del factory
    gc.collect()
    assert alive() is None


RATES: dict[str, Any] = SCHEDULES | {"number": 1e-3, "Module": cases.Schedule(0.1)}


@pytest.mark.parametrize("name", RATES)
def test_the_numbers_are_those_without_injection_and_the_state_is_that_of_optax(name: str) -> None:
    params, rate = cases.arrays(), RATES[name]
    # A callable node is a schedule for Optax only in a function, and for us since it is a learning rate.
    theirs = (lambda count: rate(count)) if name == "Module" else rate
    ours, plain = inject(optax.adam, only=RATE)(rate), optax.adam(rate)
    with jax.transfer_guard("disallow"):
        state_a = jax.jit(ours.init)(params)
    state_b = plain.init(params)
    assert list(state_a.hyperparams) == [RATE]
    of_optax = optax.inject_hyperparams(optax.adam)(theirs).init(params)
    assert cases.structure(inject(optax.adam)(rate).init(params)) == cases.structure(of_optax)
    for _ in range(3):
        with jax.transfer_guard("disallow"):
            updates_a, state_a = jax.jit(ours.update)(params, state_a, params)
        updates_b, state_b = jax.jit(plain.update)(params, state_b, params)
        assert cases.same_bits(updates_a, updates_b)


# They have arguments without names, or of which they decide something, or functions that are not schedules.
NOT_INJECTED = (
    "MultiSteps chain conditionally_mask conditionally_transform contrib.reduce_on_plateau inject_hyperparams"
)
NOT_INJECTED += (
    " inject_stateful_hyperparams named_chain scale_by_schedule scale_by_sm3 stateless stateless_with_tree_map"
)
FACTORIES = sorted(set(factories.TRANSFORMATIONS) - set(NOT_INJECTED.split()))


@pytest.mark.table
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", FACTORIES)
def test_in_16_bits_an_injected_optimizer_is_bit_for_bit_the_one_that_is_not(name: str) -> None:
    params = {"w": cases.matrix().astype(BF16), "b": cases.matrix().T.astype(BF16)}
    grads = cases.cast(cases.gradient(cases.cast(params, F32)), BF16)
    if name in factories.BY_EXAMPLE:
        grads = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), grads)
    extra = factories.EXTRA.get(name, cases.extra_for(params, grads))

    def updates(tx: Any) -> list[Any]:
        state, out = tx.init(params), []
        for i in range(3):
            update, state = tx.update(jax.tree.map(lambda x, i=i: (1 + i) * x, grads), state, params, **extra)
            out.append(update)
        return out

    with jax.numpy_rank_promotion("allow"):
        found, expected = (
            jax.jit(lambda tx=tx: updates(tx))()
            for tx in (factories.call(tko, name, params, around=inject), factories.call(tko, name, params))
        )
    assert cases.same_bits(found, expected)


def test_a_schedule_is_called_once_by_init_and_once_by_each_update() -> None:
    """And nothing else is called to find out what it is."""
    calls: list[str] = []

    def schedule(count: Any) -> Any:
        calls.append("schedule")
        return branching(count)

    def mask(params: Any) -> Any:
        calls.append("mask")
        return cases.mask_of(params)

    params = cases.model()
    tx = inject(lambda rate, mask: tko.adamw(rate, mask=mask))(schedule, mask)
    assert not calls
    state = tx.init(params)
    assert calls == ["schedule", "mask"]
    for count in range(2):
        given = dict(state.hyperparams)
        _, after = tx.update(cases.gradient(params), state, params)
        assert calls.count("schedule") == count + 2
        assert state.hyperparams == given and after.hyperparams is not state.hyperparams  # it is not written to
        state = after


def test_a_stateful_schedule_is_called_as_often_and_sees_the_extra_arguments() -> None:
    schedule = Stateful()
    tx = inject(optax.sgd)(schedule)
    state = tx.init(jnp.ones(2))
    assert float(state.hyperparams[RATE]) == schedule.calls == 1
    for calls, value in ((2, 0.25), (3, 0.125)):
        before = float(state.hyperparams_states[RATE]["value"])
        updates, state = tx.update(jnp.ones(2), state, jnp.ones(2), value=jnp.array(value))
        assert float(state.hyperparams_states[RATE]["value"]) == value
        assert (schedule.calls, float(updates[0])) == (calls, -before)


@pytest.mark.parametrize("make", [lambda rate: rate, lambda rate: lambda count: rate * 0.5**count])
def test_a_rate_may_be_traced_and_differentiated(make: Any) -> None:
    def after(rate: jax.Array) -> jax.Array:
        tx = inject(tko.sgd)(make(rate))
        params = jnp.ones(2)
        updates, _ = tx.update(params, tx.init(params), params)
        return jnp.sum(optax.apply_updates(params, updates))

    assert float(jax.jit(after)(jnp.array(0.1))) == pytest.approx(1.8)
    assert float(jax.grad(after)(jnp.array(0.1))) == pytest.approx(-2.0)


@needs("optax>=0.2.6")
def test_reduce_on_plateau_is_injected_under_jit_without_what_it_checks() -> None:
    params = cases.arrays()
    tx = inject(tko.contrib.reduce_on_plateau, static_args=("factor", "rtol", "atol"))(factor=0.5, patience=1)
    plain, losses = optax.contrib.reduce_on_plateau(factor=0.5, patience=1), [1.0, 1.0, 1.0, 1.0]
    state, expected = jax.jit(tx.init)(params), plain.init(params)
    for loss in losses:
        updates, state = jax.jit(tx.update)(params, state, params, value=loss)
        wanted, expected = plain.update(params, expected, params, value=loss)
        cases.assert_close(updates, wanted)
    assert float(optax.tree.get(state, "scale")) < 1


# --------------------------------------------------------------------------------------------- the state and its dtypes


def int_by_quoted_annotation(rate: "float") -> Any:
    return optax.sgd(rate)


def for_checkers_alone(rate: Any) -> Any:
    return optax.sgd(rate)


for_checkers_alone.__annotations__["rate"] = "a_name_that_only_type_checkers_know"


def seeded(seed: Any) -> Any:
    return optax.noisy_sgd(0.1, key=seed)


# A factory, its arguments, hyperparam_dtype, and the dtype in which the last argument is kept.
KEPT: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    "an int for a rate": (optax.sgd, {RATE: 1}, None, F32),
    "an int that f32 holds": (optax.sgd, {RATE: 3 * 2**30}, None, F32),
    "an int by a schedule": (optax.sgd, {RATE: lambda _: 1}, None, F32),
    "an int by a quoted annotation": (int_by_quoted_annotation, {"rate": 1}, None, F32),
    "an int by an annotation that cannot be resolved": (for_checkers_alone, {"rate": 1}, None, F32),
    "an int by keyword": (lambda **kwargs: optax.sgd(**kwargs), {RATE: 1}, None, F32),
    "an int, though one is the default": (factory_of(float, 2), {"x": 1}, None, F32),
    "an int or a float": (factory_of(int | float), {"x": 1}, None, F32),
    "a rate, by default an int": (factory_of(optax.ScalarOrSchedule, 2), {"x": 1}, None, F32),
    "a seed by its name": (seeded, {"seed": 1}, None, I32),
    "a seed in keywords": (lambda **kwargs: optax.noisy_sgd(0.1, key=kwargs["seed"]), {"seed": 1}, None, I32),
    "an int or an array": (factory_of(int | jax.Array), {"x": 1}, None, I32),
    "an array, by default an int": (factory_of(jax.typing.ArrayLike, 2), {"x": 1}, None, I32),
    "an array of ints": (optax.sgd, {RATE: jnp.asarray(1, I32)}, None, I32),
    "an array of ints by a schedule": (optax.sgd, {RATE: lambda _: jnp.asarray(1, I32)}, None, I32),
    "bf16": (optax.sgd, {RATE: jnp.array(0.5, BF16)}, None, BF16),
    "a scalar of NumPy": (optax.sgd, {RATE: np.float16(0.5)}, None, F16),
    "hyperparam_dtype": (optax.sgd, {RATE: cases.schedule}, BF16, BF16),
}


@pytest.mark.parametrize("factory, arguments, stated, dtype", KEPT.values(), ids=KEPT)
def test_the_dtype_is_kept_whatever_the_params_are(factory: Any, arguments: Any, stated: Any, dtype: Any) -> None:
    (name,) = arguments
    tx = inject(factory, hyperparam_dtype=stated)(**arguments)
    assert tx.init(cases.arrays(BF16)).hyperparams[name].dtype == dtype
    state = tx.init(cases.arrays())
    for _ in range(3):
        assert state.hyperparams[name].dtype == dtype
        _, state = tx.update(cases.arrays(), state, cases.arrays())


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_what_follows_an_injected_rate_in_a_chain_receives_the_dtype_of_the_gradients(dtype: Any) -> None:
    """NovoGrad refuses another one."""

    def updates(o: Any) -> Any:
        params = cases.arrays(dtype)
        tx = o.chain(o.masked(o.inject_hyperparams(o.scale)(0.5), True), o.novograd(0.1))
        return tx.update(params, tx.init(params), params)[0]

    assert cases.same_bits(updates(tko), updates(optax))


def test_numbers_of_f64_params_are_held_in_f64() -> None:
    with enable_x64(True):
        wide, narrow = (jnp.float64, jnp.complex128), (jnp.complex64, BF16)
        for dtype, held in [(x, "float64") for x in wide] + [(x, "float32") for x in narrow]:
            rate = 0.5 if held == "float32" else 2**24 + 1
            tx = inject(optax.sgd)(rate)
            state = tx.init({"w": jnp.ones(2, dtype)})
            assert (state.hyperparams[RATE].dtype, float(state.hyperparams[RATE])) == (held, rate)
            # It calls init with a placeholder, and init then accepts numbers that f32 cannot hold.
            assert cases.structure(tko.tree_map_params(tx, lambda x: x, state)) == cases.structure(state)


DECAYS: dict[str, Callable[[], Any]] = {
    "an int": lambda: inject(tko.add_decayed_weights)(0),
    "a default": lambda: inject(optax.add_decayed_weights)(),
    "in MultiSteps": lambda: tko.MultiSteps(inject(tko.add_decayed_weights)(0), 1),
}


@pytest.mark.table
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("value", [0.5, 2, np.int64(3), jnp.asarray(2), jnp.asarray(0.5, BF16)], ids=repr)
@pytest.mark.parametrize("name", DECAYS)
def test_any_real_number_can_replace_one_that_is_injected(name: str, value: Any, jit: Any) -> None:
    """In a jitted update too, where a Python number is traced, and in a scan."""
    tx, params = DECAYS[name](), {"w": jnp.ones(2)}
    state = tx.init(params)
    optax.tree.get(state, "hyperparams")["weight_decay"] = value
    for _ in range(2):
        updates, state = jit(tx.update)(params, state, params)
        np.testing.assert_array_equal(updates["w"], (1 + float(value)) * params["w"])
    jax.lax.scan(lambda state, _: (tx.update(params, state, params)[1], None), state, None, 2)


def test_a_hyperparameter_written_into_the_state_in_its_dtype_is_not_traced_again() -> None:
    tx, params, traces = inject(tko.sgd)(0.5), jnp.ones(2), list[int]()

    @jax.jit
    def step(state: Any) -> Any:
        traces.append(1)
        return tx.update(params, state, params)

    state = tx.init(params)
    # A Python number has no dtype of its own: one more trace, then none.
    for value, traced in ((jnp.float32(0.5), 1), (np.float32(0.125), 1), (0.75, 2), (jnp.float32(1.0), 2)):
        state.hyperparams[RATE] = value
        updates, state = step(state)
        assert (float(updates[0]), len(traces)) == (-float(value), traced)


def in_numpy(value: float) -> Any:
    """An array in memory that JAX shares on a CPU, since it is aligned."""
    buffer = np.full(32, value, np.float32)
    start = -buffer.ctypes.data % 64 // buffer.itemsize
    return buffer[start : start + 1].reshape(())


class Constant(optax.schedules.StatefulSchedule):
    """A schedule that returns, and has for its state, an array of the user's own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def init(self) -> Any:
        return self.value

    def update(self, state: Any, **extra: Any) -> Any:
        return state

    def __call__(self, state: Any, **extra: Any) -> Any:
        return self.value


OWN: dict[str, Callable[[Any], Any]] = {
    "a number": lambda x: x,
    "a schedule": lambda x: lambda count: x,
    "a stateful schedule": Constant,
}


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_a_state_shares_no_array_with_the_user(make: Callable[[Any], Any]) -> None:
    """A donated step deletes those of the state, and a user writes to those of NumPy."""
    params = jnp.ones(2)

    def states(rate: Any) -> list[Any]:
        tx = inject(optax.sgd)(make(rate))
        first = tx.init(params)
        _, second = tx.update(params, first, params)
        return [first, second]

    rate = jnp.float32(0.5)
    jax.tree.map(lambda x: x.delete(), states(rate))
    assert float(rate) == 0.5

    written = in_numpy(0.5)
    before = states(written)
    before[0].hyperparams[RATE] = written
    before += [inject(optax.sgd)(0.5).update(params, before[0], params)[1]] if make is OWN["a number"] else []
    before[0].hyperparams[RATE] = 0.5
    expected = jax.tree.map(float, before)
    written[...] = 0.25
    assert jax.tree.map(float, before) == expected


STRICT: dict[str, Callable[[], Any]] = {
    "momentum": lambda: inject(tko.sgd)(0.5, momentum=0.9),
    "a schedule": lambda: inject(tko.sgd)(lambda count: 0.5 ** count.astype(jnp.float32)),
    "of plain Optax": lambda: inject(optax.sgd)(0.5, momentum=0.9),
    "MultiSteps": lambda: tko.MultiSteps(inject(tko.sgd)(0.5), 2),
}


@pytest.mark.table
@pytest.mark.parametrize("make", STRICT.values(), ids=STRICT)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_strict_promotion(make: Any, dtype: Any) -> None:
    """What treekit promotes itself, it casts: the results are those of standard promotion."""
    params, tx = cases.arrays(dtype), make()

    def run() -> Any:
        updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        return updates, jax.jit(tx.update)(params, state, params)

    expected = run()
    with jax.numpy_dtype_promotion("strict"):
        found = run()
    assert cases.same_bits(found, expected)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("answer", [None, False, jnp.ones(1)], ids=repr)
def test_a_schedule_returns_one_real_number_each_time(answer: Any) -> None:
    answers = iter([answer, 0.1, answer])
    tx, params = inject(any_factory)(lambda count: next(answers)), cases.arrays()
    with pytest.raises(TypeError, match="'x' of factory"):
        tx.init(params)
    state = tx.init(params)
    with pytest.raises(TypeError, match="'x' of factory"):
        tx.update(params, state)


def test_so_does_a_stateful_schedule() -> None:
    with pytest.raises(TypeError, match=r"'x' of factory.*f32\[2\]"):
        inject(any_factory)(Stateful((1.0, 1.0))).init(cases.arrays())


# Of numbers that a dtype cannot hold, set_hyperparams has the table.
UNFIT: list[Any] = [
    (optax.sgd, lambda count: 2**24 + 1, None),
    (optax.sgd, 2**70 + 1, BF16),
    (optax.sgd, 0.5, I32),
    (optax.sgd, float("nan"), I32),
    (seeded, 2**40, None),
]


@pytest.mark.parametrize("factory, value, dtype", UNFIT)
def test_a_number_that_its_dtype_cannot_hold_is_an_error(factory: Any, value: Any, dtype: Any) -> None:
    with pytest.raises(TypeError, match=f"of {factory.__name__}"):
        inject(factory, hyperparam_dtype=dtype)(value).init(cases.arrays())


@pytest.mark.parametrize("arguments, fact", [({}, "learning_rate"), ({RATE: 0.1, "rate": 0.2}, "rate")])
def test_arguments_that_the_factory_does_not_take_are_refused_at_once(arguments: Any, fact: str) -> None:
    with pytest.raises(TypeError, match=f"'{fact}'"):
        inject(tko.adamw)(**arguments)
