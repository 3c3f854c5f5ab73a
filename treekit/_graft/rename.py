"""The argument `rename` of `graft`: map old key paths to new ones by patterns."""

import re
from collections.abc import Container, Mapping

from treekit._base.patterns import match_glob, nearest
from treekit._graft.states import Leaf, State

_WILDCARD = re.compile(r"(?:(?<=\.)|^)\*\*\.|\*+")  # in a path with a dot at its end, as in `glob_regex`


class Renamed:
    """The leaves of the old tree that were renamed.

    Attributes:
        to: the leaves that were renamed to full paths of the new tree, by these; others are renamed in their states.
    """

    def __init__(self, states: list[State], rename: Mapping[str, str], names: list[str]) -> None:
        self.to: dict[str, Leaf] = {}
        self._names = names
        self._old_names = [leaf.name for state in states for leaf in state.leaves.values()]
        self._leaves: dict[str, list[tuple[str, Leaf]]] = {pattern: [] for pattern in rename}
        self._by_state: dict[State, dict[str, bool]] = {}  # the paths in the old states, and whether they are renamed
        for pattern, target in rename.items():
            if _wildcards(pattern) != _wildcards(target):
                raise ValueError(
                    "rename needs the same wildcards on both sides, in the same order; found "
                    f"{pattern!r} and {target!r}"
                )
        for state in states:
            self._rename_in(state, rename)

    def decides(self, state: State, below: str) -> bool:
        """Whether an entry of the list at this path was renamed, if only to its own name, and so were all after it."""
        start = f"{below}." if below else ""
        entries = [
            (int(path.removeprefix(start).split(".")[0]), is_renamed)
            for path, is_renamed in self._by_state[state].items()
            if path.startswith(start)
        ]
        first = min((i for i, is_renamed in entries if is_renamed), default=None)
        return first is not None and all(is_renamed for i, is_renamed in entries if i >= first)

    def check_used(self, used: Container[int]) -> None:
        """Raise a ValueError for a pattern that has no effect; `used` has the ids of the old leaves carried over."""
        for pattern, leaves in self._leaves.items():
            if not leaves:
                raise ValueError(f"rename: {pattern!r} {self._why_unused(pattern)}")
            if not any(id(leaf) in used for _, leaf in leaves):
                raise ValueError(
                    f"rename: {pattern!r} leads to {leaves[0][0]}, which the new tree does not have. The nearest "
                    f"paths: {nearest(leaves[0][0], self._names)}"
                )

    def _why_unused(self, pattern: str) -> str:
        earlier = [x for x, leaves in self._leaves.items() if any(match_glob(pattern, leaf.name) for _, leaf in leaves)]
        if not earlier:
            return f"matches no leaf of the old tree. The nearest paths: {nearest(pattern, self._old_names)}"
        return (
            "decides about no leaf, since earlier patterns match all leaves that it matches: "
            f"{', '.join(map(repr, earlier))}. Put it before them"
        )

    def _rename_in(self, state: State, rename: Mapping[str, str]) -> None:
        start = f"{state.name}." if state.name else ""
        moved: dict[str, Leaf] = {}
        renamed = self._by_state[state] = {}
        for below, leaf in list(state.leaves.items()):
            pattern = next((x for x in rename if match_glob(x, leaf.name)), None)
            renamed[below] = pattern is not None
            if pattern is None:
                continue
            name = _substitute(pattern, rename[pattern], leaf.name)
            self._leaves[pattern].append((name, leaf))
            del state.leaves[below]
            inside = pattern.startswith("**") and rename[pattern].startswith("**") and name.startswith(start)
            group, key = (moved, name.removeprefix(start)) if inside else (self.to, name)
            if key in group:
                raise ValueError(f"rename maps {leaf.name} and {group[key].name} to one name: {name}")
            group[key] = leaf
        state.leaves.update(moved)


def _wildcards(pattern: str) -> list[str]:
    return _WILDCARD.findall(f"{pattern}.")


def _substitute(pattern: str, target: str, name: str) -> str:
    """Replace the wildcards of the target by the text that they match in the name."""
    match = match_glob(pattern, name)
    groups = iter(match.groups() if match else ())
    return _WILDCARD.sub(lambda _: next(groups), f"{target}.").removesuffix(".")
