"""Check the arguments of `graft`, and find what they say about each leaf."""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.rename import Rule
from treekit._graft.sources import Source
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


def chosen(argument: str, given: object, names: Sequence[str], side: str = "new") -> dict[str, Any]:
    """Map the names of leaves that a pattern matches to what the first of these patterns is mapped to.

    Args:
        argument: the name of the argument of `graft`.
        given: a dict by pattern; or, as a function for `resize`, what all names are mapped to; None for nothing.
        names: the names of the leaves.
        side: which tree these are in.

    Raises:
        ValueError: a pattern matches no name, or decides about none. Patterns of `fresh` may overlap.
    """
    if not is_mapping(given):
        return {} if given is None else dict.fromkeys(names, given)
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
        if argument != "fresh":
            raise ValueError(
                f"{argument}: {text!r} decides about no leaf, since earlier patterns match all leaves that it matches: "
                f"{', '.join(repr(pattern_text(globs[j])) for j in earlier)}. Put it before them"
            )
    return {name: given[globs[each[0]]] for name, each in matching.items() if each}


def check_rename(sources: Iterable[Source], left: Iterable[Source], strict: bool, names: Sequence[str]) -> None:
    """Raise a ValueError if a pattern of `rename` leads to no new leaf; with `strict`, if one of its targets does not.

    Args:
        sources: all old values.
        left: those that no new leaf matches.
        strict: as in `graft`.
        names: the names of the new leaves.
    """
    renamed, unmatched = [(x, x.rule) for x in sources if x.rule], set(left)
    used = {rule for x, rule in renamed if x not in unmatched}
    used_patterns = {rule.pattern for rule in used}
    for x, rule in renamed:
        is_used = rule in used if strict else rule.pattern in used_patterns
        if not is_used:
            lacks = "has in a state of another class" if x.name in names else "does not have"
            raise ValueError(
                f"rename: {rule.pattern!r} leads to {x.name or 'the root'}, which the new tree {lacks}. The nearest "
                f"paths: {nearest(x.name, names)}"
            )
