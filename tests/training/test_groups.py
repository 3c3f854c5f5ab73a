"""param_groups: a table of options by parameter, against the same optimizers by hand."""

import inspect
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
from treekit import optax as tko
from treekit import testing, training
from treekit.training import param_groups, times

SCHEDULE = optax.linear_schedule(0.1, 0.0, 10)
TABLE: dict[Any, Any] = {
    "embed": None,
    ("**.b", "**.scale"): {"weight_decay": 0.0},
    "head.**": {"learning_rate": times(10)},
    "body.*.w": {"b1": 0.5, "learning_rate": 0.01},
}


def network() -> dict[str, Any]:
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def dense() -> dict[str, jax.Array]:
        return {"w": jax.random.normal(next(keys), (3, 2)), "b": jax.random.normal(next(keys), (2,))}

    return {"embed": jnp.ones((4, 3)), "body": [dense(), dense()], "norm": {"scale": jnp.ones(2)}, "head": dense()}


def train(tx: Any, params: Any, steps: int = 4) -> tuple[Any, Any]:
    state = tx.init(params)
    update: Any = jax.jit(tx.update)
    for i in range(steps):
        grads = jax.tree.map(lambda x, i=i: jnp.cos(x + i), params)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    assert update._cache_size() == 1
    return params, state


def by_hand(factory: Callable[..., Any], **defaults: Any) -> Any:
    """TABLE as a partition of optimizers, with a label for each set of options that some leaf has."""

    def of(**options: Any) -> Any:
        return factory(**{"learning_rate": SCHEDULE, **defaults, **options})

    def scaled(count: Any) -> Any:
        return 10 * SCHEDULE(count)

    labels = {
        "embed": "frozen",
        "body.*.w": "own",
        "head.w": "fast",
        "head.b": "fast, no decay",
        "**.b": "no decay",
        "**.scale": "no decay",
    }
    transforms = {
        "frozen": tko.set_to_zero(),
        "own": of(b1=0.5, learning_rate=0.01),
        "fast": of(learning_rate=scaled),
        "fast, no decay": of(learning_rate=scaled, weight_decay=0.0),
        "no decay": of(weight_decay=0.0),
    }
    return tko.partition(transforms, tk.path_labels(labels))


@pytest.mark.parametrize("factory", [tko.adamw, tko.lion, tko.lamb, tko.nadamw, tko.contrib.ademamix])
def test_groups_are_optimizers_with_other_options(factory: Callable[..., Any]) -> None:
    tx = param_groups(factory, TABLE, learning_rate=SCHEDULE, weight_decay=0.5)
    params, _ = train(tx, network())
    expected, _ = train(by_hand(factory, weight_decay=0.5), network())
    cases.assert_close(params, expected)


def test_as_torch_does_it() -> None:
    """AdamW of PyTorch with a rate and a decay for each parameter, in NumPy."""
    params = network()
    trained, _ = train(param_groups(tko.adamw, TABLE, 0.1, weight_decay=0.5), params, steps=3)
    options = {"lr": 0.1, "weight_decay": 0.5, "beta1": 0.9}
    of_leaf: dict[str, dict[str, float]] = {
        "body.0.w": {"lr": 0.01, "beta1": 0.5},
        "body.1.w": {"lr": 0.01, "beta1": 0.5},
        "head.w": {"lr": 1.0},
        "head.b": {"lr": 1.0, "weight_decay": 0.0},
        "body.0.b": {"weight_decay": 0.0},
        "body.1.b": {"weight_decay": 0.0},
        "norm.scale": {"weight_decay": 0.0},
    }
    for name, x in tk.to_state_dict(params).items():
        if name == "embed":
            assert (tk.to_state_dict(trained)[name] == x).all()
            continue
        lr, decay, beta1 = ({**options, **of_leaf[name]}[key] for key in ("lr", "weight_decay", "beta1"))
        p: Any = np.asarray(x, np.float64)
        m: Any = 0.0
        v: Any = 0.0
        for step in range(1, 4):
            g = np.cos(p + step - 1)
            p = p * (1 - lr * decay)
            m, v = beta1 * m + (1 - beta1) * g, 0.999 * v + 0.001 * g**2
            p = p - lr * (m / (1 - beta1**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        np.testing.assert_allclose(tk.to_state_dict(trained)[name], p, rtol=2e-4, atol=1e-5, err_msg=name)


def test_the_state_is_that_of_one_optimizer() -> None:
    params = network()
    state: Any = param_groups(tko.adamw, {**TABLE, "embed": {"b2": 0.5}}, 0.1).init(params)
    testing.assert_trees_same(state.inner_state, tko.adamw(0.1).init(params))
    frozen: Any = param_groups(tko.adamw, TABLE, 0.1).init(params).inner_state
    assert frozen[0].mu["embed"] == optax.MaskedNode()
    plain = tko.adamw(0.1)
    moments, report = tk.graft(plain.init(params), frozen, fresh=("0.*.embed",))
    assert len(report.kept) == 1 + 2 * 7
    assert cases.structure(moments) == cases.structure(plain.init(params))


def test_a_default_is_set_for_all_that_are_relative_to_it() -> None:
    params = network()
    tx = param_groups(tko.adamw, TABLE, 0.1, weight_decay=0.5)
    state = tx.init(params)
    assert {key: round(float(x), 3) for key, x in training.get_hyperparams(state).items()} == {
        "b_scale_weight_decay": 0.0,
        "body_w_b1": 0.5,
        "body_w_learning_rate": 0.01,
        "head_learning_rate_times": 10.0,
        "learning_rate": 0.1,
        "weight_decay": 0.5,
    }
    changed = training.set_hyperparams(state, learning_rate=0.2, b_scale_weight_decay=0.25)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), changed, params)
    other = {**TABLE, ("**.b", "**.scale"): {"weight_decay": 0.25}}
    expected = param_groups(tko.adamw, other, 0.2, weight_decay=0.5)
    same, _ = expected.update(jax.tree.map(jnp.ones_like, params), expected.init(params), params)
    cases.assert_close(updates, same)


def test_the_first_row_that_sets_an_option_decides_and_none_freezes() -> None:
    params = {"a": {"w": jnp.ones(2), "b": jnp.ones(2)}, "c": {"b": jnp.ones(2)}}
    table = {"**.b": {"learning_rate": 2.0}, "a.**": {"learning_rate": 3.0, "momentum": 0.5}, "c.**": None}
    rows = training.summary(param_groups(tko.sgd, table, 1.0, momentum=0.0), params).rows
    assert [(row.path, row.step) for row in rows] == [("a.b", 2.0), ("a.w", 3.0), ("c.b", 0.0)]
    state: Any = param_groups(tko.sgd, table, 1.0, momentum=0.0).init(params)
    assert set(state.hyperparams) == {"learning_rate", "momentum", "b_learning_rate", "a_learning_rate", "a_momentum"}


KEYS: dict[str, tuple[Any, list[str]]] = {
    "pattern": ("norm.*", ["norm.bias", "norm.weight"]),
    "class": (eqx.nn.LayerNorm, ["norm.bias", "norm.weight"]),
    "tuple": (("**.bias", eqx.nn.LayerNorm), ["dense.bias", "norm.bias", "norm.weight"]),
    "mask": (tk.leaf_mask(lambda x: x.ndim > 1), ["dense.weight"]),
    "tuple with a mask": (("norm.bias", tk.leaf_mask(lambda x: x.ndim > 1)), ["dense.weight", "norm.bias"]),
    "masks": (~tk.path_mask("**.bias") & tk.path_mask("norm.**"), ["norm.weight"]),
    "nothing": (tk.path_mask("none", strict=False), []),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str) -> None:
    key, expected = KEYS[name]
    params = {"dense": eqx.nn.Linear(2, 2, key=jax.random.key(0)), "norm": eqx.nn.LayerNorm(2)}
    tx = param_groups(tko.sgd, {key: {"learning_rate": times(2), "name": "own"}}, learning_rate=1.0)
    rows = training.summary(tx, params).rows
    assert sorted(row.path for row in rows for _ in range(row.step == 2)) == expected


@pytest.mark.parametrize("kind", ["f32", "bf16", "none", "eqx_raw", "nnx", "mixed", "int_key", "legacy"])
def test_laws(kind: str) -> None:
    """On every kind of params, also one that is frozen."""
    first = next(iter(tk.to_state_dict(cases.gradient(cases.make(kind)))))
    tx = param_groups(tko.adamw, {first: {"learning_rate": times(2), "name": "first"}}, 0.1)
    cases.check_laws(tx, kind, steps=2)
    cases.check_laws(param_groups(tko.adamw, {first: None}, SCHEDULE), kind, steps=2)


def test_in_nnx_and_in_multi_steps() -> None:
    net: Any = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    kernel, bias = net.kernel[...], net.bias[...]
    tx = param_groups(tko.adamw, {"bias": None, "kernel": {"learning_rate": times(2)}}, 0.1)
    trainer = nnx.Optimizer(net, tko.MultiSteps(tx, 2).gradient_transformation(), wrt=nnx.Param)
    for _ in range(2):
        trainer.update(net, nnx.grad(lambda net: jnp.mean((net(jnp.ones((4, 2))) - 1) ** 2))(net))
        trainer.opt_state = training.set_hyperparams(trainer.opt_state, learning_rate=0.5)
    assert (net.bias[...] == bias).all()
    np.testing.assert_allclose(jnp.abs(net.kernel[...] - kernel), 1.0, rtol=1e-3)


def test_schedules() -> None:
    params = {"a": jnp.ones(1), "b": jnp.ones(1), "c": jnp.ones(1)}
    table = {"a": {"learning_rate": times(lambda count: 2.0**count)}, "b": {"learning_rate": lambda count: 7.0 + count}}
    tx = param_groups(tko.sgd, table, lambda count: 1.0 + count)
    state = tx.init(params)
    for count in range(3):
        updates, state = tx.update(params, state, params)
        assert [float(-x[0]) for x in updates.values()] == [2.0**count * (1 + count), 7 + count, 1 + count]


def test_a_factory_of_keywords() -> None:
    """Options that `**options` gathers are options too."""

    def factory(**options: Any) -> Any:
        return tko.sgd(**options)

    params = {"a": jnp.ones(1), "b": jnp.ones(1)}
    tx = param_groups(
        factory,
        {"a": {"learning_rate": times(2)}, "b": {"momentum": 0.5}},
        leafwise=True,
        learning_rate=3.0,
        momentum=0.0,
    )
    updates, state = tx.update(params, tx.init(params), params)
    updates, _ = tx.update(params, state, params)
    assert [float(x[0]) for x in updates.values()] == [-6.0, -4.5]


def test_what_belongs_to_no_parameter() -> None:
    """Counts are shared; with one group, anything is."""
    params = network()
    rate = {"head.**": {"learning_rate": times(2)}}
    for factory in (tko.contrib.muon, tko.adan, tko.contrib.adopt):
        train(param_groups(factory, rate, 0.1), params)
    train(param_groups(tko.contrib.prodigy, {"embed": None}), params)


unchecked: Any = inspect.unwrap(param_groups)  # without the checks of beartype, as users have it
MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "option": (
        {"w": {"weight_decy": 0.0}},
        ValueError,
        "'weight_decy', which the row 'w' sets. The nearest: weight_decay",
    ),
    "row": ({"w": 0.1}, TypeError, "the row 'w' must be None, or a dict of options, found 0.1"),
    "table": ([("w", {})], TypeError, "the table must be a dict"),
    "key": ({3: {}}, TypeError, "found 3"),
    "name": ({tk.leaf_mask(lambda x: True): {"b1": 0.1}}, ValueError, "needs a name of its own"),
    "two names": ({"w": {"b1": 0.1}, "**.w": {"b2": 0.1}}, ValueError, "needs a name of its own"),
    "times": ({"w": {"mu_dtype": times(2)}}, TypeError, "mu_dtype of adamw has no default"),
    "string": ({"w": {"learning_rate": "0.1"}}, TypeError, "learning_rate of adamw must be a number"),
    "no leaf": ({"x.**": None}, ValueError, "param_groups: the pattern 'x.\\*\\*' matches no leaf"),
    "hidden": ({"**": {"b1": 0.1}, "w": {"b1": 0.2}}, ValueError, "b1 of the row 'w' decides about no parameter"),
    "frozen": ({"w": None, "**.w": {"b1": 0.2}}, ValueError, "b1 of the row '\\*\\*.w' decides about no parameter"),
    "structure": ({"w": {"mask": {"w": True, "b": False}}}, ValueError, "mask of the row 'w'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    table, error, match = MISTAKES[name]
    with pytest.raises(error, match=match):
        unchecked(tko.adamw, table, 0.1).init(cases.arrays())


def test_mistakes_of_the_call() -> None:
    with pytest.raises(TypeError, match="adamw"):
        param_groups(tko.adamw, {})
    with pytest.raises(TypeError, match="adamw"):
        param_groups(tko.adamw, {}, lr=0.1)
    with pytest.raises(TypeError, match="takes a function of options"):
        unchecked(tko.adamw(0.1), {})
    with pytest.raises(TypeError, match="a number or a schedule"):
        times("2")
    with pytest.raises(TypeError, match="is for the rows"):
        param_groups(tko.adamw, {}, learning_rate=times(2))
    with pytest.raises(ValueError, match="muon has an option adam_weight_decay"):
        param_groups(tko.contrib.muon, {"adam.**": {"weight_decay": 0.0}}, 0.1)
