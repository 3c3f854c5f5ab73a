"""Patterns for key paths: globs and regular expressions, and the paths nearest to one that matches nothing."""

import difflib
import fnmatch
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from treekit._base.describe import describe_value

Pattern: TypeAlias = str | re.Pattern[str]
_NEAREST = 5  # the number of paths that an error lists


def matches(pattern: Pattern, name: str) -> bool:
    """Whether a pattern matches the whole name of a path."""
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    return match_glob(pattern, name) is not None


def match_glob(glob: str, name: str) -> re.Match[str] | None:
    """Match a glob against the whole name of a path; the groups are what its wildcards match."""
    return glob_regex(glob).fullmatch(f"{name}." if name else "")


def match_part(part: str, text: str) -> bool:
    """Whether a part of a glob, other than `**`, matches a part of a name."""
    return _part_matcher(part)(f"{text}.") is not None


@functools.cache
def _part_matcher(part: str) -> Callable[[str], object]:
    return re.compile(_part_regex(part)).fullmatch


def pattern_text(pattern: Pattern) -> str:
    """Return a glob, or the source of a regular expression."""
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern


@functools.cache
def glob_regex(glob: str) -> re.Pattern[str]:
    """Convert a glob to a regular expression for names that end in a dot; `*` and `**` become groups."""
    return re.compile("".join(r"((?:[^.]*\.)*)" if part == "**" else _part_regex(part) for part in glob.split(".")))


def nearest(wanted: str, names: Sequence[str]) -> str:
    """List the names that are most similar to this one, for an error message."""
    return listed(difflib.get_close_matches(wanted, names, _NEAREST, cutoff=0.0)) or "there are none"


def _part_regex(part: str) -> str:
    return "".join(map(_token_regex, re.findall(r"\*+|\?|\[!?\]?[^]]*\]|\[|[^*?[]+", part))) + r"\."


def _token_regex(token: str) -> str:
    if token[0] == "*":
        return "([^.]*)"
    if token == "?":
        return "[^.]"
    if token[0] == "[":
        return r"(?!\.)" + fnmatch.translate(token)[:-2]  # without the \Z at its end
    return re.escape(token)


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NEAREST} more" if len(names) > _NEAREST else ""
    return ", ".join(name or "(the root)" for name in names[:_NEAREST]) + more


def check_pattern_or_class(x: object) -> Pattern | type[Any]:
    if isinstance(x, type):
        return x
    if isinstance(x, (str, re.Pattern)):
        return check_pattern(cast(object, x))
    raise TypeError(f"{_MUST_BE}, or a class such as equinox.nn.Linear; found {describe_value(x)}")


_MUST_BE = "a pattern must be a string such as '**.bias', or a compiled regular expression over strings"


def check_pattern(pattern: object) -> Pattern:
    text: object = getattr(pattern, "pattern", pattern)
    if not isinstance(text, str) or not isinstance(pattern, (str, re.Pattern)):
        raise TypeError(f"{_MUST_BE}; found {describe_value(pattern)}")
    if pattern == "":
        raise ValueError("a pattern must not be empty; '**' matches every path")
    return cast("Pattern", pattern)
