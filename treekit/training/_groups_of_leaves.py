"""Which rows of the table of `param_groups` decide about each leaf? Leaves with the same rows are a group."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import optax

from treekit._base.jax import jtu
from treekit._base.types import Params, PyTree, Updates
from treekit._names.key_path import flatten_with_path, path_name
from treekit._select.masks import Combined, Inverse, MaskSpec
from treekit._select.paths import PathMask, select_leaves
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.leaf_group import Answers, LeafGroup, group_inside, in_group
from treekit.optax._kernel.passed import NOT_PASSED, as_passed
from treekit.optax._wrappers.select import zero_update
from treekit.training._groups_table import Row
from treekit.training._row_names import noted_names

# For each option that a row sets for a leaf, the row: () if no row does. A leaf that is frozen has None instead.
Group: TypeAlias = tuple[tuple[str, int], ...]


class GroupsOfLeaves:
    """The groups of the leaves of params, in one `init` or update.

    Attributes:
        indices: the leaves of each group, as indices; without those that are frozen. If all are, the defaults' group.
        only: the only group, which can see a tree instead of a list of leaves; None if there are several.
    """

    def __init__(self, rows: Sequence[Row], params: Params, *, is_init: bool = False) -> None:
        if group_inside(params):
            raise ValueError("a param_groups is inside of another one. Write one table, with the rows of both")
        asked = as_passed(params)
        if asked is None and params is not None:
            raise ValueError(f"the table of param_groups {NOT_PASSED}")
        of_leaves = _groups_of(rows, asked, is_init=is_init)
        _note_rows(rows, params, of_leaves)
        self._is_frozen = [group is None for group in of_leaves]
        indices: dict[Group, list[int]] = {}
        for i, group in enumerate(of_leaves):
            if group is not None:
                indices.setdefault(group, []).append(i)
        self.indices = indices or {(): []}
        self.only = next(iter(self.indices)) if len(self.indices) == 1 else None
        self._params = params
        self._answers: Answers = {}

    def inside(self, group: Group) -> contextlib.AbstractContextManager[LeafGroup | None]:
        """Say, while the core of a group runs, which leaves it sees."""
        return in_group(LeafGroup(self._params, self.indices[group], self._answers))

    def without_frozen(self, tree: PyTree) -> Any:
        """Return a tree with a MaskedNode for what is frozen."""
        leaves, treedef = jtu.tree_flatten(tree)
        pairs = zip(leaves, self._is_frozen, strict=True)
        return treedef.unflatten(optax.MaskedNode() if is_frozen else x for x, is_frozen in pairs)

    def with_zeros(self, new: Updates, updates: Updates, params: Params) -> Any:
        """Return new updates with zeros for what is frozen."""
        olds, treedef = jtu.tree_flatten(updates)
        likes = olds if params is None else treedef.flatten_up_to(params)
        each = zip(treedef.flatten_up_to(new), olds, likes, self._is_frozen, strict=True)
        return treedef.unflatten(zero_update(x, like) if is_frozen else y for y, x, like, is_frozen in each)


def _groups_of(rows: Sequence[Row], params: Params, *, is_init: bool) -> list[Group | None]:
    """Return the group of each leaf; raise a ValueError if a row, or an option of one, decides about none.

    Args:
        rows: the rows.
        params: the params as the user passed them.
        is_init: whether a mask must select some of them, as in `init`, unless they are only a part, with a MaskedNode
            for the rest.
    """
    selected_by_rows = select_leaves("param_groups", [row.mask for row in rows], params)
    if is_init and not any(isinstance(x, optax.MaskedNode) for x in jtu.tree_leaves(params, is_leaf=is_hole)):
        for row, selected in zip(rows, selected_by_rows, strict=True):
            # Patterns alone raise themselves, except for what may match None.
            if not isinstance(row.mask, PathMask) and _is_strict(row.mask) and not any(selected):
                raise ValueError(
                    f"param_groups: the row {row.text} selects no parameter that can be trained. Correct or delete it"
                )
    selecting = list(zip(*selected_by_rows, strict=True)) if rows else [()] * len(jtu.tree_leaves(params))
    group_of = {flags: _group(rows, flags) for flags in dict.fromkeys(selecting)}  # few, since many leaves are alike
    deciding = {pair for group in group_of.values() for pair in group or ()}
    for i, row in enumerate(rows):
        selects = any(flags[i] for flags in group_of)
        idle = [option for option in row.options if (option, i) not in deciding]
        if selects and idle:
            raise ValueError(
                f"param_groups: {idle[0]} of the row {row.text} decides about no parameter: earlier rows do, or freeze "
                "them. Put narrow rows first, and leave out what has no effect"
            )
    return [group_of[flags] for flags in selecting]


def _group(rows: Sequence[Row], flags: Sequence[bool]) -> Group | None:
    """Return the group of the leaves that these rows select."""
    selecting = [(i, row) for i, (row, is_selected) in enumerate(zip(rows, flags, strict=True)) if is_selected]
    if any(row.is_frozen for _, row in selecting):
        return None
    deciding: dict[str, int] = {}
    for i, row in selecting:
        deciding = dict.fromkeys(row.options, i) | deciding  # the first row that sets an option
    return tuple(sorted(deciding.items()))


def _is_strict(mask: MaskSpec) -> bool:
    """Whether all patterns in a mask have to match something."""
    if isinstance(mask, Combined):
        return all(map(_is_strict, mask.masks))
    if isinstance(mask, Inverse):
        return _is_strict(mask.mask)
    return mask.strict if isinstance(mask, PathMask) else True


def _note_rows(rows: Sequence[Row], params: Params, groups: Sequence[Group | None]) -> None:
    """Note the names of the rows that decide about each leaf, in the order of the table, if somebody reads them."""
    names = noted_names()
    if names is None:
        return
    for (path, _), group in zip(flatten_with_path(params)[0], groups, strict=True):
        if group:
            deciding = sorted({i for _, i in group})
            names[path_name(path)] = [rows[i].name for i in deciding]
