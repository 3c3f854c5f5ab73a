"""Names for what several functions take, for their signatures."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

# A question asked of each leaf.
LeafPredicate = Callable[[Any], bool]
# Which leaves: a predicate, or a prefix tree, of any class, whose leaves are bools or predicates.
FilterSpec = LeafPredicate | bool | object
# Which parts of the params: a prefix tree of them with bools at its leaves, or a function from the params to one.
Mask = Callable[[Any], Any] | bool | object
# Which transformation for which part: a prefix tree of the params with labels, or a function from the params to one.
Labels = Callable[[Any], Any] | str | object


@runtime_checkable
class TransformationLike(Protocol):
    """A transformation of treekit's, Optax's or your own: whatever has `init` and `update`.

    >>> import optax
    >>> isinstance(optax.adam(1e-3), TransformationLike), isinstance(optax.adam, TransformationLike)
    (True, False)
    """

    @property
    def init(self) -> Callable[..., Any]:
        """Takes params; returns a state."""
        ...

    @property
    def update(self) -> Callable[..., tuple[Any, Any]]:
        """Takes updates, a state and perhaps params; returns updates and a state."""
        ...
