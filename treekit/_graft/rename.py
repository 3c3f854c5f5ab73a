"""Read the pairs of `rename`: what do the wildcards of a pattern match, and which name does its target give?

Both sides have the same wildcards, or one side lacks a `*`:

| the pair | what it does |
|---|---|
| `{"layers.*.w": "layers.w"}` | stacks: `layers.3.w` is at position 3 of the new `layers.w` |
| `{"layers.w": "layers.*.w"}` | unstacks: entry 3 of `layers.w` is the new `layers.3.w` |
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from treekit._names.patterns import wildcard_spans
from treekit._text.describe import describe_value

Targets = str | Sequence[str] | None
_DIGITS = 18  # of an index at most: Python refuses to convert thousands of them
# The wildcards of a glob with a dot at its end. The group is a `*` that is a whole part.
_WILDCARD = re.compile(r"(?<![^.])\*\*\.|(?<![^.])(\*)(?=\.)|\*+")


class Rule(NamedTuple):
    """A pattern of old names in `rename`, and one of its targets.

    Attributes:
        pattern: the pattern.
        target: the target.
        stacks: the `*` of the pattern that the target lacks, as indices of wildcards; several are possible. The text
            that it matches is the position in the stack.
        unstacks: the `*` of the target that the pattern lacks, in the same way. It stands for the index of an entry.

    >>> (rule,) = rules_of("layers.*.**", "body.**")
    >>> rule.new_name("layers.3.w"), rule.position("layers.3.w"), rule.path("layers.3.w")
    ('body.w', 3, 'layers.*.w')
    >>> (rule,) = rules_of("body.**", "layers.*.**")
    >>> rule.new_name("body.w", entry=3)
    'layers.3.w'
    """

    pattern: str
    target: str
    stacks: tuple[int, ...] = ()
    unstacks: int | None = None

    @property
    def applies_in_states(self) -> bool:
        """Whether it also renames what is inside optimizer states, as `{"**.a.**": "**.b.**"}` does."""
        return self.pattern.startswith("**") and self.target.startswith("**")

    def new_name(self, name: str, entry: int | None = None) -> str:
        """Return the new name of an old leaf, or of one of its entries."""
        parts = self._parts(name)
        if self.stacks:
            del parts[self._wildcard_of_position(name)]
        if self.unstacks is not None:
            parts.insert(self.unstacks, str(entry))
        filled = iter(parts)
        return _WILDCARD.sub(lambda _: next(filled), f"{self.target}.").removesuffix(".")

    def position(self, name: str) -> int:
        """Return the position of an old leaf in a stack; 0 if the rule does not stack."""
        return int(self._parts(name)[self._wildcard_of_position(name)]) if self.stacks else 0

    def path(self, name: str) -> str:
        """Return the name of an old leaf, with a `*` for its position in a stack."""
        if not self.stacks:
            return name
        start, end = wildcard_spans(self.pattern, name)[self._wildcard_of_position(name)]
        return f"{name[:start]}*{name[end:]}"

    def written_out(self, name: str) -> str:
        """Return how much of an old name the rule writes out: all before a `**` with which both sides end."""
        ends_alike = self.pattern.endswith("**") and self.target.endswith("**")
        return name[: wildcard_spans(self.pattern, name)[-1][0]] if ends_alike else name

    def _parts(self, name: str) -> list[str]:
        """Return what each wildcard of the pattern matches; a `**` with the dot at its end."""
        return [f"{name}."[start:end] for start, end in wildcard_spans(self.pattern, name)]

    def _wildcard_of_position(self, name: str) -> int:
        """Return which wildcard of the pattern matches the position in a stack."""
        parts = self._parts(name)
        integers = [i for i in self.stacks if parts[i].isdecimal() and len(parts[i]) <= _DIGITS]
        if len(integers) != 1:
            raise ValueError(
                f"rename: {self.target!r} lacks a '*' of {self.pattern!r}, so what it matches is stacked in the order "
                f"of integers; at {name} it matches {' or '.join(describe_value(parts[i]) for i in self.stacks)}. Put "
                "a pattern for that leaf before this one, or write '**' for the other '*'"
            )
        return integers[0]


def rules_of(pattern: str, targets: Targets) -> list[Rule]:
    """Compare the wildcards of both sides: they are the same, or one side lacks one `*` that is a whole part."""
    rules: list[Rule] = []
    for target in [targets] if isinstance(targets, str) else targets or []:
        have, want = (list(_WILDCARD.finditer(f"{side}.")) for side in (pattern, target))
        stacks, unstacks = _extra(have, want), _extra(want, have)
        if [x[0] for x in have] == [x[0] for x in want]:
            rules.append(Rule(pattern, target))
        elif stacks:
            rules.append(Rule(pattern, target, stacks=tuple(stacks)))
        elif len(unstacks) == 1:
            rules.append(Rule(pattern, target, unstacks=unstacks[0]))
        else:
            many = " It could be any of several '*': write '**' for the others." if unstacks else ""
            raise ValueError(
                "rename needs the same wildcards on both sides, in the same order; or one side lacks one '*' that is "
                f"a whole part, to stack or unstack. Found {pattern!r} and {target!r}.{many}"
            )
    return rules


def _extra(more: list[re.Match[str]], fewer: list[re.Match[str]]) -> list[int]:
    """Return each `*` of one list of wildcards without which it is the other list.

    Of the wildcards of `a.*.b.*` and `c.*`, this is 0 and 1: either may be the one that is lacking.
    """
    texts, wanted = [x[0] for x in more], [x[0] for x in fewer]
    return [i for i, x in enumerate(more) if x[1] and texts[:i] + texts[i + 1 :] == wanted]
