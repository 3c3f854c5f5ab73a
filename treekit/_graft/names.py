"""The leaves of a tree for `graft`: their names, their optimizer states, and the names that `rename` gives them."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np

from treekit._base.describe import describe
from treekit._base.dtype import dtype_of, resolve_array, stands_for_array
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import (
    is_rng_variable,
    is_variable,
    keyed_children,
    match_glob,
    name_below,
)
from treekit._base.predicates import is_numeric_array, is_state, is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._codes import Codes

# An array, a number or a `jax.ShapeDtypeStruct`; type checkers do not know what these have in common.
Value: TypeAlias = Any
Names = tuple[str, ...]
Place = TypeVar("Place")
Convert = Callable[[Any], Any]
Targets = str | Sequence[str] | None
# In a path with a dot at its end, as in `glob_regex`. The group is a `*` that is a whole part.
_WILDCARD = re.compile(r"(?<![^.])\*\*\.|(?<![^.])(\*)(?=\.)|\*+")


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """An optimizer state in a tree, such as Optax's ScaleByAdamState.

    Attributes:
        kind: the name of its class.
        names: the keys above the outermost state around it. Indices do not count, since wrappers change them.
        labels: the keys between that state and this one, such as the label in a partition.
        name: its name.
        outer: the name of the outermost state.
    """

    kind: str
    names: Names
    labels: Names
    name: str
    outer: str


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
    """An array or a number in a tree.

    Attributes:
        name: its key path, as patterns write it.
        value: the array or number; or what represents it, for a leaf that `rename` makes.
        state: the innermost optimizer state that it belongs to, if any.
        below: its name below that state.
        names: the keys above the outermost state.
        index: its position among the leaves of the tree.
        is_code: whether its array has codes, not numbers.
        is_asked: whether a strict graft asks for a value.
        rule: the rule that renamed it, if any.
        source: its name in the old tree; with a `*`, that of several leaves.
        is_stacked: whether it is made of several leaves, or an entry of one.
    """

    name: str
    value: Any
    state: State | None = None
    below: str = ""
    names: Names = ()
    index: int = 0
    is_code: bool = False
    is_asked: bool = True
    rule: Rule | None = None
    source: str = ""
    is_stacked: bool = False

    @property
    def origins(self) -> "list[Leaf]":
        """The leaves of the old tree that this one is made of."""
        return [self]

    def read(self, convert: Convert) -> Any:
        """Return its value, with each array of the old tree converted; None if its arrays do not fit each other."""
        if isinstance(self.value, jax.ShapeDtypeStruct):
            raise TypeError(f"at {self.name}: the old tree has a shape and dtype, but no value")
        return convert(self.value)

    def __str__(self) -> str:
        return describe(self.value)


@dataclasses.dataclass(eq=False)
class Part(Leaf):
    """An old leaf, which is `value`, under the name that `rename` gives it; or one entry of its leading axis.

    Attributes:
        entry: which entry; None for the whole leaf.
        fits: whether the new tree has a leaf for each entry, and no more.
    """

    entry: int | None = None
    fits: bool = True

    @property
    def origins(self) -> list[Leaf]:
        return [self.value]

    def read(self, convert: Convert) -> Any:
        def part(x: Value) -> Any:
            return convert(x if self.entry is None else x[self.entry])

        return self.value.read(part) if self.fits else None

    def __str__(self) -> str:
        entry = "" if self.entry is None else f"entry {self.entry} of "
        return f"{entry}{self.value}{'' if self.fits else ', which are not as many as in the new tree'}"


@dataclasses.dataclass(eq=False)
class Stack(Leaf):
    """Old leaves that become one, with a leading axis; `value` maps the index of each to the leaf."""

    @property
    def origins(self) -> list[Leaf]:
        return [self.value[i] for i in sorted(self.value)]

    @property
    def holes(self) -> list[int]:
        """The indices from 0 to the last that no leaf has; the first few of them."""
        return list(itertools.islice((i for i in range(max(self.value)) if i not in self.value), 5))

    def read(self, convert: Convert) -> Any:
        arrays = [leaf.read(convert) for leaf in self.origins]
        if self.holes or len({(np.shape(x), dtype_of(x)) for x in arrays}) > 1:
            return None
        # NumPy unless all are JAX's, which would round numbers of 64 bits before they are checked.
        in_jax = all(isinstance(x, jax.Array) for x in arrays) or any(map(is_traced, arrays))
        return (jnp if in_jax else np).stack(arrays)

    def __str__(self) -> str:
        shapes = " and ".join(dict.fromkeys(describe(leaf.value) for leaf in self.origins))
        missing = f", without {', '.join(map(str, self.holes))}" if self.holes else ""
        return f"{len(self.value)} stacked {shapes}{missing}"


# ---------------------------------------------------------------------------------------------- the leaves of the trees


def leaves_of(tree: PyTree, *, is_old: bool = False) -> list[Leaf]:
    """Return the leaves of a tree that are arrays or numbers, in order; in an old tree, tensors and mappings too."""
    found: dict[str, Leaf] = {}
    positions = itertools.count()

    def visit(x: Any, here: Leaf) -> None:
        """Collect the leaves of `x`; `here` has what all of them share."""
        if jtu.all_leaves([x]):
            if is_old and is_mapping(x):  # such as the files of NumPy and h5py
                visit({key: x[key] for key in x}, here)
                return
            index = next(positions)
            value = _as_array(x, here.name) if is_old or isinstance(x, jax.Ref) else x
            if dtype_of(value) is None:
                return
            if here.name in found:
                raise ValueError(
                    f"graft needs a different name for each leaf, but two leaves are called {here.name or '(the root)'}"
                )
            here = dataclasses.replace(here, value=value, index=index, source=here.name)
            here.names = here.state.names if here.state else ()
            here.is_asked &= is_numeric_array(value)
            found[here.name] = here
            return
        is_in_state = is_state(type(x)) and (here.state is not None or _is_outermost(x))
        if is_in_state:
            names, outer = (here.state.names, here.state.outer) if here.state else (here.names, here.name)
            labels = here.names[len(names) :]
            here = dataclasses.replace(here, state=State(type(x).__name__, names, labels, here.name, outer), below="")
        is_code, is_asked = isinstance(x, Codes), not is_rng_variable(x)
        has_keys = not (is_in_state or is_variable(x) or type(x) in (list, tuple))
        for text, child in keyed_children(x):
            below = dataclasses.replace(
                here,
                name=name_below(here.name, text),
                below=name_below(here.below, text),
                names=(*here.names, str(text)) if has_keys else here.names,
                is_code=here.is_code or is_code,
                is_asked=here.is_asked and is_asked,
            )
            visit(child, below)

    visit(tree, Leaf("", None))
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

    def may_be_state(y: object) -> bool:
        return is_state(type(y)) or type(y).__name__ == "EmptyState"

    holders = [
        name
        for name, field in zip(x._fields, x, strict=True)
        if any(map(may_be_state, jtu.tree_leaves(field, is_leaf=may_be_state)))
    ]
    return not holders or any(name.startswith("inner") for name in holders)


# ------------------------------------------------------------------------------------------------ the argument `rename`


class RenamedTree:
    """The old leaves under the names by which they are matched.

    Attributes:
        leaves: the old leaves, and those that `rename` makes of them, by state and name.
        exact: the leaves that were renamed to a full path of the new tree, by that path.
        excluded: the leaves that `rename` maps to None.
        derived: the leaves that it makes.
        unstacked: of these, the entries of each array, and one more.
        rename: the argument.

    `firsts` has for each old leaf the index of the first pattern that matches it, or None.
    """

    def __init__(
        self, new: list[Leaf], old: list[Leaf], rename: Mapping[str, Targets], firsts: Sequence[int | None]
    ) -> None:
        self.rename = rename
        self.leaves: dict[tuple[State | None, Names, str], Leaf] = {}
        self.exact: dict[str, Leaf] = {}
        self.excluded: set[Leaf] = set()
        self.derived: list[Leaf] = []
        self.unstacked: list[list[Part]] = []
        self._new = {leaf.name: leaf for leaf in new}
        self._stacks: dict[tuple[str, str], Stack] = {}
        rules = [_rules(pattern, targets) for pattern, targets in rename.items()]
        pairs: list[tuple[Leaf, Rule]] = []
        for leaf, i in zip(old, firsts, strict=True):
            if i is None:
                _put(self.leaves, (leaf.state, leaf.names, leaf.below), leaf)
                continue
            pairs += [(leaf, rule) for rule in rules[i]]
            self.excluded.update(() if rules[i] else [leaf])
        for leaf, rule in pairs:  # afterwards, so that they displace leaves that have these names already
            if match := match_glob(rule.pattern, leaf.name):
                for derived in self._derive(rule, leaf, match):
                    derived.rule = rule
                    self.derived.append(derived)
                    self._place(rule, leaf, match, derived)

    def _derive(self, rule: Rule, leaf: Leaf, match: re.Match[str]) -> Iterator[Leaf]:
        """Make the leaves that an old leaf becomes part of: a renamed one, a stack, or each of its entries."""
        pattern, target, lost, added = rule
        groups = list(match.groups())
        if lost:
            integers = [i for i in lost if groups[i].isdecimal()]
            if len(integers) != 1:
                raise ValueError(
                    f"rename: {target!r} lacks a '*' of {pattern!r}, so what it matches is stacked in the order of "
                    f"integers; at {leaf.name} it matches {' or '.join(repr(groups[i]) for i in lost)}. Put a "
                    "pattern for that leaf before this one, or write '**' for the other '*'"
                )
            index = groups.pop(integers[0])
            name = _substitute(target, groups)
            stack = self._stacks.get((pattern, name))
            if stack is None:
                start, end = match.span(integers[0] + 1)
                source = f"{leaf.name[:start]}*{leaf.name[end:]}"
                stack = self._stacks[pattern, name] = Stack(name, {}, leaf.state, source=source, is_stacked=True)
                yield stack
            other = stack.value.setdefault(int(index), leaf)
            if other is not leaf:
                raise ValueError(f"rename maps {other.name} and {leaf.name} to one entry of {name}")
        elif added is not None:
            if not np.shape(leaf.value):
                raise ValueError(
                    f"rename: {pattern!r} lacks a '*' of {target!r}, so what it matches is unstacked; {leaf.name} has "
                    "no axes. Put a pattern for it before this one"
                )
            names = (  # one more, to see whether the new tree has more
                _substitute(target, [*groups[:added], str(i), *groups[added:]])
                for i in range(np.shape(leaf.value)[0] + 1)
            )
            parts = [
                Part(name, leaf, leaf.state, source=leaf.name, is_stacked=True, entry=i) for i, name in enumerate(names)
            ]
            self.unstacked.append(parts)
            yield from parts
        else:
            yield Part(_substitute(target, groups), leaf, leaf.state, source=leaf.name)

    def _place(self, rule: Rule, leaf: Leaf, match: re.Match[str], derived: Leaf) -> None:
        """Put a leaf where it is matched: at a full path of the new tree, or at a place in a state."""
        state, name = leaf.state, derived.name
        start = f"{state.name}." if state and state.name else ""
        is_inside = rule.pattern.startswith("**") and rule.target.startswith("**") and name.startswith(start)
        if state is None or is_inside:
            derived.below, derived.names = name.removeprefix(start), leaf.names
        else:
            # What is below the outermost state keeps its names: `rename` is about the keys above it.
            rest = leaf.name.removeprefix(state.outer).removeprefix(".")
            kept = match[match.re.groups].removesuffix(".") if rule.pattern.endswith("**") else ""
            is_above = f".{name}".endswith(f".{rest}") and f".{kept}".endswith(f".{rest}")
            there = self._new.get(name)
            has_place = there and there.state and (there.state.kind, there.below) == (state.kind, leaf.below)
            if not is_above or (kept == rest and has_place):
                _put(self.exact, name, derived)
                return
            above = name.removesuffix(rest).removesuffix(".")
            derived.names = tuple(part for part in above.split(".") if part and not part.isdecimal())
            derived.below = leaf.below
        _put(self.leaves, (state, derived.names, derived.below), derived)


def _put(places: dict[Place, Leaf], place: Place, leaf: Leaf) -> None:
    other = places.get(place)
    if other is not None and other.rule is not None:
        names = " and ".join(x.origins[0].name for x in (leaf, other))
        raise ValueError(f"rename maps {names} to one name: {leaf.name}")
    places[place] = leaf


def _rules(pattern: str, targets: Targets) -> list[Rule]:
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


def _substitute(target: str, groups: Sequence[str]) -> str:
    """Replace the wildcards of a target by what those of the pattern match."""
    found = iter(groups)
    return _WILDCARD.sub(lambda _: next(found), f"{target}.").removesuffix(".")
