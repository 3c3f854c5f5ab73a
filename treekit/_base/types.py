"""Names for the types of common arguments."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

# Trees. Type checkers have no type for "any pytree": to them these are `Any`, under a name that says which tree it is.
# With `object`, nothing could be read from a tree, and Optax's `ArrayTree`, of dicts and lists, excludes models.
if TYPE_CHECKING:
    PyTree: TypeAlias = Any
    Params: TypeAlias = Any
    Updates: TypeAlias = Any
    OptState: TypeAlias = Any

    class PyTreeDef(Protocol):
        """The structure of a tree, whose type is unknown to checkers."""

        @property
        def num_leaves(self) -> int: ...
        def unflatten(self, leaves: Iterable[Any], /) -> Any: ...
        def flatten_up_to(self, tree: Any, /) -> list[Any]: ...
        def node_data(self) -> Any: ...
        def children(self) -> "list[PyTreeDef]": ...
else:
    from jax.tree_util import PyTreeDef as PyTreeDef

    PyTree = Params = Updates = OptState = object

# The keys that lead from the root of a tree to a leaf.
KeyPath = tuple[Any, ...]
# As in `jax.tree.flatten`.
IsLeaf = Callable[[Any], bool] | None
# A function that receives one leaf and returns a bool.
LeafPredicate = Callable[[Any], bool]
# Selects leaves: a predicate, or a prefix tree, of any class, whose leaves are bools or predicates.
FilterSpec = LeafPredicate | bool | object
# Selects params: a prefix tree of the params whose leaves are bools, or a function from the params to one.
Mask = Callable[[Any], Any] | bool | object
# Labels params: a prefix tree of the params whose leaves are labels, or a function from the params to one.
Labels = Callable[[Any], Any] | str | object


@runtime_checkable
class HasDtype(Protocol):
    """An array, a NumPy number or a `jax.ShapeDtypeStruct`."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@runtime_checkable
class TransformationLike(Protocol):
    """A gradient transformation of treekit, of Optax or your own: any object with `init` and `update`.

    >>> import optax
    >>> isinstance(optax.adam(1e-3), TransformationLike), isinstance(optax.adam, TransformationLike)
    (True, False)
    """

    @property
    def init(self) -> Callable[..., Any]:
        """Takes the params, and returns a state."""
        ...

    @property
    def update(self) -> Callable[..., tuple[Any, Any]]:
        """Takes updates, a state and perhaps the params, and returns updates and a state."""
        ...
