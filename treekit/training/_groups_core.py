"""What `param_groups` runs: one optimizer, once for each group of leaves that have the same options."""

from collections.abc import Mapping, Sequence
from typing import Any

from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.states import is_known_code
from treekit._base.types import OptState, Params, Updates
from treekit._names.key_path import path_name
from treekit.optax._kernel.extra_args import args_like
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._kernel.sliced import SlicedState, pick, place
from treekit.optax._kernel.state_map import Entry, map_state
from treekit.optax._kernel.transformation import Core, core_of
from treekit.optax._wrappers.call import Call, converted
from treekit.optax._wrappers.select import update_part
from treekit.training._groups_of_leaves import Group, GroupsOfLeaves
from treekit.training._groups_table import Row, Times

_USE_PARTITION = "Use optax.partition, with an optimizer for each group"


class TableOptimizer:
    """The core of an optimizer with groups.

    If all leaves are one group, since a table only freezes, or has one row for all, its core sees the tree itself, and
    may compute with all leaves together. Several groups see lists of their leaves. `GroupsOfLeaves` says which leaves
    are in which group. A `Group` is, for each option that a row sets for its leaves, the index of that row, such as
    (("b1", 2), ("learning_rate", 0)); () has the defaults alone.

    Attributes:
        call: the call of the factory with the defaults.
        rows: the rows of the table.
        values: the hyperparameters, and other options, as they are now.
        defaults: the names of those that no row sets.
    """

    def __init__(self, call: Call, rows: Sequence[Row], values: Mapping[str, Any]) -> None:
        self.call, self.rows, self.values = call, rows, values
        of_rows = {row.hyperparam(option) for row in rows for option in row.options}
        self.defaults = [name for name in values if name not in of_rows]

    def core(self, group: Group) -> Core:
        """Call the factory with the options of a group."""
        options = {name: self.values[name] for name in self.defaults}
        for option, row_index in group:
            row = self.rows[row_index]
            value = self.values[row.hyperparam(option)]
            is_factor = isinstance(row.options[option], Times)
            options[option] = value * options[option] if is_factor else value
        call = self.call.with_values(options)
        return core_of((converted(call) if call.is_of_optax else call).make())

    def init(self, params: Params) -> Any:
        if is_params_placeholder(params):
            return self.core(()).init(params)
        groups = GroupsOfLeaves(self.rows, params, is_init=True)
        if groups.only is not None:
            return self.core(groups.only).init(groups.without_frozen(params))
        return self._init_on_lists(groups, params)

    def update(self, updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        groups = GroupsOfLeaves(self.rows, updates if params is None else params)
        if groups.only is not None:
            part, inner_update = groups.without_frozen(updates), self.core(groups.only).update
            new, new_state = update_part(inner_update, part, updates, state, params, extra, any_shape=False)
        else:
            new, new_state = self._update_on_lists(groups, updates, state, params, extra)
        return groups.with_zeros(new, updates, params), new_state

    def _init_on_lists(self, groups: GroupsOfLeaves, params: Params) -> Any:
        """Return the state for all leaves, from that of each group for a list of its leaves."""
        leaves = jtu.tree_leaves(params)
        states: dict[Group, Any] = {}
        for group, indices in groups.indices.items():
            with groups.inside(group):
                states[group] = self.core(group).init(pick(indices, leaves))
        first = next(iter(states))
        part = pick(groups.indices[first], leaves)
        self._check_of_all(states[first], part)
        whole = SlicedState.like(SlicedState.of(states[first], part), params)
        for group, state in states.items():
            try:
                whole.put(groups.indices[group], state)
            except ValueError as error:
                raise self._other_structure(group, first) from error
        return whole.whole()

    def _update_on_lists(
        self, groups: GroupsOfLeaves, updates: Updates, state: OptState, params: Params, extra: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Update the leaves of each group in a list."""
        leaves, treedef = jtu.tree_flatten(updates)
        of_params = None if params is None else treedef.flatten_up_to(params)
        lists = {name: treedef.flatten_up_to(x) for name, x in args_like(extra, updates).items()}
        sliced, results = SlicedState.of(state, updates), list[tuple[Any, Any]]()
        for group, indices in groups.indices.items():
            own = {**extra, **{name: pick(indices, leaves_of_arg) for name, leaves_of_arg in lists.items()}}
            own_params = None if of_params is None else pick(indices, of_params)
            with groups.inside(group):
                results.append(self.core(group).update(pick(indices, leaves), sliced.part(indices), own_params, **own))
        for indices, (new, new_state) in zip(groups.indices.values(), results, strict=True):
            place(leaves, indices, new)
            sliced.put(indices, new_state)
        return treedef.unflatten(leaves), sliced.whole()

    def _check_of_all(self, state: OptState, params: Params) -> None:
        """Raise a TypeError unless groups can share what belongs to no parameter in a state."""
        options = {option: row for row in self.rows for option in row.options}
        for entry, x in zip(map_state(state, params), jtu.tree_leaves(state), strict=True):
            if entry.param is not None:
                continue
            if entry.field in options:
                raise TypeError(
                    f"param_groups: the row {options[entry.field].text} sets {entry.field}, of which the state of "
                    f"{self.call.name} has one for all parameters. {_USE_PARTITION}"
                )
            if not _is_of_all(entry, x):
                raise TypeError(
                    f"param_groups: in the state of {self.call.name}, {path_name(entry.path)} belongs to no parameter, "
                    f"and is not a count, so groups cannot share it. {_USE_PARTITION}"
                )

    def _other_structure(self, group: Group, first: Group) -> ValueError:
        own = ", ".join(sorted(f"{option} of the row {self.rows[i].text}" for option, i in {*group} ^ {*first}))
        return ValueError(
            f"param_groups: with {own}, the state of {self.call.name} has another structure, and groups share one. "
            "Give an option that adds a part of the state, such as momentum or mask, to all of them; or use "
            "optax.partition, with an optimizer for each group"
        )


def _is_of_all(entry: Entry, x: Any) -> bool:
    """Whether groups can share an array that belongs to no parameter; in a state of a user's own, an integer."""
    if entry.owner is None or not is_known_code(entry.owner):
        return shape_of(x) == () and issubdtype(dtype_of(x), jnp.signedinteger)
    return entry.field in (*entry.known.of_all, *entry.known.schedule_counts)
