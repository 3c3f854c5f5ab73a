"""filtered, masked, partition: a transformation over some of the leaves of any model."""

import enum
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.optax import cases
from treekit import assert_trees_same
from treekit import optax as tko


def label(x: Any) -> str:
    return "matrix" if np.ndim(x) > 1 else "other"


def labels_of(params: Any) -> Any:
    return jax.tree.map(label, eqx.filter(params, eqx.is_inexact_array))


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "filtered": lambda tx: tko.filtered(tx),
    "masked": lambda tx: tko.masked(tx, cases.mask_of),
    "partition": lambda tx: tko.partition({"matrix": tx, "other": optax.sgd(0.1)}, labels_of),
    "masked_twice": lambda tx: tko.masked(tko.masked(tx, cases.mask_of), lambda params: True),
    "partition_of_finite": lambda tx: tko.partition({"matrix": tko.apply_if_finite(tx, 2), "other": tx}, labels_of),
}


@pytest.mark.parametrize(
    "wrap, name, kind", cases.cells(WRAPPERS, 0, whole=("filtered", "masked", "partition"), every=3)
)
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    """Of *plain* Optax's transformation inside: the wrapper alone has to do it."""
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


SAME = ["sgd", "adamw", "adafactor", "numbers", "clipped", "flatten", "schedule_free", "muon"]


ON_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "masked": lambda o, tx: o.masked(tx, {"w": True, "b": False}),
    "partition": lambda o, tx: o.partition(
        {"a": tx, "b": optax.sgd(0.1, momentum=0.9), "unused": optax.adam(0.1)}, {"w": "a", "b": "b"}
    ),
}


@pytest.mark.parametrize("wrapper", ON_PLAIN)
@pytest.mark.parametrize("name", SAME)
def test_on_plain_params_they_are_optax(name: str, wrapper: str) -> None:
    tx = cases.OPTIMIZERS[name](optax)
    cases.same_as_optax(ON_PLAIN[wrapper](tko, tx), ON_PLAIN[wrapper](optax, tx), "f32")


@pytest.mark.parametrize("kind", ["none", "empty", "namedtuple", "nnx", "linen"])
def test_wrappers_are_optax_on_params_that_optax_takes(kind: str) -> None:
    tx = optax.adamw(0.01)
    cases.same_as_optax(tko.masked(tx, cases.mask_of), optax.masked(tx, cases.mask_of), kind)
    transforms: dict[Any, Any] = {"matrix": tx, "other": optax.sgd(0.1)}
    cases.same_as_optax(tko.partition(transforms, labels_of), optax.partition(transforms, labels_of), kind)
    cases.same_as_optax(tko.filtered(tx), tx, kind)


# -------------------------------------------------------------------------------------------------------- filtered


def test_filtered_leaves_none_for_what_it_freezes() -> None:
    params = cases.PARAMS["int_key"]()
    tx = tko.filtered(optax.adam(0.1))
    state = tx.init(params)
    mu = state[0].mu
    assert {k for k, x in mu.items() if x is not None} == {"w", "b"}
    updates, _ = tx.update(cases.grads_of("int_key", params), state, params)
    assert {k for k, x in updates.items() if x is not None} == {"w", "b"}
    after = tko.apply_updates(params, updates)
    assert all(after[k] is params[k] for k in ("n", "key", "f", "s"))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"w": True, "b": False}, id="tree"),
        pytest.param(lambda x: eqx.is_inexact_array(x) and x.ndim == 2, id="predicate"),
        pytest.param({"w": eqx.is_array, "b": lambda x: False}, id="tree_of_predicates"),
    ],
)
def test_filtered_takes_what_filter_takes(spec: Any) -> None:
    params = cases.arrays()
    tx = tko.filtered(optax.adamw(0.1), spec)
    state = tx.init(params)
    assert state[0].mu["b"] is None
    updates, _ = jax.jit(tx.update)(params, state, params)
    assert updates["b"] is None
    alone, _ = optax.adamw(0.1).update(
        {"w": params["w"]}, optax.adamw(0.1).init({"w": params["w"]}), {"w": params["w"]}
    )
    cases.assert_close(updates["w"], alone["w"])


INEXACT: dict[str, Callable[[], Any]] = {
    "jax": lambda: jnp.ones(2),
    "numpy": lambda: np.ones(2, np.float32),
    "numpy scalar": lambda: np.float32(1),
}


@pytest.mark.parametrize("kind", INEXACT)
def test_filtered_trains_every_inexact_array_by_default(kind: str) -> None:
    leaf = INEXACT[kind]()
    params = {"w": leaf, "n": jnp.arange(2), "rate": 0.5}
    tx = tko.filtered(tko.sgd(0.1))
    grads: Any = {"w": jnp.ones(np.shape(leaf)), "n": None, "rate": None}
    updates, _ = tx.update(grads, tx.init(params), params)
    cases.assert_close(updates, {"w": -0.1 * grads["w"], "n": None, "rate": None}, rtol=1e-2)


# ---------------------------------------------------------------------------------------------------------- masked


def test_masked_out_updates_pass_through_and_state_has_masked_nodes() -> None:
    params = cases.arrays()
    tx = tko.masked(optax.adam(0.1), {"w": True, "b": False})
    state = tx.init(params)
    assert isinstance(state, optax.MaskedState)
    assert state.inner_state[0].mu["b"] == optax.MaskedNode()
    grads = cases.gradient(params)
    updates, state = tx.update(grads, state, params)
    assert updates["b"] is grads["b"]
    assert state.inner_state[0].nu["b"] == optax.MaskedNode()


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_none_above_params_is_none_for_each_of_them(wrap: Callable[[Any], Any]) -> None:
    params = {"a": jnp.ones((2, 2)), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(2), "f": jnp.tanh}}
    grads, none = jnp.ones((2, 2)), dict.fromkeys("cdf")
    tx = wrap(optax.adam(0.1))
    state = tx.init(params)
    for short, whole in (({"a": grads, "b": None}, {"a": grads, "b": none}), (None, {"a": None, "b": none})):
        (updates, after), (expected, expected_after) = (tx.update(x, state, params) for x in (short, whole))
        assert_trees_same(after, expected_after)
        assert_trees_same(tko.apply_updates(params, updates), tko.apply_updates(params, expected))


def test_a_masked_subtree_is_one_masked_node() -> None:
    params = {"a": {"x": jnp.ones(1), "y": jnp.ones(2)}, "b": jnp.ones(3)}
    mask = {"a": False, "b": True}
    ours, theirs = (m.masked(optax.adam(0.1), mask).init(params) for m in (tko, optax))
    assert ours.inner_state[0].mu["a"] == optax.MaskedNode()
    assert cases.structure(ours) == cases.structure(theirs)


@pytest.mark.parametrize("kind", ["f32", "eqx_raw", "eqx_bf16", "nnx", "legacy"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_bool_stands_for_the_whole_tree(kind: str, keep: bool) -> None:
    params = cases.PARAMS[kind]()
    tx = tko.masked(optax.scale(0.0), keep)
    updates, _ = tx.update(cases.gradient(params), tx.init(params), params)
    assert all(bool((u == 0).all()) == keep for u in jax.tree.leaves(updates))


def test_a_mask_function_sees_parameters_only() -> None:
    model = cases.model()
    seen: list[Any] = []

    def mask(params: Any) -> Any:
        seen.extend(jax.tree.leaves(params))
        return jax.tree.map(lambda x: x.ndim > 1, params)

    tx = tko.masked(optax.adam(0.1), mask)
    tx.update(cases.gradient(model), tx.init(model), model)
    assert seen and not any(callable(x) or isinstance(x, str) for x in seen)


def test_a_mask_function_is_called_with_the_params_where_given_else_with_the_updates() -> None:
    params, grads = {"w": jnp.ones(2)}, {"w": jnp.zeros(2)}
    seen: list[float] = []

    def mask(tree: Any) -> Any:
        seen.append(float(tree["w"][0]))
        return True

    tx = tko.masked(optax.sgd(0.1), mask)
    state = tx.init(params)
    tx.update(grads, state, params)
    assert set(seen) == {1.0}
    seen.clear()
    tx.update(grads, state)
    assert set(seen) == {0.0}


def test_nested_masks() -> None:
    params = {"a": jnp.ones(1), "b": jnp.ones(1), "c": jnp.ones(1)}

    def build(o: Any) -> Any:
        inner = o.masked(optax.trace(0.9), {"a": True, "b": False, "c": optax.MaskedNode()})
        return o.masked(optax.chain(optax.scale(2.0), inner), {"a": True, "b": True, "c": False})

    ours, theirs = build(tko), build(optax)
    state, expected_state = ours.init(params), theirs.init(params)
    assert cases.structure(state) == cases.structure(expected_state)
    for _ in range(2):
        updates, state = ours.update(params, state, params)
        expected, expected_state = theirs.update(params, expected_state, params)
        cases.assert_close(updates, expected)


def test_nested_mask_functions_on_a_raw_model() -> None:
    model = cases.model()
    inner = tko.masked(optax.scale(2.0), lambda p: jax.tree.map(lambda x: x.shape[0] == 3, p))
    tx = tko.masked(inner, cases.mask_of)
    grads = jax.tree.map(jnp.ones_like, cases.gradient(model))
    updates, _ = tx.update(grads, tx.init(model), model)
    assert sorted((x.shape, float(x.ravel()[0])) for x in jax.tree.leaves(updates)) == [
        ((1,), 1.0),
        ((1, 3), 1.0),
        ((3,), 1.0),
        ((3, 2), 2.0),
    ]


@pytest.mark.parametrize("leaf", [True, np.True_, np.array(True), jnp.array(True)])
def test_bools_of_every_sort_are_taken(leaf: Any) -> None:
    tx = tko.masked(optax.set_to_zero(), {"w": leaf, "b": False})
    updates, _ = jax.jit(tx.update)(cases.arrays(), tx.init(cases.arrays()))
    assert not updates["w"].any() and updates["b"].any()


NOT_BOOLS: tuple[Any, ...] = (1.0, 1, 0, "w", jnp.ones(()), np.float32(1), jnp.array([True, False]))
# A mask of {"w": array, "b": array}, and the words of the error.
MISFITS: dict[str, tuple[Any, list[str]]] = {
    "deeper": ({"w": True, "b": {"c": True}}, ["b", "a dict", "an array, f32", "jax.tree.map"]),
    "None for a parameter": ({"w": True, "b": None}, ["b", "None", "an array, f32", "jax.tree.map"]),
    "a list": ({"w": True, "b": [True]}, ["b", "a list", "an array, f32", "jax.tree.map"]),
    "another root": ([True, True], ["list", "dict", "jax.tree.map"]),
    "a key too few": ({"w": True}, ["b", "jax.tree.map"]),
    "a key too many": ({"w": True, "b": True, "c": True}, ["c", "jax.tree.map"]),
    "a number": (3, ["must have bools", "at the root it has 3"]),
    "a pattern": ("**.w", ["must have bools", "has '**.w'", "use treekit.path_mask"]),
    **{repr(x): ({"w": True, "b": x}, ["must have bools", "b", type(x).__name__]) for x in NOT_BOOLS},
}


@pytest.mark.parametrize("mask, words", MISFITS.values(), ids=MISFITS)
def test_a_mask_that_does_not_fit_is_an_error_that_says_where(mask: Any, words: list[str]) -> None:
    specs: tuple[Any, ...] = (mask, lambda _: mask)
    for spec in specs:
        with pytest.raises((TypeError, ValueError), match=r"\bmask\b") as caught:
            tko.masked(optax.adam(0.1), spec).init(cases.arrays())
        assert not [word for word in words if word not in str(caught.value)]
    if "None" not in words:  # which adamw takes for a parameter without weight decay
        with pytest.raises((TypeError, ValueError), match=r"\bmask\b"):
            tko.adamw(0.1, mask=mask).init(cases.arrays())


@pytest.mark.parametrize("name", ["deeper", "a list", "another root"])
def test_a_filter_that_does_not_fit_is_an_error_that_says_where(name: str) -> None:
    spec, words = MISFITS[name]
    with pytest.raises(ValueError, match="filter_spec does not fit") as caught:
        tko.filtered(optax.adam(0.1), spec).init(cases.arrays())
    assert not [word for word in words[:-1] if word not in str(caught.value)]


def test_an_error_of_the_mask_function_says_how_it_is_called() -> None:
    def mask(params: Any) -> Any:
        raise KeyError("mine")

    for tx in (tko.masked(optax.sgd(0.1), mask), tko.adamw(0.1, mask=mask), tko.partition({"a": optax.sgd(0.1)}, mask)):
        with pytest.raises(ValueError, match=r"KeyError: 'mine'.*called once, with all of the params") as caught:
            tx.init(cases.arrays())
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_traced_mask_is_an_error() -> None:
    def init(flag: jax.Array) -> Any:
        return tko.masked(optax.adam(0.1), {"w": flag, "b": False}).init(cases.arrays())

    with pytest.raises(TypeError, match=r"mask.*\bw\b.*which is traced"):
        jax.jit(init)(jnp.array(True))


# ------------------------------------------------------------------------------------------------------- partition


# Labels of {"w": array, "b": array}, and the words of the error.
BAD_LABELS: dict[str, tuple[Any, str]] = {
    "a label without a transformation": ({"w": "a", "b": "typo"}, "'a'.*'typo'.*'a', 'b'"),
    "all of them": ("typo", "Some parameters have no corresponding transformation: .*'typo'.*'a', 'b'"),
    "deeper": ({"w": "a", "b": {"c": "a"}}, r"param_labels.*\bb\b.*a dict.*an array, f32"),
    "tuples, deeper": ({"w": ("x", 1), "b": {"c": ("x", 1)}}, r"param_labels\S*\.b"),
}


@pytest.mark.parametrize("labels, words", BAD_LABELS.values(), ids=BAD_LABELS)
def test_labels_that_do_not_fit_are_an_error_that_says_where(labels: Any, words: str) -> None:
    transforms: Any = {("x", 1): optax.sgd(0.1)} if "x" in words else {"a": optax.sgd(0.1), "b": optax.adam(0.1)}
    for spec in (labels, lambda _: labels):
        with pytest.raises(ValueError, match=f"(?s){words}"):
            tko.partition(transforms, spec).init(cases.arrays())


def test_labels_that_jax_cannot_sort_are_an_error_that_says_so() -> None:
    class Kind(enum.Enum):
        A = "a"
        B = "b"

    class Text(enum.StrEnum):
        A = "a"
        B = "b"

    for a, b in ((Kind.A, Kind.B), ("a", None), ("a", 1)):
        with pytest.raises(TypeError, match=r"the labels of transforms .*cannot sort \{.*enum\.StrEnum"):
            tko.partition({a: optax.sgd(0.1), b: optax.adam(0.1)}, {"w": a, "b": b})
    tx = tko.partition({Text.A: optax.sgd(1.0), Text.B: optax.sgd(2.0)}, {"w": Text.A, "b": Text.B})
    updates, _ = tx.update(cases.arrays(), tx.init(cases.arrays()))
    assert float(updates["w"].ravel()[0]) == -float(cases.arrays()["w"].ravel()[0])


def test_a_callable_label_tree_with_a_label_without_a_transformation_shows_both_sets_of_keys() -> None:
    model = cases.model()
    labels = jax.tree.map(lambda x: "a" if np.ndim(x) > 1 else "typo", model)
    with pytest.raises(ValueError, match=r"(?s)'a', 'typo'.*'a', 'b'"):
        tko.partition({"a": optax.sgd(0.1), "b": optax.adam(0.1)}, labels).init(model)


@pytest.mark.parametrize("labels", ["raw", "filtered", "function", "prefix"])
def test_labels_of_every_sort_on_a_raw_model(labels: str) -> None:
    model = cases.model()
    specs: dict[str, Any] = {
        "raw": jax.tree.map(label, model),
        "filtered": labels_of(model),
        "function": lambda params: jax.tree.map(label, params),
        "prefix": "matrix",
    }
    tx = tko.partition({"matrix": optax.set_to_zero(), "other": optax.identity()}, specs[labels])
    updates, _ = jax.jit(tx.update)(cases.gradient(model), tx.init(model), cases.arrays_of(model))
    zero = {x.ndim: bool((x == 0).all()) for x in jax.tree.leaves(updates)}
    assert zero == {2: True, 1: labels == "prefix"}


@pytest.mark.parametrize("one, two", [(("lr", 1), ("lr", 2)), (1, 2), (True, False)])
def test_labels_that_are_no_strings(one: Any, two: Any) -> None:
    params = {"a": jnp.ones(1), "b": (jnp.ones(1), jnp.ones(1))}
    tx = tko.partition({one: optax.scale(2.0), two: optax.scale(3.0)}, {"a": one, "b": (two, one)})
    updates, _ = tx.update(params, tx.init(params), params)
    assert [float(x[0]) for x in jax.tree.leaves(updates)] == [2.0, 3.0, 2.0]


def test_a_dict_of_labels_is_mapped_like_optax_in_a_jitted_step_and_a_scan() -> None:
    """Every transform has a state of its own, in Optax's class, also one that no parameter has."""
    transforms = {"matrix": optax.adam(0.1), "other": optax.sgd(0.1), "unused": optax.adam(0.1)}
    state = tko.partition(transforms, labels_of).init(cases.model())
    assert isinstance(state, optax.transforms.PartitionState)
    assert set(state.inner_states) == set(transforms)


# -------------------------------------------------------------------------------------------------- on the outside


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_updates_of_another_structure_are_an_error(wrap: Callable[[Any], Any]) -> None:
    tx, params = wrap(optax.adam(0.1)), cases.arrays()
    for updates in ({"w": {"x": jnp.ones(2)}}, {"w": params["w"]}):
        with pytest.raises(ValueError, match="the updates do not fit the params"):
            tx.update(updates, tx.init(params), params)


def test_vmap_over_an_ensemble_of_raw_models() -> None:
    """Members at different steps, each as it is alone."""
    models = [cases.model(), jax.tree.map(lambda x: 2 * x if eqx.is_inexact_array(x) else x, cases.model())]
    tx = tko.partition({"matrix": optax.adam(0.1), "other": optax.sgd(0.1)}, labels_of)

    def step(model: Any, state: Any) -> Any:
        updates, state = tx.update(cases.gradient(model), state, model)
        return updates, state

    states = [tx.init(m) for m in models]
    states[1] = step(models[1], states[1])[1]
    dynamic = jax.tree.map(lambda *xs: jnp.stack(xs), *(cases.arrays_of(m) for m in models))
    static = eqx.filter(models[0], eqx.is_array, inverse=True)
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
    together = jax.vmap(lambda d, s: step(eqx.combine(d, static), s))(dynamic, stacked)
    for i, (model, state) in enumerate(zip(models, states, strict=True)):
        cases.assert_close(jax.tree.map(lambda x, i=i: x[i], together), step(model, state), rtol=1e-5)


def is_wide(leaf: Any) -> bool:
    return bool(eqx.is_array(leaf) and leaf.ndim > 1)


# Functions of one leaf, where a function of the whole tree belongs.
PREDICATES: dict[str, Any] = {
    "is_array": eqx.is_array,
    "is_inexact_array": eqx.is_inexact_array,
    "treekit's": tk.is_inexact_array,
    "the user's": is_wide,
    "a partial": functools.partial(lambda rank, leaf: eqx.is_array(leaf) and leaf.ndim == rank, 2),
}
TAKE_MASKS: dict[str, Callable[[Any], Any]] = {
    "masked": lambda mask: tko.masked(tko.sgd(0.1), mask),
    "freeze": tko.freeze,
    "selective_transform": lambda mask: tko.selective_transform(tko.sgd(0.1), freeze_mask=mask),
    "adamw": lambda mask: tko.adamw(1e-3, mask=mask),
    "inject_hyperparams": lambda mask: tko.inject_hyperparams(tko.adamw)(1e-3, mask=mask),
    "partition": lambda mask: tko.partition({True: tko.sgd(0.1), False: tko.adam(0.1)}, mask),
}


CELLS = [(predicate, "masked") for predicate in PREDICATES] + [("a partial", wrapper) for wrapper in TAKE_MASKS]


@pytest.mark.parametrize("predicate, wrapper", CELLS)
def test_a_predicate_on_leaves_where_a_function_of_the_params_belongs_raises(predicate: str, wrapper: str) -> None:
    """It answers False for the whole model, so that `masked` would return gradients, and decay would be off."""
    argument = {"partition": "param_labels", "selective_transform": "freeze_mask"}.get(wrapper, "mask")
    message = (
        f"^the function given as {argument} is a predicate on leaves: it returned False .*{argument}=lambda params"
    )
    for params in (eqx.nn.MLP(2, 1, 4, depth=1, key=jax.random.key(0)), cases.arrays()):
        with pytest.raises(ValueError, match=message):
            TAKE_MASKS[wrapper](PREDICATES[predicate]).init(params)


@pytest.mark.parametrize("wrapper", TAKE_MASKS)
def test_a_function_that_returns_one_bool_for_the_params_is_used(wrapper: str) -> None:
    for mask in (lambda _: True, lambda params: params["w"].ndim > 1, lambda _: False):
        TAKE_MASKS[wrapper](mask).init(cases.arrays())


def test_a_bad_freeze_mask_is_named_as_the_user_wrote_it() -> None:
    for mask in ({"x": True}, lambda params: {"x": True}, lambda params: params["y"]):
        with pytest.raises(ValueError, match="freeze_mask") as caught:
            tko.selective_transform(tko.sgd(0.1), freeze_mask=mask).init({"w": jnp.ones(2)})
        assert "param_labels" not in str(caught.value)
