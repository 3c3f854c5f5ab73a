"""Which names does a pattern match? Globs over the parts of a name, and regular expressions."""

import bisect
import difflib
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

from treekit._base.describe import describe_value

Pattern: TypeAlias = str | re.Pattern[str]
_NEAREST = 5  # the number of paths that an error lists
_COMPARED = 100  # how many characters of each end of a name are compared, since the time grows with their square


def pattern_text(pattern: Pattern) -> str:
    """Return a glob, or the source of a regular expression."""
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern


def nearest(wanted: str, names: Sequence[str]) -> str:
    """List the names that are most similar to this one, for an error message."""
    ends = {_ends(name): name for name in reversed(names)}
    found = difflib.get_close_matches(_ends(wanted), ends, _NEAREST, cutoff=0.0)
    return listed([ends[x] for x in found]) or "there are none"


def _ends(name: str) -> str:
    return name if len(name) <= 2 * _COMPARED else name[:_COMPARED] + name[-_COMPARED:]


def must_match(pattern: Pattern, names: Iterable[str]) -> str:
    """Say for an error what a pattern that matches none of these names must match."""
    if not isinstance(pattern, re.Pattern):
        return "A pattern must match a whole name: '**.name' matches at any depth, and 'name.**' everything below"
    part = next((name for name in names if pattern.search(name)), None)
    only = "" if part is None else f". This one matches only a part of {part}"
    return f"A regular expression must match a whole name{only}. Write '.*' for any text before and after"


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NEAREST} more" if len(names) > _NEAREST else ""
    return ", ".join(name or "(the root)" for name in names[:_NEAREST]) + more


def check_pattern_or_class(x: object) -> Pattern | type[Any]:
    if isinstance(x, type):
        return x
    if isinstance(x, (str, re.Pattern)):
        return check_pattern(cast(object, x))
    hint = ". Pass each of them as an argument of its own" if type(x) in (list, tuple) else ""
    raise TypeError(f"{_MUST_BE}, or a class such as equinox.nn.Linear; found {describe_value(x)}{hint}")


_MUST_BE = "a pattern must be a string such as '**.bias', or a compiled regular expression over strings"


def check_pattern(pattern: object) -> Pattern:
    text: object = getattr(pattern, "pattern", pattern)
    if not isinstance(text, str) or not isinstance(pattern, (str, re.Pattern)):
        raise TypeError(f"{_MUST_BE}; found {describe_value(pattern)}")
    if pattern == "":
        raise ValueError("a pattern must not be empty; '**' matches every path")
    return cast("Pattern", pattern)


@functools.lru_cache(10_000)
def _regex_of(glob: str) -> re.Pattern[str]:
    """Return a glob as a regular expression over a name with a dot after each part, and a group for each `*` and `**`.

    A wildcard matches as little as it can, and is not tried again once what follows it is found: so the time grows
    with the glob times the name. The last `**` matches what is left.
    """
    start, *rest = ("".join(map(_regex_of_part, parts)) for parts in _split_at_stars(glob))
    if not rest:
        return re.compile(start)
    *middle, end = rest
    return re.compile(f"{start}{''.join(rf'(?>({_PARTS}?){x})' for x in middle)}({_PARTS}){end}")


_PARTS = r"(?:[^.]*\.)*"


def _split_at_stars(glob: str) -> list[list[str]]:
    """Return the parts of a glob before, between and after each `**`."""
    runs: list[list[str]] = [[]]
    for part in glob.split("."):
        if part == "**":
            runs.append([])
        else:
            runs[-1].append(part)
    return runs


def _regex_of_part(part: str) -> str:
    start, *rest = (x.replace(r"\?", "[^.]") for x in map(re.escape, re.split(r"\*+", f"{part}.")))
    return start + "".join(f"(?>([^.]*?){x})" for x in rest)


def is_match(pattern: Pattern, name: str) -> bool:
    """Whether a pattern matches the whole name of a path."""
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    return _regex_of(pattern).fullmatch(_with_dot(name)) is not None


def _with_dot(name: str) -> str:
    return f"{name}." if name else ""


def wildcard_spans(glob: str, name: str) -> list[tuple[int, int]]:
    """Return where each `*` and `**` of a glob begins and ends in a name that it matches.

    If it matches in several ways, the first of them matches as much as it can, then the second, and so on. A `**` also
    matches the dot at its end; the name gets one.
    """
    # Read backwards, the last wildcard matches the least. A `**` then has its dot at the other end.
    backwards = _with_dot(name[::-1])
    match = _regex_of(glob[::-1]).fullmatch(backwards)
    spans: Sequence[tuple[int, int]] = match.regs[:0:-1] if match else []
    dots = [x[1] is not None for x in _WILDCARD.finditer(glob)]
    last = len(backwards) - 1
    return [(last - end + dot, last - start + dot) for (start, end), dot in zip(spans, dots, strict=True)]


_WILDCARD = re.compile(r"(?<![^.])(\*\*)(?![^.])|\*+")


def may_match_below(pattern: Pattern, name: str) -> bool:
    """Whether a pattern may match a name that continues this one; of a regular expression, this is unknown."""
    if isinstance(pattern, re.Pattern):
        return True
    parts = pattern.split(".")
    beginnings = [".".join(parts[:i]) for i in range(1, len(parts) + (parts[-1] == "**"))]
    return not name or any(is_match(beginning, name) for beginning in beginnings)


class PatternSet:
    """Several globs and regular expressions. Classes among them keep their indices, and match no name."""

    def __init__(self, patterns: Sequence[Pattern | type[Any]]) -> None:
        self._names: dict[str, list[int]] = {}  # of globs without wildcards, which are looked up
        others: list[tuple[int, Pattern]] = []
        for i, pattern in enumerate(patterns):
            if isinstance(pattern, re.Pattern) or (isinstance(pattern, str) and _has_wildcards(pattern)):
                others.append((i, pattern))
            elif isinstance(pattern, str):
                self._names.setdefault(pattern, []).append(i)
        self._sorted = sorted(self._names)
        # The others by a part that a name must have, the one that the fewest need: in a table with a row for each
        # layer, its number. By None, those that need none.
        self._by_part: dict[str | None, list[tuple[int, Pattern]]] = defaultdict(list)
        numbers = Counter(part for _, pattern in others for part in _fixed_parts(pattern))
        for i, pattern in others:
            self._by_part[min(_fixed_parts(pattern), key=numbers.__getitem__, default=None)].append((i, pattern))

    def matching(self, name: str) -> tuple[int, ...]:
        """Return the indices of the patterns that match a name, in order."""
        names = self._names.get(name, ())
        if not self._by_part:
            return tuple(names)
        parts: set[str | None] = {None, *name.split(".")}
        others = [x for part in parts if part in self._by_part for x in self._by_part[part]]
        return tuple(sorted((*names, *(i for i, pattern in others if is_match(pattern, name)))))

    def goes_on(self, name: str) -> bool:
        """Whether a pattern may match a name that continues this one."""
        start = _with_dot(name)
        i = bisect.bisect_left(self._sorted, start)  # the first of those that begin so, if there are any
        return bool(self._by_part) or any(x.startswith(start) for x in self._sorted[i : i + 1])


def _has_wildcards(text: str) -> bool:
    return "*" in text or "?" in text


def _fixed_parts(pattern: Pattern) -> list[str]:
    """Return the parts of a glob that have no wildcards."""
    return [part for part in pattern.split(".") if not _has_wildcards(part)] if isinstance(pattern, str) else []
