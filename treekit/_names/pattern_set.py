"""Which of many patterns match a name? Most of them are not tried. And which of them decide about nothing?"""

import bisect
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from treekit._names.patterns import Pattern, compiled, has_wildcards, is_match


class PatternSet:
    """Several globs and regular expressions. Classes among them keep their indices, and match no name."""

    def __init__(self, patterns: Sequence[Pattern | type[Any]]) -> None:
        # Compiled for this set only: there may be thousands, also of names in a file, which must not be kept.
        self._regex_of = functools.cache(compiled)
        # Globs without wildcards are looked up: their indices by name, and the names in order.
        self._names: dict[str, list[int]] = defaultdict(list)
        with_wildcards: list[tuple[int, Pattern]] = []
        for i, pattern in enumerate(patterns):
            if isinstance(pattern, re.Pattern) or (isinstance(pattern, str) and has_wildcards(pattern)):
                with_wildcards.append((i, pattern))
            elif isinstance(pattern, str):
                self._names[pattern].append(i)
        self._sorted = sorted(self._names)
        # The others are tried only for names that have one fixed part of theirs: the rarest, so that `layers.17.*` is
        # tried for names with the part 17. Those without a fixed part are under None, and tried for every name.
        self._by_part: dict[str | None, list[tuple[int, Pattern]]] = defaultdict(list)
        frequency = Counter(part for _, pattern in with_wildcards for part in _fixed_parts(pattern))
        for i, pattern in with_wildcards:
            rarest = min(_fixed_parts(pattern), key=frequency.__getitem__, default=None)
            self._by_part[rarest].append((i, pattern))

    def matching(self, name: str) -> tuple[int, ...]:
        """Return the indices of the patterns that match a name, in order."""
        names = self._names.get(name, ())
        if not self._by_part:
            return tuple(names)
        parts: set[str | None] = {None, *name.split(".")}
        tried = [x for part in parts if part in self._by_part for x in self._by_part[part]]
        return tuple(sorted((*names, *(i for i, pattern in tried if is_match(pattern, name, self._regex_of)))))

    def may_match_below(self, name: str) -> bool:
        """Whether a pattern may match a name that continues this one; with wildcards, any may."""
        start = f"{name}." if name else ""
        i = bisect.bisect_left(self._sorted, start)  # the first of those that begin so, if there are any
        return bool(self._by_part) or any(x.startswith(start) for x in self._sorted[i : i + 1])


def _fixed_parts(pattern: Pattern) -> list[str]:
    """Return the parts of a glob that have no wildcards."""
    return [part for part in pattern.split(".") if not has_wildcards(part)] if isinstance(pattern, str) else []


def undecided(number: int, matching: Collection[Sequence[int]]) -> Iterator[tuple[int, list[int]]]:
    """Yield each pattern that is never the first match, with the earlier patterns that win instead.

    Args:
        number: how many patterns there are.
        matching: the indices of the patterns that match each name, of which the first decides.
    """
    deciding = {each[0] for each in matching if each}
    for i in range(number):
        if i not in deciding:
            yield i, sorted({each[0] for each in matching if i in each})
