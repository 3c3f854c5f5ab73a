"""`summary`: find what one step of an optimizer does to each leaf, and which state it has for it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from treekit._base.dtype import as_array, dtype_of, issubdtype, resolve_array, shape_of
from treekit._base.flax import is_of_nnx_optimizer, is_variable, values_of_variables
from treekit._base.jax import is_ref, jnp, jtu, untyped
from treekit._base.predicates import is_parameter, is_traced
from treekit._base.states import is_known_state
from treekit._base.types import OptState, Params, TransformationLike
from treekit._names.key_path import flatten_with_path, key_name, path_name, path_text
from treekit._text.describe import describe, describe_function, describe_value
from treekit._trained.declared import declared_frozen
from treekit._trained.leaves import numbers_as_arrays
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.state_map import Entry, map_state, numbers_of_leaves
from treekit.optax._kernel.transformation import GradientTransformation
from treekit.training._effects import DECLARED, FROZEN, NEVER_TRAINED, Effect, find_effects
from treekit.training._hyperparams import find_hyperparams, get_hyperparams, set_hyperparams
from treekit.training._round import filled
from treekit.training._row_names import names_of_rows
from treekit.training._summary_table import Accumulator, Row, Summary, is_unmoved

_LARGEST_STEP = 2**30  # counts are int32, and increase from it by the steps that are taken

_NOTE_OF_LATER_STATE = (
    "From this state, step and decay are the sizes of one update, with the moments of the state, and not rates. "
    "summary(optimizer, params, state, step=n) shows rates."
)


def summary(
    optimizer: TransformationLike, params: Params, state: OptState = None, *, step: ArrayLike | None = None
) -> Summary:
    """Show what one step of an optimizer does to each leaf, and which state it keeps for that leaf.

    Use it to check that masks, labels and rates reach the leaves that they were meant for. It runs the optimizer,
    outside of jit and from params of ones: with a gradient of ones, with a gradient of zeros, and with other PRNG keys
    or losses where the step may depend on them. So it works for any optimizer in any wrapper, and shows what it saw. By
    default, that is the first step: a leaf that is "0 in the first step" may move later, as with a warm-up; pass `step`
    to see the rates then. A leaf that does not move is "frozen" if its update depends on neither its gradient nor its
    param.

    For the leaves of a `MultiSteps` or `sam`, a step is a round of equal gradients, of a thousand at most: the sum of
    its updates. From a state within a round, it is the rest of the round. Clipping by the global norm clips the ones
    too, so that all steps are smaller than the rates by the same factor.

    Args:
        optimizer: a transformation of treekit, of plain Optax or your own, or a `MultiSteps`.
        params: the params, or the raw model. Leaves may be `jax.ShapeDtypeStruct`.
        state: the state to start from; by default that of `optimizer.init`. From a later one, you see the sizes of one
            update, with the momentum that the state has, and not rates: pass `step` too, or instead. It may be Flax's
            `nnx.Optimizer.opt_state`, with `nnx.state(model, nnx.Param)` for the params.
        step: the number of updates before the step that you want to see, an int or int array of shape (). Schedules are
            at this step, and moments are as new, so that you see the rates. If you pass a `state` too, it only gives
            the hyperparameters that no schedule sets. To be at this step, `summary` sets the counts of
            `scale_by_schedule` (in which optimizers have their learning rate), `add_decayed_weights`,
            `inject_hyperparams`, `scale_by_tree`, `schedule_free`, `conditionally_transform` and `conditionally_mask`,
            and, for `MultiSteps`, the number of rounds. It does not set counts that correct moments, as in adam, adopt
            and madgrad, also if they set a rate, as in dadapt_adamw, momo and prodigy, nor those in a state of your own
            class.

    Returns:
        A `Summary`: print it, or read its `rows`. The notes of rows say which rows of `param_groups` decide about the
        leaf, and what two steps do not show: a step depends on a loss, as in a line search, or on random numbers; it is
        not finite; the optimizer fails, or needs other arguments; the leaf is not a parameter, such as an object of a
        class that is not a pytree.

    Raises:
        TypeError: `optimizer` is not a transformation; or `params` has the state of an optimizer; or `state`
            is a number.
        ValueError: `step` is not an int from 0 to 2**30; or, with `step`, `state` has hyperparameters that the
            optimizer does not have.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = {"body": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "head": jnp.ones(3), "scale": jnp.ones(())}
    >>> optimizer = optax.partition(
    ...     {"adamw": optax.adamw(1e-3, weight_decay=0.1), "sgd": optax.sgd(0.1), "freeze": optax.set_to_zero()},
    ...     {"body": "adamw", "head": "sgd", "scale": "freeze"},
    ... )
    >>> print(summary(optimizer, params))
    leaf   array            step   decay   state      bytes  note
    body   2 leaves, 9 f32  0.001  0.0001  mu nu f32  72
    head   f32[3]           0.1    0                  0
    scale  f32[]            0      0                  0      frozen
    4 leaves, 1 not moving; 13 numbers, 52 bytes; state: 76 bytes, 4 bytes shared
    >>> warm_up = optax.sgd(optax.linear_schedule(0.0, 0.5, 100), momentum=0.9)
    >>> [summary(warm_up, params, step=step).rows[0].step for step in (0, 50)]
    [0.0, 0.25]
    """
    tx = at_boundary(optimizer)
    for path, x in flatten_with_path(params, is_known_state)[0]:
        if is_known_state(x):
            raise TypeError(
                f"summary(optimizer, params, state): params must be the params, or a model, found {type(x).__name__} "
                f"at {path_text(path)}: the state of an optimizer"
            )
    if isinstance(state, (int, float)):
        raise TypeError(f"state must be the state of an optimizer, found {state}; for a step: step={state}")
    if step is not None:
        _check_step(step)
    if state is not None:
        params, state = _as_passed_to_update(params, state)
    treedef = jtu.tree_structure(params)
    params = numbers_as_arrays(treedef.unflatten(map(_concrete, jtu.tree_leaves(params))))
    ones = filled(params, 1.0)
    is_later = state is not None and step is None
    if is_later:
        start, when = jtu.tree_map(as_array, state), "in this step"
    else:
        start, when = jtu.tree_map(as_array, tx.init(ones)), "in the first step"
        if step is not None:
            start, when = _at_step(step, start, ones, given=state), f"at step {step:,}"
    with names_of_rows() as names:
        effects = find_effects(tx, ones, start, when)
    entries = map_state(start, ones)
    if is_later:
        effects = _of_later_state(effects, has_copies=_copies_params(tx, params, entries))
    arrays = _arrays_by_param(start, entries)
    rows, keys = _rows(params, effects, arrays, names)
    note = _NOTE_OF_LATER_STATE if is_later else ""
    if all(row.note in NEVER_TRAINED for row in rows):
        note = "nothing is trained"
    return Summary(tuple(rows), _totals(rows, arrays), note, tuple(keys))


def _of_later_state(effects: Sequence[Effect], has_copies: bool) -> list[Effect]:
    """Leave out what params of ones do not show: signs, and if the state has copies of the real params, the decay."""
    if has_copies:
        return [x if x.note == FROZEN else x._replace(decay=None) for x in effects]
    return [x._replace(decay=x.decay and abs(x.decay)) for x in effects]


def _rows(
    params: Params,
    effects: Sequence[Effect],
    arrays: Mapping[int | None, list[Accumulator]],
    names: Mapping[str, Sequence[str]],
) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Return a row for each leaf that is not a function, and the parts of its path."""
    rows: list[Row] = []
    keys: list[tuple[str, ...]] = []
    frozen = declared_frozen(params, is_hole)
    # i numbers the leaves with holes among them, as `arrays` and `frozen` do.
    for i, (path, x), effect in zip(numbers_of_leaves(params), flatten_with_path(params)[0], effects, strict=True):
        if describe_function(x):
            continue
        shape, dtype = (shape_of(x), str(dtype_of(resolve_array(x)))) if is_parameter(x) else ((), "")
        kind = describe(untyped.ShapeDtypeStruct(shape, dtype) if dtype else x)
        notes = [DECLARED if frozen[i] else effect.note]
        if effect.decay is not None and effect.decay < 0:
            notes.append("grows without a gradient")
        if of_leaf := names.get(path_name(path), ()):
            notes.append(f"row{'s' * (len(of_leaf) > 1)} {', '.join(of_leaf)}")
        note = ", ".join(filter(None, notes))
        state = tuple(arrays.get(i, ()))
        rows.append(Row(path_name(path), kind, shape, dtype, effect.step, effect.decay, state, note))
        keys.append(tuple(map(key_name, path)))
    return rows, keys


def _check_step(step: Any) -> None:
    is_int = issubdtype(dtype_of(step), jnp.integer) and np.shape(step) == () and not is_traced(step)
    if not is_int or not 0 <= int(step) <= _LARGEST_STEP:
        raise ValueError(f"step must be an int from 0, the first step, to 2**30, found {describe_value(step)}")


def _at_step(step: ArrayLike, start: OptState, params: Params, given: OptState) -> Any:
    """Return a new state with schedules at a step, and with the hyperparameters of `given` that no schedule sets."""
    leaves, treedef = jtu.tree_flatten(start)
    entries = map_state(start, params)
    at_step = treedef.unflatten(
        x + jnp.asarray(step, x.dtype) if entry.field in entry.known.schedule_counts else x
        for x, entry in zip(leaves, entries, strict=True)
    )
    places, values = find_hyperparams(at_step), get_hyperparams(given)
    return set_hyperparams(
        at_step, {key: x for key, x in values.items() if key not in places or not places[key].scheduled}
    )


def _as_passed_to_update(params: Params, state: OptState) -> tuple[Any, Any]:
    """Return what `nnx.Optimizer` passes to `update`: the values of the variables of Flax.

    It stores each array of a state in a variable of a class of its own, `OptState`. If the state has variables of
    another class, a user's own loop has called `init` with variables, so `update` gets variables too.
    """

    if not all(is_of_nnx_optimizer(x) for x in jtu.tree_leaves(state, is_leaf=is_variable) if is_variable(x)):
        return params, state
    return values_of_variables(params), values_of_variables(state)


def _arrays_by_param(state: OptState, entries: Sequence[Entry]) -> dict[int | None, list[Accumulator]]:
    """Return the arrays of a state, by the number of the parameter that they belong to, or None."""
    arrays: dict[int | None, list[Accumulator]] = {}
    for x, entry in zip(jtu.tree_leaves(state), entries, strict=True):
        name = entry.field or path_name(entry.path[: entry.depth])
        array = Accumulator(name, path_name(entry.path), str(dtype_of(x)), int(getattr(x, "nbytes", 0)))
        arrays.setdefault(entry.param, []).append(array)
    return arrays


def _totals(rows: Sequence[Row], arrays: Mapping[int | None, list[Accumulator]]) -> dict[str, int]:
    """Return the `totals` of a `Summary`."""
    state_bytes = sum(x.bytes for each in arrays.values() for x in each)
    parameters = [row for row in rows if row.dtype]
    return {
        "leaves": len(parameters),
        "unmoved": sum(map(is_unmoved, parameters)),
        "elements": sum(math.prod(row.shape) for row in parameters),
        "bytes": sum(math.prod(row.shape) * jnp.dtype(row.dtype).itemsize for row in parameters),
        "state_bytes": state_bytes,
        "shared_bytes": state_bytes - sum(row.bytes for row in rows),
    }


def _copies_params(tx: GradientTransformation[Any], params: Params, entries: Sequence[Entry]) -> bool:
    """Whether `init` puts values of the params into the state."""
    states = [jtu.tree_leaves(tx.init(filled(params, value))) for value in (1.0, 2.0)]
    if len(states[0]) != len(entries):  # the state of another optimizer, with which the update failed
        return False
    return any(x.param is not None and bool((a != b).any()) for x, a, b in zip(entries, *states, strict=True))


def _concrete(x: Any) -> Any:
    """Return ones for a leaf that has only a shape, and the array of a reference; any other leaf unchanged."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return jnp.ones(x.shape, x.dtype)
    return x[...] if is_ref(x) else x
