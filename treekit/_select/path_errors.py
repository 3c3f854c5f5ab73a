"""Errors about the patterns and classes of masks and labels: which leaves do they select, and do they select any?"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

from treekit._base.flax import is_nnx_module, is_of_bare_values, is_variable_class
from treekit._base.types import PyTree
from treekit._names.pattern_errors import must_match, pattern_text
from treekit._names.pattern_set import undecided
from treekit._names.patterns import Pattern, is_match, may_match_below
from treekit._select.advice import no_instance
from treekit._select.walk import Found
from treekit._text.describe import type_name
from treekit._text.lists import nearest

PatternOrClass: TypeAlias = Pattern | type[Any]


def written(x: PatternOrClass) -> str:
    return x.__qualname__ if isinstance(x, type) else repr(x)


LABELS = "path_labels"  # the only caller whose selectors are rows: the first that selects a leaf decides about it


def check_found(
    name: str, selectors: Sequence[PatternOrClass], tree: PyTree, found: Sequence[Found], strict: bool
) -> None:
    """Raise a ValueError if it is not known what one of the patterns and classes selects, or if it is not used.

    Args:
        name: what the user called, for errors.
        selectors: the patterns and classes.
        tree: any pytree.
        found: all of its nodes and leaves.
        strict: whether one that is not used is an error: each must select a leaf, and a row decide about one.
    """
    _check_one_name(name, selectors, [x.name for x in found if x.is_leaf])
    _check_has_variables(name, selectors, tree)
    if strict:
        _check_used(name, selectors, found)


def _check_one_name(name: str, selectors: Sequence[PatternOrClass], names: Sequence[str]) -> None:
    """Raise a ValueError if a glob matches a name that two leaves have, since it does not say which is meant."""
    if len(set(names)) == len(names):  # which is faster than to count them
        return
    shared = [x for x, number in Counter(names).items() if number > 1]
    globs = [x for x in selectors if isinstance(x, str) and x != "**"]
    for pattern, path in itertools.product(globs, shared):
        if is_match(pattern, path):
            raise ValueError(
                f"{name}: the pattern {pattern!r} matches two leaves that are both called {path!r}: a key contains "
                "a dot, or a string and a number are written alike. Pass a function of the tree instead, with "
                "jax.tree_util.tree_map_with_path"
            )


def _check_has_variables(name: str, selectors: Sequence[PatternOrClass], tree: PyTree) -> None:
    """Raise a ValueError for selecting by a variable class in an `nnx.State` that has only values.

    Also if not strict: in `init`, the class may have selected some.
    """
    classes: list[Any] = [x for x in selectors if isinstance(x, type)]
    for cls in filter(is_variable_class, classes):
        if is_of_bare_values(tree):
            raise ValueError(
                f"{name}: which values are of variables of the class {cls.__qualname__} is not known, since the tree "
                "is an nnx.State of values without their variables. nnx.Optimizer passes variables to init, and their "
                f"values to update. {_find_names(name, cls)}"
            )


def _find_names(name: str, cls: type[Any]) -> str:
    """Say for an error how to select what a class of Flax NNX selects in a module."""
    found = f"for name in treekit.tree_find(model, {cls.__name__})"
    mask, labels = f'path_mask(*(f"{{name}}.**" {found}))', f'path_labels({{f"{{name}}.**": label {found}}})'
    return f"Find their names in the model: {labels if name == LABELS else mask}"


def _check_used(name: str, selectors: Sequence[PatternOrClass], found: Sequence[Found]) -> None:
    """Raise a ValueError for a selector that is not used, unless it may select a leaf that is masked out."""
    holes = [x for x in found if not x.is_leaf and (x.node is None or _is_masked_node(x.node))]
    for i, earlier in undecided(len(selectors), [x.selected_by for x in found if x.is_leaf]):
        if not any(_may_hide(hole, i, selectors[i]) for hole in holes):
            if why := _why_not_used(name, selectors, i, earlier, found):
                raise ValueError(f"{name}: {why}")


def _why_not_used(
    name: str, selectors: Sequence[PatternOrClass], i: int, earlier: Sequence[int], found: Sequence[Found]
) -> str:
    """Say why it is an error that the i-th selector decides about no leaf; "" if it is not.

    | the selector | is it an error? |
    |---|---|
    | is a class without an instance | yes |
    | selects only what earlier ones select | in labels; but not if it is a last row `**` |
    | is a class, and its instances have no leaves | no |
    | is a pattern that matches no leaf | yes |

    Args:
        name: as in `check_found`.
        selectors: as in `check_found`.
        i: the index of the selector.
        earlier: the earlier ones that select all leaves that it does; none if it does not select any.
        found: as in `check_found`.
    """
    selector = selectors[i]
    if isinstance(selector, type) and not any(i in x.classes for x in found):
        advice = _advice_of_one_leaf(name, found)
        if is_nnx_module(selector):
            advice = f". An nnx.state has variables, and no modules. {_find_names(name, selector)}"
        return f"{no_instance(selector, [x.node for x in found])}{advice}"
    if earlier:
        # Such a last row is for whatever other rows leave, which may be nothing.
        if name != LABELS or (selector == "**" and i == len(selectors) - 1):
            return ""
        return (
            f"{written(selector)} decides about no leaf, since "
            f"{', '.join(sorted(written(selectors[j]) for j in earlier))} before it selects all that it does. Put "
            "it before them; or, if that is meant, pass strict=False"
        )
    if isinstance(selector, type):  # whose instances have no leaves
        return ""
    text, names = pattern_text(selector), [x.name for x in found if x.is_leaf]
    advice = f". The nearest paths: {nearest(text, names)}. {must_match(selector, names)}"
    return f"the pattern {text!r} matches no leaf{_advice_of_one_leaf(name, found) or advice}"


def _advice_of_one_leaf(name: str, found: Sequence[Found]) -> str:
    """Say for an error what the mistake is if the tree is one leaf; "" if it is not."""
    if len(found) != 1 or not found[0].is_leaf:
        return ""
    return (
        f". The tree is one leaf, {type_name(found[0].node)}: equinox.filter and jax.tree.map call a function with "
        f"each leaf. {'Call it' if name == LABELS else 'Use treekit.filter, or call the mask'} with the whole tree"
    )


def _may_hide(hole: Found, i: int, selector: PatternOrClass) -> bool:
    """Whether a selector, whose index is `i`, may select a leaf that is masked out.

    None hides one leaf. A MaskedNode may also hide a subtree, with instances of any class.
    """
    if hole.node is None:
        return i in (*hole.patterns, *hole.within)
    return isinstance(selector, type) or i in hole.patterns or may_match_below(selector, hole.name)


def _is_masked_node(x: object) -> bool:
    """Whether `x` is Optax's MaskedNode; this room does not import Optax."""
    return type(x).__name__ == "MaskedNode"
