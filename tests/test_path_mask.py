"""path_mask and path_labels: globs and regular expressions over key paths, wherever masks, labels and filters go."""

import fnmatch
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any, NamedTuple

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
from treekit._base import key_path
from treekit._base.key_path import flatten_with_names, match_part

# pattern, path, whether it matches
GLOBS = [
    ("a", "a.b", False),
    ("a", "b.a", False),
    ("*", "a.b", False),
    ("*", "", False),
    ("**", "", True),
    ("**", "a.b.c", True),
    ("**.bias", "bias", True),
    ("**.bias", "layers.0.bias", True),
    ("**.bias", "layers.0.bias.mean", False),
    ("encoder.**", "encoder", True),
    ("encoder.**", "encoder.layers.0.w", True),
    ("encoder.**", "model.encoder.w", False),
    ("**.norm.**", "norm", True),
    ("**.norm.**", "layers.0.norm.scale", True),
    ("a.**.b.**.c", "a.b.c", True),
    ("a.**.b.**.c", "a.x.b.y.z.c", True),
    ("a.**.b.**.c", "a.c.b", False),
    ("layers.*.bias", "layers.10.bias", True),
    ("layers.*.bias", "layers.1.2.bias", False),
    ("layers.[01].bias", "layers.1.bias", True),
    ("**norm", "layernorm", True),
    ("**norm", "x.layernorm", False),
    ("*", "a\nb", True),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), GLOBS)
def test_globs(pattern: str, path: str, expected: bool) -> None:
    if expected:
        assert jax.tree.leaves(tk.path_mask(pattern)(nested(path))) == [True]
    else:
        with pytest.raises(ValueError, match="matches no leaf"):
            tk.path_mask(pattern)(nested(path))


ALPHABET = "az*?[]!^-+(\\"


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
    [(r"layers\.\d+\.bias", "0.bias 1.bias"), (r"layers\.0\..*", "0.bias 0.kernel"), (r"(?i).*BIAS", "0.bias 1.bias")],
)
def test_a_regular_expression_matches_the_whole_path(pattern: str, expected: str) -> None:
    tree = {"layers": [{"bias": 2, "kernel": 1} for _ in range(2)]}
    labels = tk.path_labels({re.compile(pattern): True}, default=False)(tree)
    names = [name.removeprefix("layers.") for name, is_found in flatten_with_names(labels) if is_found]
    assert names == expected.split()


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


def test_an_attribute_a_key_and_an_index_are_written_alike() -> None:
    mask = tk.path_mask("left.x.0")
    assert jax.tree.leaves(mask(Twig(Point([1], 2)))) == [True, False]
    assert mask({"left": {"x": [1]}}) == {"left": {"x": [True]}}
    assert mask({"left": {"x": {"0": 1}}}) == {"left": {"x": {"0": True}}}
    assert mask({"left": {"x": {0: 1}}}) == {"left": {"x": {0: True}}}


PARTS = st.sampled_from(["a", "b", "0", "12", "ab"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map(".".join)
WORDS = st.lists(PARTS | st.sampled_from(["*", "**", "a*", "?", "[01]"]), min_size=1, max_size=4).map(".".join)
PATTERNS = st.lists(WORDS | st.sampled_from(["a.*", ".*b", "[01]"]).map(re.compile), max_size=6, unique=True)


def nested(name: str) -> Any:
    """A tree with one leaf of this name."""
    tree: Any = 1
    for part in reversed(name.split(".") if name else []):
        tree = {part: tree}
    return tree


@given(PATTERNS, NAMES)
def test_the_first_pattern_that_matches_decides(patterns: list[Any], name: str) -> None:
    tree = nested(name)
    masks = [jax.tree.leaves(tk.path_mask(pattern, strict=False)(tree)) for pattern in patterns]
    first = masks.index([True]) if [True] in masks else -1
    labels = tk.path_labels({pattern: i for i, pattern in enumerate(patterns)}, default=-1, strict=False)
    assert jax.tree.leaves(labels(tree)) == [first]
    for pattern, is_in in zip(patterns, masks, strict=True):
        assert (name in tk.tree_find(tree, pattern, strict=False)) == is_in[0]


def test_a_table_with_a_pattern_a_layer_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patterns without wildcards that the name's own parts rule out are not tried one by one."""
    tried: list[tuple[str, str]] = []

    def counted(part: str, text: str) -> bool:
        tried.append((part, text))
        return match_part(part, text)

    monkeypatch.setattr(key_path, "match_part", counted)
    table = {f"**.layers.{i}.*": i for i in range(1000)} | {"**.[ab]": 1000}
    labels = tk.path_labels(table, default=-1, strict=False)
    assert labels({"layers": {"7": {"w": 1}, "1000": {"w": 1, "a": 1}}}) == {
        "layers": {"7": {"w": 7}, "1000": {"w": -1, "a": 1000}}
    }
    assert {part for part, _ in tried} == {"[ab]"} and len(tried) <= 16


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


# ------------------------------------------------------------------------------------- None, and several masks at once


def test_where_none_stands_for_a_leaf_a_pattern_may_name_it() -> None:
    """A model without biases, or one that filter has taken them from."""
    model: Any = eqx.nn.Linear(2, 2, use_bias=False, key=jax.random.key(0))
    assert tk.path_mask("bias")(model).bias is None
    weights = tk.filter(mlp(), tk.path_mask("**.weight"))
    assert jax.tree.leaves(tk.path_mask("**.bias")(weights)) == [False, False]
    labels = tk.path_labels({"**.weight": "a", "**.bias": "b"})(mlp())
    assert labels.activation is None, "what is not a parameter needs no label"


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


@pytest.mark.parametrize("mask", (A, ~A, A | B, tk.trainable))
def test_a_mask_has_no_truth_value(mask: Any) -> None:
    with pytest.raises(TypeError, match=r"has no truth value: combine masks by ~mask, mask \| other and mask & other"):
        bool(mask)


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


@pytest.mark.parametrize(
    ("selector", "may_be_there"),
    [
        *(
            (selector, True)
            for selector in (eqx.nn.Dropout, "a", "a.b", "a.*", "a.**", "**.b", "?.b.c", re.compile("b"))
        ),
        *((selector, False) for selector in ("b", "b.c", "ab.*", "*b.c")),
    ],
)
def test_what_is_masked_out_may_be_what_matches(selector: Any, may_be_there: bool) -> None:
    """As in the params that the inner transformation of `masked` sees."""
    hidden = {"a": optax.MaskedNode(), "z": 1}
    if may_be_there:
        assert jax.tree.leaves(tk.path_mask(selector)(hidden)) == [False]
    else:
        with pytest.raises(ValueError, match="matches no leaf"):
            tk.path_mask(selector)(hidden)


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


# ----------------------------------------------------------------------------------------------------------- bad input

NINE = [1.0] * 10
PICKLED = pickle.loads(pickle.dumps(tk.path_labels({"a": 1})))
# a call, and words of the message of its ValueError
NOT_MATCHED: dict[str, tuple[Callable[[], Any], str]] = {
    "no patterns": (tk.path_mask, "path_mask needs at least one pattern"),
    "no labels": (lambda: tk.path_labels({}), "path_labels needs at least one pattern, or a default"),
    "an empty pattern": (lambda: tk.path_mask(""), "must not be empty"),
    "misspelt": (
        lambda: tk.path_mask("**.weight", "layers.*.bais")(mlp()),
        r"the pattern 'layers.\*.bais' matches no leaf. The nearest paths: layers.1.bias, layers.0.bias",
    ),
    "a tree without leaves": (
        lambda: tk.path_labels({"x": 1}, default=2)({}),
        "path_labels: the pattern 'x' matches no leaf. The nearest paths: there are none",
    ),
    "a leaf": (lambda: tk.path_mask("w")(jnp.ones(2)), r"nearest paths: \(the root\)"),
    "a part, by a regular expression": (
        lambda: tk.path_mask(re.compile("bias"))({"a": {"bias": 1}}),
        r"path_mask: the pattern 'bias' matches no leaf. The nearest paths: a.bias",
    ),
    "one of a combined mask": (lambda: (A | tk.path_mask("nothing"))(TWO), "'nothing' matches no leaf"),
    "leaves without a label": (
        lambda: tk.path_labels({"layers.0.weight": "a"})(mlp()),
        r"no pattern matches layers.0.bias, layers.1.weight, layers.1.bias. Add",
    ),
    "many without a label": (
        lambda: tk.path_labels({"0": 0})(NINE),
        r"no pattern matches 1, 2, 3, 4, 5 and 4 more\. Add",
    ),
    "one without a label, after pickling": (
        lambda: PICKLED({"a": 1, "b": 2}),
        r"path_labels: no pattern matches b\. Add a pattern",
    ),
    "a class without an instance": (
        lambda: tk.path_mask("**.bias", eqx.nn.Dropout)(EQX),
        r"path_mask: the tree has no instance of Dropout\. It has instances of .*LayerNorm, Linear.*dict",
    ),
    "labels for a filter": (
        lambda: tk.filter({"a": 1}, tk.path_labels({"**": "train"})),
        "must return a bool for each leaf, found str",
    ),
}


@pytest.mark.parametrize("case", NOT_MATCHED)
def test_what_does_not_match_raises(case: str) -> None:
    call, message = NOT_MATCHED[case]
    with pytest.raises(ValueError, match=message):
        call()


def table_of(pattern: Any) -> Any:
    """A dict whose `items` beartype does not see through."""

    class Table(dict[Any, Any]):
        def items(self) -> Any:
            return [(pattern, 1)]

    return Table(x=1)


unchecked_mask: Any = inspect.unwrap(tk.path_mask)  # beartype has an error of its own
unchecked_labels: Any = inspect.unwrap(tk.path_labels)
untyped_mask: Any = A
MISTYPED: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], str]] = {
    "a pattern": (
        lambda pattern: tk.path_labels(table_of(pattern)),
        (1, None, ["a"], re.compile(b"a"), b"a"),
        "a pattern must be a string such as",
    ),
    "an instance for its class": (
        unchecked_mask,
        (NORM,),
        r"or a class such as equinox\.nn\.Linear; found LayerNorm",
    ),
    "a table": (
        unchecked_labels,
        (None, 3, "**.bias", [("**.bias", "a")], {"**.bias"}),
        r"path_labels takes a dict that maps patterns to labels.*found",
    ),
    "the truth of labels": (bool, (tk.path_labels({"a.**": 1}, default=2),), "one table"),
    "a mask and something else": (
        lambda other: untyped_mask | other,
        (True, {"a": True}, lambda tree: True),
        "unsupported operand",
    ),
}


@pytest.mark.parametrize("case", MISTYPED)
def test_what_has_another_type_raises(case: str) -> None:
    call, values, message = MISTYPED[case]
    for value in values:
        with pytest.raises(TypeError, match=message):
            call(value)


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
