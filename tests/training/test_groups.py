"""param_groups: a table of options by parameter, against the same optimizers by hand."""

import inspect
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import treekit as tk
from tests.optax import cases, factories
from tests.releases import keys, needs
from treekit import optax as tko
from treekit import testing, training
from treekit.optax._wrappers.parameters import read_signature
from treekit.training import param_groups, times
from treekit.training._groups_leafwise import _LEAFWISE

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
    rows = training.summary(tko.chain(param_groups(tko.sgd, table, 1.0, momentum=0.0)), params).rows
    assert [(row.path, row.step) for row in rows] == [("a.b", 2.0), ("a.w", 3.0), ("c.b", 0.0)]
    assert [row.note for row in rows] == ["rows b, a", "row a", "frozen"]
    state: Any = param_groups(tko.sgd, table, 1.0, momentum=0.0).init(params)
    assert set(state.hyperparams) == {"learning_rate", "momentum", "b_learning_rate", "a_learning_rate", "a_momentum"}


LEAVES = ["body.0.b", "body.0.w", "body.1.b", "body.1.w", "embed", "head.b", "head.w", "norm.scale"]
HEAD: dict[Any, Any] = {"head.**": {"learning_rate": times(2)}, "**.b": {"weight_decay": 0.0}}
INJECTED = tko.inject_hyperparams(tko.adamw)
OF_LABELS = tko.partition(
    {"head": INJECTED(0.2), "bias": INJECTED(0.1, weight_decay=0.0), "rest": INJECTED(0.1)},
    tk.path_labels({"head.**": "head", "**.b": "bias"}, default="rest"),
)
GROUPED = param_groups(tko.adamw, HEAD, 0.1)
SCHEDULED = param_groups(tko.adamw, HEAD, SCHEDULE)
TO_TABLE: dict[str, Any] = {"fresh": "**.hyperparams.**", "rename": {"**.hyperparams.**": None}}
FROZEN_EMBED = param_groups(tko.adamw, {"embed": None, **HEAD}, 0.1)
WARM = param_groups(tko.adamw, {"embed": {"learning_rate": times(SCHEDULE)}, **HEAD}, 0.1)
TO_PLAIN = {"rename": {"hyperparams.**": None, "count": None}}
COUNTS = {"2.count": ["count", "hyperparams_states.learning_rate.count"]}
# As in the table of docs/guides/load.md: before, after, the arguments of graft.
CHANGED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "none before": (tko.adamw(0.1), GROUPED, {"fresh": ["hyperparams.**", "count"]}),
    "none before, in a chain": (
        tko.chain(tko.clip(1.0), tko.adamw(0.1)),
        GROUPED,
        {"fresh": ["hyperparams.**", "count"]},
    ),
    "none before, a schedule": (tko.adamw(SCHEDULE), SCHEDULED, {"fresh": "hyperparams.**", "rename": COUNTS}),
    "none after": (GROUPED, tko.adamw(0.1), TO_PLAIN),
    "injected before": (INJECTED(0.1), GROUPED, TO_TABLE),
    "a partition before": (OF_LABELS, GROUPED, TO_TABLE),
    "a partition after": (GROUPED, OF_LABELS, {"fresh": "**.hyperparams.**", "rename": {"hyperparams.**": None}}),
    "another table": (GROUPED, param_groups(tko.adamw, {"embed": {"b1": 0.5}}, 0.1), TO_TABLE),
    "frozen after": (GROUPED, param_groups(tko.adamw, {"embed": None, **HEAD}, 0.1), {"rename": {"**.embed": None}}),
    "thawed": (FROZEN_EMBED, GROUPED, {"fresh": "**.embed"}),
    "thawed, with a rate": (
        FROZEN_EMBED,
        tko.chain(tko.clip(1.0), WARM),
        {"fresh": ["**.embed", "**.hyperparams.embed_*", "**.hyperparams_states.embed_*.**"]},
    ),
    "frozen after, with a rate": (
        tko.chain(tko.clip(1.0), WARM),
        FROZEN_EMBED,
        {"rename": dict.fromkeys(["**.embed", "**.hyperparams.embed_*", "**.hyperparams_states.embed_*.**"])},
    ),
    "thawed, and another table": (
        FROZEN_EMBED,
        tko.chain(tko.clip(1.0), param_groups(tko.adamw, {"head.**": {"b1": 0.5}}, 0.1)),
        {"fresh": ["**.embed", "**.hyperparams.**"], "rename": {"**.hyperparams.**": None}},
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_state_of_another_table(name: str) -> None:
    """One call of graft, with one rename at most, carries over all moments and counts."""
    before, after, arguments = CHANGED[name]
    params = network()
    state = before.init(params)
    for _ in range(2):
        params, state = training.apply_gradients(before, jax.tree.map(jnp.cos, params), state, params)
    new, _ = tk.graft(after.init(params), state, **arguments)
    old_moments, moments = (averages(each) for each in (state, new))
    for leaf in old_moments.keys() & moments.keys():
        assert (old_moments[leaf] == moments[leaf]).all(), leaf
    assert set(LEAVES) - {"embed"} <= moments.keys()
    counts = [int(x) for path, x in tk.to_state_dict(new).items() if path.endswith("count")]
    assert 2 in counts
    training.apply_gradients(after, jax.tree.map(jnp.cos, params), new, params)


def averages(state: Any) -> Any:
    """The averages of gradients in a state, by leaf; those of all parts of a partition."""
    found: dict[str, Any] = {}
    for path, x in tk.to_state_dict(state).items():
        _, is_average, leaf = path.partition("mu.")
        if is_average:
            found[leaf] = x
    return found


# ------------------------------------------------------------------------------------------------------- random tables

SELECTED: dict[Any, set[str]] = {
    pattern: set(tk.tree_find(network(), pattern)) for pattern in ("**.b", "body.*.w", "embed", "head.w", "norm.scale")
} | {
    "head.**": {"head.b", "head.w"},
    ("body.0.**", "**.w"): {"body.0.b", "body.0.w", "body.1.w", "head.w"},
    tk.leaf_mask(lambda x: x.ndim > 1): {x for x in LEAVES if x.endswith("w")} | {"embed"},
}
NUMBERS = st.sampled_from([0.5, 0.25, 0.7])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": st.one_of(NUMBERS, st.builds(times, NUMBERS), st.just(SCHEDULE), st.just(times(SCHEDULE))),
        "weight_decay": st.one_of(NUMBERS, st.builds(times, NUMBERS)),
        "b1": NUMBERS,
    },
)
TABLES = st.lists(st.tuples(st.sampled_from(list(SELECTED)), st.one_of(st.none(), OPTIONS, OPTIONS)), max_size=5)


def merged(table: dict[Any, Any], defaults: dict[str, Any]) -> tuple[dict[str, Any], set[Any]]:
    """The options of each leaf, None for one that is frozen; and each option of a row that decides about one."""
    options: dict[str, Any] = {}
    decided: set[Any] = set()
    for leaf in LEAVES:
        rows = [(key, row) for key, row in table.items() if leaf in SELECTED[key]]
        options[leaf] = None if any(row is None for _, row in rows) else dict(defaults)
        if options[leaf] is None:
            continue
        for option in defaults:
            setting = [(key, row[option]) for key, row in rows if option in row]
            if setting:
                key, value = setting[0]
                decided.add((key, option))
                options[leaf][option] = product(value.factor, defaults[option]) if is_times(value) else value
    return options, decided


def is_times(x: Any) -> bool:
    return isinstance(x, type(times(1)))


def product(a: Any, b: Any) -> Any:
    """In f32, as hyperparameters are; a function of the count if one of them is."""
    if callable(a) or callable(b):
        return lambda count: product(a(count) if callable(a) else a, b(count) if callable(b) else b)
    return jnp.asarray(a, jnp.float32) * jnp.asarray(b, jnp.float32)


@settings(max_examples=25, deadline=None)
@given(rows=TABLES, name=st.sampled_from(["adamw", "lion", "lamb"]), rate=st.sampled_from([0.1, SCHEDULE]))
@jax.disable_jit()  # Optax jits functions of whole trees, in which XLA's last bits depend on all of the leaves
def test_a_leaf_has_the_optimizer_that_the_table_says(rows: Any, name: str, rate: Any) -> None:
    """Bit for bit that of an injected one for this leaf alone, and up to the last bits that of plain Optax."""
    table = dict(rows)
    defaults = {"learning_rate": rate, "weight_decay": 0.25, "b1": 0.9}
    options, decided = merged(table, defaults)
    named = {key: row and {**row, "name": f"row_{i}"} for i, (key, row) in enumerate(table.items())}
    tx = param_groups(getattr(tko, name), named, **defaults)
    params = network()
    if len(decided) < sum(len(row or {}) for row in table.values()):
        with pytest.raises(ValueError, match="decides about no parameter"):
            tx.init(params)
        return
    state, grads = tx.init(params), jax.tree.map(jnp.cos, params)
    updates: Any = None
    for _ in range(2):
        updates, state = tx.update(grads, state, params)
    for leaf, of_leaf in options.items():
        got, param = (tk.to_state_dict(x)[leaf] for x in (updates, params))
        if of_leaf is None:
            assert not got.any()
            continue
        injected = tko.inject_hyperparams(getattr(tko, name), only=list(of_leaf))
        for make, close in ((injected, cases.same_bits), (getattr(optax, name), is_close)):
            one, expected = make(**of_leaf), None
            own = one.init(param)
            for _ in range(2):
                expected, own = one.update(jnp.cos(param), own, jnp.asarray(param))
            assert close(got, np.asarray(expected)), leaf


def is_close(a: Any, b: Any) -> bool:
    return np.allclose(a, b, rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------------------- the factories of Optax

# Of these, an option for numbers is not the first.
OPTION = {"contrib.muon": "weight_decay", "contrib.scale_by_muon": "beta"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name", keys(factories.TRANSFORMATIONS, {"contrib.scale_by_muon": "optax.contrib.MuonDimensionNumbers"})
)
def test_each_factory_has_groups_or_says_what_to_write(name: str) -> None:
    factory: Any = operator.attrgetter(name)(tko)
    numeric = [key for key, x in read_signature(factory)[1].items() if x.is_numeric and not x.takes_only_ints]
    option = OPTION.get(name) or next(iter(numeric), "learning_rate")
    table = {"w": {option: 0.25}, "b": {option: 0.5}}
    needed = {key: factories.ARGUMENTS.get(key, lambda o: o.adam(0.1))(tko) for key in required(factory)}
    if name == "contrib.scale_by_muon":  # by default, it takes one matrix
        numbers = optax.contrib.MuonDimensionNumbers()
        needed["weight_dimension_numbers"] = lambda params: jax.tree.map(lambda _: numbers, params)
    if name.rpartition(".")[2] not in _LEAFWISE:
        with pytest.raises((TypeError, ValueError), match=r"optax\.partition|has no option"):
            param_groups(factory, table, **needed)
        return
    params = {"b": jnp.array([[1.7, -0.9], [0.8, 0.3]]), "w": jnp.linspace(0.6, 2.3, 6).reshape(2, 3)}
    tx = param_groups(factory, table, **needed)
    state = tx.init(params)
    updates, state = tx.update(jax.tree.map(jnp.cos, params), state, params)
    updates, state = tx.update(jax.tree.map(jnp.cos, params), state, params)
    for key, x in params.items():
        own_options = {**needed, option: table[key][option]}
        one = tko.inject_hyperparams(factory, only=[x for x in own_options if x in numeric])(**own_options)
        own = one.init([x])
        expected, own = one.update([jnp.cos(x)], own, [x])
        expected, own = one.update([jnp.cos(x)], own, [x])
        assert cases.same_bits(updates[key], expected[0])


def required(factory: Any) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    return [x.name for x in parameters if x.default is x.empty and "VAR" not in x.kind.name]


@pytest.mark.parametrize("o", [tko, optax])
@pytest.mark.parametrize("form", ["function", "tree", "path_mask"])
def test_masks_are_asked_about_the_whole_tree(o: Any, form: str) -> None:
    """Once for all groups; those of a factory of plain Optax too, one of which is a partial function."""
    params, asked = network(), 0

    def mask(tree: Any) -> Any:
        nonlocal asked
        asked += 1
        return tk.path_mask("**.w")(tree)

    forms = {"function": mask, "tree": tk.path_mask("**.w")(params), "path_mask": tk.path_mask("**.w")}
    head = {"head.**": {"learning_rate": times(2)}}
    tx = param_groups(o.nadamw, head, 0.1, mask=forms[form], weight_decay=0.5)
    state = tx.init(params)
    before = asked
    updates, _ = tx.update(params, state, params)
    assert form != "function" or asked == before + 1
    by_row: Any = {**head, ~tk.path_mask("**.w"): {"weight_decay": 0.0, "name": "rest"}}
    tx = param_groups(tko.nadamw, by_row, 0.1, weight_decay=0.5)
    expected, _ = tx.update(params, tx.init(params), params)
    cases.assert_close(updates, expected)


@needs("optax.contrib.MuonDimensionNumbers")
def test_dimension_numbers_are_of_the_whole_tree() -> None:
    params = network()
    muon, is_matrix = tko.contrib.muon, tk.path_mask("**.w")
    numbers = jax.tree.map(lambda x: optax.contrib.MuonDimensionNumbers() if x else None, is_matrix(params))
    plain = muon(0.1, muon_weight_dimension_numbers=numbers)
    expected, _ = plain.update(params, plain.init(params), params)
    for form in (numbers, lambda tree: numbers):
        tx = param_groups(muon, {"head.**": {"learning_rate": 0.1}}, 0.1, muon_weight_dimension_numbers=form)
        state = tx.init(params)
        assert cases.structure(state.inner_state) == cases.structure(plain.init(params))
        updates, _ = tx.update(params, state, params)
        cases.assert_close(updates, expected, rtol=1e-4)


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


def test_a_row_selects_something_except_in_a_part() -> None:
    table: Any = {tk.leaf_mask(lambda x: x.ndim > 1): None, eqx.nn.LayerNorm: {"learning_rate": times(2)}}
    tx, params = param_groups(tko.sgd, table, 1.0), {"norm": eqx.nn.LayerNorm(2), "mlp": jnp.ones((2, 2))}
    assert tko.masked(tx, tk.path_mask("norm.**")).init(params)
    with pytest.raises(ValueError, match="selects no parameter"):
        tx.init({"norm": eqx.nn.LayerNorm(2), "mlp": None})
    without_bias = eqx.nn.Linear(2, 2, use_bias=False, key=jax.random.key(0))
    assert param_groups(tko.sgd, {"bias": {"learning_rate": times(2)}}, 1.0).init(without_bias)


@pytest.mark.parametrize("kind", ["f32", "bf16", "none", "eqx_raw", "nnx", "mixed", "int_key", "legacy"])
def test_laws(kind: str) -> None:
    """On every kind of params, also one that is frozen."""
    first = next(iter(tk.to_state_dict(cases.gradient(cases.make(kind)))))
    tx = param_groups(tko.adamw, {first: {"learning_rate": times(2), "name": "first"}}, 0.1)
    cases.check_laws(tx, kind, steps=2)
    cases.check_laws(param_groups(tko.adamw, {first: None}, SCHEDULE), kind, steps=2)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda tx: tko.MultiSteps(tx, 2).gradient_transformation(),
        lambda tx: training.store_state(tx, {"mu": jnp.bfloat16}),
        lambda tx: tko.masked(tx, lambda tree: jax.tree.map(lambda _: True, tree)),
        lambda tx: tko.chain(tko.clip_by_global_norm(1.0), tx, training.params_ema(0.9)),
    ],
    ids=["MultiSteps", "store_state", "masked", "chain"],
)
def test_laws_in_wrappers(wrapped: Callable[[Any], Any]) -> None:
    leaves = list(tk.to_state_dict(cases.gradient(cases.make("mixed"))))
    table = {leaves[0]: {"learning_rate": times(2), "name": "first"}, leaves[-1]: {"weight_decay": 0.0, "name": "last"}}
    cases.check_laws(wrapped(param_groups(tko.adamw, table, 0.1, weight_decay=0.1)), "mixed", steps=3)


def test_a_sweep() -> None:
    """Rates of an ensemble, set by name under vmap: each member is the optimizer with its own rates."""
    params, rates, factors = network(), jnp.array([0.1, 0.2]), jnp.array([3.0, 0.5])
    tx = param_groups(tko.adamw, {"head.**": {"learning_rate": times(10)}, "embed": None}, 0.3, weight_decay=0.1)

    def trained(rate: Any, factor: Any) -> Any:
        state = training.set_hyperparams(tx.init(params), learning_rate=rate, head_learning_rate_times=factor)

        def step(carry: Any, _: None) -> Any:
            params, state = carry
            return training.apply_gradients(tx, jax.tree.map(jnp.cos, params), state, params), None

        return jax.lax.scan(step, (params, state), None, 3)[0][0]

    ensemble = jax.jit(jax.vmap(trained))(rates, factors)
    for i, (rate, factor) in enumerate(zip([0.1, 0.2], [3.0, 0.5], strict=True)):
        table: Any = {"head.**": {"learning_rate": factor * rate}, "embed": None}
        expected, _ = train_cos(param_groups(tko.adamw, table, rate, weight_decay=0.1), params)
        cases.assert_close(jax.tree.map(lambda x, i=i: x[i], ensemble), expected, rtol=1e-4)


def train_cos(tx: Any, params: Any) -> tuple[Any, Any]:
    state = tx.init(params)
    for _ in range(3):
        params, state = training.apply_gradients(tx, jax.tree.map(jnp.cos, params), state, params)
    return params, state


FROZEN = pytest.param(None, marks=needs("flax>=0.12"))  # before, nnx.Optimizer takes no state with a MaskedNode


@pytest.mark.parametrize("bias", [FROZEN, {"learning_rate": 0.0}])
def test_in_nnx_and_in_multi_steps(bias: Any) -> None:
    net: Any = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    kernel, before = net.kernel[...], net.bias[...]
    tx = param_groups(tko.adamw, {"bias": bias, "kernel": {"learning_rate": times(2)}}, 0.1)
    trainer = nnx.Optimizer(net, tko.MultiSteps(tx, 2).gradient_transformation(), wrt=nnx.Param)
    for _ in range(2):
        trainer.update(net, nnx.grad(lambda net: jnp.mean((net(jnp.ones((4, 2))) - 1) ** 2))(net))
        trainer.opt_state = training.set_hyperparams(trainer.opt_state, learning_rate=0.5)
    assert (net.bias[...] == before).all()
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
    """With one group, anything is shared, and whatever the factory looks at is what is trained."""
    params = network()
    train(param_groups(tko.contrib.prodigy, {"embed": None}), params)

    def clipped(learning_rate: float) -> Any:
        return tko.chain(tko.clip_by_global_norm(1.0), tko.sgd(learning_rate))

    tx = param_groups(clipped, {"embed": None, "head.**": None}, 1.0)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(optax.tree.norm(updates), 1.0, rtol=1e-5)
