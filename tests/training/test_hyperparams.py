"""get_hyperparams and set_hyperparams: read and changed anywhere in a state, and nothing is traced again."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.optax import cases
from tests.releases import P
from tests.trees import FLOAT
from treekit import optax as tko
from treekit import training


def sgd(o: Any) -> Any:
    return o.inject_hyperparams(o.sgd)(0.5)


# How it is wrapped, the key that its rate has then, and a kind of params for ours.
WRAPPED: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "bare": (lambda o, tx: tx, "learning_rate", "eqx_raw"),
    "chain": (lambda o, tx: o.chain(o.clip(10.0), tx), "1.learning_rate", "nnx"),
    "multi_steps": (
        lambda o, tx: o.MultiSteps(tx, 1).gradient_transformation(),
        "inner_opt_state.learning_rate",
        "bf16",
    ),
    "injected": (
        lambda o, tx: o.inject_hyperparams(lambda scale: o.chain(tx, o.scale(scale)))(1.0),
        "inner_state.0.learning_rate",
        "legacy",
    ),
}


@pytest.mark.parametrize("o", [optax, tko], ids=["of_optax", "of_ours"])
@pytest.mark.parametrize("name", WRAPPED)
def test_read_and_changed_while_training(name: str, o: Any) -> None:
    wrap, key, kind = WRAPPED[name]
    kind = "f32" if o is optax else kind
    tx = wrap(o, sgd(o))
    params = cases.make(kind)
    grads = jax.tree.map(jnp.ones_like, cases.grads_of(kind, params))
    state = tx.init(params)
    traces = 0

    def step(grads: Any, state: Any) -> Any:
        nonlocal traces
        traces += 1
        return tx.update(grads, state, cases.grads_of(kind, params))

    jitted = jax.jit(step)
    for rate in (0.5, 0.25, jnp.float32(0.125), np.float64(2.0), 1):
        new = state if rate == 0.5 else training.set_hyperparams(state, {key: rate})
        assert float(training.get_hyperparams(new)[key]) == rate
        assert cases.signature(new) == cases.signature(state)
        cases.assert_close(training.set_hyperparams(state, learning_rate=rate), new)
        updates, state = jitted(grads, new)
        assert {float(x.min()) for x in jax.tree.leaves(updates)} == {-float(rate)}
        assert float(training.get_hyperparams(state)[key]) == rate
    assert traces == 1


def groups(o: Any = tko, b: Any = 0.25) -> Any:
    return o.partition(
        {"a": o.inject_hyperparams(o.sgd)(0.5, momentum=0.75), "b": o.inject_hyperparams(o.sgd)(b)},
        {"w": "a", "b": "b"},
    )


KEYS = [f"inner_states.{key}" for key in ("a.inner_state.learning_rate", "a.inner_state.momentum")]
OTHER = "inner_states.b.inner_state.learning_rate"


def rates(state: Any) -> dict[str, float]:
    return {key: float(x) for key, x in training.get_hyperparams(state).items()}


@pytest.mark.parametrize("o", [optax, tko], ids=["of_optax", "of_ours"])
def test_one_of_several_is_named_by_its_key(o: Any) -> None:
    state = groups(o).init(cases.arrays())
    assert rates(state) == {KEYS[0]: 0.5, KEYS[1]: 0.75, OTHER: 0.25}
    assert rates(training.set_hyperparams(state, learning_rate=1.0)) == {KEYS[0]: 1.0, KEYS[1]: 0.75, OTHER: 1.0}
    both = training.set_hyperparams(state, {OTHER: 2.0}, learning_rate=1.0, momentum=0.5)
    assert rates(both) == {KEYS[0]: 1.0, KEYS[1]: 0.5, OTHER: 2.0}
    assert rates(training.set_hyperparams(both, training.get_hyperparams(state))) == rates(state)
    assert rates(state) == rates(training.set_hyperparams(state, {})) == {KEYS[0]: 0.5, KEYS[1]: 0.75, OTHER: 0.25}


def test_keys_that_read_alike_are_written_out() -> None:
    state = sgd(tko).init(jnp.ones(2))
    assert list(rates({"a": {"b": state}})) == ["a.b.learning_rate"]
    assert list(rates({"a": {"b": state}, "a.b": state})) == ["['a']['b'].learning_rate", "['a.b'].learning_rate"]


def test_in_flax_s_optimizer_and_in_its_state() -> None:
    model: Any = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    optimizer: Any = nnx.Optimizer(model, tko.chain(tko.clip(1.0), sgd(tko)), wrt=nnx.Param)
    optimizer.opt_state = training.set_hyperparams(optimizer.opt_state, learning_rate=2.0)
    assert rates(optimizer.opt_state) == {"1.learning_rate": 2.0}
    before = model.bias[...] + 0
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    assert float(before[0] - model.bias[0]) == 2.0
    state = nnx.state(optimizer)
    assert rates(state) == {"opt_state.1.learning_rate": 2.0}
    nnx.update(optimizer, training.set_hyperparams(state, learning_rate=3.0))
    assert rates(optimizer) == {"opt_state.1.learning_rate": 3.0}
    # A checkpoint that was restored without the classes.
    assert rates(nnx.to_pure_dict(nnx.state(optimizer))) == {"opt_state.1.learning_rate": 3.0}


def injected(value: Any, o: Any = tko, **options: Any) -> Any:
    """The state of one hyperparameter, `n`."""
    return o.inject_hyperparams(lambda n: optax.scale(n), **options)(value).init(jnp.ones(2))


@pytest.mark.parametrize(("old", "value"), [(3, 4), (3, jnp.int32(4)), (jnp.bfloat16(0.5), 0.25), (0.5, 1)])
def test_dtype_and_weak_type_are_kept(old: Any, value: Any) -> None:
    state = injected(old, optax)
    new = training.set_hyperparams(state, n=value)
    assert cases.signature(new) == cases.signature(state)
    assert new.hyperparams["n"] == value
    inside = jax.jit(lambda state, value: training.set_hyperparams(state, n=value))(state, value)
    assert cases.signature(inside) == cases.signature(state)


def test_a_python_number_that_was_written_into_the_state() -> None:
    state: Any = sgd(tko).init(jnp.ones(2))
    state.hyperparams["learning_rate"] = 0.75
    new = training.set_hyperparams(state, learning_rate=0.25).hyperparams["learning_rate"]
    assert (new.dtype, new.weak_type, float(new)) == (FLOAT, True, 0.25)


def test_a_value_for_each_member_of_an_ensemble_or_one_for_all() -> None:
    tx = sgd(tko)
    state = jax.vmap(lambda _: tx.init(jnp.ones(2)))(jnp.arange(3))
    one = training.get_hyperparams(training.set_hyperparams(state, learning_rate=0.25))["learning_rate"]
    assert one.tolist() == [0.25, 0.25, 0.25]
    each = training.set_hyperparams(state, learning_rate=jnp.array([1.0, 2.0, 3.0]))
    assert training.get_hyperparams(each)["learning_rate"].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(TypeError, match=r"f32\[2\]"):
        training.set_hyperparams(state, learning_rate=jnp.ones(2, jnp.float32))


def test_the_sharding_is_kept() -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, P())
    state = jax.device_put(sgd(tko).init(jnp.ones(2)), sharding)
    new = training.get_hyperparams(training.set_hyperparams(state, learning_rate=0.25))["learning_rate"]
    assert new.sharding == sharding and new.committed


def pure(x: Any) -> Any:
    """A state as Orbax and Flax restore it: dicts, without what is empty."""
    if hasattr(x, "_asdict"):
        x = x._asdict()
    elif isinstance(x, tuple):
        x = {str(i): each for i, each in enumerate(x)}
    if not isinstance(x, dict):
        return x
    return {key: each for key, value in x.items() if (each := pure(value)) is not None and len(jax.tree.leaves(each))}


# A hyperparameter, and what cannot become it.
CANNOT_BECOME: list[tuple[Any, list[Any]]] = [
    (injected(3, optax), [0.5, 2**40, np.uint32(2**32 - 1)]),
    (injected(0.1), [1e50, np.float64(1e50), -(10**5000), 2**24 + 1, np.int32(2**24 + 1), 1j]),
    (injected(0.1), [np.array(2**24 + 1), jnp.array(2**24 + 1), np.array(2**63 - 1), np.array(1e50)]),
    (injected(0.1, hyperparam_dtype=jnp.float16), [1e6, np.float32(1e6), np.array(1e6)]),
    (injected(jax.random.key(0)), [0, 0.5]),
]


@pytest.mark.parametrize("state, values", CANNOT_BECOME, ids=["i32", "f32", "f32 from arrays", "f16", "a key"])
def test_a_number_that_the_dtype_cannot_hold_is_refused(state: Any, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(TypeError, match=r"\bn\b"):
            training.set_hyperparams(state, n=value)


def test_infinity_and_a_nan_that_is_not_known_are_meant() -> None:
    assert training.set_hyperparams(injected(0.1), n=np.inf).hyperparams["n"] == np.inf
    assert jnp.isnan(jax.jit(lambda x: training.set_hyperparams(injected(0.1), n=x).hyperparams["n"])(jnp.nan))


@pytest.mark.parametrize("restore", [lambda state: state, pure], ids=["by class", "restored"])
def test_a_rate_that_follows_a_schedule_is_not_set_but_the_others_are(restore: Any) -> None:
    state = restore(groups(optax, cases.schedule).init(cases.arrays()))
    for values, by_name in (({OTHER: 1.0}, {}), ({}, {"learning_rate": 1.0})):
        with pytest.raises(ValueError, match=OTHER):
            training.set_hyperparams(state, values, **by_name)
    assert rates(training.set_hyperparams(state, {KEYS[0]: 1.0}))[KEYS[0]] == 1.0


def look_alike(count: Any) -> Any:
    """Params with the names of an injected state."""
    hyperparams = {"learning_rate": jnp.ones(()), "scale": jnp.ones(())}
    return {"count": count, "hyperparams": hyperparams, "inner_state": jnp.ones(2)}


NOT_INJECTED: dict[str, Callable[[Any], Any]] = {
    "adam": lambda params: tko.adam(0.1).init(params),
    "params_ema": lambda params: training.params_ema(0.9).init(params),
    "in a dict with the params": lambda params: {"params": params, "state": tko.adam(0.1).init(params)},
    "restored": lambda params: pure(optax.adam(0.1).init(params)),
}


@pytest.mark.parametrize("make", NOT_INJECTED.values(), ids=NOT_INJECTED)
def test_params_with_such_names_are_not_hyperparameters(make: Any) -> None:
    counts = (jnp.ones(2), jnp.ones(()), jnp.array(3))  # with dicts alone, the third is taken for a count
    for count in counts if make is not NOT_INJECTED["restored"] else counts[:2]:
        assert rates(make(look_alike(count))) == {}


@pytest.mark.parametrize("restore", [lambda state: state, pure], ids=["by class", "restored"])
@pytest.mark.parametrize("factory", [tko.sgd, tko.adam], ids=["sgd", "adam"])
def test_only_those_of_the_optimizer_are_found_beside_such_params(factory: Any, restore: Any) -> None:
    params = look_alike(jnp.ones(()))
    state = restore(tko.chain(tko.clip(1.0), tko.inject_hyperparams(factory, only="learning_rate")(0.25)).init(params))
    assert rates(state) == {"1.learning_rate": 0.25}
    new = training.set_hyperparams(state, learning_rate=0.5)
    changed = [x for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True) if not (x == y).all()]
    assert [float(x) for x in changed] == [0.25]
    assert rates(new) == {"1.learning_rate": 0.5}


GIVEN = jnp.float32(0.125)
# States in which one array was given for two of their leaves.
SHARED: dict[str, Callable[[Any], Any]] = {
    "given to init": lambda state: state,
    "by name": lambda state: training.set_hyperparams(state, learning_rate=GIVEN),
    "one for the other": lambda state: training.set_hyperparams(
        state, {OTHER: training.get_hyperparams(state)[KEYS[0]]}
    ),
    "committed": lambda state: training.set_hyperparams(jax.device_put(state, jax.devices()[0]), learning_rate=GIVEN),
    "inside jit": lambda state: jax.jit(training.set_hyperparams)(state, learning_rate=GIVEN),
    "tree.set": lambda state: tko.tree.set(state, learning_rate=GIVEN),
}


@pytest.mark.parametrize("change", SHARED.values(), ids=SHARED)
def test_a_state_can_be_donated_and_the_array_is_still_there(change: Any) -> None:
    tx = tko.partition({name: tko.inject_hyperparams(tko.sgd)(GIVEN) for name in "ab"}, {"w": "a", "b": "b"})
    params = cases.arrays()
    state = change(tx.init(params))
    expected = rates(state)
    _, after = jax.jit(lambda state: tx.update(params, state, params), donate_argnums=0)(state)
    assert rates(after) == expected
    assert float(GIVEN) == 0.125


def test_what_was_read_stays_when_the_state_is_donated() -> None:
    tx = tko.inject_hyperparams(tko.sgd)(0.125)
    state = tx.init(jnp.ones(2))
    read = training.get_hyperparams(state)
    jax.jit(lambda state: tx.update(jnp.ones(2), state), donate_argnums=0)(state)
    assert float(read["learning_rate"]) == 0.125


SETTERS: dict[str, Callable[[Any, Any], Any]] = {
    "set_hyperparams": lambda state, value: training.set_hyperparams(state, learning_rate=value),
    "by key": lambda state, value: training.set_hyperparams(state, {"learning_rate": value}),
    "tree.set": lambda state, value: tko.tree.set(state, learning_rate=value),
    "tree.set of a subtree": lambda state, value: tko.tree.set(state, hyperparams={"learning_rate": value, "new": 1}),
}


@pytest.mark.parametrize("change", SETTERS.values(), ids=SETTERS)
@pytest.mark.parametrize("make", [np.float32, np.array], ids=["a scalar", "an array"])
def test_a_number_of_numpy_is_copied(change: Any, make: Any) -> None:
    """Its owner may change it in place."""
    value = make(np.float32(0.5))
    state = change(sgd(tko).init(jnp.ones(2)), value)
    value += 1
    assert state.hyperparams["learning_rate"] == 0.5
    assert isinstance(state.hyperparams["learning_rate"], jax.Array | np.ndarray | np.generic)


@pytest.mark.parametrize("value", [0.5, 2, np.float32(0.5)])
def test_tree_set_stores_arrays_so_that_nothing_is_traced_anew(value: Any) -> None:
    state = tko.inject_hyperparams(tko.sgd)(0.1).init(jnp.ones(2))
    new = tko.tree.set(state, learning_rate=value)
    assert new.hyperparams["learning_rate"] == float(value)
    assert cases.signature(new) == cases.signature(state)


def test_tree_set_does_what_optax_does_with_anything_else() -> None:
    state = tko.adam(0.1).init({"w": jnp.ones(2)})
    assert tko.tree_utils.tree_set is tko.tree.set
    assert tko.tree.set({"a": 1.0, "b": 2}, a=3, b="x") == {"a": 3, "b": "x"}
    new = tko.tree.set(state, lambda path, value: True, mu={"other": jnp.ones(3)}, count=3)
    assert optax.tree.get(new, "mu")["other"].shape == (3,)
    for count in (3, 1.5):  # the second is a float, as in Optax
        found = tko.tree.get(tko.tree.set(state, count=count), "count")
        assert found == count and isinstance(found, jax.Array) and not found.weak_type
    with pytest.raises(KeyError, match="rate"):
        tko.tree.set(state, rate=1)
