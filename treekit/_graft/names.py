"""Match leaves by name.

A new leaf gets the old value of its name. Before that, `rename` gives old leaves other names, and a renamed leaf
displaces the one that has its new name. If both leaves are in optimizer states, `states` matches them instead, since
their names depend on the wrappers.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.describe import describe, is_deleted
from treekit._base.dtype import dtype_of, in_native_order, resolve_array, stands_for_array
from treekit._base.jax import is_ref, jnp, jtu
from treekit._base.key_path import is_rng_variable, is_variable, keyed_children, name_below, wildcard_spans
from treekit._base.predicates import is_numeric_array, is_state, is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._codes import Codes

Names = tuple[str, ...]
Convert = Callable[[Any], Any]
Resize = Callable[[Any, Any], Any]
Targets = str | Sequence[str] | None
# In a path with a dot at its end, as in `wildcard_spans`. The group is a `*` that is a whole part.
_WILDCARD = re.compile(r"(?<![^.])\*\*\.|(?<![^.])(\*)(?=\.)|\*+")


class Slot(NamedTuple):
    """What two leaves that match have in common.

    Attributes:
        keys: the keys above the outermost optimizer state. Indices do not count, since wrappers change them.
        kind: the name of the class of the innermost state; "" for a leaf that is matched by name.
        below: the name of the leaf below that state, which is its field and the name of the parameter; or its name.
    """

    keys: Names = ()
    kind: str = ""
    below: str = ""

    @property
    def is_of_param(self) -> bool:
        """Whether the leaf is in a state, for a parameter that has a name, as mu.layers.0.w."""
        return self.kind != "" and "." in self.below and not self.below.startswith("hyperparams")


@dataclasses.dataclass(frozen=True, eq=False)
class StateNode:
    """An optimizer state in a tree, such as Optax's ScaleByAdamState; for a leaf that is in no state, the tree itself.

    Attributes:
        name: its name.
        keys: the keys above the outermost state around it, as in `Slot`.
        outer: the name of the outermost state.
        labels: the keys between that state and this one, such as the label in a partition.
    """

    name: str = ""
    keys: Names = ()
    outer: str = ""
    labels: Names = ()

    @property
    def group(self) -> tuple[Names, Names]:
        """What the states of one label have in common."""
        return self.keys, self.labels


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


@dataclasses.dataclass(eq=False)
class Leaf:
    """An array or a number in a tree, and what the arguments of `graft` say about it.

    Attributes:
        name: its key path, as patterns write it.
        value: the array or number.
        state: the innermost optimizer state that it belongs to.
        slot: what a leaf of the other tree has in common with it.
        index: its position among the leaves of the tree.
        is_code: whether its array has codes, not numbers.
        is_asked: whether a strict graft asks for an old value.
        is_fresh: whether a new leaf keeps its value.
        convert: what converts the old value for a new leaf.
        resize: what resizes it.
        rules: what renames an old leaf: no rules drop it, and None leaves it its name.
    """

    name: str
    value: Any
    state: StateNode
    slot: Slot
    index: int = 0
    is_code: bool = False
    is_asked: bool = True
    is_fresh: bool = False
    convert: Convert | None = None
    resize: Resize | None = None
    rules: Sequence[Rule] | None = None

    def __str__(self) -> str:
        return describe(self.value)


@dataclasses.dataclass(eq=False)
class Source:
    """An old value under the name by which it is matched: that of a leaf, of one of its entries, or of several leaves.

    Attributes:
        name: the name.
        leaves: the old leaf; or the leaves that are stacked, by index.
        path: the name in the old tree; with a `*` for several leaves.
        state: the optimizer state of the leaves.
        slot: that of a new leaf that matches.
        rule: the rule that renamed it, if any.
        entry: which entry of the first axis it is; None for the whole.
        fits: whether the new tree has a leaf for each entry, and no more.
    """

    name: str
    leaves: dict[int, Leaf]
    path: str
    state: StateNode
    slot: Slot
    rule: Rule | None = None
    entry: int | None = None
    fits: bool = True

    @property
    def origins(self) -> list[Leaf]:
        """The old leaves, in order."""
        return [self.leaves[i] for i in sorted(self.leaves)]

    def holes(self) -> list[int]:
        """Return the indices from 0 to the last that no leaf has; the first few of them."""
        return list(itertools.islice((i for i in range(max(self.leaves)) if i not in self.leaves), 5))

    def read(self, convert: Convert) -> Any:
        """Return the value, with each old array converted; None if arrays cannot be stacked or unstacked."""
        if not self.fits or self.holes():
            return None
        arrays: list[Any] = []
        for leaf in self.origins:
            if isinstance(leaf.value, jax.ShapeDtypeStruct):
                raise TypeError(f"at {leaf.name}: the old tree has a shape and dtype, but no value")
            arrays.append(convert(leaf.value if self.entry is None else leaf.value[self.entry]))
        if not (self.rule and self.rule.lost):
            return arrays[0]
        if len({(np.shape(x), dtype_of(x)) for x in arrays}) > 1:
            return None
        # NumPy unless all are JAX's, which would round numbers of 64 bits before they are checked.
        in_jax = all(isinstance(x, jax.Array) for x in arrays) or any(map(is_traced, arrays))
        return (jnp if in_jax else np).stack(arrays)

    def __str__(self) -> str:
        text = " and ".join(dict.fromkeys(map(str, self.origins)))
        if self.rule and self.rule.lost:
            holes = ", ".join(map(str, self.holes()))
            return f"{len(self.leaves)} stacked {text}{f', without {holes}' if holes else ''}"
        entry = "" if self.entry is None else f"entry {self.entry} of "
        return f"{entry}{text}{'' if self.fits else ', which are not as many as in the new tree'}"


# The old values of new leaves. Those after the first are equal to it, as counts often are.
Matches = dict[Leaf, list[Source]]


def match_names(new: Iterable[Leaf], old: Mapping[str, Source]) -> Matches:
    """Map new leaves to the old values of the same names, unless both are in optimizer states."""
    pairs = [(leaf, old[leaf.name]) for leaf in new if leaf.name in old]
    return {leaf: [source] for leaf, source in pairs if not (leaf.slot.kind and source.slot.kind)}


# ---------------------------------------------------------------------------------------------- the leaves of the trees


def leaves_of(tree: PyTree, *, is_old: bool = False) -> list[Leaf]:
    """Return the leaves of a tree that are arrays or numbers, in order; in an old tree, tensors and mappings too."""
    leaves: dict[str, Leaf] = {}
    positions = itertools.count()
    # What is still to be looked at, the keys that lead there, and the leaf if it is one, or what says where it is.
    todo: list[tuple[Any, Names, Leaf]] = [(tree, (), Leaf("", None, StateNode(), Slot()))]
    while todo:
        x, keys, here = todo.pop()
        if jtu.all_leaves([x]):
            if is_old and is_mapping(x):  # such as the files of NumPy and h5py
                todo.append(({key: x[key] for key in x}, keys, here))
                continue
            index = next(positions)
            value = _as_array(x, here.name) if is_old or is_ref(x) else x
            if dtype_of(value) is None:
                continue
            if is_old and is_deleted(value):
                raise ValueError(
                    f"graft: the old tree has a deleted array at {here.name or 'the root'}, which may have been "
                    "donated. Take a tree that has its values"
                )
            if here.name in leaves:
                raise ValueError(
                    f"graft needs a different name for each leaf, but two leaves are called {here.name or '(the root)'}"
                )
            here.value, here.index, here.is_asked = value, index, here.is_asked and is_numeric_array(value)
            leaves[here.name] = here
            continue
        state, slot = here.state, here.slot
        is_in_state = is_state(type(x)) and (slot.kind != "" or _is_outermost(x))
        if is_in_state:
            above, outer = (state.keys, state.outer) if slot.kind else (keys, here.name)
            state = StateNode(here.name, above, outer, labels=keys[len(above) :])
            slot = Slot(above, type(x).__name__)
        is_code, is_asked = here.is_code or isinstance(x, Codes), here.is_asked and not is_rng_variable(x)
        has_keys = not (is_in_state or is_variable(x) or type(x) in (list, tuple))
        for text, child in reversed(keyed_children(x)):
            name, below = name_below(here.name, text), name_below(slot.below, text)
            there = Leaf(name, None, state, slot._replace(below=below), is_code=is_code, is_asked=is_asked)
            todo.append((child, (*keys, str(text)) if has_keys else keys, there))
    return list(leaves.values())


def _as_array(x: object, name: str) -> Any:
    """Return what stands for an array as that array, and the tensor of another library as a NumPy array."""
    if dtype_of(x) is not None or stands_for_array(x) or not hasattr(x, "__array__"):
        return in_native_order(resolve_array(x))
    try:
        array: Any = in_native_order(np.asarray(x))
    except Exception as error:
        error.add_note(f"This happened when graft converted the {type(x).__name__} at {name} to a NumPy array")
        raise
    if array.dtype.kind == "V":
        raise TypeError(
            f"at {name}: the old array has the dtype {array.dtype}, which is not one of numbers. np.load gives it for "
            "bf16 and other dtypes that NumPy does not know: x.view(jnp.bfloat16) is the array again"
        )
    return array


def _is_outermost(x: Any) -> bool:
    """Whether a named tuple called `…State` is an optimizer state, and not one that only holds one, as a TrainState.

    A wrapper of another library has the state of what it wraps in a field that says so.
    """
    if type(x).__module__.partition(".")[0] in ("optax", "treekit"):
        return True

    def may_be_state(y: object) -> bool:  # Optax's EmptyState too, which has no fields
        return issubclass(type(y), tuple) and type(y).__name__.endswith("State")

    fields = zip(x._fields, x, strict=True)
    holders = [name for name, y in fields if any(map(may_be_state, jtu.tree_leaves(y, is_leaf=may_be_state)))]
    return not holders or any(name.startswith("inner") for name in holders)


# ------------------------------------------------------------------------------------------------ the argument `rename`


def rules_of(pattern: str, targets: Targets) -> list[Rule]:
    """Compare the wildcards of both sides: they are the same, or one side lacks one `*` that is a whole part."""
    rules: list[Rule] = []
    for target in [targets] if isinstance(targets, str) else targets or []:
        have, want = (list(_WILDCARD.finditer(f"{side}.")) for side in (pattern, target))
        lost, added = _extra(have, want), _extra(want, have)
        if [x[0] for x in have] == [x[0] for x in want]:
            rules.append(Rule(pattern, target))
        elif lost or len(added) == 1:
            rules.append(Rule(pattern, target, tuple(lost), *added))
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


def sources_of(old: Sequence[Leaf], new: Sequence[Leaf]) -> dict[str, Source]:
    """Return the values of old leaves under the names by which new leaves match them.

    Raises:
        ValueError: two leaves are renamed to one name; or a leaf cannot be stacked or unstacked.
    """
    slots = {leaf.name: leaf.slot for leaf in new}
    wanted: set[object] = {*slots, *slots.values()}
    sources = {x.name: Source(x.name, {0: x}, x.name, x.state, x.slot) for x in old if x.rules is None}
    # Renamed leaves come afterwards, since they displace those that have these names already.
    for leaf, rule in [(x, rule) for x in old for rule in x.rules or ()]:
        renamed = list(_renamed(leaf, rule, slots))
        if rule.added is not None:
            *entries, beyond = [not wanted.isdisjoint((x.name, x.slot)) for x in renamed]
            for x in renamed:
                x.fits = all(entries) and not beyond
        for x in renamed:
            other = sources.get(x.name)
            if other is None or other.rule is None:
                sources[x.name] = x
            elif rule.lost and other.rule == rule and other.leaves.keys().isdisjoint(x.leaves):
                other.leaves |= x.leaves
            else:
                clash = next((other.leaves[i] for i in x.leaves if i in other.leaves), other.origins[0])
                raise ValueError(f"rename maps {leaf.name} and {clash.name} to one name: {x.name}")
    return sources


def _renamed(leaf: Leaf, rule: Rule, slots: Mapping[str, Slot]) -> Iterator[Source]:
    """Yield an old leaf under the name that a rule gives it: whole, for a stack, or each of its entries."""
    pattern, target, lost, added = rule
    spans = wildcard_spans(pattern, leaf.name)
    groups = [f"{leaf.name}."[start:end] for start, end in spans]
    path, index = leaf.name, 0
    entries: Sequence[int | None] = [None]
    if lost:
        integers = [i for i in lost if groups[i].isdecimal()]
        if len(integers) != 1:
            raise ValueError(
                f"rename: {target!r} lacks a '*' of {pattern!r}, so what it matches is stacked in the order of "
                f"integers; at {leaf.name} it matches {' or '.join(repr(groups[i]) for i in lost)}. Put a "
                "pattern for that leaf before this one, or write '**' for the other '*'"
            )
        start, end = spans[integers[0]]
        path = f"{leaf.name[:start]}*{leaf.name[end:]}"
        index = int(groups.pop(integers[0]))
    elif added is not None:
        if not np.shape(leaf.value):
            raise ValueError(
                f"rename: {pattern!r} lacks a '*' of {target!r}, so what it matches is unstacked; {leaf.name} has "
                "no axes. Put a pattern for it before this one"
            )
        entries = range(np.shape(leaf.value)[0] + 1)  # one more, to see whether the new tree has more
    for entry in entries:
        name = _filled(target, groups if entry is None else [*groups[:added], str(entry), *groups[added:]])
        slot = _slot(leaf, rule, spans, name, slots.get(name))
        yield Source(name, {index: leaf}, path, leaf.state, slot, rule, entry)


def _filled(target: str, groups: Iterable[str]) -> str:
    """Return a target whose wildcards are replaced by what those of its pattern match."""
    parts = iter(groups)
    return _WILDCARD.sub(lambda _: next(parts), f"{target}.").removesuffix(".")


def _slot(leaf: Leaf, rule: Rule, spans: Sequence[tuple[int, int]], name: str, there: Slot | None) -> Slot:
    """Return the slot of an old leaf that is renamed to `name`, which is the name of a new leaf if that has a slot."""
    state, by_name = leaf.state, Slot(below=name)
    if not leaf.slot.kind:
        return by_name
    start = f"{state.name}." if state.name else ""
    if rule.pattern.startswith("**") and rule.target.startswith("**") and name.startswith(start):
        return leaf.slot._replace(below=name.removeprefix(start))
    # What is below the outermost state keeps its names: `rename` is about the keys above it.
    depth = len(state.outer) + 1 if state.outer else 0
    ends_alike = rule.pattern.endswith("**") and rule.target.endswith("**")
    begin = spans[-1][0] if ends_alike else len(leaf.name)
    if begin > depth or (begin == depth and there and there[1:] == leaf.slot[1:]):
        return by_name
    above = name[: len(name) - len(leaf.name) + depth]
    keys = tuple(part for part in above.split(".") if part and not part.isdecimal())
    return leaf.slot._replace(keys=keys)
