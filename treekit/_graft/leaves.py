"""List the leaves of a tree: their names, their values, and the optimizer states that they are in.

For example, `gen.inner_states.body.inner_state.0.mu.layers.0.w` is a leaf of `{"gen": state}`, in the state of an
adam in the group "body" of a `partition`:

| attribute | its value | what it is |
|---|---|---|
| `Slot.above`, `StateNode.above` | ("gen",) | the keys above the outermost state |
| `StateNode.outer` | "gen." | where the outermost state is: that of `partition` |
| `StateNode.labels` | ("body",) | the keys between the outermost state and the innermost |
| `StateNode.start` | "gen.inner_states.body.inner_state.0." | where the innermost state is |
| `StateNode.kind`, `Slot.kind` | "ScaleByAdamState" | its class |
| `Slot.below` | "mu.layers.0.w" | the name of the leaf below it |
| `_Place.keys` | ("gen", "body", "layers", "w") | all keys that lead to it |

None of the keys is an index or a field of a state, since wrappers change those.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._arrays.members import members_of
from treekit._base.dtype import dtype_of, in_native_order, resolve_array, stands_for_array
from treekit._base.flax import is_rng_variable, is_variable
from treekit._base.jax import is_ref, jtu
from treekit._base.memory import is_deleted
from treekit._base.predicates import is_numeric_array
from treekit._base.states import is_known_code, is_state
from treekit._base.tree import has_node, is_mapping
from treekit._base.types import PyTree
from treekit._names.key_path import keyed_children, start_below
from treekit._text.describe import describe
from treekit._trained.leaves import which_can_be_trained

Names = tuple[str, ...]


class Slot(NamedTuple):
    """What two leaves that match have in common.

    Attributes:
        above: the keys above the outermost optimizer state.
        kind: the name of the class of the innermost state; "" for a leaf that is matched by name.
        below: the name of the leaf below that state, which is its field and the name of the parameter; or its name.
    """

    above: Names = ()
    kind: str = ""
    below: str = ""

    @property
    def is_in_state(self) -> bool:
        """Whether the leaf is in an optimizer state, and not matched by name."""
        return self.kind != ""

    @property
    def is_moment(self) -> bool:
        """Whether the leaf is in a state, and below one of its fields, as mu.layers.0.w is."""
        return self.is_in_state and "." in self.below and not self.is_hyperparam

    @property
    def is_hyperparam(self) -> bool:
        """Whether the leaf is in a state, and one of its hyperparameters."""
        return self.is_in_state and self.below.startswith("hyperparams")


@dataclasses.dataclass(frozen=True, eq=False)
class StateNode:
    """An optimizer state in a tree, such as Optax's ScaleByAdamState; for a leaf that is in no state, the tree itself.

    Attributes:
        start: its name, with a dot at its end; "" for the root.
        kind: the name of its class; "" for the tree itself.
        above: the keys above the outermost state around it, as in `Slot`.
        outer: the `start` of the outermost state.
        labels: the keys between that state and this one, such as the label in a partition.
    """

    start: str = ""
    kind: str = ""
    above: Names = ()
    outer: str = ""
    labels: Names = ()

    @property
    def is_optimizer_state(self) -> bool:
        """Whether it is a state, and not the tree itself."""
        return self.kind != ""

    def slot(self, name: str) -> Slot:
        """Return the slot of the leaf that has this name, which is below the state."""
        return Slot(self.above, self.kind, name.removeprefix(self.start))


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """An array or a number in a tree.

    Attributes:
        name: its key path, as patterns write it.
        value: the array or number.
        index: its position among the leaves of the tree.
        state: the innermost optimizer state that it belongs to.
        slot: what a leaf of the other tree has in common with it.
        is_asked: whether a strict graft asks for an old value.
    """

    name: str
    value: Any
    index: int
    state: StateNode
    slot: Slot
    is_asked: bool

    @functools.cached_property
    def members(self) -> Any:
        """The entries of the first axis of the array."""
        return members_of(self.value)

    def __str__(self) -> str:
        return describe(self.value)


def leaves_of(tree: PyTree, *, are_read: bool = False) -> list[Leaf]:
    """Return the leaves of a tree that are arrays or numbers, in order.

    If their values are read, so are the tensors of other libraries, references, and what is in mappings such as files.
    """
    leaves: dict[str, Leaf] = {}
    # Only of a new tree, which is not read: a value is asked for what can be trained.
    can_train = [] if are_read else which_can_be_trained(tree, jtu.tree_leaves(tree))
    trained = {i for i, can in enumerate(can_train) if can}
    for index, place in enumerate(_places(_Place(tree), are_read)):
        name = place.start[:-1]
        value = _as_array(place.x, name) if are_read or is_ref(place.x) else place.x
        if dtype_of(value) is None:
            continue
        if are_read and is_deleted(value):
            raise ValueError(
                f"the array at {name or 'the root'} is deleted; it may have been donated. Take a tree that has its "
                "values"
            )
        if name in leaves:
            raise ValueError(
                f"each leaf needs a name of its own, but two leaves are called {name or 'the root'}. Rename a key "
                "that has a dot"
            )
        # Settings, keys and the counters of random streams may stay as they are, unless only their shapes are known.
        is_data = (is_numeric_array(value) or index in trained) and not place.is_random
        is_asked = is_data or isinstance(value, jax.ShapeDtypeStruct)
        leaves[name] = Leaf(name, value, index, place.state, place.state.slot(name), is_asked)
    return list(leaves.values())


class _Place(NamedTuple):
    """A node or a leaf, and where it is in a tree.

    Attributes:
        x: the node or leaf.
        start: its name, with a dot at its end; "" for the root.
        keys: the keys that lead there, without indices and fields of states.
        state: the innermost optimizer state around it.
        is_random: whether it is the key or the counter of a random stream of Flax.
    """

    x: Any
    start: str = ""
    keys: Names = ()
    state: StateNode = StateNode()
    is_random: bool = False


def _places(place: _Place, are_read: bool) -> Iterator[_Place]:
    """Yield the leaves at and below a place, in order; if they are read, also in mappings that are not pytrees."""
    x, start, keys, state, is_random = place
    if are_read and is_mapping(x) and jtu.all_leaves([x]):  # such as the files of NumPy and h5py
        x = {key: x[key] for key in x}
    if jtu.all_leaves([x]):
        yield place
        return
    starts_state = is_state(x) and (state.is_optimizer_state or _is_outermost(x))
    if starts_state:
        # All keys so far are above the outermost state. Keys inside of that are labels.
        above, outer = (state.above, state.outer) if state.is_optimizer_state else (keys, start)
        state = StateNode(start, type(x).__name__, above, outer, labels=keys[len(above) :])
    has_keys = not (starts_state or is_variable(x) or type(x) in (list, tuple))
    is_random = is_random or is_rng_variable(x)
    for text, child in keyed_children(x):
        below = (*keys, str(text)) if has_keys else keys
        yield from _places(_Place(child, start_below(start, text), below, state, is_random), are_read)


def _as_array(x: object, name: str) -> Any:
    """Return what stands for an array as that array, and the tensor of another library as a NumPy array."""
    if dtype_of(x) is not None or stands_for_array(x) or not hasattr(x, "__array__"):
        return in_native_order(resolve_array(x))
    try:
        array: Any = in_native_order(np.asarray(x))
    except Exception as error:
        error.add_note(f"The {type(x).__name__} at {name or 'the root'} cannot be converted to a NumPy array")
        raise
    if array.dtype.kind == "V":
        raise TypeError(
            f"at {name or 'the root'}: the array has the dtype {array.dtype}, which is not one of numbers. np.load "
            "gives it for bf16 and other dtypes that NumPy does not know: x.view(jnp.bfloat16) is the array again"
        )
    return array


def _is_outermost(x: object) -> bool:
    """Whether a named tuple called `…State` is an optimizer state, and not one that only holds one, as a TrainState.

    A wrapper of another library has the state of what it wraps in a field that says so.
    """
    if is_known_code(type(x)):
        return True
    named: Any = x
    fields = zip(named._fields, named, strict=True)
    holders = [name for name, y in fields if has_node(y, is_state)]
    return not holders or any(name.startswith("inner") for name in holders)
