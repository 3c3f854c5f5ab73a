"""path_mask and path_labels: globs and regular expressions over key paths, wherever masks, labels and filters go."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import EXAMPLES, Point, Twig, untyped
from treekit._names.key_path import flatten_with_names

# For each pattern: the names that it matches, and those that it does not.
PATTERNS: list[tuple[Any, list[str], list[str]]] = [
    ("a", ["a"], ["a.b", "b.a"]),
    ("*", ["a", "a\nb"], ["a.b", ""]),
    ("**", ["", "a.b.c"], []),
    ("**.bias", ["bias", "layers.0.bias"], ["layers.0.bias.mean"]),
    ("encoder.**", ["encoder", "encoder.layers.0.w"], ["model.encoder.w"]),
    ("**.norm.**", ["norm", "layers.0.norm.scale"], []),
    ("a.**.b.**.c", ["a.b.c", "a.x.b.y.z.c"], ["a.c.b"]),
    ("layers.*.bias", ["layers.10.bias"], ["layers.1.2.bias"]),
    ("**.**.bias", ["bias", "a.b.bias"], ["bias.a"]),
    ("**norm", ["layernorm"], ["x.layernorm"]),
    (re.compile(r"layers\.\d+\.bias"), ["layers.0.bias"], ["layers.0.bias.mean", "a.layers.0.bias"]),
    (re.compile(r"(?i).*BIAS"), ["bias", "layers.0.Bias"], []),
]


def nested(name: str) -> Any:
    """A tree with one leaf of this name."""
    tree: Any = 1
    for part in reversed(name.split(".") if name else []):
        tree = {part: tree}
    return tree


@pytest.mark.parametrize(("pattern", "names", "others"), PATTERNS)
def test_a_pattern_matches_the_whole_path(pattern: Any, names: list[str], others: list[str]) -> None:
    mask = tk.path_mask(pattern, strict=False)
    for name in (*names, *others):
        assert jax.tree.leaves(mask(nested(name))) == [name in names]


ALPHABET = "az*?[]!^-+(\\"


@given(st.text(ALPHABET, min_size=1, max_size=5), st.text(ALPHABET, min_size=1, max_size=5))
def test_the_wildcards_of_one_part_are_stars_and_question_marks(pattern: str, name: str) -> None:
    wild = "".join({"*": ".*", "?": "."}.get(x, re.escape(x)) for x in pattern)
    is_match = re.fullmatch(wild, name, re.DOTALL) is not None
    assert tk.path_mask(pattern, strict=False)({name: 1}) == {name: is_match}


# -------------------------------------------------------------------------------- the structure, on every kind of tree


@pytest.mark.parametrize("name", [name for name in EXAMPLES if jax.tree.leaves(EXAMPLES[name])])
def test_the_result_has_the_structure_of_the_tree(name: str) -> None:
    tree = EXAMPLES[name]
    names = [
        untyped.tree_util.keystr(p, simple=True, separator=".") for p, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    assert untyped.tree.structure(tk.path_mask("**")(tree)) == untyped.tree.structure(tree)
    assert jax.tree.leaves(tk.path_mask("**")(tree)) == [True] * len(names)
    assert jax.tree.leaves((~tk.path_mask("**"))(tree)) == [False] * len(names)
    for i, path in enumerate(names):
        labels = tk.path_labels({re.compile(re.escape(path)): "this"}, default="other")(tree)
        assert jax.tree.leaves(labels) == ["this" if j == i else "other" for j in range(len(names))]


def test_an_attribute_a_key_and_an_index_are_written_alike() -> None:
    mask = tk.path_mask("left.x.0")
    assert jax.tree.leaves(mask(Twig(Point([1], 2)))) == [True, False]
    assert mask({"left": {"x": [1]}}) == {"left": {"x": [True]}}
    assert mask({"left": {"x": {0: 1}}}) == {"left": {"x": {0: True}}}


PARTS = st.sampled_from(["a", "b", "0", "12", "ab"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map(".".join)
WORDS = st.lists(PARTS | st.sampled_from(["*", "**", "a*", "?", "[01]", "1?"]), min_size=1, max_size=4).map(".".join)
SEVERAL = st.lists(WORDS | st.sampled_from(["a.*", ".*b", "[01]"]).map(re.compile), max_size=6, unique=True)


@given(SEVERAL, NAMES)
def test_the_first_pattern_that_matches_decides(patterns: list[Any], name: str) -> None:
    tree = nested(name)
    masks = [jax.tree.leaves(tk.path_mask(pattern, strict=False)(tree)) for pattern in patterns]
    first = masks.index([True]) if [True] in masks else -1
    labels = tk.path_labels({pattern: i for i, pattern in enumerate(patterns)}, default=-1, strict=False)
    assert jax.tree.leaves(labels(tree)) == [first]
    for pattern, is_in in zip(patterns, masks, strict=True):
        assert (name in tk.tree_find(tree, pattern, strict=False)) == is_in[0]


@pytest.mark.parametrize(
    ("pattern", "name"), [("**.layers.{}.*", "layers.{}.w"), ("*_{}.**", "layer_{}.w"), ("layer_*{}", "layer_x{}")]
)
def test_in_a_table_with_a_row_for_each_layer_each_layer_has_its_own(pattern: str, name: str) -> None:
    layers = list(range(10, 40))
    tree = {name.format(i): i for i in layers}
    patterns = [pattern.format(i) for i in layers]
    assert list(tk.tree_find(tree, patterns).values()) == layers
    labels = tk.path_labels(dict(zip(patterns, layers, strict=True)))
    assert jax.tree.leaves(labels(tree)) == layers


STARS: dict[str, Callable[[int], tuple[str, str]]] = {  # a pattern with n wildcards, and a name that it matches
    "text": lambda n: ("*a" * n + "*.b", "a" * 4 * n + ".b"),
    "parts": lambda n: ("**.a." * n + "b", "a." * 4 * n + "b"),
    "both": lambda n: ("**.*a." * n + "b", "a." * 4 * n + "b"),
}


@pytest.mark.parametrize("kind", STARS)
def test_many_wildcards_are_not_tried_in_every_way(kind: str) -> None:
    """There are more ways than atoms, so a matcher that tries them does not come back."""
    pattern, name = STARS[kind](100)
    assert [jax.tree.leaves(tk.path_mask(pattern, strict=False)({name + end: 1})) for end in ("", "c")] == [
        [True],
        [False],
    ]
    got, _ = tk.graft({f"{name[:-1]}c": 0}, {name: 1}, rename={pattern: f"{pattern[:-1]}c"})
    assert list(got.values()) == [1]


HIDDEN: list[dict[Any, int]] = [{"a.*": 1, "*.w": 2}, {re.compile(".*"): 1, "a.w": 2}, {"**": 1, dict: 2}]


@pytest.mark.parametrize("table", HIDDEN)
def test_a_pattern_that_earlier_ones_hide_raises(table: Any) -> None:
    tree = {"a": {"w": 1, "v": 1}}
    with pytest.raises(ValueError, match="path_labels"):
        tk.path_labels(table)(tree)
    assert set(jax.tree.leaves(tk.path_labels(table, strict=False)(tree))) == {1}
    tk.path_labels(dict(reversed(table.items())), default=0)(tree)


# ------------------------------------------------------------------------------------------------ objects of their own

A, B = tk.path_mask("a.**"), tk.path_mask("**.w")
SPECS: list[Any] = [A, ~A, A | B, A & B, tk.path_mask("**.w", re.compile("a.*")), ~tk.path_mask(dict)]
SPECS += [tk.path_mask(Point, "**.w", strict=False), tk.path_mask(Twig, "**.w", strict=False), tk.path_mask(dict)]
SPECS += [tk.path_labels({"a.**": "x"}, default=label) for label in ("y", None)]  # None is a default too
SPECS += [tk.path_labels({re.compile("a.*"): 1, "**": None})]
SPECS += [tk.path_labels({dict: "x"}), tk.path_labels({dict: "x", Point: "y"}, default="y", strict=False)]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_equal_patterns_make_equal_values(spec: Any) -> None:
    names = {"path_mask": tk.path_mask, "path_labels": tk.path_labels, "re": re, "Point": Point, "Twig": Twig}
    for copy in (pickle.loads(pickle.dumps(spec)), eval(repr(spec), names)):
        assert copy == spec and hash(copy) == hash(spec) and repr(copy) == repr(spec)
        assert copy(TWO) == spec(TWO)
    assert sum(spec == other for other in SPECS) == 1
    assert tk.is_truly_callable(spec)
    assert jax.tree.leaves(spec) == [spec]


# ---------------------------------------------------------------------------------------------------- filter, partition


MLP = EXAMPLES["mlp"]


def test_filter_and_partition_ask_it_of_the_whole_tree() -> None:
    biases, rest = tk.partition(MLP, tk.path_mask("layers.*.bias"))
    assert [x.ndim for x in jax.tree.leaves(biases)] == [1, 1]
    bools = tk.path_labels({"**.bias": False}, default=True)
    assert untyped.tree.structure(tk.filter(MLP, bools)) == untyped.tree.structure(rest)


def test_below_a_prefix_its_paths_are_those_of_the_part() -> None:
    tree = {"a": {"w": 1, "b": 2}, "c": {"w": 3, "b": 4}, "d": 5}
    spec = {"a": tk.path_mask("w"), "c": lambda x: x > 3, "d": True}
    assert tk.filter(tree, spec) == {"a": {"w": 1, "b": None}, "c": {"w": None, "b": 4}, "d": 5}


def test_is_leaf_is_followed() -> None:
    tree = {"a": (1, 2), "b": (3,)}
    kept = tk.filter(tree, tk.path_mask("a"), is_leaf=lambda x: isinstance(x, tuple))
    assert kept == {"a": (1, 2), "b": None}


def test_where_none_stands_for_a_leaf_a_pattern_may_name_it() -> None:
    """A model without biases, or one that filter has taken them from."""
    model: Any = eqx.nn.Linear(2, 2, use_bias=False, key=jax.random.key(0))
    assert tk.path_mask("bias")(model).bias is None
    assert tk.path_labels({"weight": 1, eqx.nn.Linear: 2})(model).weight == 1, "the bias might be in the second row"
    weights = tk.filter(MLP, tk.path_mask("**.weight"))
    assert jax.tree.leaves(tk.path_mask("**.bias")(weights)) == [False, False]


def test_what_is_not_a_parameter_needs_no_label() -> None:
    assert tk.path_labels({"**.weight": "a", "**.bias": "b"})(MLP).activation is None


TWO = {"a": {"w": jnp.ones(2), "b": 1}, "c": {"w": jnp.ones(2), "b": 1}}
COMBINED: dict[str, tuple[Any, list[bool]]] = {  # a.b, a.w, c.b, c.w
    "or": (A | B, [True, True, False, True]),
    "and": (A & B, [False, True, False, False]),
    "twice": (~~(A & B), [False, True, False, False]),
    "three": (A & B | ~A & ~B, [False, True, True, False]),
    "with trainable": (tk.trainable & ~A, [False, False, False, True]),
}


@pytest.mark.parametrize("name", COMBINED)
def test_masks_combine(name: str) -> None:
    mask, expected = COMBINED[name]
    assert jax.tree.leaves(mask(TWO)) == expected
    assert [x is not None for x in jax.tree.leaves(tk.filter(TWO, mask), is_leaf=lambda x: x is None)] == expected


DOTTED: Any = {"a.b": 1, "a": {"b": 2}, "c": 3}


def test_two_leaves_of_one_name_matter_where_a_pattern_matches_them() -> None:
    assert tk.path_mask("c")(DOTTED) == {"a.b": False, "a": {"b": False}, "c": True}
    assert all(jax.tree.leaves(tk.path_mask("**")(DOTTED)))


# ----------------------------------------------------------------------------------------------------------- by class


KEY = jax.random.key(0)
NORM, NNX = eqx.nn.LayerNorm(2), nnx.LayerNorm(2, rngs=nnx.Rngs(0))
EQX = {"a": eqx.nn.Linear(2, 2, key=KEY), "b": [NORM, {"c": NORM}], "bias": jnp.ones(2)}
# For each case: the patterns and classes, a tree, and the names of the leaves that they select.
BY_CLASS: dict[str, tuple[tuple[Any, ...], Any, list[str]]] = {
    "Equinox": ((eqx.nn.LayerNorm,), EQX, ["b.0.weight", "b.0.bias", "b.1.c.weight", "b.1.c.bias"]),
    "and a pattern": ((eqx.nn.LayerNorm, "bias"), {"a": NORM, "bias": 1}, ["a.weight", "a.bias", "bias"]),
    "a base class": ((eqx.Module,), [EQX["a"], 1], ["0.weight", "0.bias"]),
    "the root": ((Twig,), Twig(1, [2, 3]), ["left", "right.0", "right.1"]),
    "modules of Flax": ((nnx.LayerNorm,), {"a": NNX, "b": 1}, ["a.bias", "a.scale"]),
    "variables of Flax": ((nnx.Param,), {"a": nnx.state(NNX), "b": 1}, ["a.bias", "a.scale"]),
    "leaves": ((str,), {"a": "x", "b": 1, "c": ["y"]}, ["a", "c.0"]),
    "instances without leaves": ((Twig, "b"), {"a": Twig(None, None), "b": 1}, ["b"]),
}


@pytest.mark.parametrize("case", BY_CLASS)
def test_a_class_stands_for_all_leaves_in_its_instances(case: str) -> None:
    selectors, tree, expected = BY_CLASS[case]
    names = [name for name, _ in flatten_with_names(tree)]
    is_in = [name in expected for name in names]
    assert jax.tree.leaves(tk.path_mask(*selectors)(tree)) == is_in
    assert jax.tree.leaves(tk.path_labels(dict.fromkeys(selectors, 1), default=0, strict=False)(tree)) == is_in
    found = tk.tree_find(tree, list(selectors))
    assert [name for name in names if any(f"{name}.".startswith(f"{x}." if x else x) for x in found)] == expected
    filtered = tk.filter_arrays(tree)
    kept = [x for x, leaf in zip(is_in, jax.tree.leaves(tree), strict=True) if tk.is_array(leaf)]
    assert jax.tree.leaves(tk.path_mask(*selectors, strict=False)(filtered)) == kept


def test_the_first_of_patterns_and_classes_decides() -> None:
    labels = {eqx.nn.LayerNorm: "norm", "**.bias": "bias", dict: "rest"}
    expected = ["rest", "bias", "norm", "norm", "norm", "norm", "bias"]
    assert jax.tree.leaves(tk.path_labels(labels)(EQX)) == expected


MAY_BE_HIDDEN = (eqx.nn.Dropout, "a", "a.b", "a.**", "**.b", "?.b.c", re.compile("b"))


@pytest.mark.parametrize("selector", [*MAY_BE_HIDDEN, "b", "b.c", "ab.*", "*b.c"])
def test_what_is_masked_out_may_be_what_matches(selector: Any) -> None:
    """As in the params that the inner transformation of `masked` sees."""
    hidden = {"a": optax.MaskedNode(), "z": 1}
    if selector in MAY_BE_HIDDEN:
        assert jax.tree.leaves(tk.path_mask(selector)(hidden)) == [False]
    else:
        with pytest.raises(ValueError, match=re.escape(repr(selector))):
            tk.path_mask(selector)(hidden)
    with pytest.raises(ValueError, match="path_mask: "):
        tk.path_mask(selector)({"a": optax.EmptyState(), "z": 1})  # which hides nothing
