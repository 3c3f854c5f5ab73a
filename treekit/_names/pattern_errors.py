"""What is wrong with a pattern? Checks of patterns, and what errors say of those that match nothing."""

import re
from collections.abc import Iterable
from typing import Any, cast

from treekit._names.patterns import Pattern
from treekit._text.describe import describe_value

_MUST_BE = "a pattern must be a string such as '**.bias', or a compiled regular expression over strings"


def check_pattern_or_class(x: object) -> Pattern | type[Any]:
    """Return a pattern or a class; raise an error for anything else."""
    if isinstance(x, type):
        return x
    if isinstance(x, (str, re.Pattern)):
        return check_pattern(cast(object, x))
    hint = ". Pass each of them as an argument of its own" if type(x) in (list, tuple) else ""
    raise TypeError(f"{_MUST_BE}, or a class such as equinox.nn.Linear; found {describe_value(x)}{hint}")


def check_pattern(x: object) -> Pattern:
    """Return a pattern; raise an error for anything else."""
    pattern: Any = x
    is_regex = isinstance(x, re.Pattern) and isinstance(pattern.pattern, str)  # it may be over bytes
    if not (is_regex or isinstance(x, str)):
        raise TypeError(f"{_MUST_BE}; found {describe_value(pattern)}")
    if x == "":
        raise ValueError("a pattern must not be empty; '**' matches every path")
    return cast("Pattern", pattern)


def pattern_text(pattern: Pattern) -> str:
    """Return a glob, or the source of a regular expression."""
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern


def must_match(pattern: Pattern, names: Iterable[str]) -> str:
    """Say for an error what a pattern that matches none of these names must match."""
    if not isinstance(pattern, re.Pattern):
        if re.search(r"[|\\^$]|^\.\*", pattern):
            return "A string is not a regular expression: for one, pass re.compile(pattern)"
        return "A pattern must match a whole name: '**.name' matches at any depth, and 'name.**' everything below"
    part = next((name for name in names if pattern.search(name)), None)
    only = "" if part is None else f". This one matches only a part of {part}"
    return f"A regular expression must match a whole name{only}. Write '.*' for any text before and after"
