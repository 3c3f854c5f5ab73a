"""Check the arguments of `graft`, and find what they say about each leaf."""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.rename import Rule
from treekit._names.pattern_errors import check_pattern, must_match, pattern_text
from treekit._names.pattern_set import PatternSet, undecided
from treekit._names.patterns import Pattern
from treekit._text.describe import describe_value
from treekit._text.lists import nearest

Convert = Callable[[Any], Any]
Resize = Callable[[Any, Any], Any]
_PATTERN: Any = (str, re.Pattern)


class Choices(NamedTuple):
    """What the arguments of `graft` say about leaves, by their names.

    Attributes:
        fresh: the new leaves that keep their values.
        convert: what converts the old value for a new leaf.
        resize: what resizes it.
        rename: what renames an old leaf; no rules drop it.
    """

    fresh: Container[str]
    convert: Mapping[str, Convert]
    resize: Mapping[str, Resize]
    rename: Mapping[str, Sequence[Rule]]


_MUST_BE = {
    "fresh": "a pattern of new paths that keep their values, or a list of patterns, ['head.**']",
    "rename": "a dict that maps old paths to new ones, {'body.**': 'encoder.**'}, to a list of new ones, or to None",
    "convert": "a dict from patterns of new paths to functions of the old array, {'**.weight': lambda x: x.T}",
    "resize": "a function of the new leaf and the old one, or a dict from patterns to such functions",
}


def check_arguments(fresh: PyTree, rename: object, convert: object, resize: object) -> list[Pattern]:
    """Raise a TypeError if an argument has another type; return the patterns of `fresh`."""
    for name, x, is_right in (
        ("fresh", fresh, isinstance(fresh, _PATTERN) or type(fresh) in (list, tuple)),
        ("rename", rename, rename is None or (is_mapping(rename) and all(map(_is_rule, rename, rename.values())))),
        ("convert", convert, convert is None or (is_mapping(convert) and all(map(callable, convert.values())))),
        ("resize", resize, resize is None or all(map(callable, resize.values() if is_mapping(resize) else [resize]))),
    ):
        if not is_right:
            raise TypeError(f"{name} must be {_MUST_BE[name]}; found {describe_value(x)}")
    return list(map(check_pattern, [fresh] if isinstance(fresh, _PATTERN) else fresh))


def _is_rule(pattern: object, target: PyTree) -> bool:
    targets: list[Any] = list(target) if type(target) in (list, tuple) and target else [target]
    return isinstance(pattern, str) and (target is None or all(isinstance(x, str) for x in targets))


def chosen(
    argument: str,
    given: Mapping[Any, Any] | None,
    names: Sequence[str],
    *,
    side: str = "new",
    may_overlap: bool = False,
) -> dict[str, Any]:
    """Map the names of leaves that a pattern matches to what the first of these patterns is mapped to.

    Args:
        argument: the name of the argument of `graft`.
        given: maps patterns to anything; None for nothing.
        names: the names of the leaves.
        side: which tree these are in.
        may_overlap: whether earlier patterns may match all that a pattern matches.

    Raises:
        ValueError: a pattern matches no name, or decides about none.
    """
    if given is None:
        return {}
    globs = list(map(check_pattern, given))
    patterns = PatternSet(globs)
    matching = {name: patterns.matching(name) for name in names}
    for i, earlier in undecided(len(globs), matching.values()):
        text = pattern_text(globs[i])
        if not earlier:
            raise ValueError(
                f"{argument}: {text!r} matches no leaf of the {side} tree. The nearest paths: {nearest(text, names)}. "
                f"{must_match(globs[i], names)}"
            )
        if not may_overlap:
            raise ValueError(
                f"{argument}: {text!r} decides about no leaf, since earlier patterns match all leaves that it matches: "
                f"{', '.join(repr(pattern_text(globs[j])) for j in earlier)}. Put it before them"
            )
    return {name: given[globs[each[0]]] for name, each in matching.items() if each}
