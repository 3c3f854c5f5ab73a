"""Find the first of many patterns that matches a name."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from treekit._base.patterns import matches

Pattern = str | re.Pattern[str]
_SPECIAL = re.compile(r"[*?\[]")


class FirstMatch:
    """Find the first pattern that matches a name, without trying those that cannot.

    A name has all of the literal parts of a glob that matches it, so each glob is listed under one of them: that which
    the fewest globs have, such as the `7` of `**.layers.7.**`. So a table with a pattern a layer takes linear time.
    """

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._patterns = list(patterns)
        literals = list(map(_literal_parts, self._patterns))
        number = Counter(part for parts in literals for part in set(parts))
        self._by_part: dict[str | None, list[int]] = defaultdict(list)
        for i, parts in enumerate(literals):
            self._by_part[min(parts, key=number.__getitem__, default=None)].append(i)

    def __call__(self, name: str) -> int | None:
        """Return the index of the first pattern that matches, or None."""
        keys: list[str | None] = [None, *dict.fromkeys(name.split("."))]
        tried = sorted(i for key in keys for i in self._by_part.get(key, ()))
        return next((i for i in tried if matches(self._patterns[i], name)), None)


def _literal_parts(pattern: Pattern) -> list[str]:
    return [] if isinstance(pattern, re.Pattern) else [x for x in pattern.split(".") if not _SPECIAL.search(x)]
