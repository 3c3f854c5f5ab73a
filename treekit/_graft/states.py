"""Walk through a tree for `graft`, and collect its leaves by the optimizer states to which they belong."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax

from treekit._base.dtype import dtype_of, resolve_array
from treekit._base.jax import jtu
from treekit._base.key_path import is_variable, path_name
from treekit._base.predicates import is_numeric_array
from treekit._base.states import is_state
from treekit._base.tree import is_mapping
from treekit._base.types import KeyPath, PyTree
from treekit._graft.leaf import Leaf
from treekit._graft.names import Entry, Nested, as_array, has_paths, nested

Names = tuple[str, ...]
# The fields in which Optax's wrappers have the state of what they wrap: a dict with one of them was such a state.
_WRAPPED = frozenset({"inner_state", "inner_states", "inner_opt_state", "base_optimizer_state"})
_CODED = "EightBitState"  # of treekit.optax, which the core does not import
_PERHAPS_CODED = "rounding_count"  # a field of it, and of the state of stochastic rounding without codes


@dataclasses.dataclass(eq=False)
class State:
    """An optimizer state in a tree, such as Optax's ScaleByAdamState; or the whole tree, for leaves outside of states.

    Attributes:
        kind: the name of its class; or the names of its fields, if one of the trees has dicts instead of states. None
            for the whole tree.
        names: the keys above the outermost state around it. Indices do not count, since wrappers change them.
        labels: the keys between that state and this one, such as the label in a partition.
        name: its key path.
        outer: the key path of the outermost state.
        parent: the next state around it, or None for the outermost.
        lengths: the lengths of its lists, by the path below it.
        leaves: the leaves for which it is the innermost state, by the path below it.
        renamed: whether `rename` has changed the keys above it.
        has_codes: whether its arrays of 8 bits are codes; None if it is a dict that may have been a state with codes.
    """

    kind: object = None
    names: Names = ()
    labels: Names = ()
    name: str = ""
    outer: str = ""
    parent: "State | None" = None
    lengths: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    renamed: bool = False
    has_codes: bool | None = False
    leaves: dict[str, Leaf] = dataclasses.field(default_factory=dict[str, Leaf])


def leaves_of(states: Iterable[State]) -> list[Leaf]:
    return [leaf for state in states for leaf in state.leaves.values()]


def states_of(new: PyTree, old: PyTree) -> tuple[list[State], list[State]]:
    """Return the states that have leaves, in order, of two trees that are to be matched."""
    trees = new, old
    nodes = [_nodes(tree) for tree in trees]
    states: list[list[Any]] = [[x for x in found if _is_state(x)] for found in nodes]
    known = _Known({}, frozenset(), False) if all(states) else _known([x for found in states for x in found])
    has_variables = [any(map(is_variable, found)) for found in nodes]
    from_file = any(map(has_paths, nodes[0] + nodes[1]))
    walks = [
        _Walk(known, unboxed=any(has_variables) and not has, is_old=tree is old, from_file=from_file)
        for tree, has in zip(trees, has_variables, strict=True)
    ]
    found = [walk.states_of(tree) for walk, tree in zip(walks, trees, strict=True)]
    return found[0], found[1]


class _Known(NamedTuple):
    """How states are recognised.

    Trees that Orbax and Flax restore without a target have dicts instead of states, and of Flax's variables, and
    perhaps strings as indices. A file of names and arrays has no more than the names, so fields without arrays are not
    in it.

    Attributes:
        fields: the fields of the classes of states in one tree, by the keys that such a dict in the other may have.
        wrapped: the fields that have states in them.
        plain: whether one of the trees has no classes of states.
    """

    fields: Mapping[frozenset[str], Names]
    wrapped: frozenset[str]
    plain: bool


def _known(states: list[Any]) -> _Known:
    fields: dict[frozenset[str], Names] = {frozenset(_filled(x)): x._fields for x in states}
    fields |= {frozenset(x._fields): x._fields for x in states}
    fields.pop(frozenset(), None)
    wrapped = {name for x in states for name, field in zip(x._fields, x, strict=True) if _has_states(field)}
    return _Known(fields, _WRAPPED | wrapped if states else frozenset(), True)


class _Walk:
    """A walk through one tree that collects its states.

    Args:
        known: how states are recognised.
        unboxed: whether only the other tree has variables of Flax, so that this one may have dicts instead.
        is_old: whether this is the old tree, of which tensors are converted.
        from_file: whether one of the trees is a file of names and arrays, in which lists end with their last array.
    """

    def __init__(self, known: "_Known", *, unboxed: bool, is_old: bool, from_file: bool) -> None:
        self._fields, self._wrapped, self._plain = known
        self._unboxed = unboxed
        self._is_old = is_old
        self._from_file = from_file
        self._states = [State()]

    def states_of(self, tree: PyTree) -> list[State]:
        self._visit(tree, (), (), "", self._states[0], ())
        return [state for state in self._states if state.leaves]

    def _visit(self, x: PyTree, path: KeyPath, named: KeyPath, below: str, state: State, keys: Names) -> None:
        """Collect what is below `path`; `named` is that path without the values of Flax variables."""
        if isinstance(x, Entry):
            path, x = x
        if has_paths(x):
            x = nested(x, path)
        if _is_empty(x):
            return
        if not isinstance(x, Nested) and jtu.all_leaves([x]):
            self._see(x, path, path_name(named), below, state)
            return
        children = self._children(x)
        parts = [part for part, _, _ in children]
        kind = self._kind(x, parts, state, below)
        if kind is not None:
            inside = _inside(state, kind, path_name(named), keys, _has_codes(x, parts, state))
            state, keys, below = inside, keys if state.kind else (), ""
            self._states.append(state)
        count = len(self._states)
        for part, key, child in children:
            if is_variable(x) or (self._unboxed and is_mapping(x) and parts == ["value"] and jtu.all_leaves([child])):
                self._visit(child, (*path, key), named, below, state, keys)
                continue
            no_name = kind is not None or hasattr(key, "idx") or (self._plain and part.isdecimal())
            inner = f"{below}.{part}" if below else part
            self._visit(child, (*path, key), (*named, key), inner, state, keys if no_name else (*keys, part))
        if count == len(self._states) and (length := _length(children, self._from_file)):
            state.lengths[below] = length

    def _see(self, x: object, path: KeyPath, name: str, below: str, state: State) -> None:
        if below in state.leaves:
            raise ValueError(f"graft needs a different name for each leaf, but two leaves are called {name}")
        x = resolve_array(x) if isinstance(x, jax.Ref) else x
        value = as_array(x, name) if self._is_old and dtype_of(x) is None else x
        if dtype_of(value) is not None:
            state.leaves[below] = Leaf(name, value, state, below, path)

    def _children(self, x: PyTree) -> list[tuple[str, Any, Any]]:
        """Return name, key and value of each child, with indices and fields in their order, which JAX's dicts lose."""
        if isinstance(x, Nested):
            children = [(part, jax.tree_util.DictKey(part), child) for part, child in x.items()]
        else:
            found = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
            children = [(path_name(path), path[0], child) for path, child in found]
        parts = [part for part, _, _ in children]
        if all(map(str.isdecimal, parts)):
            return sorted(children, key=lambda child: int(child[0]))
        order = self._fields.get(frozenset(parts))
        return sorted(children, key=lambda child: order.index(child[0])) if order else children

    def _kind(self, x: PyTree, parts: list[str], state: State, below: str) -> object:
        if not self._plain:
            return type(x).__name__ if _is_state(x) else None
        if not isinstance(x, (dict, tuple)) or (state.kind and below.partition(".")[0] not in self._wrapped):
            return None
        keys = frozenset(parts)
        fields = self._fields.get(keys) or self._fields.get(frozenset(_filled(x)))
        return frozenset(fields) if fields else keys if keys & self._wrapped else None


def _is_empty(x: object) -> bool:
    """Whether `x` is None, or like Optax's MaskedNode, of which there may be one for each parameter and label."""
    return x is None or (isinstance(x, tuple) and not x)


def _length(children: list[tuple[str, Any, Any]], to_last_array: bool) -> int:
    """Return the length of a list, and 0 for anything else; Flax's lists also have a child without leaves."""

    def counts(child: Any) -> bool:
        return not to_last_array or isinstance(child, (Nested, Entry)) or _has_arrays(child)

    indices = [int(part) for part, _, child in children if part.isdecimal() and counts(child)]
    others = [child for part, _, child in children if not part.isdecimal()]
    return max(indices) + 1 if indices and not any(map(jtu.tree_leaves, others)) else 0


def _filled(x: PyTree) -> list[str]:
    """Return the names of the fields, or the keys, that have arrays as files have them."""
    children: Any = x.items() if is_mapping(x) else zip(getattr(x, "_fields", range(len(x))), x, strict=True)
    return [str(key) for key, child in children if isinstance(child, Nested) or _has_arrays(child)]


def _has_arrays(x: PyTree) -> bool:
    return any(map(is_numeric_array, jtu.tree_leaves(x.value if isinstance(x, Entry) else x)))


def _inside(state: State, kind: object, name: str, keys: Names, has_codes: bool | None) -> State:
    if state.kind is None:
        return State(kind, names=keys, name=name, outer=name, has_codes=has_codes)
    return State(kind, state.names, keys, name, state.outer, state, has_codes=has_codes)


def _has_codes(x: object, parts: list[str], around: State) -> bool | None:
    """Whether the arrays of 8 bits in a state are codes: the class says so, or that of a state around it."""
    if is_state(type(x)):
        return around.has_codes or type(x).__name__ == _CODED
    return None if _PERHAPS_CODED in parts else around.has_codes


def _is_state(x: Any) -> bool:
    """Whether `x` is an optimizer state, and not a named tuple that only holds one, such as a `TrainState` of a user.

    A wrapper of Optax or treekit has the state of what it wraps in a field of any name; one of another library, in a
    field whose name says so.
    """
    if not is_state(type(x)):
        return False
    if type(x).__module__.partition(".")[0] in ("optax", "treekit"):
        return True
    holders = [name for name, field in zip(x._fields, x, strict=True) if _has_states(field)]
    return not holders or any(name in _WRAPPED or name.startswith("inner") for name in holders)


def _has_states(tree: PyTree) -> bool:
    return any(is_state(type(x)) or type(x).__name__ == "EmptyState" for x in _nodes(tree))


def _nodes(tree: PyTree) -> list[Any]:
    """Return all nodes and leaves of a tree."""
    found: list[Any] = []

    def see(x: object) -> bool:
        found.append(x)
        return False

    jtu.tree_flatten(tree, is_leaf=see)
    return found
