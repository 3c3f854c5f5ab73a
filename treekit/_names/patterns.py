"""Which names does a pattern match? Globs over the parts of a name, and regular expressions.

Wildcards take as little as they can, from the first on, since that is fast. To rename, the first takes as much as it
can: glob and name are then read backwards, so that the last wildcard takes the least.
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
    if start := _start_of(pattern):
        return _with_dot(name).startswith(start)
    return (regex_of or _regex_of)(pattern).fullmatch(_with_dot(name)) is not None


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


def _start_of(glob: str) -> str:
    """Return `a.b.` for `a.b.**`, for which no regular expression is compiled, since that is slow; else ""."""
    start = glob[:-2]
    return start if glob.endswith(".**") and not has_wildcards(start) else ""


def _with_dot(name: str) -> str:
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


_regex_of = functools.lru_cache(1_000)(compiled)  # for few patterns; a PatternSet has its own


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
# In a glob. The group is a `**` that is a whole part, as in `a.**.b`, and not the two stars of `a**`.
_WILDCARD = re.compile(r"(?<![^.])(\*\*)(?![^.])|\*+")


def wildcard_spans(glob: str, name: str) -> list[tuple[int, int]]:
    """Return where each `*` and `**` of a glob begins and ends in a name that it matches.

    If it matches in several ways, the first of them takes as much as it can, then the second, and so on. A `**` also
    takes the dot at its end; the name gets one. In "a.x.y.bc", the wildcards of `a.**.b*` take "x.y." and "c", and the
    spans are (2, 6) and (7, 8).
    """
    if prefix := _start_of(glob):
        return [(len(prefix), len(name) + 1)]
    # In the example, `*b.**.a` in "cb.y.x.a.", whose groups are "c" at (0, 1), and "y.x." at (3, 7).
    backwards = _with_dot(name[::-1])
    match = _regex_of(glob[::-1]).fullmatch(backwards)
    assert match is not None, "the glob matches the name"
    wildcards = list(_WILDCARD.finditer(glob))
    length = len(backwards) - 1
    spans: list[tuple[int, int]] = []
    for wildcard, group in zip(wildcards, range(len(wildcards), 0, -1), strict=True):
        start, end = match.span(group)
        # Read forwards, "y.x." is ".x.y" at (1, 5). A `**` has the dot at its other end: "x.y." at (2, 6).
        moved = 1 if wildcard[1] else 0
        spans.append((length - end + moved, length - start + moved))
    return spans
