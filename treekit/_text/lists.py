"""Lists of names in errors: the first ones, and those that are similar to one."""

import difflib
from collections.abc import Sequence

_LISTED = 5  # the number of names that an error lists
_COMPARED = 100  # how many characters of each end of a name are compared, since the time grows with their square


def nearest(wanted: str, names: Sequence[str]) -> str:
    """List the names that are most similar to this one, for an error."""
    by_ends = {_ends(name): name for name in reversed(names)}  # of equal ends, the first name
    found = difflib.get_close_matches(_ends(wanted), by_ends, _LISTED, cutoff=0.0)
    return listed([by_ends[x] for x in found]) or "there are none"


def _ends(name: str) -> str:
    return name if len(name) <= 2 * _COMPARED else name[:_COMPARED] + name[-_COMPARED:]


def listed(names: Sequence[str]) -> str:
    """List the first names, for an error."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(name or "the root" for name in names[:_LISTED]) + more
