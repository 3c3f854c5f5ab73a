"""The leaves of a tree for `graft`: their names, their optimizer states, and the names that `rename` gives them."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

from treekit._base.describe import describe
from treekit._base.dtype import dtype_of, resolve_array, stands_for_array
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import (
    PatternSet,
    is_rng_variable,
    is_variable,
    keyed_children,
    match_glob,
    name_below,
    nearest,
)
from treekit._base.predicates import is_numeric_array, is_state, is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._codes import Codes

if TYPE_CHECKING:
    # An array, a number or a `jax.ShapeDtypeStruct`; type checkers do not know what these have in common.
    Value: TypeAlias = Any
else:
    Value = object

Names = tuple[str, ...]
Convert = Callable[[Any], Any]
Targets = str | Sequence[str] | None
_HOLES = 5  # that a report lists
# The node of an array of codes. Nothing is an instance of () where treekit does not have that class.
# In a path with a dot at its end, as in `glob_regex`. The second alternative is a `*` that is a whole part.
_WILDCARD = re.compile(r"(?:(?<=\.)|^)\*\*\.|(?:(?<=\.)|^)\*(?=\.)|\*+")


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
        pattern: the pattern that renamed it, if any.
        target: the target of that pattern.
        is_stacked: whether they make a list of an axis, or an axis of a list.
    """

    name: str
    value: Any
    state: State | None = None
    below: str = ""
    names: Names = ()
    index: int = 0
    is_code: bool = False
    is_asked: bool = True
    pattern: str | None = None
    target: str = ""
    is_stacked: bool = False

    @property
    def origins(self) -> "list[Leaf]":
        """The leaves of the old tree that this one is made of."""
        return [self]

    @property
    def source_name(self) -> str:
        """Its name in the old tree; with a `*`, that of several leaves."""
        return self.origins[0].name

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
    """Old leaves that become one, with a leading axis; `value` maps the index of each to the leaf.

    Attributes:
        source: their name, with a `*` in place of the index.
    """

    source: str = ""

    @property
    def origins(self) -> list[Leaf]:
        return [self.value[i] for i in sorted(self.value)]

    @property
    def source_name(self) -> str:
        return self.source

    @property
    def holes(self) -> list[int]:
        """The indices from 0 to the last that no leaf has; the first few of them."""
        return list(itertools.islice((i for i in range(max(self.value)) if i not in self.value), _HOLES))

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
        if x is None:
            return
        if jtu.all_leaves([x]):
            index = next(positions)
            value = resolve_array(x) if isinstance(x, jax.Ref) else x
            value = _as_array(value, here.name) if is_old and dtype_of(value) is None else value
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

    visit(_with_dicts(tree) if is_old else tree, Leaf("", None))
    for leaf in found.values():
        leaf.names = leaf.state.names if leaf.state else ()
    return list(found.values())


def _with_dicts(tree: PyTree) -> PyTree:
    """Return a tree in which mappings that JAX takes for leaves, such as the files of NumPy and h5py, are dicts."""

    def with_dicts(x: PyTree) -> Any:
        return {key: _with_dicts(x[key]) for key in x} if is_mapping(x) else x

    return jtu.tree_map(with_dicts, tree) if any(map(is_mapping, jtu.tree_leaves(tree))) else tree


def _as_array(x: object, name: str) -> Any:
    """Return what stands for an array as that array, and the tensor of another library as a NumPy array."""
    if stands_for_array(x) or not hasattr(x, "__array__"):
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
    holders = [name for name, field in zip(x._fields, x, strict=True) if _holds_state(field)]
    return not holders or any(name.startswith("inner") for name in holders)


def _holds_state(x: PyTree) -> bool:
    return any(map(_may_be_state, jtu.tree_leaves(x, is_leaf=_may_be_state)))


def _may_be_state(x: object) -> bool:
    return is_state(type(x)) or type(x).__name__ == "EmptyState"


# ------------------------------------------------------------------------------------------------ the argument `rename`


class Rule(NamedTuple):
    """A pattern of old names, and one of its targets.

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


class RenamedTree:
    """The old leaves under the names by which they are matched.

    Attributes:
        leaves: the old leaves, and those that `rename` makes of them, by state and name.
        exact: the leaves that were renamed to a full path of the new tree, by that path.
        excluded: the leaves that `rename` maps to None.
        derived: the leaves that it makes.
        rename: the argument.
    """

    def __init__(self, new: list[Leaf], old: list[Leaf], rename: Mapping[str, Targets]) -> None:
        self.rename = rename
        self.leaves: dict[tuple[State | None, Names, str], Leaf] = {}
        self.exact: dict[str, Leaf] = {}
        self.excluded: set[Leaf] = set()
        self.derived: list[Leaf] = []
        self._new, self._old = {leaf.name: leaf for leaf in new}, old
        self._rules = {pattern: _rules(pattern, targets) for pattern, targets in rename.items()}
        self._matched: dict[str, list[Leaf]] = {pattern: [] for pattern in rename}
        self._stacks: dict[tuple[str, str], Stack] = {}
        patterns, first_match = list(rename), PatternSet(list(rename)).first
        for leaf in old:
            i = first_match(leaf.name)
            if i is None:
                self._put(leaf)
            else:
                self._matched[patterns[i]].append(leaf)
        # Afterwards, so that they displace leaves that have these names already.
        for pattern, leaves in self._matched.items():
            self.excluded.update(() if self._rules[pattern] else leaves)
            for leaf, rule in itertools.product(leaves, self._rules[pattern]):
                for derived in self._derive(rule, leaf):
                    derived.pattern, derived.target, derived.is_code = pattern, rule.target, leaf.is_code
                    derived.is_stacked = bool(rule.lost) or rule.added is not None
                    self.derived.append(derived)
                    self._place(rule, leaf, derived)

    def check_used(self, used: Container[Leaf]) -> None:
        """Raise a ValueError for a pattern that has no effect; `used` has the old leaves that are matched."""
        for pattern, leaves in self._matched.items():
            if not leaves:
                earlier = [x for x, xs in self._matched.items() if any(match_glob(pattern, leaf.name) for leaf in xs)]
                raise ValueError(
                    f"rename: {pattern!r} decides about no leaf, since earlier patterns match all leaves that it "
                    f"matches: {', '.join(map(repr, earlier))}. Put it before them"
                    if earlier
                    else f"rename: {pattern!r} matches no leaf of the old tree. The nearest paths: "
                    + nearest(pattern, [leaf.name for leaf in self._old])
                )
            if self._rules[pattern] and not any(leaf in used for leaf in leaves):
                name = next(leaf.name for leaf in self.derived if leaf.pattern == pattern)
                raise ValueError(
                    f"rename: {pattern!r} leads to {name or '(the root)'}, which the new tree does not have. The "
                    f"nearest paths: {nearest(name, list(self._new))}"
                )

    def _derive(self, rule: Rule, leaf: Leaf) -> Iterator[Leaf]:
        """Make the leaves that an old leaf becomes part of: a renamed one, a stack, or each of its entries."""
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
                stack = self._stacks[pattern, name] = Stack(name, {}, leaf.state, source=source)
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
                yield Part(name, leaf, leaf.state, entry=i)
        else:
            yield Part(_substitute(target, groups), leaf, leaf.state)

    def _place(self, rule: Rule, leaf: Leaf, derived: Leaf) -> None:
        """Put a leaf where it is matched: at a full path of the new tree, or at a place in a state."""
        state, name = leaf.state, derived.name
        if state is None:
            derived.below = name
            self._put(derived)
            return
        start = f"{state.name}." if state.name else ""
        if rule.pattern.startswith("**") and rule.target.startswith("**") and name.startswith(start):
            derived.below, derived.names = name.removeprefix(start), leaf.names
            self._put(derived)
            return
        # What is below the outermost state keeps its names: `rename` is about the keys above it.
        rest = leaf.name.removeprefix(state.outer).removeprefix(".")
        match = match_glob(rule.pattern, leaf.name)
        kept = (match.groups() or ("",))[-1].removesuffix(".") if match and rule.pattern.endswith("**") else ""
        is_above = f".{name}".endswith(f".{rest}") and f".{kept}".endswith(f".{rest}")
        target = self._new.get(name)
        is_there = target is not None and target.state is not None and target.state.kind == state.kind
        if not is_above or (kept == rest and is_there and target is not None and target.below == leaf.below):
            _check_free(self.exact.get(name), derived)
            self.exact[name] = derived
            return
        above = name.removesuffix(rest).removesuffix(".")
        derived.names = tuple(part for part in above.split(".") if part and not part.isdecimal())
        derived.below = leaf.below
        self._put(derived)

    def _put(self, leaf: Leaf) -> None:
        place = leaf.state, leaf.names, leaf.below
        _check_free(self.leaves.get(place), leaf)
        self.leaves[place] = leaf


def _check_free(other: Leaf | None, leaf: Leaf) -> None:
    if other is not None and other.pattern is not None:
        names = " and ".join(x.origins[0].name for x in (leaf, other))
        raise ValueError(f"rename maps {names} to one name: {leaf.name}")


def _rules(pattern: str, targets: Targets) -> list[Rule]:
    """Compare the wildcards of both sides: they are the same, or one side lacks one `*` that is a whole part."""
    rules: list[Rule] = []
    for target in [targets] if isinstance(targets, str) else targets or []:
        have, want = _wildcards(pattern), _wildcards(target)
        lost, added = _extra(have, want), _extra(want, have)
        if [text for text, _ in have] == [text for text, _ in want]:
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


def _extra(more: list[tuple[str, bool]], fewer: list[tuple[str, bool]]) -> list[int]:
    """Return the whole-part `*` of the one list without which it has the wildcards of the other."""
    texts = [text for text, _ in fewer]
    return [
        i
        for i, (text, is_part) in enumerate(more)
        if text == "*" and is_part and [x for j, (x, _) in enumerate(more) if j != i] == texts
    ]


def _wildcards(pattern: str) -> list[tuple[str, bool]]:
    """Return the wildcards of a glob, and whether each is a whole part."""
    text = f"{pattern}."
    return [
        (match[0], text[match.start() - 1 : match.start()] in ("", ".") and text.startswith(".", match.end()))
        for match in _WILDCARD.finditer(text)
    ]


def _substitute(target: str, groups: Sequence[str]) -> str:
    """Replace the wildcards of a target by what those of the pattern match."""
    found = iter(groups)
    return _WILDCARD.sub(lambda _: next(found), f"{target}.").removesuffix(".")
