"""The warning of `graft` that a list has another length than in the old tree."""

import warnings

from treekit._graft.rename import Renamed
from treekit._graft.states import State


def warn_of_lengths(new: list[State], old: list[State], renamed: Renamed) -> None:
    """Warn of lists whose lengths differ, unless `rename` says where their entries go."""
    found = [
        (below, n, same[0].lengths[below])
        for state in new
        for below, n in state.lengths.items()
        if (same := _with_list(state, below, old))
        and all(x.lengths[below] != n and not renamed.decides(x, below) for x in same)
    ]
    if not found:
        return
    listed = dict.fromkeys(f"{below or 'the root'} (new {n}, old {before})" for below, n, before in found)
    below, n, before = found[0]
    name = f"**.{below.rpartition('.')[2]}." if below else ""
    moved = f"i {'+' if n > before else '-'} {abs(n - before)}"
    warnings.warn(
        f"graft: lengths of lists differ: {', '.join(listed)}. Their entries are matched by index. If an entry was "
        "inserted or removed before the end, those after it get wrong values: use "
        f"rename={{f'{name}{{i}}.**': f'{name}{{{moved}}}.**' for i in range(k, {before})}}, where k is the old index "
        f"of the first entry that moved. If the indices are right, say so with rename={{'{name}**': '{name}**'}}",
        stacklevel=4,  # the caller of `graft`
    )


def _with_list(state: State, below: str, old: list[State]) -> list[State]:
    """Return the old states of the same kind that have a list there: those with the same labels, if there are any."""
    found = [x for x in old if x.kind == state.kind and below in x.lengths]
    return [x for x in found if x.labels == state.labels] or found
