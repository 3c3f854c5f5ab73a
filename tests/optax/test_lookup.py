"""The namespace: every name of Optax is there, takes raw models and callable specs, and is otherwise Optax's own."""

import functools
import importlib
import inspect
import operator
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import treekit as tk
from tests.optax import cases
from treekit import optax as tko

MODULES = ["optax", "optax.transforms", "optax.contrib", "optax.schedules"]


def both(name: str) -> tuple[ModuleType, ModuleType]:
    """A module of Optax, and the one of treekit that stands for it."""
    return importlib.import_module(name), importlib.import_module(f"treekit.{name}")


# ----------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_optax_is_there_and_listed(module: str) -> None:
    theirs, ours = both(module)
    assert set(dir(theirs)) <= set(dir(ours))
    assert not [name for name in dir(theirs) if not hasattr(ours, name)]
    with pytest.raises(AttributeError, match="no_such_name"):
        print(ours.no_such_name)


@pytest.mark.parametrize("module", MODULES)
def test_star_imports_give_the_names_of_optax_and_ours(module: str) -> None:
    theirs, ours = both(module)
    names: dict[str, Any] = {}
    exec(f"from treekit.{module} import *", names)
    for name in ("__builtins__", "jaxtyping"):  # the import hook of these tests adds the second
        names.pop(name, None)
    expected = {name for name in dir(theirs) if not name.startswith("_")}
    extra = {"apply_gradients", "dtype_preserving", "filtered", "get_ema", "get_hyperparams", "params_ema"}
    extra |= {"decode_state", "encode_state", "scale_by_tree", "set_hyperparams", "summary", "WeightedMultiStepsState"}
    assert set(names) == expected | (extra if module == "optax" else set())
    assert all(getattr(ours, name) is value for name, value in names.items())


def test_the_submodules_and_the_package_hand_out_the_same() -> None:
    for name in ("masked", "partition", "MultiSteps", "apply_if_finite"):
        assert getattr(tko.transforms, name) is getattr(tko, name)
    assert tko.schedules.inject_hyperparams is tko.inject_hyperparams
    assert tko.multi_transform is tko.partition
    assert tko.tree.map_params is tko.tree_utils.tree_map_params is tko.tree_map_params


def test_inject_stateful_hyperparams_is_ours_too() -> None:
    """Optax has two names for the one."""
    params = cases.model()
    mask = jax.tree.map(lambda x: x.ndim > 1, eqx.filter(params.mlp, eqx.is_array))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        state = tko.inject_stateful_hyperparams(tko.adamw)(0.1, mask=mask).init(params.mlp)
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.1)
    assert "mask" not in state.hyperparams


@pytest.mark.parametrize("name", ["contrib", "transforms", "schedules", "losses", "tree", "projections", "assignment"])
def test_submodules_can_be_imported_by_their_dotted_names(name: str) -> None:
    module = importlib.import_module(f"treekit.optax.{name}")
    assert module is getattr(tko, name)


def test_submodules_can_be_imported_first_of_all() -> None:
    code = "import treekit.optax.contrib as c; import treekit.optax.losses as l; print(c.prodigy(0.1).init is not None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


LATER = """
import sys, types, optax
optax.later = sys.modules["optax.later"] = types.ModuleType("optax.later")
optax.later.later_sgd = lambda rate: optax.sgd(rate)
optax.losses.later_loss = abs
import treekit.optax.later
from treekit import optax as tko
from treekit.optax.losses import later_loss
print(later_loss(-2), tko.later.later_sgd(0.1).init([1.0, len]))
"""


def test_names_and_submodules_of_a_later_optax_work() -> None:
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, check=True)
    assert done.stdout == "2 (EmptyState(), EmptyState())\n"


@pytest.mark.parametrize("name", ["contrib._muon", "_src.base", "losses.l2_loss", "no_such_module"])
def test_only_the_submodules_themselves_can_be_imported(name: str) -> None:
    """Python would run Optax's file a second time, and its classes would not be Optax's."""
    with pytest.raises(ModuleNotFoundError, match=f"No module named 'treekit.optax.{name}'"):
        importlib.import_module(f"treekit.optax.{name}")


@pytest.mark.parametrize("name", ["", ".contrib", ".losses", ".tree"])
def test_reloading_gives_the_same_module_and_names(name: str) -> None:
    module = importlib.import_module(f"treekit.optax{name}")
    before = {key: getattr(module, key) for key in module.__all__}
    assert importlib.reload(module) is module
    assert {key: getattr(module, key) for key in module.__all__} == before


def factories(module: ModuleType) -> dict[str, Any]:
    """Everything in a module of Optax that returns a transformation; nadam and nadamw are partials."""
    functions = {
        name: x for name, x in vars(module).items() if inspect.isfunction(x) or isinstance(x, functools.partial)
    }
    return {
        name: x
        for name, x in functions.items()
        if "GradientTransformation" in str(inspect.signature(x).return_annotation)
    }


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """The name, kind and default of each, but for `only`, which is ours, and a default of which no two are equal."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.name == "linesearch" or p.default) for p in found if p.name != "only"]


@pytest.mark.parametrize("module", MODULES)
def test_help_shows_the_signature_and_the_docstring_of_optax(module: str) -> None:
    theirs, ours = both(module)
    assert factories(theirs)
    for name, factory in factories(theirs).items():
        assert parameters(getattr(ours, name)) == parameters(factory), name
        assert inspect.getdoc(getattr(ours, name)), name


@pytest.mark.parametrize(
    "name",
    [
        "apply_updates",
        "incremental_update",
        "periodic_update",
        "contrib.schedule_free_eval_params",
        "tree_map_params",
        "value_and_grad_from_state",
    ],
)
def test_our_functions_take_the_arguments_of_optax(name: str) -> None:
    theirs, ours = (inspect.signature(operator.attrgetter(name)(m)).parameters for m in (optax, tko))
    assert [(p.name, p.kind, p.default) for p in theirs.values()] == [
        (p.name, p.kind, p.default) for p in ours.values() if p.name in theirs
    ]


def test_multi_steps_takes_the_arguments_of_optax() -> None:
    theirs, ours = (inspect.signature(m.MultiSteps).parameters for m in (optax, tko))
    assert [(p.name, p.default) for p in theirs.values()] == [(p.name, p.default) for p in ours.values()][:-1]
    assert list(ours)[-1] == "weighted"
    assert {name for name in dir(optax.MultiSteps) if name[0] != "_"} <= set(dir(tko.MultiSteps))


def test_a_transformation_is_a_transformation() -> None:
    for tx in (tko.adam(1e-3), tko.masked(optax.adam(1e-3), True), tko.chain(tko.sgd(0.1)), tko.contrib.prodigy()):
        assert isinstance(tx, optax.GradientTransformationExtraArgs)
        init, update = tx
        assert (tx.init, tx.update) == (init, update)
    assert isinstance(tko.adam(1e-3), tko.GradientTransformation)
    assert tko.GradientTransformation is optax.GradientTransformation
    assert tko.MaskedNode is optax.MaskedNode


# ------------------------------------------------------------------------------------------------------------ laws


def cells() -> list[Any]:
    table = [(name, kind) for kind in ("eqx_raw", "bf16_f32_grads") for name in cases.OPTIMIZERS]
    table += [("adam", "int_key"), ("lbfgs", "int_key"), *cases.sample(0)]
    return [pytest.param(*cell, id="-".join(cell)) for cell in sorted(set(table) - cases.NOT_OPTAX.keys())]


@pytest.mark.parametrize("name, kind", cells())
def test_laws(name: str, kind: str) -> None:
    cases.check_laws(cases.OPTIMIZERS[name](tko), kind)


@pytest.mark.parametrize("kind", cases.PARAMS_X64)
@pytest.mark.parametrize("name", ["adamw", "numbers"])
def test_laws_in_x64(name: str, kind: str) -> None:
    with jax.enable_x64(True):
        tx = cases.OPTIMIZERS[name](tko)
        cases.check_laws(tx, kind)
        cases.check_laws(tko.MultiSteps(tko.apply_if_finite(tx, 2), 2).gradient_transformation(), kind)


@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_on_plain_params_it_is_optax(name: str) -> None:
    cases.same_as_optax(cases.OPTIMIZERS[name](tko), cases.OPTIMIZERS[name](optax), "f32")


@pytest.mark.parametrize("kind", ["bf16", "none", "empty", "bare", "namedtuple", "eqx_filtered", "nnx", "linen"])
def test_on_params_that_optax_takes_it_is_optax(kind: str) -> None:
    cases.same_as_optax(tko.adamw(0.01), optax.adamw(0.01), kind)


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name, kind", [pytest.param(*cell, id="-".join(cell)) for cell in cases.NOT_OPTAX])
def test_the_exceptions_are_those_of_optax(name: str, kind: str) -> None:
    """Strict: plain Optax breaks on the same leaves in a plain list."""
    params = cases.PARAMS[kind]()
    pairs = zip(
        jax.tree.leaves(params),
        jax.tree.leaves(cases.grads_of(kind, params), is_leaf=lambda x: x is None),
        strict=True,
    )
    numbers = [(jnp.asarray(p), g) for p, g in pairs if tk.is_inexact_array(p) or isinstance(p, (bool, int, float))]
    ints = [(p, None) for p in jax.tree.leaves(params) if tk.is_array(p) and jnp.issubdtype(p.dtype, jnp.integer)]
    plain = [p for p, _ in numbers + ints]
    grads = [jnp.zeros_like(p) if g is None else g for p, g in numbers + ints]
    tx = optax.with_extra_args_support(cases.OPTIMIZERS[name](optax))

    def train(plain: Any) -> Any:
        state = tx.init(plain)
        for _ in range(3):
            updates, state = tx.update(grads, state, plain, **cases.extra_for(plain, grads))
            plain = optax.apply_updates(plain, updates)
        return plain

    try:
        end = train(plain)
    except (TypeError, ValueError, IndexError, DeprecationWarning):
        return
    assert not all(bool(jnp.isfinite(x).all()) for x in end)


def test_a_raw_model_needs_no_params_where_optax_needs_none() -> None:
    """What Equinox's documentation writes, `optim.update(grads, opt_state)`, with a model that has a Python float."""
    model = cases.model()
    tx = tko.adam(0.1)
    updates, _ = tx.update(cases.gradient(model), tx.init(model))
    assert cases.structure(updates) == cases.structure(cases.gradient(model))


def test_functions_strings_and_keys_never_reach_the_inner_transformation() -> None:
    seen: list[Any] = []

    def init(params: Any) -> optax.EmptyState:
        seen.extend(jax.tree.leaves(params))
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        seen.extend(jax.tree.leaves((updates, params)))
        return updates, state

    tx = tko.chain(optax.GradientTransformation(init, update))
    params = cases.PARAMS["int_key"]()
    updates, _ = tx.update(cases.grads_of("int_key", params), tx.init(params), params)
    assert updates["key"] is updates["f"] is updates["s"] is updates["n"] is None
    assert seen and all(isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.number) for x in seen)


# ------------------------------------------------------------------------------------ callable trees as arguments


class Scale(eqx.Module):
    """A callable tree that is a schedule: with an array, or with a Python float."""

    rate: Any

    def __call__(self, count: Any) -> Any:
        return self.rate / (1 + count)


MASKED: dict[str, Callable[[Any, Any], optax.GradientTransformation]] = {
    "adamw": lambda o, mask: o.adamw(0.1, weight_decay=0.5, mask=mask),
    "lamb": lambda o, mask: o.lamb(0.1, weight_decay=0.5, mask=mask),
    "lars": lambda o, mask: o.lars(0.1, weight_decay=0.5, weight_decay_mask=mask, trust_ratio_mask=True),
    "lion": lambda o, mask: o.lion(0.1, weight_decay=0.5, mask=mask),
    "adamaxw": lambda o, mask: o.adamaxw(0.1, weight_decay=0.5, mask=mask),
    "nadamw": lambda o, mask: o.nadamw(0.1, weight_decay=0.5, mask=mask),
    "adan": lambda o, mask: o.adan(0.1, weight_decay=0.5, mask=mask),
    "adafactor": lambda o, mask: o.adafactor(0.1, weight_decay_rate=0.5, weight_decay_mask=mask),
    "add_decayed_weights": lambda o, mask: o.transforms.add_decayed_weights(0.5, mask),
    "transforms.freeze": lambda o, mask: o.transforms.freeze(mask),
    "ademamix": lambda o, mask: o.contrib.ademamix(0.1, weight_decay=0.5, mask=mask),
    "muon_decay": lambda o, mask: o.contrib.muon(0.1, weight_decay=0.5, weight_decay_mask=mask),
}


@pytest.mark.parametrize("name", MASKED)
def test_every_factory_takes_every_mask(name: str) -> None:
    """On the raw model, and with the numbers of plain Optax on a plain dict with a plain mask."""
    model = cases.model().mlp
    plain = dict(enumerate(jax.tree.leaves(eqx.filter(model, eqx.is_array))))
    grads = jax.tree.map(lambda x: 0.1 * jnp.ones_like(x), plain)
    theirs = MASKED[name](optax, {k: x.ndim >= 2 for k, x in plain.items()})
    expected, _ = theirs.update(grads, theirs.init(plain), plain)
    mask = jax.tree.map(lambda x: x.ndim >= 2, eqx.filter(model, eqx.is_array))
    assert callable(mask)
    by_partial = cases.Partial(lambda n, params: jax.tree.map(lambda x: x.ndim >= n, params), jnp.array(2))
    for given in (mask, by_partial) if name != "transforms.freeze" else (mask,):  # which takes no function
        ours = MASKED[name](tko, given)
        updates, _ = ours.update(ones_like_arrays(model), ours.init(model), model)
        cases.assert_close(jax.tree.leaves(updates), list(expected.values()))


@pytest.mark.parametrize("name", sorted(MASKED.keys() - {"transforms.freeze"}))
def test_a_mask_of_a_tuple_is_a_tree(name: str) -> None:
    params = (jnp.ones((2, 2)), {"a": jnp.ones(2)})
    got, expected = (MASKED[name](o, (True, {"a": False})).init(params) for o in (tko, optax))
    assert cases.structure(got) == cases.structure(expected)


@pytest.mark.parametrize("name", ["adamw", "lars", "muon_decay", "add_decayed_weights"])
def test_a_mask_made_from_the_filtered_model_fits_the_raw_one(name: str) -> None:
    """Where that has None, the raw model has Python numbers, which hold shows as arrays."""
    model = {"net": eqx.nn.Sequential([cases.model().mlp, eqx.nn.Dropout(0.3)]), "n": 3, "i": jnp.arange(2)}
    grads = jax.tree.map(lambda x: jnp.ones_like(x) if eqx.is_inexact_array(x) else None, model)
    masks = [
        jax.tree.map(lambda x: x.ndim >= 2, eqx.filter(model, keep)) for keep in (eqx.is_array, tk.is_inexact_array)
    ]
    by_function = jax.tree.map(lambda x: eqx.is_array(x) and x.ndim >= 2, model)
    made = [MASKED[name](tko, mask) for mask in (*masks, lambda params: by_function)]
    first, second, expected = (jax.tree.leaves(tx.update(grads, tx.init(model), model)[0]) for tx in made)
    cases.assert_close(first, expected)
    cases.assert_close(second, expected)


def test_what_is_no_transformation_is_an_error_that_says_what_to_do() -> None:
    """In a process of its own, where no beartype stands before the check."""
    code = """
import optax
from treekit import optax as tko
params = [1.0]
for make in (
    lambda: tko.dtype_preserving(optax.adam),
    lambda: tko.filtered(optax.adam),
    lambda: tko.MultiSteps(optax.adam, 4),
    lambda: tko.apply_if_finite(optax.adam, 4),
    lambda: tko.masked([True], optax.adam(0.1)).init(params),
    lambda: tko.partition({"w": "a"}, {"a": optax.adam(0.1)}).init(params),
    lambda: tko.inject_hyperparams(tko.adam(0.1)),
    lambda: tko.chain(tko.clip(1.0), optax.MultiSteps),
):
    try:
        make()
    except TypeError as error:
        assert "optax.adam(1e-3)" in str(error), error
    else:
        raise AssertionError
try:
    tko.partition([tko.sgd(0.1)], "a")
except TypeError as error:
    assert "transforms must map labels to transformations, {'decay': tx, …}, found [sgd" in str(error), error
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def ones_like_arrays(model: Any) -> Any:
    return jax.tree.map(lambda x: 0.1 * jnp.ones_like(x), eqx.filter(model, eqx.is_array))


def test_selective_transform_freezes_what_a_callable_tree_says() -> None:
    """Its `freeze_mask` is always a tree, also where that can be called."""
    model = eqx.filter(cases.model().mlp, eqx.is_array)
    frozen = jax.tree.map(lambda x: x.ndim < 2, model)
    assert callable(frozen)
    for o in (optax, tko):
        tx = o.transforms.selective_transform(o.sgd(0.1), freeze_mask=frozen)
        updates, _ = tx.update(ones_like_arrays(model), tx.init(model), model)
        moved = jax.tree.map(lambda u: bool((u != 0).all()), updates)
        assert jax.tree.leaves(moved) == [not f for f in jax.tree.leaves(frozen)], o.__name__


def test_sophia_with_a_callable_mask_and_an_objective_on_the_raw_model() -> None:
    model = cases.model()
    mask = jax.tree.map(lambda x: eqx.is_array(x) and x.ndim >= 2, model)
    tx = tko.contrib.sophia(0.1, weight_decay_mask=mask)
    seen = []

    def objective(model: Any) -> jax.Array:
        seen.append(model.name)
        return cases.loss(model)

    updates, _ = tx.update(cases.gradient(model), tx.init(model), model, obj_fn=objective)
    assert set(seen) == {"model"}
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(updates))


def test_sam_calls_the_gradient_with_the_raw_model() -> None:
    model = cases.model()
    tx = tko.contrib.sam(tko.sgd(0.1), tko.sgd(0.05), sync_period=2, opaque_mode=True)
    updates, _ = tx.update(cases.gradient(model), tx.init(model), model, grad_fn=lambda model, _: cases.gradient(model))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(updates))


def test_muon_takes_callable_dimension_numbers() -> None:
    model = cases.model().mlp
    numbers = tko.contrib.MuonDimensionNumbers(0, 1)
    tree = jax.tree.map(lambda x: numbers if x.ndim == 2 else None, eqx.filter(model, eqx.is_array))
    assert callable(tree)
    plain = dict(enumerate(jax.tree.leaves(eqx.filter(model, eqx.is_array))))
    theirs = optax.contrib.muon(
        0.1, muon_weight_dimension_numbers={k: numbers if x.ndim == 2 else None for k, x in plain.items()}
    )
    expected, _ = theirs.update(jax.tree.map(jnp.ones_like, plain), theirs.init(plain), plain)
    for spec in (tree, lambda _: tree):
        tx = tko.contrib.muon(0.1, muon_weight_dimension_numbers=spec)
        updates, _ = tx.update(jax.tree.map(jnp.ones_like, eqx.filter(model, eqx.is_array)), tx.init(model), model)
        cases.assert_close(jax.tree.leaves(updates), list(expected.values()))


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(cases.Partial(lambda rate, count: rate / (1 + count), jnp.array(0.5)), id="Partial"),
        pytest.param(cases.Partial(lambda rate, count: rate / (1 + count), 0.5), id="Partial_of_a_float"),
        pytest.param(Scale(jnp.array(0.5)), id="Module"),
        pytest.param(Scale(0.5), id="Module_of_a_float"),
        pytest.param(eqx.filter_jit(Scale(jnp.array(0.5))), id="filter_jit"),
    ],
)
def test_a_schedule_that_is_a_tree_is_a_schedule_as_in_optax(schedule: Any) -> None:
    cases.same_as_optax(tko.sgd(schedule), optax.sgd(schedule), "f32")
    tx = tko.scale_by_schedule(schedule)
    updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    cases.assert_close(updates, 0.5 * jnp.ones(2))


def test_a_function_of_several_arguments_that_is_a_tree_is_handed_on() -> None:
    """`optax.stateless` and the like call what they are given with more than the params."""
    grads = jnp.ones(2)
    scale = cases.Partial(lambda factor, g, p: factor * g, jnp.array(3.0))
    for name in ("stateless", "stateless_with_tree_map"):
        ours, theirs = (getattr(o, name)(scale) for o in (tko, optax))
        updates, _ = ours.update(grads, ours.init(grads), grads)
        expected, _ = theirs.update(grads, theirs.init(grads), grads)
        cases.assert_close(updates, expected)


def test_functions_that_make_no_transformation_get_the_trees_they_are_given() -> None:
    """A filtered Equinox model is a callable tree, and in these it is a tree of numbers."""
    model = eqx.filter(cases.model().mlp, eqx.is_array)
    cases.assert_close(tko.update_moment(model, model, 0.9, 1), optax.update_moment(model, model, 0.9, 1))
    cases.assert_close(
        tko.update_moment_per_elem_norm(model, model, 0.9, 2), optax.update_moment_per_elem_norm(model, model, 0.9, 2)
    )
    state = optax.contrib.schedule_free_sgd(0.1).init(model)
    cases.assert_close(
        tko.contrib.schedule_free_eval_params(state, model), optax.contrib.schedule_free_eval_params(state, model)
    )
    assert tko.tree.norm(model) == optax.tree.norm(model)


# ------------------------------------------------------------------------------------------------------- lookahead


def test_lookahead_is_as_optax_has_it() -> None:
    params = optax.LookaheadParams.init_synced(cases.arrays())
    ours, theirs = (o.lookahead(o.sgd(0.1), sync_period=2, slow_step_size=0.5) for o in (tko, optax))
    a = b = params
    state_a, state_b = ours.init(a), theirs.init(b)
    for _ in range(4):
        updates, state_a = ours.update(a.fast, state_a, a)
        a = optax.apply_updates(a, updates)
        updates, state_b = theirs.update(b.fast, state_b, b)
        b = optax.apply_updates(b, updates)
    cases.assert_close(a, b)
    assert cases.structure(state_a) == cases.structure(state_b)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: tko.masked(tx, True),
        lambda tx: tko.filtered(tx),
        lambda tx: tko.dtype_preserving(tx),
        lambda tx: tko.apply_if_finite(tx, 1),
        lambda tx: tko.MultiSteps(tx, 1).gradient_transformation(),
        lambda tx: tko.chain(tx),
        lambda tx: tko.partition({"a": tx}, "a"),
    ],
)
def test_wrapping_lookahead_is_a_clear_error(wrap: Callable[[Any], Any]) -> None:
    tx = wrap(tko.lookahead(tko.sgd(0.1), sync_period=2, slow_step_size=0.5))
    for params in (cases.arrays(), optax.LookaheadParams.init_synced(cases.arrays())):
        with pytest.raises(TypeError, match=r"^optax\.lookahead, whose params are a pair, cannot be wrapped"):
            tx.init(params)


def test_an_aggregator_of_gradients_by_example_stays_one() -> None:
    aggregating: Any = tko.experimental.aggregating
    params = jnp.ones(3)
    grads = jnp.arange(6.0).reshape(2, 3)
    tx = aggregating.add_mean_variance_to_opt(tko.sgd(0.1), 0.9)
    assert isinstance(tx, aggregating.Aggregator)
    updates, _ = tx.update(grads, tx.init(params), params)
    cases.assert_close(updates, -0.1 * grads.mean(axis=0))
