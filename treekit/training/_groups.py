"""`param_groups`: one table says which parameters get other options of an optimizer.

Numbers and schedules, of the table too, are hyperparameters of one `inject_hyperparams`. Inside of it, leaves for which
the same rows decide are a group, and the optimizer runs once for each group, on its leaves of the updates, the params
and the state. So the state is that of one optimizer, whatever the table says. In this order:

1. `_groups_leafwise`: may this factory run for groups?
2. `_groups_table`: the rows, with what each selects and the options that it sets. Then `inject_hyperparams` calls, in
   each `init` and update, what `param_groups` makes of them:
3. `_groups_of_leaves`: which rows decide about each leaf of these params;
4. `_groups_core`: one optimizer for each group, and one state for all;
5. `_kernel/sliced` and `leaf_group`: the state for some of the leaves, and what a mask inside is asked about.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax

from treekit._base.dtype import shape_of
from treekit._base.predicates import is_real_number
from treekit._base.types import TransformationLike
from treekit._text.describe import describe_value
from treekit.optax._kernel.transformation import Core, GradientTransformation
from treekit.optax._wrappers.call import Call
from treekit.optax._wrappers.inject import inject_hyperparams
from treekit.training._groups_core import TableOptimizer
from treekit.training._groups_leafwise import call_of, check_leafwise
from treekit.training._groups_table import Row, Times, check_is_table, rows_of


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
    check_is_table(table)
    call = call_of(factory, args, defaults)
    rows = rows_of(table, call)
    if any(row.options for row in rows):
        check_leafwise(call, leafwise)
    values, option_of = _hyperparams_of(call, rows)

    def make(**values: Any) -> Core:
        grouped = TableOptimizer(call, rows, values)
        return Core(grouped.init, grouped.update)

    # inject_hyperparams reads which hyperparameters there are, and what each may be, from the signature.
    made: Any = make
    made.__name__ = call.name
    made.__signature__ = inspect.Signature([_parameter(call, option, name) for name, option in option_of.items()])
    return inject_hyperparams(made)(**values)


def _hyperparams_of(call: Call, rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the defaults and the options of rows, by the names of their hyperparameters; and the option of each name.

    Raises:
        ValueError: two of them would have one name.
        TypeError: an option with `times` has no default; or an option of Optax that is a number is not one.
    """
    values: dict[str, Any] = {**call.arguments, **call.gathered}
    option_of = {name: name for name in values}
    for row in rows:
        for option, x in row.options.items():
            name = row.hyperparam(option)
            if name in option_of or name in call.signature.parameters:
                raise ValueError(f"{call.name} has an option {name}: give the row {row.text} another 'name'")
            if isinstance(x, Times):
                option_of.setdefault(option, option)
                if not _is_numeric(values.setdefault(option, _own_default(call, option))):
                    raise TypeError(
                        f"times: {option} of {call.name} has no default that is a number: pass one, {option}=..."
                    )
            option_of[name] = option
            values[name] = x.factor if isinstance(x, Times) else x
    for name, option in option_of.items():
        is_number = call.is_of_optax and option in call.parameters and call.parameters[option].is_numeric
        if is_number and shape_of(values[name]):
            raise TypeError(f"param_groups: {name} must be one number, found {describe_value(values[name])}")
    return values, option_of


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
