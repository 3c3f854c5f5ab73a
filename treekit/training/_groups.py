"""`param_groups`: one table says which parameters get other options of an optimizer.

Numbers and schedules, of the table too, are hyperparameters of one `inject_hyperparams`. Inside of it, leaves for which
the same rows decide are a group, and the optimizer runs once for each group, on its leaves of the updates, the params
and the state. So the state is that of one optimizer, whatever the table says.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax

from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_real_number
from treekit._base.states import is_of_optax
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates
from treekit._names.key_path import flatten_with_path, path_name
from treekit._text.describe import describe_value
from treekit.optax._kernel.extra_args import is_like
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._kernel.passed import NOT_PASSED, LeafGroup, as_passed, in_group
from treekit.optax._kernel.state_map import Entry, LikeParams, map_state, numbers_of_leaves, take_apart
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._wrappers.call import Call, converted
from treekit.optax._wrappers.inject import inject_hyperparams
from treekit.optax._wrappers.select import update_part, zero_update
from treekit.training._groups_table import Group, Row, Times, call_of, check_leafwise, groups_of, rows_of
from treekit.training._row_names import are_noted

_USE_PARTITION = "Use optax.partition, with an optimizer for each group"


def param_groups(
    factory: Callable[..., TransformationLike],
    table: Mapping[Any, Any],
    /,
    *args: object,
    leafwise: bool = False,
    **defaults: object,
) -> GradientTransformation[optax.InjectStatefulHyperparamsState]:
    """Return an optimizer with other options for some of the parameters, as a table says.

    A row of the table maps what selects parameters to the options that it sets. For each parameter and each option, the
    first row decides that selects the parameter and sets the option, and else the default. So a bias of the head can
    have the rate of the head, and the weight decay of biases. A row that is None freezes what it selects, whatever the
    other rows say: frozen parameters have no state, and updates of zero.

    Args:
        factory: a function of options that returns an optimizer, such as `optax.adamw`, of treekit or of plain Optax.
            If a row sets an option, one that computes each parameter alone, as most of Optax do.
        table: the rows. A key is a pattern or a class, as in `path_mask`; a mask of `path_mask`, `leaf_mask` or
            `trainable`, which `&`, `|` and `~` combine; or a tuple of these, of which one has to select. A value is
            None, or a dict of arguments of `factory` by name: numbers, schedules, `times(k)`, or anything else that it
            takes. The key "name" gives the row a name; without it, that is made of its patterns and classes: "head" for
            `head.**`.
        *args: the first of the defaults, by position.
        leafwise: True says of a factory of your own that what it returns computes each parameter alone, and, in a state
            of your own class, keeps nothing for all of them but counts of updates. It runs once for each group, on a
            list of its leaves. Masks by name work in it, in wrappers of `treekit.optax`.
        **defaults: the options of all parameters, as `factory` takes them.

    Returns:
        A transformation. Its state is that of `inject_hyperparams(factory)`, with the numbers and schedules that you
        pass as hyperparameters: a default under the name of its option, one of a row under both names, such as
        "head_learning_rate", and the factor of `times` as "head_learning_rate_times". `training.get_hyperparams` and
        `set_hyperparams` read and change them; a new default applies to all that are relative to it.

    Raises:
        ValueError: `factory` has no such option; or a row has no name, or that of another one. Raised by `init` if a
            row selects no parameter, which one in `partition` or `masked` may; if one of its options decides about
            none; or if the option of a row adds something to the state.
        TypeError: a row sets an option, and `factory` computes with all parameters together, as `prodigy` does, or may
            do so; `factory` does not take the defaults; the table or a row is not a dict; a key is something else; an
            array of several numbers is passed for a number; or an option with `times` has no default that is a number
            or a schedule. Raised by `init` if groups cannot share what the state has for all parameters.

    >>> import jax.numpy as jnp
    >>> from treekit import optax, training
    >>> table = {"embed": None, "**.b": {"weight_decay": 0.0}, "head.**": {"learning_rate": training.times(2)}}
    >>> optimizer = training.param_groups(optax.adamw, table, learning_rate=0.25, weight_decay=0.5)
    >>> params = {"embed": jnp.ones(2), "head": {"w": jnp.ones(2), "b": jnp.ones(2)}, "w": jnp.ones(2)}
    >>> [(row.path, round(row.step, 3), row.decay) for row in training.summary(optimizer, params).rows]
    [('embed', 0.0, 0.0), ('head.b', 0.5, 0.0), ('head.w', 0.5, 0.25), ('w', 0.25, 0.125)]
    >>> for name, value in training.get_hyperparams(optimizer.init(params)).items():
    ...     print(name, value)
    b_weight_decay 0.0
    head_learning_rate_times 2.0
    learning_rate 0.25
    weight_decay 0.5
    """
    if not callable(factory):
        raise TypeError(
            "param_groups takes a function of options, and the options: param_groups(optax.adamw, table, 1e-3), found "
            f"{describe_value(factory)}"
        )
    for x in (*args, *defaults.values()):
        if isinstance(x, Times):
            raise TypeError(f"{x!r} is relative to a default, so it is for the rows of the table, and is not a default")
    call = call_of(factory, args, defaults)
    rows = rows_of(table, call)
    if any(row.options for row in rows):
        check_leafwise(call, leafwise)
    given: dict[str, Any] = {**call.arguments, **call.gathered}
    option_of = dict(zip(given, given, strict=True))
    for row in rows:
        for option, x in row.options.items():
            name = row.hyperparam(option)
            if name in option_of or name in call.signature.parameters:
                raise ValueError(f"{call.name} has an option {name}: give the row {row.text} another 'name'")
            if isinstance(x, Times) and not _is_numeric(given.setdefault(option, _own_default(call, option))):
                raise TypeError(
                    f"times: {option} of {call.name} has no default that is a number: pass one, {option}=..."
                )
            option_of |= {option: option, name: option} if isinstance(x, Times) else {name: option}
            given[name] = x.factor if isinstance(x, Times) else x
    for name, option in option_of.items():
        is_number = call.is_of_optax and option in call.parameters and call.parameters[option].is_numeric
        if is_number and shape_of(given[name]):
            raise TypeError(f"param_groups: {name} must be one number, found {describe_value(given[name])}")
    parameters = [_parameter(call, option, name) for name, option in option_of.items()]

    def make(**values: Any) -> Core:
        grouped = _Grouped(call, rows, values)
        return Core(grouped.init, grouped.update)

    made: Any = make
    made.__name__, made.__signature__ = call.name, inspect.Signature(parameters)
    return inject_hyperparams(made)(**given)


def _parameter(call: Call, option: str, name: str) -> inspect.Parameter:
    """Return a parameter that says of its arguments what that of the option says."""
    own = call.signature.parameters.get(option)
    annotation = inspect.Parameter.empty if own is None else own.annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _own_default(call: Call, option: str) -> Any:
    parameter = call.signature.parameters.get(option)
    return None if parameter is None else parameter.default


def _is_numeric(x: object) -> bool:
    """Whether an option is a number or a schedule."""
    return is_real_number(x) or (callable(x) and not isinstance(x, type))


# ----------------------------------------------------------------------------------------------------- the optimizer


class _Grouped:
    """The core of an optimizer with groups.

    Attributes:
        call: the call of the factory with the defaults.
        rows: the rows of the table.
        values: the hyperparameters, and other options, as they are now.
        options: the names of those that are defaults.
    """

    def __init__(self, call: Call, rows: Sequence[Row], values: Mapping[str, Any]) -> None:
        self.call, self.rows, self.values = call, rows, values
        of_rows = {row.hyperparam(option) for row in rows for option in row.options}
        self.options = [name for name in values if name not in of_rows]

    def core(self, group: Group) -> Core:
        """Call the factory with the options of a group."""
        options = {name: self.values[name] for name in self.options}
        for option, i in group:
            row = self.rows[i]
            value = self.values[row.hyperparam(option)]
            options[option] = value * options[option] if isinstance(row.options[option], Times) else value
        known = self.call.signature.parameters
        arguments = {name: x for name, x in options.items() if name in known}
        gathered = {name: x for name, x in options.items() if name not in known}
        call = dataclasses.replace(self.call, arguments=arguments, gathered=gathered)
        return core_of((converted(call) if call.is_of_optax else call).make())

    def init(self, params: Params) -> Any:
        if is_params_placeholder(params):
            return self.core(()).init(params)
        groups = _Groups(self.rows, params, whole=True)
        if groups.only is not None:
            return self.core(groups.only).init(groups.trained(params))
        leaves, treedef = jtu.tree_flatten(params)
        parts: list[Any] = [_at(indices, leaves) for indices in groups.indices.values()]
        states: list[Any] = []
        for group, part in zip(groups.indices, parts, strict=True):
            with groups.inside(group):
                states.append(self.core(group).init(part))
        self._check_of_all(states[0], parts[0])
        slots, state_treedef = take_apart(states[0], parts[0])
        wholes: list[Any] = [[optax.MaskedNode()] * len(leaves) if isinstance(x, LikeParams) else x for x in slots]
        for group, state in zip(groups.indices, states, strict=True):
            try:
                news = state_treedef.flatten_up_to(state)
            except ValueError as error:
                raise self._other_structure(group, next(iter(groups.indices))) from error
            for slot, whole, new in zip(slots, wholes, news, strict=True):
                if isinstance(slot, LikeParams):
                    _put(whole, groups.indices[group], new)
        pairs = zip(slots, wholes, strict=True)
        return state_treedef.unflatten(treedef.unflatten(x) if isinstance(slot, LikeParams) else x for slot, x in pairs)

    def update(self, updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        groups = _Groups(self.rows, updates if params is None else params)
        if groups.only is not None:
            part, inner_update = groups.trained(updates), self.core(groups.only).update
            new, state = update_part(inner_update, part, updates, state, params, extra, any_shape=False)
            return groups.with_zeros(new, updates, params), state
        new, treedef = jtu.tree_flatten(updates)
        slots, state_treedef = take_apart(state, updates)
        numbers = numbers_of_leaves(updates)
        # Of what is like the params, lists; a group receives its own part of each.
        olds: list[Any] = [x.of(numbers) if isinstance(x, LikeParams) else x for x in slots]
        trees = {name: x for name, x in extra.items() if is_like(x, updates, may_be_number=name == "grad")}
        lists = {name: treedef.flatten_up_to(x) for name, x in trees.items()}
        of_params = None if params is None else treedef.flatten_up_to(params)
        news: list[Any] = [x[:] if isinstance(slot, LikeParams) else x for slot, x in zip(slots, olds, strict=True)]
        for group, indices in groups.indices.items():
            pairs = zip(slots, olds, strict=True)
            part = state_treedef.unflatten(_at(indices, x) if isinstance(slot, LikeParams) else x for slot, x in pairs)
            own = {name: _at(indices, lists[name]) if name in lists else x for name, x in extra.items()}
            with groups.inside(group):
                core = self.core(group)
                results = core.update(_at(indices, new), part, of_params and _at(indices, of_params), **own)
            _put(new, indices, results[0])
            for k, x in enumerate(state_treedef.flatten_up_to(results[1])):
                if isinstance(slots[k], LikeParams):
                    _put(news[k], indices, x)
                else:
                    news[k] = x
        new_state = (
            slot.replaced(dict(zip(numbers, x, strict=True))) if isinstance(slot, LikeParams) else x
            for slot, x in zip(slots, news, strict=True)
        )
        return groups.with_zeros(treedef.unflatten(new), updates, params), state_treedef.unflatten(new_state)

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
    if entry.owner is None or not is_of_optax(entry.owner):
        return shape_of(x) == () and issubdtype(dtype_of(x), jnp.signedinteger)
    return entry.field in (*entry.known.of_all, *entry.known.schedule_counts)


class _Groups:
    """The groups of the leaves of params, in one `init` or update.

    Attributes:
        indices: the leaves of each group, as indices; without those that are frozen. If all are, the defaults' group.
        only: the only group, which need not be a list of leaves; None if there are several.
    """

    def __init__(self, rows: Sequence[Row], params: Params, *, whole: bool = False) -> None:
        self.indices: dict[Group, list[int]] = {}
        asked = as_passed(params)
        if asked is None and params is not None:
            raise ValueError(f"the table of param_groups {NOT_PASSED}")
        of_leaves = groups_of(rows, asked, whole=whole)
        self._is_frozen = [group is None for group in of_leaves]
        for i, group in enumerate(of_leaves):
            if group is not None:
                self.indices.setdefault(group, []).append(i)
        names = are_noted()
        if names is not None:
            for (path, _), group in zip(flatten_with_path(params)[0], of_leaves, strict=True):
                if group:
                    names[path_name(path)] = list(dict.fromkeys(rows[i].name for _, i in sorted(group, key=_row)))
        self.indices = self.indices or {(): []}
        self.only = next(iter(self.indices)) if len(self.indices) == 1 else None
        self._params, self._answers = params, dict[int, tuple[Any, list[Any]]]()

    def inside(self, group: Group) -> contextlib.AbstractContextManager[None]:
        """Say, while the core of a group runs, which leaves it sees."""
        return in_group(LeafGroup(self._params, self.indices[group], self._answers))

    def trained(self, tree: PyTree) -> Any:
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


def _row(decided: tuple[str, int]) -> int:
    return decided[1]


def _at(indices: Sequence[int], leaves: Sequence[Any]) -> list[Any]:
    return [leaves[i] for i in indices]


def _put(leaves: list[Any], indices: Sequence[int], new: Sequence[Any]) -> None:
    for i, x in zip(indices, new, strict=True):
        leaves[i] = x
