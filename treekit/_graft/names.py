"""The leaves of a tree for `graft`: their names, their optimizer states, and the names that `rename` gives them."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from treekit._base.describe import describe
from treekit._base.dtype import dtype_of, resolve_array, stands_for_array
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import is_rng_variable, is_variable, keyed_children, match_glob, name_below
from treekit._base.predicates import is_numeric_array, is_state, is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._codes import Codes

# An array, a number or a `jax.ShapeDtypeStruct`; type checkers do not know what these have in common.
Value: TypeAlias = Any
Names = tuple[str, ...]
Convert = Callable[[Any], Any]
Targets = str | Sequence[str] | None
# In a path with a dot at its end, as in `glob_regex`. The group is a `*` that is a whole part.
_WILDCARD = re.compile(r"(?<![^.])\*\*\.|(?<![^.])(\*)(?=\.)|\*+")


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """An optimizer state in a tree, such as Optax's ScaleByAdamState.

    Attributes:
        name: its name.
        kind: the name of its class.
        keys: the keys above the outermost state around it. Indices do not count, since wrappers change them.
        outer: the name of the outermost state.
        labels: the keys between that state and this one, such as the label in a partition.
    """

    name: str
    kind: str
    keys: Names
    outer: str
    labels: Names


class Place(NamedTuple):
    """What identifies a leaf of an optimizer state in any wrappers: `keys` and `kind` of the state, and `below`.

    Attributes:
        keys: as in `State`.
        kind: as in `State`.
        below: the name of the leaf below the state: the field, and the name of the parameter.
    """

    keys: Names
    kind: str
    below: str


@dataclasses.dataclass(eq=False)
class Leaf:
    """An array or a number in a tree.

    Attributes:
        name: its key path, as patterns write it.
        value: the array or number.
        state: the innermost optimizer state that it belongs to, if any.
        below: its name below that state.
        index: its position among the leaves of the tree.
        is_code: whether its array has codes, not numbers.
        is_asked: whether a strict graft asks for a value.
    """

    name: str
    value: Any
    state: State | None = None
    below: str = ""
    index: int = 0
    is_code: bool = False
    is_asked: bool = True

    @property
    def place(self) -> Place | None:
        """Where it is in optimizer states, if it is in one."""
        return Place(self.state.keys, self.state.kind, self.below) if self.state else None

    def __str__(self) -> str:
        return describe(self.value)


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
class Source:
    """An old value under the name by which it is matched: that of a leaf, of one of its entries, or of several leaves.

    Attributes:
        name: the name.
        leaves: the old leaf; or the leaves that are stacked, by index.
        path: the name in the old tree; with a `*` for several leaves.
        state: the optimizer state of the leaves.
        place: where it is matched in states; None if it is matched by name.
        rule: the rule that renamed it, if any.
        entry: which entry of the first axis it is; None for the whole.
        fits: whether the new tree has a leaf for each entry, and no more.
    """

    name: str
    leaves: dict[int, Leaf]
    path: str
    state: State | None
    place: Place | None
    rule: Rule | None = None
    entry: int | None = None
    fits: bool = True

    @property
    def below(self) -> str:
        """Its name below the state, where it is matched in one."""
        return self.place.below if self.place else ""

    @property
    def origins(self) -> list[Leaf]:
        """The old leaves, in order."""
        return [self.leaves[i] for i in sorted(self.leaves)]

    def holes(self) -> list[int]:
        """Return the indices from 0 to the last that no leaf has; the first few of them."""
        return list(itertools.islice((i for i in range(max(self.leaves)) if i not in self.leaves), 5))

    def read(self, convert: Convert) -> Any:
        """Return the value, with each old array converted; None if arrays cannot be stacked or unstacked."""
        arrays: list[Any] = []
        for leaf in self.origins if self.fits else ():
            if isinstance(leaf.value, jax.ShapeDtypeStruct):
                raise TypeError(f"at {leaf.name}: the old tree has a shape and dtype, but no value")
            arrays.append(convert(leaf.value if self.entry is None else leaf.value[self.entry]))
        if not (self.rule and self.rule.lost):
            return arrays[0] if arrays else None
        if self.holes() or len({(np.shape(x), dtype_of(x)) for x in arrays}) > 1:
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


# ---------------------------------------------------------------------------------------------- the leaves of the trees


def leaves_of(tree: PyTree, *, is_old: bool = False) -> list[Leaf]:
    """Return the leaves of a tree that are arrays or numbers, in order; in an old tree, tensors and mappings too."""
    found: dict[str, Leaf] = {}
    positions = itertools.count()

    def visit(x: Any, keys: Names, here: Leaf) -> None:
        """Collect the leaves of `x`; `keys` lead to it, and `here` has what all of the leaves share."""
        if jtu.all_leaves([x]):
            if is_old and is_mapping(x):  # such as the files of NumPy and h5py
                visit({key: x[key] for key in x}, keys, here)
                return
            index = next(positions)
            value = _as_array(x, here.name) if is_old or isinstance(x, jax.Ref) else x
            if dtype_of(value) is None:
                return
            if here.name in found:
                raise ValueError(
                    f"graft needs a different name for each leaf, but two leaves are called {here.name or '(the root)'}"
                )
            is_asked = here.is_asked and is_numeric_array(value)
            found[here.name] = dataclasses.replace(here, value=value, index=index, is_asked=is_asked)
            return
        is_in_state = is_state(type(x)) and (here.state is not None or _is_outermost(x))
        if is_in_state:
            above, outer = (here.state.keys, here.state.outer) if here.state else (keys, here.name)
            state = State(here.name, type(x).__name__, above, outer, labels=keys[len(above) :])
            here = dataclasses.replace(here, state=state, below="")
        is_code, is_asked = here.is_code or isinstance(x, Codes), here.is_asked and not is_rng_variable(x)
        has_keys = not (is_in_state or is_variable(x) or type(x) in (list, tuple))
        for text, child in keyed_children(x):
            name, below = name_below(here.name, text), name_below(here.below, text)
            there = dataclasses.replace(here, name=name, below=below, is_code=is_code, is_asked=is_asked)
            visit(child, (*keys, str(text)) if has_keys else keys, there)

    visit(tree, (), Leaf("", None))
    return list(found.values())


def _as_array(x: object, name: str) -> Any:
    """Return what stands for an array as that array, and the tensor of another library as a NumPy array."""
    if dtype_of(x) is not None or stands_for_array(x) or not hasattr(x, "__array__"):
        return resolve_array(x)
    try:
        array: Any = np.asarray(x)
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


def sources_of(
    old: Sequence[Leaf], rules: Mapping[str, Sequence[Rule] | None], new: Sequence[Leaf]
) -> dict[str, Source]:
    """Return the old values under the names by which they are matched.

    Args:
        old: the leaves of the old tree.
        rules: the rules for each of their names; None for one that is not renamed.
        new: the leaves of the new tree.

    Raises:
        ValueError: two leaves are renamed to one name; or a leaf cannot be stacked or unstacked.
    """
    places = {leaf.name: leaf.place for leaf in new}
    wanted: set[object] = {*places, *filter(None, places.values())}
    found = {x.name: Source(x.name, {0: x}, x.name, x.state, x.place) for x in old if rules[x.name] is None}
    # Renamed leaves come afterwards, since they displace those that have these names already.
    for leaf, rule in [(x, rule) for x in old for rule in rules[x.name] or ()]:
        sources = list(_renamed(leaf, rule, places))
        if rule.added is not None:
            *entries, beyond = [not wanted.isdisjoint((x.name, x.place)) for x in sources]
            for x in sources:
                x.fits = all(entries) and not beyond
        for x in sources:
            other = found.get(x.name)
            if other is None or other.rule is None:
                found[x.name] = x
            elif rule.lost and other.rule == rule and other.leaves.keys().isdisjoint(x.leaves):
                other.leaves |= x.leaves
            else:
                clash = next((other.leaves[i] for i in x.leaves if i in other.leaves), other.origins[0])
                raise ValueError(f"rename maps {leaf.name} and {clash.name} to one name: {x.name}")
    return found


def _renamed(leaf: Leaf, rule: Rule, places: Mapping[str, Place | None]) -> Iterator[Source]:
    """Yield an old leaf under the name that a rule gives it: whole, for a stack, or each of its entries."""
    pattern, target, lost, added = rule
    match = match_glob(pattern, leaf.name)
    if match is None:  # never, since the pattern was chosen for matching this name
        return

    def source(groups: Sequence[str], path: str = leaf.name, index: int = 0, entry: int | None = None) -> Source:
        found = iter(groups)
        name = _WILDCARD.sub(lambda _: next(found), f"{target}.").removesuffix(".")
        place = _place(leaf, rule, match, name, places.get(name))
        return Source(name, {index: leaf}, path, leaf.state, place, rule, entry)

    groups = list(match.groups())
    if lost:
        integers = [i for i in lost if groups[i].isdecimal()]
        if len(integers) != 1:
            raise ValueError(
                f"rename: {target!r} lacks a '*' of {pattern!r}, so what it matches is stacked in the order of "
                f"integers; at {leaf.name} it matches {' or '.join(repr(groups[i]) for i in lost)}. Put a "
                "pattern for that leaf before this one, or write '**' for the other '*'"
            )
        start, end = match.span(integers[0] + 1)
        index = int(groups.pop(integers[0]))
        yield source(groups, f"{leaf.name[:start]}*{leaf.name[end:]}", index)
    elif added is not None:
        if not np.shape(leaf.value):
            raise ValueError(
                f"rename: {pattern!r} lacks a '*' of {target!r}, so what it matches is unstacked; {leaf.name} has "
                "no axes. Put a pattern for it before this one"
            )
        for i in range(np.shape(leaf.value)[0] + 1):  # one more, to see whether the new tree has more
            yield source([*groups[:added], str(i), *groups[added:]], entry=i)
    else:
        yield source(groups)


def _place(leaf: Leaf, rule: Rule, match: re.Match[str], name: str, there: Place | None) -> Place | None:
    """Return where a renamed leaf is matched in states; None if it is matched by its new name.

    `there` is the place of the new leaf that has this name.
    """
    state = leaf.state
    if state is None:
        return None
    start = f"{state.name}." if state.name else ""
    if rule.pattern.startswith("**") and rule.target.startswith("**") and name.startswith(start):
        return Place(state.keys, state.kind, name.removeprefix(start))
    # What is below the outermost state keeps its names: `rename` is about the keys above it.
    depth = len(state.outer) + 1 if state.outer else 0
    ends_alike = rule.pattern.endswith("**") and rule.target.endswith("**")
    begin = match.start(match.re.groups) if ends_alike else len(leaf.name)
    if begin > depth or (begin == depth and there and there[1:] == (state.kind, leaf.below)):
        return None
    above = name[: len(name) - len(leaf.name) + depth]
    keys = tuple(part for part in above.split(".") if part and not part.isdecimal())
    return Place(keys, state.kind, leaf.below)
