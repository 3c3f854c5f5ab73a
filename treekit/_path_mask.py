"""Select leaves by name: masks and labels made from patterns of key paths."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from treekit._base.describe import describe_value
from treekit._base.jax import jtu
from treekit._base.key_path import flatten_with_names
from treekit._base.pattern_set import PatternSet, may_match_below
from treekit._base.patterns import check_pattern, listed, matches, nearest, pattern_text
from treekit._base.predicates import is_parameter
from treekit._base.tree import is_mapping
from treekit._base.types import IsLeaf, PyTree
from treekit._filter import TreeSpec
from treekit._mask_spec import MaskSpec

T = TypeVar("T")


class NoDefault:
    """The default of `path_labels`, with which a parameter that no pattern matches is an error."""


def path_mask(*patterns: str | re.Pattern[str], inverse: bool = False) -> "PathMask":
    """Return a mask function that is True at every leaf whose key path matches one of the patterns.

    Use it wherever Optax accepts a mask function (`masked`, `adamw(mask=)`, `freeze`, …), and as the `filter_spec` of
    `filter`, `partition` and `filtered`.

    A key path is written as `jax.tree_util.keystr(path, simple=True, separator=".")` writes it: `layers.0.bias`. A Flax
    variable and its value have one path. A string pattern is a glob over the parts, which must match the whole path:

    - `*` matches one part, or some of the characters of one; `?` one character; `[abc]` and `[!abc]` as in `fnmatch`;
    - `**` matches any number of parts, including zero: `**.bias` matches `bias` and `layers.0.bias`.

    A compiled `re.Pattern` must match the whole path too (`fullmatch`): write `.*` for any text.

    Args:
        *patterns: globs, or compiled regular expressions.
        inverse: return a mask that is True where no pattern matches, as `~path_mask(...)` does.

    Returns:
        A function that maps a tree to a tree of bools with the same structure. `~mask`, `mask | other` and
        `mask & other` are such functions too, also with `treekit.trainable`; `not`, `or` and `and` raise. Equal
        patterns give equal masks, which can be hashed and pickled.

    Raises:
        ValueError: you pass no pattern, or an empty one. The mask raises one if a pattern does not match any leaf; the
            message lists the nearest paths. Patterns that may match a leaf hidden by a `MaskedNode` or None, as inside
            `masked`, do not raise.
        TypeError: a pattern is neither a string nor a compiled regular expression.

    >>> import jax.numpy as jnp
    >>> params = {"layers": [{"weight": jnp.ones((2, 2)), "bias": jnp.ones(2)}], "scale": jnp.ones(2)}
    >>> path_mask("**.bias", "scale")(params)
    {'layers': [{'bias': True, 'weight': False}], 'scale': True}
    >>> path_mask("**.bais")(params)
    Traceback (most recent call last):
    ValueError: path_mask: the pattern '**.bais' matches no leaf. The nearest paths: layers.0.bias, ...
    """
    if not patterns:
        raise ValueError("path_mask needs at least one pattern")
    return PathMask(tuple(map(check_pattern, patterns)), inverse)


def path_labels(table: Mapping[Any, Any], *, default: object = NoDefault) -> "PathLabels":
    """Return a function that gives every leaf the label of the first pattern that matches its key path.

    Use it wherever Optax accepts a label function, such as in `treekit.optax.partition`.

    Args:
        table: maps patterns, as in `path_mask`, to labels; their order matters.
        default: the label of leaves that no pattern matches. Without it, such a parameter is an error, and any other
            such leaf (a function, a string) gets None.

    Returns:
        A function that maps a tree to a tree of labels with the same structure, as `path_mask` does for bools.

    Raises:
        ValueError: you pass neither a pattern nor a default, or an empty pattern. The function raises one if a pattern
            does not match any leaf, as in `path_mask`; and, without a default, if a parameter does not match any
            pattern. The message lists the paths.
        TypeError: `table` is not a dict, or a pattern is neither a string nor a compiled regular expression.

    >>> import jax.numpy as jnp
    >>> params = {"encoder": {"w": jnp.ones(2)}, "head": {"w": jnp.ones(2), "b": jnp.ones(2)}}
    >>> path_labels({"encoder.**": "frozen", "**.b": "no decay"}, default="train")(params)
    {'encoder': {'w': 'frozen'}, 'head': {'b': 'no decay', 'w': 'train'}}
    """
    if not is_mapping(table):
        raise TypeError(
            f"path_labels takes a dict that maps patterns to labels, {{'**.bias': 'no decay'}}; found "
            f"{describe_value(table)}"
        )
    if not table and default is NoDefault:
        raise ValueError("path_labels needs at least one pattern, or a default")
    return PathLabels(tuple((check_pattern(pattern), label) for pattern, label in table.items()), default)


@dataclasses.dataclass(frozen=True, repr=False)
class PathMask(MaskSpec):
    """The mask function that `path_mask` returns."""

    patterns: tuple[str | re.Pattern[str], ...]
    inverse: bool = False

    def __invert__(self) -> "PathMask":
        return PathMask(self.patterns, not self.inverse)

    def __repr__(self) -> str:
        given = [*map(repr, self.patterns), *(["inverse=True"] if self.inverse else [])]
        return f"path_mask({', '.join(given)})"

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
        first = _first_matches("path_mask", self.patterns, tree, is_leaf)
        return [(i is None) == self.inverse for _, i in first]


@dataclasses.dataclass(frozen=True, repr=False)
class PathLabels(TreeSpec):
    """The label function that `path_labels` returns."""

    table: tuple[tuple[str | re.Pattern[str], Any], ...]
    default: Any = NoDefault

    def __call__(self, tree: PyTree) -> Any:
        return jtu.tree_structure(tree).unflatten(self.of_leaves(tree, None))

    def __repr__(self) -> str:
        default = "" if self.default is NoDefault else f", default={self.default!r}"
        return f"path_labels({dict(self.table)!r}{default})"

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is a function of a tree, which has no truth value. The first pattern that matches decides: "
            "write all of them in one table"
        )

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[Any]:
        first = _first_matches("path_labels", [pattern for pattern, _ in self.table], tree, is_leaf)
        leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
        default = None if self.default is NoDefault else self.default
        missing = [path for (path, i), x in zip(first, leaves, strict=True) if i is None and is_parameter(x)]
        if missing and self.default is NoDefault:
            raise ValueError(
                f"path_labels: no pattern matches {listed(missing)}. Add a pattern for them, such as '**' at the end, "
                "or pass a default"
            )
        return [default if i is None else self.table[i][1] for _, i in first]


def _first_matches(
    name: str, patterns: Sequence[str | re.Pattern[str]], tree: PyTree, is_leaf: IsLeaf
) -> list[tuple[str, int | None]]:
    """Return the path of every leaf, and the index of the first pattern that matches it."""
    found = flatten_with_names(tree, is_leaf)
    names = [path for path, _ in found]
    first = list(zip(names, map(PatternSet(patterns).first, names), strict=True))
    if len(set(names)) < len(names):
        _check_one_name(name, patterns, names)
    deciding = {i for _, i in first}
    for i, pattern in enumerate(patterns):
        if i in deciding or any(matches(pattern, x) for x in names) or _may_match_hidden(pattern, tree, is_leaf):
            continue
        text = pattern_text(pattern)
        raise ValueError(
            f"{name}: the pattern {text!r} matches no leaf. The nearest paths: {nearest(text, names)}. A pattern must "
            "match a whole path: '**.name' matches at any depth, and 'name.**' everything below"
        )
    return first


def _check_one_name(name: str, patterns: Sequence[str | re.Pattern[str]], names: Sequence[str]) -> None:
    """Raise a ValueError if a glob matches a name that two leaves have, since it does not say which is meant."""
    shared = [x for x, number in Counter(names).items() if number > 1]
    for pattern in patterns:
        if isinstance(pattern, str) and pattern != "**" and (found := [x for x in shared if matches(pattern, x)]):
            raise ValueError(
                f"{name}: the pattern {pattern!r} matches two leaves that are both called {found[0]!r}: a key contains "
                "a dot, or a string and a number are written alike. Pass a function of the tree instead, with "
                "jax.tree_util.tree_map_with_path"
            )


def _may_match_hidden(pattern: str | re.Pattern[str], tree: PyTree, is_leaf: IsLeaf) -> bool:
    """Whether a pattern may match a leaf that is masked out: None hides one leaf, a MaskedNode also a subtree."""

    def stop(x: object) -> bool:
        return x is None or _is_masked_node(x) or (is_leaf is not None and is_leaf(x))

    return any(
        matches(pattern, name) or (_is_masked_node(x) and may_match_below(pattern, name))
        for name, x in flatten_with_names(tree, stop)
        if x is None or _is_masked_node(x)
    )


def _is_masked_node(x: object) -> bool:
    """Whether `x` looks like Optax's MaskedNode, a named tuple without fields; the core does not import Optax."""
    return getattr(type(x), "_fields", None) == ()
