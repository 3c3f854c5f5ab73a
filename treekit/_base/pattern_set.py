"""Match names against many patterns at once, part by part.

A table with a pattern a layer takes linear time: a part of a name is looked up, not compared with each pattern.
"""

import re
from collections.abc import Callable, Sequence

from treekit._base.patterns import Pattern, match_part


class _Globs:
    """Globs with the same beginning.

    Attributes:
        ends: the indices of those that end here.
        literal: the rest of the others, by their next part, if that has no wildcard.
        wild: the rest of those whose next part has one.
        deep: the rest of those whose next part is a `**`.
        is_deep: whether the part before this was a `**`, which any number of parts match.
    """

    def __init__(self, is_deep: bool = False) -> None:
        self.ends: list[int] = []
        self.literal: dict[str, _Globs] = {}
        self.wild: dict[str, _Globs] = {}
        self.deep: _Globs | None = None
        self.is_deep = is_deep

    def add(self, parts: list[str], i: int) -> None:
        """Add the rest of the glob with the index `i`."""
        if not parts:
            self.ends.append(i)
            return
        part, *rest = parts
        if part == "**":
            self.deep = self.deep or _Globs(is_deep=True)
            self.deep.add(rest, i)
        else:
            kind = self.wild if set(part) & set("*?[") else self.literal
            kind.setdefault(part, _Globs()).add(rest, i)


class Place:
    """Where the beginning of a name leads in a set of globs.

    Attributes:
        ends: the indices of the globs that match it, in order.
        goes_on: whether a glob may match a name that continues it.
        parts: the parts with which such a name may go on; None if there are others.
    """

    def __init__(self, globs: list[_Globs], known: "dict[frozenset[_Globs], Place]") -> None:
        self._globs, self._known = globs, known
        self.ends = tuple(sorted(i for each in globs for i in each.ends))
        self.goes_on = any(each.is_deep or each.literal or each.wild for each in globs)
        only_literal = not any(each.is_deep or each.wild for each in globs)
        self.parts = {part for each in globs for part in each.literal} if only_literal else None
        self._next: dict[str, Place] = {}

    def after(self, text: str) -> "Place":
        """Return the place after more of a name: one part, or several joined by dots."""
        place = self._next.get(text)
        if place is None:
            part, dot, rest = text.partition(".")
            place = self.after(part).after(rest) if dot else self._after_part(part)
            self._next[text] = place
        return place

    def _after_part(self, part: str) -> "Place":
        globs = [each for each in self._globs if each.is_deep]
        for each in self._globs:
            if part in each.literal:
                globs.append(each.literal[part])
            globs += [after for wild, after in each.wild.items() if wild == "*" or match_part(wild, part)]
        return _place_of(globs, self._known)


def _place_of(globs: list[_Globs], known: dict[frozenset[_Globs], Place]) -> Place:
    """Return the place of globs; one for all names that lead to the same, so that what comes after is known."""
    for each in globs:  # those that are added are looked at too
        if each.deep is not None and each.deep not in globs:  # a `**` also matches nothing
            globs.append(each.deep)
    key = frozenset(globs)
    if key not in known:
        known[key] = Place(list(key), known)
    return known[key]


class PatternSet:
    """Several globs and regular expressions.

    Attributes:
        start: the place of the empty name.
        regexes: the index of each regular expression, and whether it matches a name.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        globs = _Globs()
        self.regexes: list[tuple[int, Callable[[str], object]]] = []
        for i, pattern in enumerate(patterns):
            if isinstance(pattern, re.Pattern):
                self.regexes.append((i, pattern.fullmatch))
            else:
                globs.add(pattern.split("."), i)
        self.start = _place_of([globs], {})

    def place(self, name: str) -> Place:
        """Return the place of a name in the globs."""
        return self.start.after(name) if name else self.start

    def matching(self, place: Place, name: str) -> tuple[int, ...]:
        """Return the indices of the patterns that match the name that leads to a place."""
        found = [i for i, matches in self.regexes if matches(name)] if self.regexes else ()
        return (*place.ends, *found) if found else place.ends

    def first(self, name: str) -> int | None:
        """Return the index of the first pattern that matches a name, or None."""
        return min(self.matching(self.place(name), name), default=None)


def may_match_below(pattern: Pattern, name: str) -> bool:
    """Whether a pattern may match a name that continues this one; of a regular expression, this is unknown."""
    return isinstance(pattern, re.Pattern) or PatternSet([pattern]).place(name).goes_on
