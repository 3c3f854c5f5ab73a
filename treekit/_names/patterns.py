"""Which names does a pattern match? Globs over the parts of a name, and regular expressions.

A glob may match a name in several ways, as `x*y*` matches "x1y2y3":

| what is asked | what the wildcards take | why |
|---|---|---|
| does it match? (here) | from the first on, the least that they can: "1", and then "2y3" | it is fast: see `compiled` |
| what do they take? (`wildcards`) | from the first on, the most that they can: "1y2", and then "3" | to rename |
"""

import functools
import re
from collections.abc import Callable
from typing import TypeAlias

Pattern: TypeAlias = str | re.Pattern[str]

# In a regular expression over names with a dot after each part: any number of parts, as many or as few as possible.
_MOST_PARTS = r"(?:[^.]*\.)*"
_FEWEST_PARTS = f"{_MOST_PARTS}?"


def is_match(pattern: Pattern, name: str, regex_of: Callable[[str], re.Pattern[str]] | None = None) -> bool:
    """Whether a pattern matches the whole name of a path; globs are compiled by `regex_of`, or else kept compiled."""
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    if start := fixed_start(pattern):
        return with_dot(name).startswith(start)
    return (regex_of or kept_regex)(pattern).fullmatch(with_dot(name)) is not None


def may_match_below(pattern: Pattern, name: str) -> bool:
    """Whether a pattern may match a name that continues this one; of a regular expression, this is unknown."""
    if isinstance(pattern, re.Pattern) or not name:
        return True
    parts = pattern.split(".")
    # A part of the pattern must be left for what continues the name; a `**` at its end is left, whatever it matches.
    matching = parts if parts[-1] == "**" else parts[:-1]
    beginnings = [".".join(matching[: i + 1]) for i in range(len(matching))]
    return any(is_match(beginning, name) for beginning in beginnings)


def has_wildcards(text: str) -> bool:
    return "*" in text or "?" in text


def fixed_start(glob: str) -> str:
    """Return `a.b.` for `a.b.**`, for which no regular expression is compiled, since that is slow; else ""."""
    start = glob[:-2]
    return start if glob.endswith(".**") and not has_wildcards(start) else ""


def with_dot(name: str) -> str:
    return f"{name}." if name else ""


def compiled(glob: str) -> re.Pattern[str]:
    r"""Return a glob as a regular expression over a name with a dot after each part, and a group for each `*` and `**`.

    `**.a.**.b*` becomes `(?>((?:[^.]*\.)*?)a\.)((?:[^.]*\.)*)b(?>([^.]*?)\.)`, where the groups are for the first `**`,
    the second, and the `*`.

    - A wildcard matches as little as it can: the first place where what follows it is found leaves most of the name for
      the rest of the glob. So no later place is needed, and `(?>…)` tries none: the time grows with the glob times the
      name.
    - The last `**` matches as much as it can, since what follows it must be at the end of the name.
    """
    start, *rest = ("".join(map(_regex_of_part, parts)) for parts in _split_at_deep_wildcards(glob))
    if not rest:
        return re.compile(start)
    *middle, end = rest
    return re.compile(f"{start}{''.join(f'(?>({_FEWEST_PARTS}){x})' for x in middle)}({_MOST_PARTS}){end}")


kept_regex = functools.lru_cache(1_000)(compiled)  # for few patterns; a PatternSet has its own


def _split_at_deep_wildcards(glob: str) -> list[list[str]]:
    """Return the parts of a glob before, between and after each `**`."""
    runs: list[list[str]] = [[]]
    for part in glob.split("."):
        if part == "**":
            runs.append([])
        else:
            runs[-1].append(part)
    return runs


def _regex_of_part(part: str) -> str:
    """Return one part of a glob, with the dot after it, as a regular expression."""
    between_stars = _STARS.split(f"{part}.")
    start, *rest = (re.escape(text).replace(r"\?", "[^.]") for text in between_stars)
    return start + "".join(f"(?>([^.]*?){x})" for x in rest)


_STARS = re.compile(r"\*+")
