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


@pytest.mark.table
@pytest.mark.parametrize(
    "wrap, name, kind", cases.cells(WRAPPERS, 0, whole=("filtered", "masked", "partition"), every=3)
)
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    """Of *plain* Optax's transformation inside: the wrapper alone has to do it."""
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


SAME = ["sgd", "adamw", "adafactor", "numbers", "clipped", "flatten", "schedule_free", "muon"]
OF_OPTAX = [(name, "f32") for name in SAME]
OF_OPTAX += [("adamw", kind) for kind in ("none", "empty", "namedtuple", "nnx", "linen")]


@pytest.mark.parametrize("name, kind", OF_OPTAX)
def test_on_params_that_optax_takes_they_are_optax(name: str, kind: str) -> None:
    tx = cases.OPTIMIZERS[name](optax)
    cases.same_as_optax(tko.masked(tx, cases.mask_of), optax.masked(tx, cases.mask_of), kind)
    groups: dict[Any, Any] = {"matrix": tx, "other": optax.sgd(0.1, momentum=0.9), "unused": optax.adam(0.1)}
    cases.same_as_optax(tko.partition(groups, labels_of), optax.partition(groups, labels_of), kind)
    cases.same_as_optax(tko.filtered(tx), tx, kind)


# -------------------------------------------------------------------------------------------------------- filtered


def test_filtered_trains_every_inexact_array_by_default_and_leaves_none_for_the_rest() -> None:
    numpy: dict[str, Any] = {"x": np.ones(2, np.float32), "y": np.float32(1)}
    params, tx = cases.PARAMS["int_key"]() | numpy | {"rate": 0.5}, tko.filtered(optax.adam(0.1))
    state, trained = tx.init(params), {"w", "b", "x", "y"}
    assert {k for k, x in state[0].mu.items() if x is not None} == trained
    grads = cases.grads_of("int_key", params) | jax.tree.map(jnp.ones_like, numpy) | {"rate": None}
    updates, _ = tx.update(grads, state, params)
    assert {k for k, x in updates.items() if x is not None} == trained
    after = tko.apply_updates(params, updates)
    assert all((after[k] is params[k]) == (k not in trained) for k in params)


FILTERS: dict[str, Any] = {
    "tree": {"w": True, "b": False},
    "predicate": lambda x: eqx.is_inexact_array(x) and x.ndim == 2,
    "tree_of_predicates": {"w": eqx.is_array, "b": lambda x: False},
}


@pytest.mark.parametrize("name", FILTERS)
def test_filtered_takes_what_filter_takes(name: str) -> None:
    params = cases.arrays()
    tx, alone, only = tko.filtered(optax.adamw(0.1), FILTERS[name]), optax.adamw(0.1), {"w": params["w"]}
    state = tx.init(params)
    assert state[0].mu["b"] is None
    updates, _ = jax.jit(tx.update)(params, state, params)
    assert updates["b"] is None
    cases.assert_close(updates["w"], alone.update(only, alone.init(only), only)[0]["w"])


def test_a_filter_that_is_a_function_and_selects_nothing_shows_both_forms() -> None:
    """A tree, callable or not, and the default on a model of integers, may select nothing."""

    def by_path(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: "layers[1]" in jax.tree_util.keystr(path), params)

    model = eqx.nn.MLP(2, 2, 3, depth=1, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"selects no leaf.*lambda leaf: .*leaf\.ndim > 1.*tree_map_with_path"):
        tko.filtered(tko.adam(0.1), by_path).init(model)
    with pytest.raises(TypeError, match=r"filter_spec must be a predicate.*not None.*pass False"):
        tko.filtered(tko.adam(0.1), None).init(model)
    state = tko.filtered(tko.trace(0.9), by_path(model)).init(model)
    assert state.trace.layers[0].weight is None and state.trace.layers[1].weight is not None
    nothing = jax.tree.map(lambda _: False, model)
    assert callable(nothing)
    for spec, params in ((False, model), (nothing, model), (tk.is_inexact_array, {"n": jnp.arange(2)})):
        assert not [x for x in jax.tree.leaves(tko.filtered(tko.trace(0.9), spec).init(params)) if eqx.is_array(x)]


LINKS: dict[str, Callable[[], Any]] = {
    "of_treekit": lambda: tko.adamw(0.1),
    "of_optax": lambda: optax.adamw(0.1),
    "chain_of_optax": lambda: optax.chain(optax.clip(1.0), optax.adam(0.1)),
    "multi_steps": lambda: tko.MultiSteps(tko.adamw(0.1), 1),
    "apply_if_finite": lambda: tko.apply_if_finite(tko.MultiSteps(optax.identity(), 2).gradient_transformation(), 2),
    "masked": lambda: tko.masked(optax.adamw(0.1), True),
    "inject": lambda: tko.inject_hyperparams(optax.adamw)(0.1),
}


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("jitted", [False, True])
def test_what_a_filtered_link_freezes_stays_frozen_in_the_links_after_it(name: str, jitted: bool) -> None:
    params = cases.arrays()
    decay = tko.add_decayed_weights(-0.5)
    tx = tko.chain(tko.filtered(tko.sgd(0.1), {"w": True, "b": False}), LINKS[name](), decay)
    step: Any = functools.partial(tko.apply_gradients, tx)
    step = jax.jit(step) if jitted else step
    state = tx.init(params)
    assert tx.update(params, state, params)[0]["b"] is None
    new = params
    for _ in range(2):
        new, state = step(params, state, new)
    np.testing.assert_array_equal(new["b"], params["b"])
    assert not np.allclose(new["w"], params["w"])


def test_a_filter_is_not_asked_about_functions() -> None:
    state = tko.filtered(tko.trace(0.9), lambda leaf: jnp.ndim(leaf) > 1).init(cases.model())
    assert len(jax.tree.leaves(state)) == 2


# ---------------------------------------------------------------------------------------------------------- masked


def test_masked_out_updates_pass_through_and_a_masked_subtree_is_one_masked_node() -> None:
    params: Any = {"w": jnp.ones(2), "b": {"x": jnp.ones(1), "y": jnp.ones(2)}}
    tx = tko.masked(optax.adam(0.1), {"w": True, "b": False})
    state = tx.init(params)
    updates, new_state = tx.update(params, state, params)
    for x in (state, new_state):
        assert isinstance(x, optax.MaskedState) and x.inner_state[0].mu["b"] == optax.MaskedNode()
    assert all(updates["b"][k] is params["b"][k] for k in "xy")


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


@pytest.mark.parametrize("kind", ["f32", "eqx_raw", "nnx"])
@pytest.mark.parametrize("keep", [True, False, np.True_, np.array(False), jnp.array(True)])
def test_a_bool_of_any_sort_stands_for_the_whole_tree(kind: str, keep: Any) -> None:
    params = cases.PARAMS[kind]()
    tx = tko.masked(optax.scale(0.0), keep)
    updates, _ = tx.update(cases.gradient(params), tx.init(params), params)
    assert all(bool((u == 0).all()) == keep for u in jax.tree.leaves(updates))


MAKE_MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "masked": lambda o, mask: o.masked(optax.adam(0.1), mask),
    "adamw": lambda o, mask: o.adamw(0.1, mask=mask),
    "partition": lambda o, mask: o.partition({True: optax.adam(0.1), False: optax.sgd(0.1)}, mask),
}


@pytest.mark.parametrize("given", [True, False], ids=["params", "without"])
@pytest.mark.parametrize("name", MAKE_MASKS)
def test_a_mask_function_sees_what_optax_gives_it(name: str, given: bool) -> None:
    """The params in init and the updates in update, each once; a missing gradient is a zero there."""
    model = cases.model()
    seen: dict[Any, list[Any]] = {tko: [], optax: []}
    for o in (tko, optax):

        def mask(tree: Any, o: Any = o) -> Any:
            seen[o].append(jax.tree.leaves(tree))
            return jax.tree.map(lambda x: x.ndim > 1, tree)

        raw = model if o is tko else tk.filter(model, tk.is_inexact_array)
        tx, grads = MAKE_MASKS[name](o, mask), cases.gradient(tk.filter(model, tk.is_inexact_array))
        if given or name != "adamw":
            tx.update(grads, tx.init(raw), raw if given else None)
    assert not tk.tree_diff(seen[tko], seen[optax])
    called = list[Any]()

    def of_w(tree: Any) -> Any:
        called.append(tree)
        return {"w": True, "b": True}

    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    tx = MAKE_MASKS[name](tko, of_w)
    tx.update({"w": params["w"], "b": None}, tx.init(params), params)
    assert len(called) == 2 and not tk.tree_diff(called[0], params) and (called[1]["b"] == 0).all()


class Group(enum.Enum):
    BODY = 1
    HEAD = 2


# Two labels that JAX cannot sort, so that it has no dict of them.
UNORDERED: dict[str, tuple[Any, Any]] = {
    "Enum": (Group.BODY, Group.HEAD),
    "two types": (1, "b"),
    "a tuple": (("a", 1), 2),
}


@pytest.mark.parametrize("kind", UNORDERED)
def test_labels_need_no_order(kind: str) -> None:
    """In plain Optax they work outside of jit."""
    first, second = UNORDERED[kind]
    params, of = cases.arrays(), {first: tko.adam(0.1), second: tko.sgd(0.1)}
    tx = tko.partition(of, tk.path_labels({"w": first}, default=second))
    state: Any = tx.init(params)
    for update in (tx.update, jax.jit(tx.update)):
        updates, state = update(params, state, params)
        assert list(state.inner_states) == [first, second]
        assert not tk.tree_diff(updates["b"], -0.1 * params["b"])
    names = tko.tree_map_params(tx, lambda _, name: name, state, {"w": "W", "b": "B"})
    assert optax.tree.get(names, "mu") == {"w": "W", "b": optax.MaskedNode()}


def test_a_nested_mask_may_be_made_from_what_is_masked() -> None:
    def build(o: Any) -> Any:
        inner = o.masked(optax.trace(0.9), {"w": True, "b": optax.MaskedNode()})
        return o.masked(optax.chain(optax.scale(2.0), inner), {"w": True, "b": False})

    cases.same_as_optax(build(tko), build(optax), "f32")


# ------------------------------------------------------------------------------------------- masks that do not fit

TAKE_MASKS: dict[str, Callable[[Any], Any]] = {
    "masked": lambda mask: tko.masked(tko.sgd(0.1), mask),
    "freeze": tko.freeze,
    "selective_transform": lambda mask: tko.selective_transform(tko.sgd(0.1), freeze_mask=mask),
    "adamw": lambda mask: tko.adamw(1e-3, mask=mask),
    "inject_hyperparams": lambda mask: tko.inject_hyperparams(tko.adamw)(1e-3, mask=mask),
    "partition": lambda mask: tko.partition({True: tko.sgd(0.1), False: tko.adam(0.1)}, mask),
}


def argument_of(wrapper: str) -> str:
    return {"partition": "param_labels", "selective_transform": "freeze_mask"}.get(wrapper, "mask")


# A mask of {"w": array, "b": array}, and the words of the error.
MISFITS: dict[str, tuple[Any, str]] = {
    "deeper": ({"w": True, "b": {"c": True}}, r".*\bb\b.*dict.*f32\[2\]"),
    "another root": ([True, True], ".*list.* dict"),
    "a key too few": ({"w": True}, r".*\bb\b"),
    "a key too many": ({"w": True, "b": True, "c": True}, r".*\bc\b"),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("wrapper", [*TAKE_MASKS, "filtered"])
def test_a_spec_that_does_not_fit_is_an_error_that_says_where(wrapper: str, name: str) -> None:
    mask, words = MISFITS[name]
    if wrapper == "filtered":
        with pytest.raises(ValueError, match=f"(?s)^filter_spec does not fit{words}"):
            tko.filtered(tko.sgd(0.1), mask).init(cases.arrays())
    else:
        specs: tuple[Any, ...] = (mask, lambda _: mask)
        for spec in specs:
            with pytest.raises(ValueError, match=rf"(?s)^{argument_of(wrapper)}\b{words}.*jax\.tree\.map"):
                TAKE_MASKS[wrapper](spec).init(cases.arrays())


NOT_BOOLS: tuple[Any, ...] = (1.0, 0, "w", jnp.ones(()), np.float32(1), jnp.array([True, False]))
WRONG_LEAVES: dict[str, tuple[Any, str]] = {
    "a number": (3, "at the root it has 3"),
    "a pattern": ("**.w", r"at the root it has '\*\*.w'.* use treekit\.path_mask"),
    **{repr(x): ({"w": True, "b": x}, rf"at b it has .* of type {type(x).__name__}") for x in NOT_BOOLS},
}


@pytest.mark.parametrize("wrapper", ["masked", "adamw", "selective_transform"])
@pytest.mark.parametrize("name", WRONG_LEAVES)
def test_a_mask_of_other_leaves_than_bools_is_an_error_that_says_where(name: str, wrapper: str) -> None:
    mask, words = WRONG_LEAVES[name]
    for spec in (mask, lambda _: mask):
        with pytest.raises(TypeError, match=rf"^{argument_of(wrapper)} must have bools at its leaves; {words}"):
            TAKE_MASKS[wrapper](spec).init(cases.arrays())


@pytest.mark.parametrize("wrapper", ["masked", "adamw", "selective_transform"])
def test_none_in_a_mask_does_not_fit_an_array(wrapper: str) -> None:
    """It would silently count as False: no weight decay, or not frozen. A function without a return gives it too."""
    for mask, path in (({"w": True, "b": None}, r"\.b"), (lambda params: None, "")):
        with pytest.raises(
            ValueError, match=rf"(?s)^{argument_of(wrapper)}\S*.*key path \S*{path} it has None.*tree\.map"
        ):
            TAKE_MASKS[wrapper](mask).init(cases.arrays())


@pytest.mark.parametrize("wrapper", TAKE_MASKS)
def test_an_error_of_the_mask_function_says_how_it_is_called(wrapper: str) -> None:
    def mask(params: Any) -> Any:
        raise KeyError("mine")

    words = rf"{argument_of(wrapper)}.*KeyError: 'mine'.*called once, with all of the params"
    with pytest.raises(ValueError, match=words) as caught:
        TAKE_MASKS[wrapper](mask).init(cases.arrays())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_traced_mask_is_an_error() -> None:
    def init(flag: jax.Array) -> Any:
        return tko.masked(optax.adam(0.1), {"w": flag, "b": False}).init(cases.arrays())

    with pytest.raises(TypeError, match=r"mask.*\bw\b.*which is traced"):
        jax.jit(init)(jnp.array(True))


# Functions of one leaf, where a function of the whole tree belongs.
PREDICATES: list[Any] = [
    eqx.is_array,
    tk.is_inexact_array,
    lambda leaf: bool(eqx.is_array(leaf) and leaf.ndim > 1),
    functools.partial(lambda rank, leaf: eqx.is_array(leaf) and leaf.ndim == rank, 2),
]


@pytest.mark.parametrize("wrapper", TAKE_MASKS)
def test_a_predicate_on_leaves_where_a_function_of_the_params_belongs_raises(wrapper: str) -> None:
    """It answers False for the whole model, so that `masked` would return gradients, and decay would be off."""
    name = argument_of(wrapper)
    message = f"^the function given as {name} is a predicate on leaves: it returned False .*{name}=lambda params"
    for predicate in PREDICATES:
        for params in (eqx.nn.MLP(2, 1, 4, depth=1, key=jax.random.key(0)), cases.arrays()):
            with pytest.raises(ValueError, match=message):
                TAKE_MASKS[wrapper](predicate).init(params)


@pytest.mark.parametrize("wrapper", TAKE_MASKS)
def test_a_function_that_returns_one_bool_for_the_params_is_used(wrapper: str) -> None:
    for mask in (lambda _: True, lambda params: params["w"].ndim > 1, lambda _: False):
        TAKE_MASKS[wrapper](mask).init(cases.arrays())


# ------------------------------------------------------------------------------------------------------- partition

MODEL = cases.model()
TYPO = jax.tree.map(lambda x: "a" if np.ndim(x) > 1 else "typo", MODEL)
# Labels, params, and the words of the error.
BAD_LABELS: dict[str, tuple[Any, Any, str]] = {
    "no transformation": ({"w": "a", "b": "typo"}, cases.arrays(), "^Some .* b is 'typo'.*'a', 'typo'.*'a', 'b'"),
    "tuples, deeper": ({"w": ("x", 1), "b": {"c": ("x", 1)}}, cases.arrays(), r"param_labels\S*\.b"),
    "a callable tree": (TYPO, MODEL, "'a', 'typo'.*'a', 'b'"),
}


@pytest.mark.parametrize("name", BAD_LABELS)
def test_labels_that_do_not_fit_are_an_error_that_says_where(name: str) -> None:
    labels, params, words = BAD_LABELS[name]
    transforms: Any = {("x", 1): optax.sgd(0.1)} if "tuples" in name else {"a": optax.sgd(0.1), "b": optax.adam(0.1)}
    for spec in (labels, lambda _: labels):
        with pytest.raises(ValueError, match=f"(?s){words}"):
            tko.partition(transforms, spec).init(params)


Text = enum.StrEnum("Text", ["A", "B"])


@pytest.mark.parametrize("one, two", [(("lr", 1), ("lr", 2)), (1, 2), (True, False), (Text.A, Text.B)])
def test_labels_that_are_no_strings(one: Any, two: Any) -> None:
    params = {"a": jnp.ones(1), "b": (jnp.ones(1), jnp.ones(1))}
    tx = tko.partition({one: optax.scale(2.0), two: optax.scale(3.0)}, {"a": one, "b": (two, one)})
    updates, _ = tx.update(params, tx.init(params), params)
    assert [float(x[0]) for x in jax.tree.leaves(updates)] == [2.0, 3.0, 2.0]


LABELS: dict[str, Any] = {
    "raw": jax.tree.map(label, MODEL),
    "filtered": labels_of(MODEL),
    "function": lambda params: jax.tree.map(label, params),
    "prefix": "matrix",
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_every_sort_on_a_raw_model(name: str) -> None:
    tx = tko.partition({"matrix": optax.set_to_zero(), "other": optax.identity()}, LABELS[name])
    updates, _ = jax.jit(tx.update)(cases.gradient(MODEL), tx.init(MODEL), cases.arrays_of(MODEL))
    zero = {x.ndim: bool((x == 0).all()) for x in jax.tree.leaves(updates)}
    assert zero == {2: True, 1: name == "prefix"}
