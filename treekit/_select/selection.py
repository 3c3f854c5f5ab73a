"""What `tree_find` and `tree_at` have selected: by name (`ByName`), or by a function (`ByFunction`)."""

import abc
from collections.abc import Iterable
from typing import Any


class Selection(abc.ABC):
    """The nodes that `where` selects in a tree.

    Attributes:
        is_one: whether `where` is one pattern or class, or a function that returned one node.
        nodes: the nodes, in the order in which the function returned them, or else in that of the tree.
        nodes_of_item: for each item of `where` (or each node returned), the indices of its nodes.
        nested: the names of a node and of another one inside it; None if no node is inside another.
    """

    is_one: bool
    nodes: list[Any]
    nodes_of_item: list[list[int]]
    nested: tuple[str, str] | None = None

    @abc.abstractmethod
    def names(self) -> list[tuple[int, str]]:
        """Return the index and the name of each node, in the order of the tree."""

    @abc.abstractmethod
    def replaced(self, values: Iterable[Any]) -> Any:
        """Return a copy of the tree with a value in place of each node."""
