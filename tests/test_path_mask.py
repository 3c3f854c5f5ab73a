"""path_mask and path_labels: globs and regular expressions over key paths, wherever masks, labels and filters go."""

import fnmatch
import inspect
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any, NamedTuple, assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import treekit as tk
from tests.trees import EXAMPLES, Point, Twig, trees, untyped
from treekit._base.key_path import flatten_with_names

# pattern, path, whether it matches
GLOBS = [
    ("a", "a", True),
    ("a", "a.b", False),
    ("a", "b.a", False),
    ("*", "a", True),
    ("*", "a.b", False),
    ("*", "", False),
    ("**", "", True),
    ("**", "a", True),
    ("**", "a.b.c", True),
    ("**.bias", "bias", True),
    ("**.bias", "layers.0.bias", True),
    ("**.bias", "layers.0.bias_scale", False),
    ("**.bias", "layers.0.bias.mean", False),
    ("encoder.**", "encoder", True),
    ("encoder.**", "encoder.layers.0.w", True),
    ("encoder.**", "encoder2.w", False),
    ("encoder.**", "model.encoder.w", False),
    ("**.norm.**", "norm", True),
    ("**.norm.**", "layers.0.norm.scale", True),
    ("a.**.b.**.c", "a.b.c", True),
    ("a.**.b.**.c", "a.x.b.y.z.c", True),
    ("a.**.b.**.c", "a.c.b", False),
    ("layers.*.bias", "layers.10.bias", True),
    ("layers.*.bias", "layers.1.2.bias", False),
    ("layers.?.bias", "layers.1.bias", True),
    ("layers.?.bias", "layers.10.bias", False),
    ("layers.[01].bias", "layers.1.bias", True),
    ("layers.[01].bias", "layers.2.bias", False),
    ("layers.[!01].bias", "layers.2.bias", True),
    ("layers.[!01].bias", "layers.1.bias", False),
    ("a[!b]c", "a.c", False),
    ("a?c", "a.c", False),
    ("**norm", "layernorm", True),
    ("**norm", "x.layernorm", False),
    ("*_norm.w", "layer_norm.w", True),
    ("a+(b)", "a+(b)", True),
    ("a+(b)", "aab", False),
    ("[]", "[]", True),
    ("[", "[", True),
    ("[]a]", "]", True),
    ("[z-a]", "z", False),
    ("a\nb", "a\nb", True),
    ("*", "a\nb", True),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), GLOBS)
def test_globs(pattern: str, path: str, expected: bool) -> None:
    tree: Any = 1
    for part in reversed(path.split(".") if path else []):
        tree = {part: tree}
    if expected:
        assert jax.tree.leaves(tk.path_mask(pattern)(tree)) == [True]
    else:
        with pytest.raises(ValueError, match="matches no leaf"):
            tk.path_mask(pattern)(tree)


ALPHABET = "ab*?[]!^-\\"


@given(st.text(ALPHABET, min_size=1, max_size=5), st.text(ALPHABET, min_size=1, max_size=5))
def test_one_part_is_matched_as_fnmatch_does(pattern: str, name: str) -> None:
    mask = tk.path_labels({pattern: True, "other": False})
    if fnmatch.fnmatchcase(name, pattern) or pattern == "**":
        assert mask({name: 1, "other": 2})[name] is True
    else:
        with pytest.raises(ValueError, match="matches no leaf"):
            mask({name: 1})


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"layers\.\d+\.bias", [False, True, False, True]),
        (r".*bias", [False, True, False, True]),
        (r"layers\.0\..*", [True, True, False, False]),
        (r"(?i).*BIAS", [False, True, False, True]),
    ],
)
def test_a_regular_expression_matches_the_whole_path(pattern: str, expected: list[bool]) -> None:
    tree = {"layers": [{"bias": 2, "kernel": 1} for _ in range(2)]}
    flat = jax.tree.leaves(tk.path_mask(re.compile(pattern))(tree))
    assert [flat[i] for i in (1, 0, 3, 2)] == expected


def test_a_regular_expression_that_matches_a_part_only_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"path_mask: the pattern 'bias' matches no leaf. The nearest paths: a.bias"):
        tk.path_mask(re.compile("bias"))({"a": {"bias": 1}})


# -------------------------------------------------------------------------------- the structure, on every kind of tree


@pytest.mark.parametrize("name", [name for name in EXAMPLES if jax.tree.leaves(EXAMPLES[name])])
def test_the_result_has_the_structure_of_the_tree(name: str) -> None:
    tree = EXAMPLES[name]
    names = [
        untyped.tree_util.keystr(p, simple=True, separator=".") for p, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    assert untyped.tree.structure(tk.path_mask("**")(tree)) == untyped.tree.structure(tree)
    assert jax.tree.leaves(tk.path_mask("**")(tree)) == [True] * len(names)
    assert jax.tree.leaves(tk.path_mask("**", inverse=True)(tree)) == [False] * len(names)
    for i, path in enumerate(names):
        labels = tk.path_labels({re.compile(re.escape(path)): "this"}, default="other")(tree)
        assert jax.tree.leaves(labels) == ["this" if j == i else "other" for j in range(len(names))]


@given(trees())
def test_true_everywhere_or_nowhere(tree: Any) -> None:
    labels = tk.path_labels({}, default=0)(tree)
    assert untyped.tree.structure(labels) == untyped.tree.structure(tree)
    assert set(jax.tree.leaves(labels)) <= {0}


def test_an_attribute_a_key_and_an_index_are_written_alike() -> None:
    mask = tk.path_mask("left.x.0")
    assert jax.tree.leaves(mask(Twig(Point([1], 2)))) == [True, False]
    assert mask({"left": {"x": [1]}}) == {"left": {"x": [True]}}
    assert mask({"left": {"x": {"0": 1}}}) == {"left": {"x": {"0": True}}}
    assert mask({"left": {"x": {0: 1}}}) == {"left": {"x": {0: True}}}


def test_the_first_pattern_decides() -> None:
    tree = {"a": 1, "b": 2, "c": 3}
    assert tk.path_labels({"a": 1, "*": 2})(tree) == {"a": 1, "b": 2, "c": 2}
    assert tk.path_labels({"*": 2, "a": 1})(tree) == {"a": 2, "b": 2, "c": 2}


# ------------------------------------------------------------------------------------------------ objects of their own

MASKS = [tk.path_mask("a.**"), tk.path_mask("b", re.compile("a.*")), tk.path_mask("a.**", inverse=True)]
MASKS += [tk.path_mask(Point, "b", strict=False), tk.path_mask(Point, "b"), tk.path_mask(dict)]
LABELS = [tk.path_labels({"a.**": "x"}, default="y"), tk.path_labels({re.compile("a.*"): 1, "**": None})]
LABELS += [tk.path_labels({dict: "x"}), tk.path_labels({dict: "x", Point: "y"}, default="y", strict=False)]


@pytest.mark.parametrize("spec", [*MASKS, *LABELS], ids=repr)
def test_values(spec: Any) -> None:
    tree = {"a": {"x": 1}, "b": 2}
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec and hash(copy) == hash(spec) and repr(copy) == repr(spec)
    if spec != tk.path_mask(Point, "b"):  # there is no Point
        assert copy(tree) == spec(tree)
    names = {"path_mask": tk.path_mask, "path_labels": tk.path_labels, "re": re, "Point": Point}
    assert eval(repr(spec), names) == spec
    assert sum(spec == other for other in [*MASKS, *LABELS]) == 1
    assert tk.is_truly_callable(spec)
    assert jax.tree.leaves(spec) == [spec]


def test_the_default_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(tk.path_labels({"a": 1})))
    assert copy == tk.path_labels({"a": 1}) and repr(copy) == "path_labels({'a': 1})"
    with pytest.raises(ValueError, match=r"path_labels: no pattern matches b\. Add a pattern"):
        copy({"a": 1, "b": 2})


def test_inverse_and_invert() -> None:
    tree = {"a": 1, "b": 2}
    mask = tk.path_mask("a")
    assert (~mask)(tree) == tk.path_mask("a", inverse=True)(tree) == {"a": False, "b": True}
    assert ~~mask == mask
    assert tk.filter(tree, ~mask) == tk.filter(tree, mask, inverse=True) == {"a": None, "b": 2}


# ---------------------------------------------------------------------------------------------------- filter, partition


def mlp() -> Any:
    return eqx.nn.MLP(2, 1, 3, depth=1, key=jax.random.key(0))


def test_filter_and_partition_ask_it_of_the_whole_tree() -> None:
    model = mlp()
    biases, rest = tk.partition(model, tk.path_mask("layers.*.bias"))
    assert [x.ndim for x in jax.tree.leaves(biases)] == [1, 1]
    assert tk.filter(model, tk.path_mask("activation")).activation is model.activation
    assert untyped.tree.structure(tk.combine(biases, rest)) == untyped.tree.structure(model)
    bools = tk.path_labels({"**.bias": False}, default=True)
    assert untyped.tree.structure(tk.filter(model, bools)) == untyped.tree.structure(rest)


def test_below_a_prefix_its_paths_are_those_of_the_part() -> None:
    tree = {"a": {"w": 1, "b": 2}, "c": {"w": 3, "b": 4}, "d": 5}
    spec = {"a": tk.path_mask("w"), "c": lambda x: x > 3, "d": True}
    assert tk.filter(tree, spec) == {"a": {"w": 1, "b": None}, "c": {"w": None, "b": 4}, "d": 5}
    with pytest.raises(ValueError, match=r"path_mask: the pattern 'a.w' matches no leaf. The nearest paths: w, b"):
        tk.filter(tree, {"a": tk.path_mask("a.w"), "c": True, "d": True})


def test_is_leaf_is_followed() -> None:
    tree = {"a": (1, 2), "b": (3,)}
    kept = tk.filter(tree, tk.path_mask("a"), is_leaf=lambda x: isinstance(x, tuple))
    assert kept == {"a": (1, 2), "b": None}
    with pytest.raises(ValueError, match="nearest paths: a, b"):
        tk.filter(tree, tk.path_mask("a.0"), is_leaf=lambda x: isinstance(x, tuple))


def test_labels_are_not_bools() -> None:
    for spec in (tk.path_labels({"**": "train"}), {"a": tk.path_labels({"**": "train"})}):
        with pytest.raises(ValueError, match="must return a bool for each leaf, found str"):
            tk.filter({"a": 1}, spec)


# -------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("pattern", [1, None, ["a"], re.compile(b"a"), b"a"], ids=repr)
def test_a_pattern_is_a_string_or_a_regular_expression(pattern: Any) -> None:
    class Table(dict[Any, Any]):
        def items(self) -> Any:
            return [(pattern, 1)]

    with pytest.raises(TypeError, match="a pattern must be a string such as"):
        tk.path_labels(Table(x=1))


def test_patterns_are_needed() -> None:
    with pytest.raises(ValueError, match="path_mask needs at least one pattern"):
        tk.path_mask()
    with pytest.raises(ValueError, match="path_labels needs at least one pattern, or a default"):
        tk.path_labels({})
    with pytest.raises(ValueError, match="must not be empty"):
        tk.path_mask("")


def test_the_nearest_paths_are_listed() -> None:
    with pytest.raises(
        ValueError,
        match=r"the pattern 'layers.\*.bais' matches no leaf. The nearest paths: layers.1.bias, layers.0.bias",
    ):
        tk.path_mask("**.weight", "layers.*.bais")(mlp())
    with pytest.raises(
        ValueError, match=r"path_labels: the pattern 'x' matches no leaf. The nearest paths: there are none"
    ):
        tk.path_labels({"x": 1}, default=2)({})
    with pytest.raises(ValueError, match=r"nearest paths: \(the root\)"):
        tk.path_mask("w")(jnp.ones(2))


def test_what_no_pattern_matches_is_listed() -> None:
    labels = tk.path_labels({"layers.0.weight": "a"})
    with pytest.raises(ValueError, match=r"no pattern matches layers.0.bias, layers.1.weight, layers.1.bias. Add"):
        labels(mlp())
    with pytest.raises(ValueError, match=r"no pattern matches 1, 2, 3, 4, 5 and 4 more\. Add"):
        tk.path_labels({"0": 0})([1.0] * 10)
    assert tk.path_labels({"**.weight": "a", "**.bias": "b"})(mlp()).activation is None


def test_where_none_stands_for_a_leaf_a_pattern_may_name_it() -> None:
    """A model without biases, or one that filter has taken them from."""
    model: Any = eqx.nn.Linear(2, 2, use_bias=False, key=jax.random.key(0))
    assert tk.path_mask("bias")(model).bias is None
    weights = tk.filter(mlp(), tk.path_mask("**.weight"))
    assert jax.tree.leaves(tk.path_mask("**.bias")(weights)) == [False, False]
    with pytest.raises(ValueError, match="matches no leaf"):
        tk.path_mask("**.bais")(weights)


def test_types() -> None:
    assert_type(tk.path_mask("x")(Point(1, 2)), Point)
    assert_type(tk.filter(Point(1, 2), tk.path_mask("x")), Point)


@pytest.mark.parametrize("table", [None, 3, "**.bias", [("**.bias", "a")], {"**.bias"}])
def test_labels_without_a_table_are_an_error(table: Any) -> None:
    unchecked: Any = tk.path_labels
    with pytest.raises(TypeError, match=r"path_labels takes a dict that maps patterns to labels.*found"):
        unchecked.__wrapped__(table)


A, B = tk.path_mask("a.**"), tk.path_mask("**.w")
TWO = {"a": {"w": jnp.ones(2), "b": 1}, "c": {"w": jnp.ones(2), "b": 1}}
COMBINED: dict[str, tuple[Any, list[bool]]] = {  # a.b, a.w, c.b, c.w
    "or": (A | B, [True, True, False, True]),
    "and": (A & B, [False, True, False, False]),
    "invert": (~(A | B), [False, False, True, False]),
    "twice": (~~(A & B), [False, True, False, False]),
    "three": (A & B | ~A & ~B, [False, True, True, False]),
    "with trainable": (tk.trainable & ~A, [False, False, False, True]),
}


@pytest.mark.parametrize("name", COMBINED)
def test_masks_combine(name: str) -> None:
    mask, expected = COMBINED[name]
    assert jax.tree.leaves(mask(TWO)) == expected
    assert [x is not None for x in jax.tree.leaves(tk.filter(TWO, mask), is_leaf=lambda x: x is None)] == expected
    again = pickle.loads(pickle.dumps(mask)) if name != "with trainable" else mask
    assert again == mask and hash(again) == hash(mask) and repr(again) == repr(mask)


def test_a_combined_mask_names_a_pattern_that_matches_nothing() -> None:
    with pytest.raises(ValueError, match="'nothing' matches no leaf"):
        (A | tk.path_mask("nothing"))(TWO)


USES: tuple[Callable[[Any], Any], ...] = (lambda m: not m, lambda m: m or B, lambda m: m and B, bool)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("mask", (A, ~A, A | B, tk.trainable))
def test_a_mask_has_no_truth_value(mask: Any, use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"has no truth value: combine masks by ~mask, mask \| other and mask & other"):
        use(mask)


def test_labels_have_no_truth_value_and_masks_combine_with_masks_only() -> None:
    with pytest.raises(TypeError, match="one table"):
        bool(tk.path_labels({"a.**": 1}, default=2))
    for other in (True, {"a": True}, lambda tree: True):
        untyped_mask: Any = A
        with pytest.raises(TypeError, match="unsupported operand"):
            operator.or_(untyped_mask, other)


DOTTED: Any = {"a.b": 1, "a": {"b": 2}, "c": 3}


@pytest.mark.parametrize("pattern", ("a.b", "a.*", "**.b", "a.**"))
def test_a_pattern_that_matches_a_key_and_a_path_of_one_name_raises(pattern: str) -> None:
    message = f"{re.escape(repr(pattern))} matches two leaves that are both called 'a.b'"
    with pytest.raises(ValueError, match=message):
        tk.path_mask(pattern)(DOTTED)
    with pytest.raises(ValueError, match=message):
        tk.path_labels({pattern: 1}, default=2)(DOTTED)
    assert tk.path_mask("c")(DOTTED) == {"a.b": False, "a": {"b": False}, "c": True}
    assert all(jax.tree.leaves(tk.path_mask("**")(DOTTED)))


# ----------------------------------------------------------------------------------------------------------- by class


@tk.node
class Affine:
    weight: Any
    bias: Any
    f: Any = None


class Pair(NamedTuple):
    left: Any
    right: Any


class Block(nnx.Module):
    def __init__(self) -> None:
        self.dense = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.norm = nnx.LayerNorm(2, rngs=nnx.Rngs(0))


KEY = jax.random.key(0)
NORM = eqx.nn.LayerNorm(2)
EQX = {"a": eqx.nn.Linear(2, 2, key=KEY), "b": [NORM, {"c": NORM}], "bias": jnp.ones(2)}
# For each case: the patterns and classes, a tree, and the names of the leaves that they select.
BY_CLASS: dict[str, tuple[tuple[Any, ...], Any, list[str]]] = {
    "Equinox": ((eqx.nn.LayerNorm,), EQX, ["b.0.weight", "b.0.bias", "b.1.c.weight", "b.1.c.bias"]),
    "and a pattern": ((eqx.nn.LayerNorm, "bias"), {"a": NORM, "bias": 1}, ["a.weight", "a.bias", "bias"]),
    "two": ((eqx.nn.Linear, dict), {"a": EQX["a"]}, ["a.weight", "a.bias"]),
    "a base class": ((eqx.Module,), [EQX["a"], 1], ["0.weight", "0.bias"]),
    "a node of treekit": ((Affine,), [Affine(1, [2, 3]), 4], ["0.weight", "0.bias.0", "0.bias.1"]),
    "the root": ((Affine,), Affine(1, 2), ["weight", "bias"]),
    "a namedtuple": ((Pair,), {"a": Pair(1, 2), "b": 3}, ["a.left", "a.right"]),
    "modules of Flax": ((nnx.LayerNorm,), Block(), ["norm.bias", "norm.scale"]),
    "variables of Flax": ((nnx.Param,), nnx.state(Block()), ["dense.bias", "dense.kernel", "norm.bias", "norm.scale"]),
    "leaves": ((str,), {"a": "x", "b": 1, "c": ["y"]}, ["a", "c.0"]),
    "instances without leaves": ((Affine, "b"), {"a": Affine(None, None), "b": 1}, ["b"]),
}


@pytest.mark.parametrize("case", BY_CLASS)
def test_a_class_stands_for_all_leaves_in_its_instances(case: str) -> None:
    selectors, tree, expected = BY_CLASS[case]
    names = [name for name, _ in flatten_with_names(tree)]
    mask = tk.path_mask(*selectors)
    is_in = [name in expected for name in names]
    assert mask.of_leaves(tree, None) == jax.tree.leaves(mask(tree)) == is_in
    assert [not x for x in jax.tree.leaves((~mask)(tree))] == is_in
    assert jax.tree.leaves(tk.path_labels(dict.fromkeys(selectors, 1), default=0)(tree)) == is_in
    found = tk.tree_find(tree, list(selectors))
    assert [name for name in names if any(f"{name}.".startswith(f"{x}." if x else x) for x in found)] == expected
    filtered = tk.filter_arrays(tree)
    kept = [x for x, leaf in zip(is_in, jax.tree.leaves(tree), strict=True) if tk.is_array(leaf)]
    assert jax.tree.leaves(tk.path_mask(*selectors, strict=False)(filtered)) == kept


def test_classes_combine_with_masks_and_the_first_of_a_table_decides() -> None:
    norms = tk.path_mask(eqx.nn.LayerNorm)
    assert jax.tree.leaves((norms | tk.path_mask("**.bias"))(EQX)) == [False, True, True, True, True, True, True]
    assert jax.tree.leaves((norms & tk.path_mask("**.bias"))(EQX)) == [False, False, False, True, False, True, False]
    labels = {eqx.nn.LayerNorm: "norm", "**.bias": "bias", dict: "rest"}
    expected = ["rest", "bias", "norm", "norm", "norm", "norm", "bias"]
    assert jax.tree.leaves(tk.path_labels(labels)(EQX)) == expected
    last = {"**.bias": "bias", eqx.nn.LayerNorm: "norm", dict: "rest"}
    expected = ["rest", "bias", "norm", "bias", "norm", "bias", "bias"]
    assert jax.tree.leaves(tk.path_labels(last)(EQX)) == expected


def test_a_class_without_an_instance_raises_unless_it_may_be_hidden() -> None:
    message = r"path_mask: the tree has no instance of Dropout\. It has instances of .*LayerNorm, Linear.*dict"
    with pytest.raises(ValueError, match=message):
        tk.path_mask("**.bias", eqx.nn.Dropout)(EQX)
    with pytest.raises(ValueError, match=r"path_labels: the tree has no instance of Dropout"):
        tk.path_labels({eqx.nn.Dropout: 1}, default=2)(EQX)
    hidden = {"a": optax.MaskedNode(), "b": 1}
    assert jax.tree.leaves(tk.path_mask(eqx.nn.Dropout)(hidden)) == [False]


NOT_STRICT: dict[str, tuple[Any, Any]] = {
    "a pattern": (tk.path_mask("nothing", strict=False), [False, False]),
    "a class": (tk.path_mask(eqx.nn.Dropout, "a", strict=False), [True, False]),
    "inverse": (~tk.path_mask("nothing", strict=False), [True, True]),
    "labels": (tk.path_labels({"nothing": 1, eqx.nn.Dropout: 2, "a": 3}, default=4, strict=False), [3, 4]),
}


@pytest.mark.parametrize("case", NOT_STRICT)
def test_without_strict_what_matches_nothing_is_nothing(case: str) -> None:
    spec, expected = NOT_STRICT[case]
    assert jax.tree.leaves(spec({"a": 1, "b": 2})) == expected
    assert jax.tree.leaves(spec({})) == []


def test_without_strict_a_parameter_without_a_label_is_an_error_still() -> None:
    with pytest.raises(ValueError, match=r"no pattern matches a\. Add a pattern"):
        tk.path_labels({"b": 1}, strict=False)({"a": 1.0})


def test_an_instance_in_place_of_its_class_is_an_error() -> None:
    unchecked: Any = tk.path_mask
    with pytest.raises(TypeError, match=r"or a class such as equinox\.nn\.Linear; found LayerNorm"):
        unchecked.__wrapped__(NORM)


CLASS_OR_BOOL: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a mask of a class": (lambda _: tk.path_mask("**")(eqx.nn.MLP), r"found the class MLP: write .*\(MLP\(\.\.\.\)\)"),
    "labels of a class": (lambda _: tk.path_labels({"**": 1})(eqx.nn.MLP), "takes an instance, found the class MLP"),
    "trainable of a class": (lambda _: tk.trainable(eqx.nn.MLP), "^treekit.trainable takes an instance"),
    "strict": (lambda f: f(tk.path_mask)("a", strict="no"), "strict must be True or False, found 'no'"),
    "strict labels": (lambda f: f(tk.path_labels)({"a": 1}, strict=0), "strict must be True or False, found 0"),
    "inverse": (lambda f: f(tk.path_mask)("a", inverse=None), "inverse must be True or False, found None"),
}


@pytest.mark.parametrize("case", CLASS_OR_BOOL)
def test_a_class_in_place_of_a_tree_and_other_options_are_errors(case: str) -> None:
    call, message = CLASS_OR_BOOL[case]
    with pytest.raises(TypeError, match=message):
        call(inspect.unwrap)  # beartype would be the first to say so


def test_the_kinds_of_a_tree_are_listed_by_their_public_names() -> None:
    with pytest.raises(ValueError, match=r"no instance of int\. It has instances of dict, jax\.Array, str$"):
        tk.path_mask(int)({"a": jnp.ones(2), "b": None, "c": "x"})
    with pytest.raises(ValueError, match=r"no instance of int\. It is empty$"):
        tk.path_mask(int)(None)
