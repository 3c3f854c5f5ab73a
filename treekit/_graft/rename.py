"""Read the pairs of `rename`: which name does a pair give an old leaf, and where in an optimizer state does that go?

Both sides have the same wildcards, or one side lacks a `*`:

| the pair | what it does |
|---|---|
| `{"layers.*.w": "layers.w"}` | stacks: `layers.3.w` is at position 3 of the new `layers.w` |
| `{"layers.w": "layers.*.w"}` | unstacks: entry 3 of `layers.w` is the new `layers.3.w` |
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from treekit._graft.leaves import Leaf, Slot
from treekit._names.wildcards import wildcard_spans
from treekit._text.describe import describe_value

Targets = str | Sequence[str] | None
_DIGITS = 18  # of an index at most: Python refuses to convert thousands of them
# The wildcards of a glob with a dot at its end. The group is a `*` that is a whole part.
_WILDCARD = re.compile(r"(?<![^.])\*\*\.|(?<![^.])(\*)(?=\.)|\*+")


class Renamed(NamedTuple):
    """What a rule makes of the name of an old leaf.

    Attributes:
        name: the new name.
        path: the old name, with a `*` for its position in a stack.
        position: the position in the stack; 0 if the rule does not stack.
    """

    name: str
    path: str
    position: int


class Rule(NamedTuple):
    """A pattern of old names in `rename`, and one of its targets.

    Attributes:
        pattern: the pattern.
        target: the target.
        stacks: the `*` of the pattern that the target lacks, as indices of wildcards; several are possible. The text
            that it matches is the position in the stack.
        unstacks: the `*` of the target that the pattern lacks, in the same way. It stands for the index of an entry.

    >>> (rule,) = rules_of("layers.*.**", "body.**")
    >>> rule.renamed("layers.3.w")
    Renamed(name='body.w', path='layers.*.w', position=3)
    >>> (rule,) = rules_of("body.**", "layers.*.**")
    >>> rule.renamed("body.w", entry=3)
    Renamed(name='layers.3.w', path='body.w', position=0)
    """

    pattern: str
    target: str
    stacks: tuple[int, ...] = ()
    unstacks: int | None = None

    def renamed(self, name: str, entry: int | None = None) -> Renamed:
        """Return the new name of an old leaf, or of one of its entries."""
        spans = wildcard_spans(self.pattern, name)
        parts = [f"{name}."[start:end] for start, end in spans]  # what each wildcard matches; a `**` with its dot
        path, position = name, 0
        if self.stacks:
            i = self._wildcard_of_position(parts, name)
            start, end = spans[i]
            path, position = f"{name[:start]}*{name[end:]}", int(parts.pop(i))
        if self.unstacks is not None:
            parts.insert(self.unstacks, str(entry))
        filled = iter(parts)
        new_name = _WILDCARD.sub(lambda _: next(filled), f"{self.target}.").removesuffix(".")
        return Renamed(new_name, path, position)

    def _wildcard_of_position(self, parts: Sequence[str], name: str) -> int:
        """Return which wildcard of the pattern matches the position in a stack."""
        integers = [i for i in self.stacks if parts[i].isdecimal() and len(parts[i]) <= _DIGITS]
        if len(integers) != 1:
            raise ValueError(
                f"rename: {self.target!r} lacks a '*' of {self.pattern!r}, so what it matches is stacked in the order "
                f"of integers; at {name} it matches {' or '.join(describe_value(parts[i]) for i in self.stacks)}. Put "
                "a pattern for that leaf before this one, or write '**' for the other '*'"
            )
        return integers[0]

    def slot_of(self, leaf: Leaf, name: str, there: Slot | None) -> Slot:
        """Return the slot of an old leaf that gets this name, where a new leaf may have the slot `there`.

        It depends on the prefix of the old name that the rule changes: all before a `**` with which both sides end, or
        the whole name. Of `gen.0.mu.w`, a leaf in the state `gen.0`, the rule `{"gen.**": "critic.**"}` changes the
        prefix `gen.`, so this leaf is the `mu.w` of a state below `critic`, wherever that is. The first row that holds:

        | | the leaf, and the rule | the slot |
        |---|---|---|
        | 1 | the leaf is in no state | none: it is matched by name |
        | 2 | both sides begin with `**`, and the new name is in the state of the leaf | that of the new name |
        | 3 | the prefix is longer than the name of the outermost state | none: by name |
        | 4 | the prefix is that name, and the new leaf is of the same class and field | none: by name |
        | 5 | the prefix ends above that state, or is its name | that of the leaf, below other keys |

        | rule for `gen.0.mu.w` | row | prefix | it becomes |
        |---|---|---|---|
        | `{"**.w": "**.v"}` | 2 | | mu of another parameter in this state |
        | `{"gen.0.mu.**": "gen.0.nu.**"}` | 3 | `gen.0.mu.` | `gen.0.nu.w`, by name |
        | `{"gen.0.**": "gen.1.**"}`, if `gen.1` is of the same class | 4 | `gen.0.` | `gen.1.mu.w`, by name |
        | `{"gen.**": "critic.**"}` | 5 | `gen.` | mu of w in a state below `critic` |
        """
        state, by_name = leaf.state, Slot(below=name)
        if not leaf.slot.is_in_state:  # 1
            return by_name
        begin_with_stars = self.pattern.startswith("**") and self.target.startswith("**")
        if begin_with_stars and name.startswith(state.start):  # 2
            return state.slot(name)
        prefix = self._changed_prefix(leaf.name)
        if len(prefix) > len(state.outer):  # 3
            return by_name
        is_of_same_field = there is not None and (there.kind, there.below) == (leaf.slot.kind, leaf.slot.below)
        if prefix == state.outer and is_of_same_field:  # 4
            return by_name
        above = name.removesuffix(leaf.name.removeprefix(state.outer))  # what is below the state keeps its names
        keys = tuple(part for part in above.split(".") if part and not part.isdecimal())
        return leaf.slot._replace(above=keys)  # 5

    def _changed_prefix(self, name: str) -> str:
        """Return the prefix of an old name that the rule changes: all before a `**` with which both sides end."""
        end_with_stars = self.pattern.endswith("**") and self.target.endswith("**")
        return name[: wildcard_spans(self.pattern, name)[-1][0]] if end_with_stars else name


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
