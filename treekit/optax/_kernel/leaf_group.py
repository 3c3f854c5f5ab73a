"""A core that runs on a list of some leaves, as in `param_groups`: about what are functions of the params asked?

A mask or labels, inside of such a core, are about the tree that has all leaves, with their names. So they are resolved
for that tree, once for all groups of an update, and each group takes the values of its leaves. Which group runs is in a
context variable and not an argument, since Optax's own functions call cores.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

from treekit._base.context import setting
from treekit._base.types import Params, PyTree

# The values of each spec for all leaves, by the id of the spec, which is kept so that its id stays its own.
Answers: TypeAlias = dict[int, tuple[object, list[Any]]]


@dataclasses.dataclass(frozen=True, eq=False)
class LeafGroup:
    """Some leaves of the params, of which a core sees a list.

    Attributes:
        params: the params inside, with all leaves.
        indices: which of the leaves are in the list.
        answers: what specs have answered for all leaves; all groups of an update share it.
    """

    params: Params
    indices: Sequence[int]
    answers: Answers

    def answers_of(self, spec: object, ask: Callable[[Params], list[Any]]) -> list[Any]:
        """Return the values of a spec for the leaves in the list.

        Args:
            spec: such as a mask.
            ask: returns its values for each leaf of the params. It is called once for all groups of an update.
        """
        if id(spec) not in self.answers:
            with setting(_GROUP, None):  # it sees a tree again
                self.answers[id(spec)] = spec, ask(self.params)
        _, values = self.answers[id(spec)]
        return [values[i] for i in self.indices]


_GROUP: ContextVar[LeafGroup | None] = ContextVar("group", default=None)


def in_group(group: LeafGroup) -> contextlib.AbstractContextManager[LeafGroup | None]:
    """Say, while a core runs, that it sees a list of these leaves only."""
    return setting(_GROUP, group)


def group_inside(tree: PyTree) -> LeafGroup | None:
    """Return the group whose list of leaves a tree is, perhaps with holes; None for any other tree."""
    group, cls = _GROUP.get(), tree.__class__
    return group if group is not None and cls is list and len(tree) == len(group.indices) else None
