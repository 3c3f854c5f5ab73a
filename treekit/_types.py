"""Names for the types of common arguments."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

# A function that receives one leaf and returns a bool.
LeafPredicate = Callable[[Any], bool]
# Selects leaves: a predicate, or a prefix tree, of any class, whose leaves are bools or predicates.
FilterSpec = LeafPredicate | bool | object
# Selects params: a prefix tree of the params whose leaves are bools, or a function from the params to one.
Mask = Callable[[Any], Any] | bool | object
# Labels params: a prefix tree of the params whose leaves are labels, or a function from the params to one.
Labels = Callable[[Any], Any] | str | object


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
