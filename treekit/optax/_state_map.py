"""Which array of a state belongs to which parameter, and what is it: a moment, an average, a count?

All of `treekit.optax` asks here. A tree in the state that has the structure of the params has one array for each of
them; the class and the field of the state say what the arrays are.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import optax

from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import flatten_with_path, is_variable
from treekit._base.tree import children_of, is_none
from treekit._base.types import KeyPath, OptState, Params, PyTree
from treekit._codes import is_codes

Role = Literal["moment", "accumulator", "average", "params", "hyperparameter", "count", "other"]


class Entry(NamedTuple):
    """What is known of one array of a state.

    Attributes:
        path: its key path in the state.
        depth: how many keys of the path lead through the state; the others lead through the params.
        owner: the name of the class of the innermost state with a field that has the array, such as "ScaleByAdamState";
            "" outside of such states.
        field: that field, such as "mu"; "" outside of states.
        param: the index, among the leaves of the params (None is one), of the parameter that it belongs to; None if it
            belongs to none, or to several.
        role: "moment" for an array of one parameter, unless the field says that it is an "accumulator" of gradients, an
            "average" of the params, or a copy of the "params"; "hyperparameter"; "count" for other integers; else
            "other".
    """

    path: KeyPath
    depth: int
    owner: str
    field: str
    param: int | None
    role: Role

    @property
    def is_never_negative(self) -> bool | None:
        """Whether a moment is never negative; None if this table does not know, or 8 bits do not suffice."""
        signed, never_negative = _MOMENTS.get(self.owner, ("", ""))
        return self.field in never_negative.split() if self.field in f"{signed} {never_negative}".split() else None


# What the arrays in these fields are. Those of one parameter in any other field are moments.
_ROLES: dict[tuple[str, str], Role] = {
    ("MultiStepsState", "acc_grads"): "accumulator",
    ("WeightedMultiStepsState", "acc_grads"): "accumulator",
    ("AccumulateAvgUpdatesState", "avg_grad"): "accumulator",
    ("ParamsEmaState", "params_ema"): "average",
    ("ParamsEmaState", "ema_next_weight"): "average",  # not below float32
    ("ParamsEmaState", "ema_weight_sum"): "average",
    ("PerElementMeanAndSumSqDiffGradsState", "mean_grads"): "accumulator",
    ("PerElementMeanAndSumSqDiffGradsState", "sum_sq_diff_grads"): "accumulator",
    ("COCOBState", "init_particles"): "params",
    ("DoGState", "init_params"): "params",
    ("DoWGState", "init_params"): "params",
    ("MadgradState", "x0"): "params",
    ("MechanicState", "x0"): "params",
    ("ProdigyState", "params0"): "params",
    ("SAMState", "cache"): "params",
    ("ScaleByDistanceOverGradientsState", "init_params"): "params",
    ("ScaleByLBFGSState", "params"): "params",
    ("ScheduleFreeState", "z"): "params",
    ("InjectHyperparamsState", "hyperparams"): "hyperparameter",
    ("InjectStatefulHyperparamsState", "hyperparams"): "hyperparameter",
    ("InjectStatefulHyperparamsState", "hyperparams_states"): "other",
}
_SHARED = ("hyperparameter", "other")  # roles of fields that have no arrays of single parameters

# The moments that can be stored in 8 bits, by the class of the state: those with a sign, and those that are never
# negative. This is read from the update rules of Optax 0.2.8, since names do not say it: `nu` of SM3 has a sign.
_MOMENTS: dict[str, tuple[str, str]] = {
    "DAdaptAdamWState": ("exp_avg grad_sum", "exp_avg_sq"),
    "EmaState": ("ema", ""),
    "FactoredState": ("", "v_row v_col v"),
    "MadgradState": ("s", "grad_sum_sq"),
    "MomoAdamState": ("exp_avg", "exp_avg_sq"),
    "MomoState": ("exp_avg", ""),
    "MuonState": ("mu", ""),
    "PerElementMeanAndVarianceEMAState": ("mean_grads_ema", "variance_grads_ema"),
    "ProdigyState": ("exp_avg grad_sum", "exp_avg_sq"),
    "ScaleByAdaDeltaState": ("", "e_g e_x"),
    "ScaleByAdamState": ("mu", "nu"),
    "ScaleByAdanState": ("m v g", "n"),
    "ScaleByAdemamixState": ("m1 m2", "nu"),
    "ScaleByAmsgradState": ("mu", "nu nu_max"),
    "ScaleByBeliefState": ("mu", "nu"),
    "ScaleByLBFGSState": ("diff_params_memory diff_updates_memory", ""),
    "ScaleByLionState": ("mu", ""),
    "ScaleByNovogradState": ("mu", "nu"),
    "ScaleByOptimisticGradientState": ("previous_gradient", ""),
    "ScaleByRmsState": ("", "nu"),
    "ScaleByRmsWithCountState": ("", "nu"),
    "ScaleByRpropState": ("prev_updates", "step_sizes"),
    "ScaleByRssState": ("", "sum_of_squares"),
    "ScaleBySM3State": ("nu", "mu"),
    "ScaleBySimplifiedAdEMAMixState": ("m", "n"),
    "SophiaState": ("mu nu", ""),
    "TraceState": ("trace", ""),
}


def map_state(state: OptState, params: Params, init: Callable[[Any], Any] | None = None) -> list[Entry]:
    """Return an entry for each leaf of a state, in order.

    Args:
        state: the state of any optimizer; arrays of 8-bit codes are mapped as those of their numbers.
        params: the params for which it was made, or the updates.
        init: the function that made it. Most accept a placeholder for the params, which shows where in the state the
            trees like the params are. Without it, these are the trees with the structure of the params; if the params
            are one array, arrays of its shape.
    """
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_none)
    known = None if init is None else _paths_of_params(init)
    return list(_entries(state, (), ("", ""), _Params(leaves, treedef.unflatten(range(len(leaves))), known)))


class _Params(NamedTuple):
    leaves: list[Any]
    numbered: Any  # the params, each replaced by its number
    paths: set[KeyPath] | None  # of the trees in the state that are like the params, if they are known


def _paths_of_params(init: Callable[[Any], Any]) -> set[KeyPath] | None:
    with contextlib.suppress(Exception):  # an init that computes with the params may raise anything
        marked = jtu.tree_flatten_with_path(init(_PLACEHOLDER[0]), is_leaf=is_params_placeholder)[0]
        return {path for path, x in marked if is_params_placeholder(x)}
    return None


def _entries(x: object, path: KeyPath, field: tuple[str, str], params: _Params) -> Iterator[Entry]:
    """Yield the entries of a part of a state, which is in a field, named by the class of the state and its own name."""
    role = _ROLES.get(field)
    if role not in _SHARED and (pairs := _pairs(x, path, params)) is not None:
        owners = [numbers[0] for leaf, numbers in pairs if not is_placeholder(leaf)]
        for (below, _), i in zip(flatten_with_path(x)[0], owners, strict=True):
            yield Entry((*path, *below), len(path), *field, i, role or "moment")
    elif is_codes(x) or jtu.all_leaves([x]):
        for below, leaf in flatten_with_path(x)[0]:
            kind: Role = "count" if issubdtype(dtype_of(leaf), jnp.integer) else "other"
            yield Entry((*path, *below), len(path), *field, None, role or kind)
    else:
        for key, child in children_of(x).items():
            is_field = isinstance(key, jax.tree_util.GetAttrKey) and not is_variable(x)
            inner = (type(x).__name__, str(key.name)) if is_field else field
            below = path if is_variable(x) else (*path, key)  # as in flatten_with_path
            yield from _entries(child, below, inner, params)


def _pairs(x: object, path: KeyPath, params: _Params) -> list[tuple[object, list[int]]] | None:
    """Return what `leaves_by_param` does if `x` is a tree like the params."""
    if params.paths is not None:
        return leaves_by_param(x, params.numbered) if path in params.paths else None
    if isinstance(params.numbered, int) and not _is_like_array(x, params.leaves[0]):
        return None
    return leaves_by_param(x, params.numbered)


def _is_like_array(x: object, param: object) -> bool:
    """Whether a part of a state is like params that are one array, whose structure every leaf has.

    L-BFGS stores several arrays for each param, along a first axis.
    """
    leaf = x.codes if is_codes(x) else x
    shape, own = shape_of(param), shape_of(leaf) if jtu.all_leaves([leaf]) else None
    is_inexact = own is not None and (is_codes(x) or issubdtype(dtype_of(x), jnp.inexact))
    return is_inexact and (own == shape or bool(shape and own and own[-len(shape) :] == shape))


def leaves_by_param(x: object, numbered: PyTree) -> list[tuple[object, list[int]]] | None:
    """Return each leaf of `x` with the numbers of the params that it stands for.

    An array stands for one param; None and MaskedNode, the placeholders for what is left out, for any number of them.

    Args:
        x: a part of a state.
        numbered: the params, each replaced by its number. With the arrays themselves, JAX would write them into the
            error of a tree that does not fit, and copy all of them from their devices for that.

    Returns:
        One pair for each array, also one in `Codes`, and each placeholder of `x`; None if `x` does not have the
        structure of the params.
    """
    # Needed, since a placeholder may stand for several params: a None in any field would match all of them.
    if type(x) is not type(numbered) and not isinstance(numbered, int):
        return None
    leaves, treedef = jtu.tree_flatten(x, is_leaf=_is_placeholder_or_codes)
    try:
        parts = treedef.flatten_up_to(numbered)
    except ValueError:
        return None
    pairs = list(zip(leaves, parts, strict=True))
    if not all(isinstance(part, int) or is_placeholder(leaf) for leaf, part in pairs):
        return None
    return [
        (leaf.codes if is_codes(leaf) else leaf, [part] if isinstance(part, int) else jtu.tree_leaves(part))
        for leaf, part in pairs
    ]


def is_placeholder(x: object) -> bool:
    """Whether `x` is a placeholder for params that are left out of a state: None or a MaskedNode."""
    return x is None or isinstance(x, optax.MaskedNode)


def _is_placeholder_or_codes(x: object) -> bool:
    return is_placeholder(x) or is_codes(x)


def is_params_placeholder(params: Params) -> bool:
    """Whether these are the placeholders that `optax.tree_map_params` passes to init to find the params in a state."""
    return type(params) is type(_PLACEHOLDER[0])


# Optax calls its first argument, as it would an init, with its placeholder: `append` keeps it.
_PLACEHOLDER: list[Any] = []
optax.tree_map_params(_PLACEHOLDER.append, jtu.tree_leaves, None)
