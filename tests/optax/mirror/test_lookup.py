"""The namespace: every name of Optax is there, takes raw models and callable specs, and is otherwise Optax's own."""

import copy
import importlib
import inspect
import pickle
import pydoc
import re
import rlcompleter
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from tests.releases import enable_x64, needs
from treekit import optax as tko

MODULES = ["optax", "optax.transforms", "optax.contrib", "optax.schedules"]
SUBMODULES = [name for name, x in vars(optax).items() if isinstance(x, ModuleType) and x.__name__ == f"optax.{name}"]


def both(name: str) -> tuple[ModuleType, ModuleType]:
    """A module of Optax, and the one of treekit that stands for it."""
    return importlib.import_module(name), importlib.import_module(f"treekit.{name}")


@pytest.mark.parametrize("module", ["optax", *(f"optax.{name}" for name in SUBMODULES)])
def test_a_module_has_the_public_names_of_optax_and_no_other(module: str) -> None:
    theirs, ours = both(module)
    expected = {name for name in dir(theirs) if not name.startswith("_")}
    # The import hook of these tests adds jaxtyping to every module.
    assert {name for name in dir(ours) if not name.startswith("_")} == {*ours.__all__} == expected
    assert {name for name in vars(ours) if not name.startswith("_")} <= {*expected, "jaxtyping"}
    names: dict[str, Any] = {}
    exec(f"from treekit.{module} import *", names)
    names.pop("__builtins__")
    assert names == {name: getattr(ours, name) for name in expected}


# Names that a user may look for in treekit.optax, and what the error says to write.
ELSEWHERE = {
    "summary": "treekit.training.summary",
    "apply_gradients": "treekit.training.apply_gradients",
    "WeightedMultiStepsState": "treekit.training.WeightedMultiStepsState",
    "graft": "treekit.graft",
    "nothing": "",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_of_another_module_says_what_to_write(name: str) -> None:
    with pytest.raises(AttributeError, match=f"{name}.*{re.escape(ELSEWHERE[name])}"):
        getattr(tko, name)
    assert not hasattr(tko, name)


def test_the_submodules_and_the_package_hand_out_the_same() -> None:
    for name in ("contrib", "transforms", "schedules", "losses", "tree", "projections", "assignment"):
        assert importlib.import_module(f"treekit.optax.{name}") is getattr(tko, name)
    for name in ("masked", "partition", "MultiSteps", "apply_if_finite"):
        assert getattr(tko.transforms, name) is getattr(tko, name)
    assert tko.schedules.inject_hyperparams is tko.inject_stateful_hyperparams is tko.inject_hyperparams
    assert tko.multi_transform is tko.partition
    assert tko.tree.map_params is tko.tree_utils.tree_map_params is tko.tree_map_params


def printed(program: str) -> list[str]:
    """The lines that a process prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


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


def test_the_names_of_a_later_optax_work() -> None:
    assert printed(LATER) == ["2 (EmptyState(), EmptyState())"]


EARLIER = """
import sys, optax
del optax.monitor, optax.transforms.monitor, optax.MonitorState, optax.measure_with_ema, optax.contrib.GaLoreState
del optax.freeze, optax.microbatching, sys.modules["optax.microbatching"]
from treekit import optax as tko
print(*(hasattr(tko, name) or name in dir(tko) for name in ("monitor", "measure_with_ema", "microbatching")))
print(hasattr(tko, "freeze"), tko.transforms.freeze.__module__, tko.adam(0.1).init([1.0, len])[0].mu)
try:
    import treekit.optax.microbatching
except ModuleNotFoundError as error:
    print(error.name)
"""


@needs("optax>=0.2.8")
def test_what_an_earlier_optax_does_not_have_is_absent() -> None:
    """Also the folder of a stub is not a module."""
    assert printed(EARLIER) == [
        "False False False",
        "False treekit.optax._wrappers.select [Array(0., dtype=float32), None]",
        "treekit.optax.microbatching",
    ]


@pytest.mark.parametrize("name", ["contrib._muon", "_src.base", "losses.l2_loss", "no_such_module"])
def test_only_the_submodules_themselves_can_be_imported(name: str) -> None:
    """Python would run Optax's file a second time, and its classes would not be Optax's."""
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module(f"treekit.optax.{name}")
    assert raised.value.name == f"treekit.optax.{name}"


@pytest.mark.parametrize("name", ["", ".losses"])
def test_reloading_gives_the_same_module_and_names(name: str) -> None:
    module = importlib.import_module(f"treekit.optax{name}")
    before = {key: getattr(module, key) for key in module.__all__}
    assert importlib.reload(module) is module
    assert {key: getattr(module, key) for key in module.__all__} == before


@pytest.mark.parametrize("module", [*MODULES, "optax.tree", "optax.tree_utils"])
def test_functions_are_pickled_and_copied_by_reference_and_have_the_source_of_optax(module: str) -> None:
    theirs, ours = both(module)
    for name in (name for name in ours.__all__ if callable(getattr(ours, name))):
        their, our = getattr(theirs, name), getattr(ours, name)
        if inspect.isfunction(our):
            assert pickle.loads(pickle.dumps(our)) is copy.copy(our) is copy.deepcopy(our) is our, name
        if inspect.isfunction(their) and our.__module__ == ours.__name__:
            assert inspect.getsource(our) == inspect.getsource(their)
            assert inspect.getmodule(our) is ours


def test_python_helps_with_modules_and_names() -> None:
    for module in (tko, importlib.import_module("treekit.optax.contrib")):
        theirs = importlib.import_module(module.__name__.removeprefix("treekit."))
        complete = rlcompleter.Completer({"o": module}).complete
        for name in ("muon", "sam") if module is tko.contrib else ("adam", "masked"):
            assert f"{name}(" in pydoc.plain(pydoc.render_doc(module))
            found = str(complete(f"o.{name}", 0))
            assert found.startswith(f"o.{name}") and name in dir(module)
        assert {*dir(module)} >= {*dir(theirs)}


def parameter(x: inspect.Parameter) -> tuple[Any, ...]:
    """Its name, kind and default, unless that is one of which no two are equal."""
    return x.name, x.kind, x.name == "linesearch" or x.default


@pytest.mark.parametrize("module", [*MODULES, "optax.tree"])
def test_what_is_ours_has_the_parameters_of_optax_and_a_docstring(module: str) -> None:
    """In Optax's order; a few have more."""
    theirs, ours = both(module)
    for name, their in vars(theirs).items():
        if name.startswith("_") or not callable(their) or (our := getattr(ours, name)) is their:
            continue
        expected, found = (inspect.signature(x).parameters for x in (their, our))
        assert [parameter(x) for x in found.values() if x.name in expected] == list(map(parameter, expected.values()))
        assert inspect.getdoc(our), name
        assert not isinstance(their, type) or {x for x in dir(their) if x[0] != "_"} <= set(dir(our))


def cells() -> list[Any]:
    table = [(name, kind) for kind in ("eqx_raw", "bf16_f32_grads") for name in cases.OPTIMIZERS]
    table += [("adam", "int_key"), ("lbfgs", "int_key"), *cases.sample(0)]
    return [pytest.param(*cell, id="-".join(cell)) for cell in sorted(set(table) - cases.NOT_OPTAX.keys())]


@pytest.mark.table
@pytest.mark.parametrize("name, kind", cells())
def test_laws(name: str, kind: str) -> None:
    cases.check_laws(cases.OPTIMIZERS[name](tko), kind)


@pytest.mark.table
@pytest.mark.parametrize("kind", cases.PARAMS_X64)
@pytest.mark.parametrize("name", ["adamw", "numbers"])
def test_laws_in_x64(name: str, kind: str) -> None:
    with enable_x64(True):
        tx = cases.OPTIMIZERS[name](tko)
        cases.check_laws(tx, kind)
        cases.check_laws(tko.MultiSteps(tko.apply_if_finite(tx, 2), 2).gradient_transformation(), kind)


PLAIN = ("bf16", "f16", "mixed", "c64", "none", "empty", "bare", "namedtuple", "eqx_filtered", "nnx", "linen")
ON_PLAIN = (
    [(name, "f32") for name in cases.OPTIMIZERS] + [("adamw", kind) for kind in PLAIN] + [("lbfgs", "eqx_filtered")]
)


@pytest.mark.table
@pytest.mark.parametrize("name, kind", ON_PLAIN)
def test_on_plain_params_it_is_optax(name: str, kind: str) -> None:
    cases.same_as_optax(cases.OPTIMIZERS[name](tko), cases.OPTIMIZERS[name](optax), kind)


MASKED: dict[str, Callable[[Any, Any], optax.GradientTransformation]] = {
    "adamw": lambda o, mask: o.adamw(0.1, weight_decay=0.5, mask=mask),
    "lars": lambda o, mask: o.lars(0.1, weight_decay=0.5, weight_decay_mask=mask, trust_ratio_mask=True),
    "adafactor": lambda o, mask: o.adafactor(0.1, weight_decay_rate=0.5, weight_decay_mask=mask),
    "add_decayed_weights": lambda o, mask: o.transforms.add_decayed_weights(0.5, mask),
    "muon_decay": lambda o, mask: o.contrib.muon(0.1, weight_decay=0.5, weight_decay_mask=mask),
}


def is_matrix(x: Any) -> bool:
    return eqx.is_array(x) and x.ndim >= 2


@pytest.mark.table
@pytest.mark.parametrize("name", MASKED)
def test_every_factory_takes_every_mask(name: str) -> None:
    """On the raw model, where the filtered one has None for numbers, and as plain Optax with a plain dict."""
    model = {"net": eqx.nn.Sequential([cases.model().mlp, eqx.nn.Dropout(0.3)]), "n": 3, "i": jnp.arange(2)}
    grads = jax.tree.map(lambda x: 0.1 * jnp.ones_like(x), eqx.filter(model, eqx.is_inexact_array))
    plain = dict(enumerate(cases.inexact(model)))
    theirs = MASKED[name](optax, {k: is_matrix(x) for k, x in plain.items()})
    expected, _ = theirs.update(dict(enumerate(jax.tree.leaves(grads))), theirs.init(plain), plain)
    masks = [jax.tree.map(is_matrix, eqx.filter(model, keep)) for keep in (eqx.is_array, eqx.is_inexact_array)]
    masks.append(cases.Partial(lambda _, params: jax.tree.map(is_matrix, params), jnp.array(2)))
    for mask in masks:
        ours = MASKED[name](tko, mask)
        updates, _ = ours.update(grads, ours.init(model), model)
        cases.assert_close(jax.tree.leaves(updates), list(expected.values()))


@needs("optax.contrib.MuonDimensionNumbers")
def test_muon_takes_callable_dimension_numbers() -> None:
    numbers = tko.contrib.MuonDimensionNumbers(0, 1)

    def numbers_of(params: Any) -> Any:
        return jax.tree.map(lambda x: numbers if x.ndim == 2 else None, eqx.filter(params, eqx.is_array))

    def updates(o: Any, params: Any, spec: Any) -> Any:
        tx = o.contrib.muon(0.1, muon_weight_dimension_numbers=spec)
        grads = jax.tree.map(jnp.ones_like, eqx.filter(params, eqx.is_array))
        return jax.tree.leaves(tx.update(grads, tx.init(params), params)[0])

    model = cases.model().mlp
    plain = dict(enumerate(cases.inexact(model)))
    for spec in (numbers_of(model), numbers_of):
        cases.assert_close(updates(tko, model, spec), updates(optax, plain, numbers_of(plain)))


OF_FLOAT, OF_ARRAY = cases.Schedule(0.5), cases.Schedule(jnp.array(0.5))


@pytest.mark.parametrize("schedule", [OF_FLOAT, OF_ARRAY, cases.Partial(cases.Schedule.__call__, OF_FLOAT)])
def test_a_schedule_that_is_a_tree_is_a_schedule_as_in_optax(schedule: Any) -> None:
    cases.same_as_optax(tko.sgd(schedule), optax.sgd(schedule), "f32")


@pytest.mark.parametrize("name", ["stateless", "stateless_with_tree_map"])
def test_a_function_of_several_arguments_that_is_a_tree_is_handed_on(name: str) -> None:
    """These call what they are given with more than the params."""
    tx = getattr(tko, name)(cases.Partial(lambda factor, g, p: factor * g, jnp.array(3.0)))
    updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))
    cases.assert_close(updates, 3 * jnp.ones(2))


def test_a_named_chain_may_be_empty_and_a_chain_not() -> None:
    cases.same_as_optax(tko.named_chain(), optax.named_chain(), "f32")
    for o in (tko, optax):
        with pytest.raises(ValueError, match="received none" if o is tko else "unpack"):
            o.chain()


@needs("optax.experimental.aggregating")
def test_an_aggregator_of_gradients_by_example_stays_one() -> None:
    aggregating: Any = tko.experimental.aggregating
    params = jnp.ones(3)
    grads = jnp.arange(6.0).reshape(2, 3)
    tx = aggregating.add_mean_variance_to_opt(tko.sgd(0.1), 0.9)
    assert isinstance(tx, aggregating.Aggregator)
    updates, _ = tx.update(grads, tx.init(params), params)
    cases.assert_close(updates, -0.1 * grads.mean(axis=0))
