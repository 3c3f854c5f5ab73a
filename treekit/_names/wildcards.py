"""Where in a name is what each wildcard of a glob takes? To rename, the first wildcard takes the most that it can.

The regular expressions of `patterns` do the opposite: in them, the first takes the least that it can. So glob and name
are read backwards: then the last wildcard takes the least, and the first takes what is left.
"""

import re

from treekit._names.patterns import fixed_start, kept_regex, with_dot

# In a glob. The group is a `**` that is a whole part, as in `a.**.b`, and not the two stars of `a**`.
_WILDCARD = re.compile(r"(?<![^.])(\*\*)(?![^.])|\*+")


def wildcard_spans(glob: str, name: str) -> list[tuple[int, int]]:
    """Return where each `*` and `**` of a glob begins and ends in a name that it matches.

    If it matches in several ways, the first of them takes as much as it can, then the second, and so on. A `**` also
    takes the dot at its end; the name gets one.

    | | glob | name | `**` takes | `*` takes |
    |---|---|---|---|---|
    | an example | a.**.b* | a.x.y.bc | "x.y." at (2, 6) | "c" at (7, 8) |
    | read backwards | *b.**.a | cb.y.x.a. | "y.x." at (3, 7) | "c" at (0, 1) |
    | and forwards again | | | ".x.y" at (1, 5): it has the dot at its other end, so one further | "c" at (7, 8) |
    """
    if prefix := fixed_start(glob):  # such as that of a.b.**, which takes the rest
        return [(len(prefix), len(name) + 1)]
    # A glob that is written backwards is a glob, whose groups have the opposite order.
    backwards = with_dot(name[::-1])
    match = kept_regex(glob[::-1]).fullmatch(backwards)
    assert match is not None, "the glob matches the name"
    wildcards = list(_WILDCARD.finditer(glob))
    length = len(backwards) - 1
    spans: list[tuple[int, int]] = []
    for wildcard, group in zip(wildcards, range(len(wildcards), 0, -1), strict=True):
        start, end = match.span(group)
        dot = 1 if wildcard[1] else 0  # of a `**`, which is at its other end now
        spans.append((length - end + dot, length - start + dot))
    return spans
