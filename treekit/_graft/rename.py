"""Read the pairs of `rename`: what do the wildcards of a pattern match, and which name does its target give?

Both sides have the same wildcards, or one side lacks a `*`. What a `*` stands for that the target lacks is the position
of a leaf in a stack; one that the pattern lacks stands for the entries of a leaf, which is unstacked.
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
        lost: which wildcards of the pattern the target may lack: what one of them matches is stacked.
        added: which wildcard of the target the pattern lacks: what it matches is unstacked.
    """

    pattern: str
    target: str
    lost: tuple[int, ...] = ()
    added: int | None = None

    def spans(self, name: str) -> Sequence[tuple[int, int]]:
        """Return which part of an old name each wildcard of the pattern matches, by its start and end."""
        return wildcard_spans(self.pattern, name)

    def new_name(self, parts: Sequence[str]) -> str:
        """Return the new name, given what each wildcard of the target stands for."""
        filled = iter(parts)
        return _WILDCARD.sub(lambda _: next(filled), f"{self.target}.").removesuffix(".")

    def wildcard_of_stack(self, name: str, parts: Sequence[str]) -> int:
        """Return which wildcard of the pattern matches the position in a stack, given what each of them matches."""
        integers = [i for i in self.lost if parts[i].isdecimal() and len(parts[i]) <= _DIGITS]
        if len(integers) != 1:
            raise ValueError(
                f"rename: {self.target!r} lacks a '*' of {self.pattern!r}, so what it matches is stacked in the order "
                f"of integers; at {name} it matches {' or '.join(describe_value(parts[i]) for i in self.lost)}. Put a "
                "pattern for that leaf before this one, or write '**' for the other '*'"
            )
        return integers[0]


def rules_of(pattern: str, targets: Targets) -> list[Rule]:
    """Compare the wildcards of both sides: they are the same, or one side lacks one `*` that is a whole part."""
    rules: list[Rule] = []
    for target in [targets] if isinstance(targets, str) else targets or []:
        have, want = (list(_WILDCARD.finditer(f"{side}.")) for side in (pattern, target))
        lost, added = _extra(have, want), _extra(want, have)
        if [x[0] for x in have] == [x[0] for x in want]:
            rules.append(Rule(pattern, target))
        elif lost or len(added) == 1:
            rules.append(Rule(pattern, target, lost=tuple(lost), added=added[0] if added else None))
        else:
            many = " It could be any of several '*': write '**' for the others." if added else ""
            raise ValueError(
                "rename needs the same wildcards on both sides, in the same order; or one side lacks one '*' that is "
                f"a whole part, to stack or unstack. Found {pattern!r} and {target!r}.{many}"
            )
    return rules


def _extra(more: list[re.Match[str]], fewer: list[re.Match[str]]) -> list[int]:
    """Return the whole-part `*` of the one list without which it has the wildcards of the other."""
    texts, wanted = [x[0] for x in more], [x[0] for x in fewer]
    return [i for i, x in enumerate(more) if x[1] and texts[:i] + texts[i + 1 :] == wanted]
