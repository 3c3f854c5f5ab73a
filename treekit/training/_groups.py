"""`param_groups`: one table says which parameters get other options of an optimizer.

Numbers and schedules, of the table too, are hyperparameters of one `inject_hyperparams`. Inside of it, leaves for which
the same rows decide are a group, and the optimizer runs once for each group, on its leaves of the updates, the params
and the state. So the state is that of one optimizer, whatever the table says.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import is_inexact_array, is_real_number, is_traced
from treekit._base.states import is_of_optax
from treekit._base.types import OptState, Params, PyTree, PyTreeDef, TransformationLike, Updates
from treekit._names.key_path import path_name
from treekit._names.pattern_errors import listed
from treekit._text.describe import describe_value
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._kernel.state_map import map_state, numbers_of_leaves
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._wrappers.call import Call, bind_original, converted
from treekit.optax._wrappers.inject import inject_hyperparams
from treekit.optax._wrappers.select import update_part
from treekit.training._groups_table import Group, Row, Times, groups_of, rows_of

_OF_ALL = "all"  # in place of a group: what belongs to no parameter
# Counts of updates in Optax's states, of which groups can share one. Of anything else, `_check_shared` finds out.
_COUNTS = ("count", "step", "step_count", "mini_step", "gradient_step", "rate_count", "rounding_count")


_VALUES = (jnp.signedinteger, jnp.inexact, jnp.bool_)  # not keys, which are of dtypes of their own, or unsigned


def param_groups(
    factory: Callable[..., TransformationLike], table: Mapping[Any, Any], /, *args: object, **defaults: object
) -> GradientTransformation[optax.InjectStatefulHyperparamsState]:
    """Return an optimizer with other options for some of the parameters, as a table says.

    A row of the table maps what selects parameters to the options that it sets. For each parameter and each option, the
    first row decides that selects the parameter and sets the option, and else the default. So a bias of the head can
    have the rate of the head, and the weight decay of biases. A row that is None freezes what it selects, whatever the
    other rows say: frozen parameters have no state, and updates of zero.

    Args:
        factory: a function of options that returns an optimizer, such as `optax.adamw`.
        table: the rows. A key is a pattern or a class, as in `path_mask`; a mask function, such as `leaf_mask` makes;
            or a tuple of these, of which one has to select. A value is None, or a dict of arguments of `factory` by
            name: numbers, schedules, `times(k)`, or anything else that it takes. The key "name" gives the row a name;
            without it, that is made of its patterns and classes: "head" for `head.**`.
        *args: the first of the defaults, by position.
        **defaults: the options of all parameters, as `factory` takes them.

    Returns:
        A transformation. Its state is that of `inject_hyperparams(factory)`, with the numbers and schedules that you
        pass as hyperparameters: a default under the name of its option, one of a row under both names, such as
        "head_learning_rate", and the factor of `times` as "head_learning_rate_times". `training.get_hyperparams` and
        `set_hyperparams` read and change them; a new default applies to all that are relative to it.

    Raises:
        ValueError: `factory` has no such option; or a row has no name, or that of another one. Raised by `init` and
            `update` if a row selects no parameter, or one of its options decides about none.
        TypeError: `factory` does not take the defaults; the table or a row is not a dict; a key is none of the above;
            or an option with `times` has no default that is a number or a schedule. Raised by `init` if the optimizer
            has state that belongs to no parameter, as that of `prodigy`, or another structure of state in one group.

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
    call = bind_original(factory, args, defaults)
    rows = rows_of(table, call)
    given: dict[str, Any] = {**call.arguments, **call.gathered}
    if wrong := [option for option, x in given.items() if isinstance(x, Times)]:
        raise TypeError(f"times is for the rows of the table, and {wrong[0]} is a default")
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
        for option, i in group or ():
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
        groups = groups_of(self.rows, params)
        trained = _trained(groups)
        whole = _part(params, [_OF_ALL if group is not None else None for group in groups], _OF_ALL, None)
        if len(trained) == 1:
            return self.core(trained[0]).init(whole)
        like = untyped.eval_shape(self.core(()).init, whole)
        parts = [_part(params, groups, group, _hole(like)) for group in trained]
        states = [self.core(group).init(part) for group, part in zip(trained, parts, strict=True)]
        owners = _owners(like, params, groups)
        leaves, treedef = jtu.tree_flatten(like)
        for group, state in zip(trained, states, strict=True):
            try:
                leaves = _replaced(leaves, owners, group, treedef, state)
            except ValueError as error:
                own = ", ".join(sorted({f"{option} of the row {self.rows[i].text}" for option, i in group or ()}))
                raise ValueError(
                    f"param_groups: with {own or 'the defaults'}, the state of {self.call.name} has another structure, "
                    "and groups share one. Give an option that adds a part of the state, such as momentum or mask, to "
                    "all of them; or use optax.partition, with an optimizer for each group"
                ) from error
        self._check_shared(parts, states)
        return treedef.unflatten(leaves)

    def update(self, updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        groups = groups_of(self.rows, updates if params is None else params)
        owners = _owners(state, updates, groups)
        old, treedef = jtu.tree_flatten(updates)
        leaves, state_treedef = jtu.tree_flatten(state)
        hole = _hole(state)
        new: list[Any] = [jnp.zeros_like(x) if group is None else x for x, group in zip(old, groups, strict=True)]
        new_leaves = leaves
        for group in _trained(groups):
            holes, part = _part(updates, groups, group, hole), _part(state, owners, group, hole)
            results = update_part(self.core(group).update, holes, updates, part, params, extra, any_shape=False)
            new = _replaced(new, groups, group, treedef, results[0])
            new_leaves = _replaced(new_leaves, owners, group, state_treedef, results[1])
        return treedef.unflatten(new), state_treedef.unflatten(new_leaves)

    def _check_shared(self, parts: Sequence[Params], states: Sequence[OptState]) -> None:
        """Raise a TypeError if groups cannot share what belongs to no parameter.

        They can if it is not random, and equal in all groups, now and after a step. That is so if it depends on no
        gradient, parameter or hyperparameter: `jax.vmap` refuses to return once what depends on its argument.
        """
        entries = [x for x in map_state(states[0], parts[0]) if x.param is None]
        if all(is_of_optax(x.owner) and x.field in _COUNTS for x in entries):
            return

        def shared_of(state: OptState, part: Params) -> list[Any]:
            pairs = zip(jtu.tree_leaves(state), map_state(state, part), strict=True)
            return [x for x, entry in pairs if entry.param is None]

        def shared_after_a_step(factor: Any) -> list[Any]:
            def scaled(tree: PyTree) -> Any:
                def times_factor(x: Any) -> Any:
                    return x * factor.astype(x.dtype) if is_inexact_array(x) else x

                return jtu.tree_map(times_factor, tree)

            values = {name: scaled(x) for name, x in self.values.items()}
            part, core = scaled(parts[0]), _Grouped(self.call, self.rows, values).core(())
            return shared_of(core.update(part, core.init(part), part)[1], part)

        try:
            untyped.eval_shape(untyped.vmap(shared_after_a_step, out_axes=None), jnp.ones(1))
            first, *others = itertools.starmap(shared_of, zip(states, parts, strict=True))
            are_equal = [jnp.array_equal(x, y) for xs in others for x, y in zip(first, xs, strict=True)]
            are_values = [any(issubdtype(dtype_of(x), kind) for kind in _VALUES) for x in first]
            can_share = all(are_values) and all(is_traced(x) or bool(x) for x in are_equal)
        except Exception:  # it depends on them; or an update needs more arguments, and nothing is known
            can_share = False
        if not can_share:
            names = listed([path_name(x.path) for x in entries])
            raise TypeError(
                f"param_groups: in the state of {self.call.name}, {names} belongs to no parameter, so groups cannot "
                "share it. Use optax.partition, with an optimizer for each group"
            )


def _owners(state: OptState, params: Params, groups: Sequence[Group]) -> list[Any]:
    """Return the group of each leaf of a state; `_OF_ALL` for what belongs to no parameter, which groups share."""
    group_of = dict(zip(numbers_of_leaves(params), groups, strict=True))
    return [_OF_ALL if entry.param is None else group_of[entry.param] for entry in map_state(state, params)]


def _trained(groups: Sequence[Group]) -> list[Group]:
    """Return each group once, without the frozen leaves; that of the defaults, if nothing is trained."""
    return [group for group in dict.fromkeys(groups) if group is not None] or [()]


def _hole(state: OptState) -> Any:
    """Return what a group has in place of others' leaves: None, which JAX is fastest with, unless the state has masks.

    An optimizer that masks leaves itself has a MaskedNode for them in its state, so it needs one in updates too.
    """

    def is_masked(x: object) -> bool:
        return isinstance(x, optax.MaskedState)

    return optax.MaskedNode() if any(map(is_masked, jtu.tree_leaves(state, is_leaf=is_masked))) else None


def _part(tree: PyTree, owners: Sequence[Any], group: Any, hole: Any) -> Any:
    """Return a tree with holes for what is not of a group: a MaskedNode, as in the state, for what is frozen."""
    leaves, treedef = jtu.tree_flatten(tree)
    holes = [optax.MaskedNode() if owner is None else hole for owner in owners]
    triples = zip(leaves, owners, holes, strict=True)
    return treedef.unflatten(x if owner is group or owner is _OF_ALL else other for x, owner, other in triples)


def _replaced(old: Sequence[Any], owners: Sequence[Any], group: Group, treedef: PyTreeDef, new: PyTree) -> list[Any]:
    """Return leaves, of which those of a group are replaced by those of another tree."""
    news = treedef.flatten_up_to(new)
    return [y if owner is group or owner is _OF_ALL else x for x, y, owner in zip(old, news, owners, strict=True)]
