"""Find the old values by name, after `rename` has given old leaves other names.

A renamed leaf displaces the one that has its new name. It may be one of several that are stacked, or each of its
entries may be a value.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from treekit._base.dtype import dtype_of
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._graft.leaves import Leaf, Slot, StateNode
from treekit._graft.rename import Rule


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """An old value under the name by which it is matched: that of a leaf, of one of its entries, or of several leaves.

    Attributes:
        name: the name.
        slot: that of a new leaf that matches.
        leaves: the old leaf; or the leaves that are stacked, in order.
        path: the name in the old tree; with a `*` for several leaves.
        rule: the rule that renamed it, if any.
        entry: which entry of the first axis it is; None for the whole.
        position: the position of the old leaf in a stack; 0 if it is not for one.
        why_refused: why its leaves cannot be stacked or unstacked, as the report says it; "" if they can.
    """

    name: str
    slot: Slot
    leaves: tuple[Leaf, ...]
    path: str
    rule: Rule | None = None
    entry: int | None = None
    position: int = 0
    why_refused: str = ""

    @property
    def state(self) -> StateNode:
        """The optimizer state of the leaves."""
        return self.leaves[0].state

    @property
    def is_stack(self) -> bool:
        """Whether the leaves are stacked; there may be only one."""
        return self.rule is not None and self.rule.stacks != ()

    def read(self, convert: Callable[[Any], Any]) -> Any:
        """Return the value, with each old array converted; None if arrays cannot be stacked or unstacked."""
        if self.why_refused:
            return None
        arrays: list[Any] = []
        for leaf in self.leaves:
            if isinstance(leaf.value, jax.ShapeDtypeStruct):
                raise TypeError(f"at {leaf.name}: the old tree has a shape and dtype, but no value")
            arrays.append(convert(leaf.value if self.entry is None else leaf.members[self.entry]))
        if not self.is_stack:
            return arrays[0]
        if len({(np.shape(x), dtype_of(x)) for x in arrays}) > 1:
            return None
        # NumPy unless all are JAX's, which would round numbers of 64 bits before they are checked.
        in_jax = all(isinstance(x, jax.Array) for x in arrays) or any(map(is_traced, arrays))
        return (jnp if in_jax else np).stack(arrays)

    def __str__(self) -> str:
        part = f"{len(self.leaves)} stacked " if self.is_stack else ""
        part += "" if self.entry is None else f"entry {self.entry} of "
        return f"{part}{' and '.join(dict.fromkeys(map(str, self.leaves)))}{self.why_refused}"


def sources_of(old: Sequence[Leaf], rename: Mapping[str, Sequence[Rule]], new: Iterable[Leaf]) -> dict[str, Source]:
    """Return the old values under the names by which new leaves match them; `rename` has the rules of each old leaf.

    Raises:
        ValueError: two leaves are renamed to one name; or a leaf cannot be stacked or unstacked.
    """
    slots = {leaf.name: leaf.slot for leaf in new}
    wanted = set(slots.values())

    def is_in_new(source: Source) -> bool:
        return source.name in slots or source.slot in wanted

    kept = {x.name: Source(x.name, x.slot, (x,), x.name) for x in old if x.name not in rename}
    renamed: dict[str, list[Source]] = defaultdict(list)  # by name; several are those of a stack
    for leaf in old:
        for rule in rename.get(leaf.name, ()):
            if rule.unstacks is None:
                sources = [_renamed(leaf, rule, slots)]
            else:
                sources = _entries(leaf, rule, slots, is_in_new)
            for source in sources:
                renamed[source.name].append(source)
    return kept | {name: _joined(sources) for name, sources in renamed.items()}


def _renamed(leaf: Leaf, rule: Rule, slots: Mapping[str, Slot], entry: int | None = None) -> Source:
    """Return an old leaf, or one of its entries, under its new name; `slots` has those of the new leaves by name."""
    name, path, position = rule.renamed(leaf.name, entry)
    return Source(name, rule.slot_of(leaf, name, slots.get(name)), (leaf,), path, rule, entry, position)


def _entries(leaf: Leaf, rule: Rule, slots: Mapping[str, Slot], is_in_new: Callable[[Source], bool]) -> list[Source]:
    """Return the entries of an old leaf that is unstacked; refused if the new tree has another number of them."""
    shape: tuple[int, ...] = np.shape(leaf.value)
    if not shape:
        raise ValueError(
            f"rename: {rule.pattern!r} lacks a '*' of {rule.target!r}, so what it matches is unstacked; {leaf.name} "
            "has no axes. Put a pattern for it before this one"
        )
    length = shape[0]
    entries = [_renamed(leaf, rule, slots, i) for i in range(length)]
    # The entry after the last: a new tree with a layer too many has a place for it, and reports that as refused.
    lacking = _renamed(leaf, rule, slots, length)
    are_as_many_in_new = all(map(is_in_new, entries)) and not is_in_new(lacking)
    if are_as_many_in_new:
        return entries
    why = "; the new tree has another number of entries"
    return [dataclasses.replace(x, why_refused=why) for x in (*entries, lacking)]


def _joined(sources: Sequence[Source]) -> Source:
    """Return the only source of a name, or the stack of several; raise a ValueError if these are not one stack."""
    first = sources[0]
    by_position: dict[int, Source] = {}
    for source in sources:
        is_of_same_stack = source.rule == first.rule and source.position not in by_position
        if not is_of_same_stack:
            other = by_position.get(source.position, first)
            name, other_name = source.leaves[0].name, other.leaves[0].name
            raise ValueError(
                f"rename maps {name} and {other_name} to one name: {source.name}. Drop one of them: "
                f"rename={{{name!r}: None}}"
            )
        by_position[source.position] = source
    if not first.is_stack:
        return first
    gaps = (str(i) for i in range(max(by_position)) if i not in by_position)
    without = ", ".join(itertools.islice(gaps, 5))
    leaves = tuple(by_position[i].leaves[0] for i in sorted(by_position))
    return dataclasses.replace(first, leaves=leaves, why_refused=f", without {without}" if without else "")
