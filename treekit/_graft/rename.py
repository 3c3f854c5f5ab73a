"""The argument `rename` of `graft`: give old leaves new names, by patterns."""

import dataclasses
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from treekit._base.pattern_set import PatternSet
from treekit._base.patterns import match_glob, nearest
from treekit._graft.leaf import Leaf, Renamed, Slice, Stack
from treekit._graft.states import Names, State, leaves_of

Targets = str | Sequence[str] | None
# In a path with a dot at its end, as in `glob_regex`. The second alternative is a `*` that is a whole part.
_WILDCARD = re.compile(r"(?:(?<=\.)|^)\*\*\.|(?:(?<=\.)|^)\*(?=\.)|\*+")


class Rule(NamedTuple):
    """A pattern of old names, and one of its targets.

    Attributes:
        lost: which wildcard of the pattern the target may lack: what it matches is stacked.
        added: which wildcard of the target the pattern lacks: what it matches is unstacked.
    """

    pattern: str
    target: str
    lost: tuple[int, ...] = ()
    added: int | None = None


class RenamedTree:
    """The old leaves under the names by which they are matched.

    Attributes:
        states: the old states, with the leaves that are matched within states or, outside of states, by name.
        exact: the leaves that were renamed to a full path of the new tree, by that path.
        excluded: the leaves that `rename` maps to None.
        derived: the leaves that it makes.
        patterns: the patterns that match old leaves.
    """

    def __init__(self, new: list[State], old: list[State], rename: Mapping[str, Targets]) -> None:
        self.exact: dict[str, Leaf] = {}
        self.excluded: list[Leaf] = []
        self.derived: list[Leaf] = []
        self._new = {leaf.name: leaf for leaf in leaves_of(new)}
        self._old_names = [leaf.name for leaf in leaves_of(old)]
        self._rules = {pattern: _rules(pattern, targets) for pattern, targets in rename.items()}
        self._matched: dict[str, list[Leaf]] = {pattern: [] for pattern in rename}
        self._states: dict[tuple[State, Names], State] = {}
        self._stacks: dict[tuple[str, str], Stack] = {}
        self.patterns: dict[Leaf, str] = {}
        patterns, first_match = list(rename), PatternSet(list(rename)).first
        for leaf in leaves_of(old):
            i = first_match(leaf.name)
            if i is None:
                self._put(self._state(leaf.state), leaf.below, leaf)
            else:
                self.patterns[leaf] = patterns[i]
        # Afterwards, so that they displace leaves that have these names already.
        for leaf, pattern in self.patterns.items():
            self._matched[pattern].append(leaf)
            if not self._rules[pattern]:
                self.excluded.append(leaf)
            for rule in self._rules[pattern]:
                for derived in self._derive(rule, leaf):
                    self._place(rule, leaf, derived)
        self.states = [state for state in self._states.values() if state.leaves]

    def check_used(self, used: Container[Leaf]) -> None:
        """Raise a ValueError for a pattern that has no effect; `used` has the old leaves carried over."""
        for pattern, leaves in self._matched.items():
            if not leaves:
                raise ValueError(f"rename: {pattern!r} {self._why_unused(pattern)}")
            if self._rules[pattern] and not any(leaf in used for leaf in leaves):
                name = next(leaf.name for leaf in self.derived if leaf.pattern == pattern)
                raise ValueError(
                    f"rename: {pattern!r} leads to {name or '(the root)'}, which the new tree does not have. The "
                    f"nearest paths: {nearest(name, list(self._new))}"
                )

    def _why_unused(self, pattern: str) -> str:
        earlier = [x for x, found in self._matched.items() if any(match_glob(pattern, leaf.name) for leaf in found)]
        if not earlier:
            return f"matches no leaf of the old tree. The nearest paths: {nearest(pattern, self._old_names)}"
        return (
            "decides about no leaf, since earlier patterns match all leaves that it matches: "
            f"{', '.join(map(repr, earlier))}. Put it before them"
        )

    def _derive(self, rule: Rule, leaf: Leaf) -> Iterator[Leaf]:
        """Make the leaves that an old leaf becomes part of: a renamed one, a stack, or each of its slices."""
        pattern, target = rule.pattern, rule.target
        match = match_glob(pattern, leaf.name)
        groups = list(match.groups()) if match else []
        if rule.lost:
            integers = [i for i in rule.lost if groups[i].isdecimal()]
            if len(integers) != 1:
                raise ValueError(
                    f"rename: {target!r} lacks a '*' of {pattern!r}, so what it matches is stacked in the order of "
                    f"integers; at {leaf.name} it matches {' or '.join(repr(groups[i]) for i in rule.lost)}. Put a "
                    "pattern for that leaf before this one, or write '**' for the other '*'"
                )
            index = groups.pop(integers[0])
            name = _substitute(target, groups)
            stack = self._stacks.get((pattern, name))
            if stack is None:
                start, end = match.span(integers[0] + 1) if match else (0, 0)
                source = f"{leaf.name[:start]}*{leaf.name[end:]}"
                stack = self._stacks[pattern, name] = Stack(name, {}, leaf.state, "", pattern=pattern, source=source)
                yield stack
            other = stack.value.setdefault(int(index), leaf)
            if other is not leaf:
                raise ValueError(f"rename maps {other.name} and {leaf.name} to one entry of {name}")
        elif rule.added is not None:
            if not np.shape(leaf.value):
                raise ValueError(
                    f"rename: {pattern!r} lacks a '*' of {target!r}, so what it matches is unstacked; {leaf.name} has "
                    "no axes. Put a pattern for it before this one"
                )
            for i in range(np.shape(leaf.value)[0] + 1):  # one more, to see whether the new tree has more
                name = _substitute(target, [*groups[: rule.added], str(i), *groups[rule.added :]])
                yield Slice(name, leaf, leaf.state, "", pattern=pattern, index=i, target=target)
        else:
            yield Renamed(_substitute(target, groups), leaf, leaf.state, "", pattern=pattern)

    def _place(self, rule: Rule, leaf: Leaf, derived: Leaf) -> None:
        """Put a leaf where it is matched: at a full path of the new tree, or at a place in a state."""
        self.derived.append(derived)
        state, name = leaf.state, derived.name
        if state.kind is None:
            self._put(self._state(state), name, derived)
            self._put_exact(derived)
            return
        start = f"{state.name}." if state.name else ""
        if rule.pattern.startswith("**") and rule.target.startswith("**") and name.startswith(start):
            self._put(self._state(state), name.removeprefix(start), derived)
            return
        # What is below the outermost state keeps its names: `rename` is about the keys above it.
        rest = leaf.name.removeprefix(state.outer).removeprefix(".")
        above = name.removesuffix(rest).removesuffix(".")
        match = match_glob(rule.pattern, leaf.name)
        kept = (match.groups() or ("",))[-1].removesuffix(".") if match and rule.pattern.endswith("**") else ""
        if not (f".{name}".endswith(f".{rest}") and f".{kept}".endswith(f".{rest}")):
            self._put_exact(derived)
            return
        target = self._new.get(name)
        if kept == rest and target and (target.state.kind, target.below) == (state.kind, leaf.below):
            self._put_exact(derived)
            return
        keys = tuple(part for part in above.split(".") if part and not part.isdecimal())
        self._put(self._state(state, keys), leaf.below, derived)

    def _put(self, state: State, below: str, leaf: Leaf) -> None:
        self._check_free(state.leaves.get(below), leaf)
        leaf.state, leaf.below = state, below
        state.leaves[below] = leaf

    def _put_exact(self, leaf: Leaf) -> None:
        self._check_free(self.exact.get(leaf.name), leaf)
        self.exact[leaf.name] = leaf

    def _check_free(self, other: Leaf | None, leaf: Leaf) -> None:
        if other is not None and other.pattern is not None:
            names = " and ".join(x.origins[0].name for x in (leaf, other))
            raise ValueError(f"rename maps {names} to one name: {leaf.name}")

    def _state(self, state: State, names: Names | None = None) -> State:
        """Return the state in which leaves of an old state are matched; `names` are the keys that `rename` gives it."""
        key = state, state.names if names is None else names
        if key not in self._states:
            parent = state.parent and self._state(state.parent, names)
            self._states[key] = dataclasses.replace(
                state, names=key[1], parent=parent, renamed=names is not None, leaves={}
            )
        return self._states[key]


def _rules(pattern: str, targets: Targets) -> list[Rule]:
    listed = [targets] if isinstance(targets, str) else targets or []
    return [_rule(pattern, target) for target in listed]


def _rule(pattern: str, target: str) -> Rule:
    """Compare the wildcards of both sides: they are the same, or one side lacks one `*` that is a whole part."""
    have, want = _wildcards(pattern), _wildcards(target)
    if [text for text, _ in have] == [text for text, _ in want]:
        return Rule(pattern, target)
    lost, added = _extra(have, want), _extra(want, have)
    if lost or len(added) == 1:
        return Rule(pattern, target, tuple(lost), *added)
    many = " It could be any of several '*': write '**' for the others." if added else ""
    raise ValueError(
        "rename needs the same wildcards on both sides, in the same order; or one side lacks one '*' that is a whole "
        f"part, to stack or unstack. Found {pattern!r} and {target!r}.{many}"
    )


def _extra(more: list[tuple[str, bool]], fewer: list[tuple[str, bool]]) -> list[int]:
    """Return the whole-part `*` of the one list without which it has the wildcards of the other."""
    texts = [text for text, _ in fewer]
    return [
        i
        for i, (text, is_part) in enumerate(more)
        if text == "*" and is_part and [x for j, (x, _) in enumerate(more) if j != i] == texts
    ]


def _wildcards(pattern: str) -> list[tuple[str, bool]]:
    text = f"{pattern}."
    return [
        (match[0], text[match.start() - 1 : match.start()] in ("", ".") and text.startswith(".", match.end()))
        for match in _WILDCARD.finditer(text)
    ]


def _substitute(target: str, groups: Sequence[str]) -> str:
    """Replace the wildcards of a target by what those of the pattern match."""
    found = iter(groups)
    return _WILDCARD.sub(lambda _: next(found), f"{target}.").removesuffix(".")
