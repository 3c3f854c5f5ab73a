"""Select leaves by name or by class: masks and labels made from patterns of key paths and from classes of nodes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from treekit._base.tree import is_mapping
from treekit._base.types import IsLeaf, PyTree
from treekit._names.pattern_errors import check_pattern_or_class
from treekit._select.masks import MaskSpec
from treekit._select.path_errors import LABELS, PatternOrClass, check_found, written
from treekit._select.tree_spec import TreeSpec
from treekit._select.walk import Found, walk_matched
from treekit._text.arguments import check_bool
from treekit._text.describe import describe_value
from treekit._text.lists import listed
from treekit._trained.leaves import which_can_be_trained


class NoDefault:
    """The default of `path_labels`, with which a parameter that no pattern matches is an error."""


def path_mask(*patterns: PatternOrClass, strict: bool = True) -> MaskSpec:
    """Return a mask function that is True at every leaf that one of the patterns or classes selects.

    Use it wherever Optax accepts a mask function (`masked`, `adamw(mask=)`, `selective_transform(freeze_mask=)`, …),
    and as the `filter_spec` of `filter` and `partition`.

    A key path is written as `jax.tree_util.keystr(path, simple=True, separator=".")` writes it: `layers.0.bias`. A Flax
    variable and its value have one path. A string pattern is a glob over the parts, which must match the whole path:

    - `*` matches one part, or some of the characters of one; `?` one character. Brackets are literal;
    - `**` matches any number of parts, including zero: `**.bias` matches `bias` and `layers.0.bias`.

    A compiled `re.Pattern` must match the whole path too (`fullmatch`): write `.*` for any text. A class, such as
    `equinox.nn.LayerNorm`, selects all leaves in its instances.

    Args:
        *patterns: globs, compiled regular expressions, or classes.
        strict: False accepts patterns and classes that match nothing.

    Returns:
        A function that maps a tree to a tree of bools with the same structure. `~mask`, `mask | other` and
        `mask & other` are such functions too, also with `leaf_mask` and `trainable`; `not`, `or` and `and` raise. Equal
        patterns give equal masks, which can be hashed and pickled.

    Raises:
        ValueError: you pass no pattern, or an empty one. The mask raises one if a pattern does not match any leaf, or
            the tree has no instance of a class, unless `strict` is False; the message lists the nearest paths, or the
            classes. What may match a leaf hidden by a `MaskedNode` or None, as inside `masked`, does not raise.
        TypeError: a pattern is neither a string, a compiled regular expression nor a class, or `strict` is not a bool.
            The mask raises one if it is called with a class.

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
    return PathMask(tuple(map(check_pattern_or_class, patterns)), check_bool("strict", strict))


def path_labels(table: Mapping[Any, Any], *, default: object = NoDefault, strict: bool = True) -> "PathLabels":
    """Return a function that gives every leaf the label of the first pattern or class that selects it.

    Use it wherever Optax accepts a label function, such as in `treekit.optax.partition`.

    Args:
        table: maps patterns and classes, as in `path_mask`, to labels; their order matters.
        default: the label of leaves that nothing matches. Without it, such a leaf is an error if it can be trained, and
            any other (a function, an integer) gets None.
        strict: False accepts patterns and classes that match nothing, or nothing that earlier ones leave.

    Returns:
        A function that maps a tree to a tree of labels with the same structure, as `path_mask` does for bools.

    Raises:
        ValueError: a pattern is empty. The function raises one if a pattern or a class matches nothing, as in
            `path_mask`, or only what earlier ones match, which a last row "**" may; and, without a default, if nothing
            matches a floating-point or complex array. The message lists the paths.
        TypeError: `table` is not a mapping, a pattern is neither a string, a compiled regular expression nor a class,
            or `strict` is not a bool. The function raises one if it is called with a class.

    >>> import jax.numpy as jnp
    >>> params = {"encoder": {"w": jnp.ones(2)}, "head": {"w": jnp.ones(2), "b": jnp.ones(2)}}
    >>> path_labels({"encoder.**": "frozen", "**.b": "no decay"}, default="train")(params)
    {'encoder': {'w': 'frozen'}, 'head': {'b': 'no decay', 'w': 'train'}}
    """
    if not is_mapping(table):
        raise TypeError(f"path_labels takes a dict from patterns to labels, found {describe_value(table)}")
    rows = tuple((check_pattern_or_class(x), label) for x, label in table.items())
    return PathLabels(rows, default, check_bool("strict", strict))


@dataclasses.dataclass(frozen=True, repr=False)
class PathMask(MaskSpec):
    """The mask function that `path_mask` returns."""

    patterns: tuple[PatternOrClass, ...]
    strict: bool = True

    def __repr__(self) -> str:
        options = ["strict=False"] * (not self.strict)
        return f"path_mask({', '.join([*map(written, self.patterns), *options])})"

    def _answers(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool | None]:
        return [x.selected_by != [] for x in _find_leaves("path_mask", self.patterns, tree, is_leaf, self.strict)]


@dataclasses.dataclass(frozen=True, repr=False)
class PathLabels(TreeSpec):
    """The label function that `path_labels` returns."""

    table: tuple[tuple[PatternOrClass, Any], ...]
    default: Any = NoDefault
    strict: bool = True

    def __call__(self, tree: PyTree) -> Any:  # to type checkers too, labels are not what the leaves are
        return super().__call__(tree)

    def __repr__(self) -> str:
        table = ", ".join(f"{written(x)}: {label!r}" for x, label in self.table)
        default = [] if self.default is NoDefault else [f"default={self.default!r}"]
        return f"path_labels({', '.join(['{' + table + '}', *default, *['strict=False'] * (not self.strict)])})"

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[Any]:
        leaves = _find_leaves(LABELS, [x for x, _ in self.table], tree, is_leaf, self.strict)
        can_train = which_can_be_trained(tree, [x.node for x in leaves], is_leaf)
        missing = [x.name for x, trains in zip(leaves, can_train, strict=True) if trains and not x.selected_by]
        if missing and self.default is NoDefault:
            raise ValueError(
                f"path_labels: no pattern matches {listed(missing)}. Add a pattern for them, such as '**' at the end, "
                "or pass a default"
            )
        default = None if self.default is NoDefault else self.default
        return [self.table[x.selected_by[0]][1] if x.selected_by else default for x in leaves]


def select_leaves(name: str, masks: Sequence[MaskSpec], tree: PyTree) -> list[list[bool]]:
    """Return for each of several masks whether it selects each leaf; all patterns and classes are found in one walk.

    Args:
        name: what the user called, for errors.
        masks: the masks.
        tree: any pytree.
    """
    answers: dict[int, list[bool]] = {}
    for strict in (True, False):
        of_paths = {i: x for i, x in enumerate(masks) if isinstance(x, PathMask) and x.strict == strict}
        selectors = [selector for mask in of_paths.values() for selector in mask.patterns]
        mask_of = [i for i, mask in of_paths.items() for _ in mask.patterns]  # the index of the mask of each
        if selectors:
            leaves = _find_leaves(name, selectors, tree, None, strict)
            selecting = [{mask_of[j] for j in x.selected_by} for x in leaves]
            answers |= {i: [i in each for each in selecting] for i in of_paths}
    return [answers[i] if i in answers else mask.of_leaves(tree, None) for i, mask in enumerate(masks)]


def _find_leaves(
    name: str, selectors: Sequence[PatternOrClass], tree: PyTree, is_leaf: IsLeaf, strict: bool
) -> list[Found]:
    """Return every leaf, with the patterns and classes that select it; the arguments are those of `check_found`."""
    found = list(walk_matched(selectors, tree, is_leaf, whole=True))
    check_found(name, selectors, tree, found, strict)
    return [x for x in found if x.is_leaf]
