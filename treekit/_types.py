"""Names for what several functions take, for their signatures."""

from collections.abc import Callable
from typing import Any

# A question asked of each leaf.
LeafPredicate = Callable[[Any], bool]
# Which leaves: a predicate, or a prefix tree, of any class, whose leaves are bools or predicates.
FilterSpec = LeafPredicate | bool | object
