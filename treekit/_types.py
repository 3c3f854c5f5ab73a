"""Names for what several functions take, for their signatures."""

from collections.abc import Callable
from typing import Any

# A question asked of each leaf.
LeafPredicate = Callable[[Any], bool]
# Which leaves: a predicate, or a prefix tree, of any class, whose leaves are bools or predicates.
FilterSpec = LeafPredicate | bool | object
# Which parts of the params: a prefix tree of them with bools at its leaves, or a function from the params to one.
Mask = Callable[[Any], Any] | bool | object
# Which transformation for which part: a prefix tree of the params with labels, or a function from the params to one.
Labels = Callable[[Any], Any] | str | object
