"""Which array of a state belongs to which parameter?

A tree in the state that has the structure of the params has one array for each of them. Moments that are kept for a
parameter without a gradient, sharding, dtypes in which state is stored, and summaries all ask here.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import optax

from treekit._arrays.codes import is_codes
from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.flax import is_variable
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import flatten_with_path
from treekit._base.tree import children_of
from treekit._base.types import KeyPath, OptState, Params, PyTree
from treekit.optax._kernel.releases import MonitorState, SnapshotState


class Entry(NamedTuple):
    """What is known of one array of a state.

    Attributes:
        path: its key path in the state.
        depth: how many keys of the path lead through the state; the others lead through the params.
        owner: the class of the innermost state with a field that has the array, such as `optax.ScaleByAdamState`; None
            outside of such states.
        field: that field, such as "mu"; "" outside of states.
        param: the index, among the leaves of the params (None and MaskedNode are leaves), of the parameter that it
            belongs to; None if it belongs to none, or to several.
        in_rounds: whether it is in the state of a `MultiSteps`, or of `sam`, whose steps take several updates too.
    """

    path: KeyPath
    depth: int
    owner: Any
    field: str
    param: int | None
    in_rounds: bool


# What is known of fields, by the class of their state. Each module that makes such a state adds it.
Fields = dict[Any, tuple[str, ...]]
# Averages of params and accumulators of gradients, which need float32 at least.
AT_LEAST_FLOAT32: Fields = {}
# Copies and averages of the current params, which follow them in every step, also without a gradient. L-BFGS keeps
# pairs of steps over all params: one that is older for some of them is of no step.
FOLLOWS_PARAMS: Fields = {
    optax.ScaleByLBFGSState: ("params", "updates", "diff_params_memory", "diff_updates_memory"),
}
# What belongs to no parameter, even if it has the structure of the params: what a user measures by name.
OF_NO_PARAM: Fields = {
    MonitorState: ("measurements", "measure_states"),
    SnapshotState: ("measurement",),
}


def is_declared(fields: Fields, entry: Entry) -> bool:
    """Whether an array of a state is in one of these fields."""
    return entry.field in fields.get(entry.owner, ())


def map_state(state: OptState, params: Params) -> list[Entry]:
    """Return an entry for each leaf of a state, in order.

    Args:
        state: the state of any optimizer; arrays of 8-bit codes are mapped as those of their numbers.
        params: the params for which it was made, or the updates. If they are one array, the arrays of its shape, or
            with one more axis in front, belong to it.
    """
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_hole)
    numbered = treedef.unflatten(range(len(leaves)))

    def entries(x: object, path: KeyPath, owner: Any, field: str, in_rounds: bool) -> Iterator[Entry]:
        is_measured = field in OF_NO_PARAM.get(owner, ())
        pairs = None if is_measured else leaves_by_param(x, numbered)
        if pairs is not None and isinstance(numbered, int) and not _is_like_array(x, leaves[0]):
            pairs = None
        if pairs is not None:
            params_of = [numbers[0] for leaf, numbers in pairs if not is_hole(leaf)]
            for (below, _), i in zip(flatten_with_path(x)[0], params_of, strict=True):
                yield Entry((*path, *below), len(path), owner, field, i, in_rounds)
        elif is_measured or is_codes(x) or jtu.all_leaves([x]):
            for below, _ in flatten_with_path(x)[0]:
                yield Entry((*path, *below), len(path), owner, field, None, in_rounds)
        else:
            for key, child in children_of(x).items():
                is_field = isinstance(key, jax.tree_util.GetAttrKey) and not is_variable(x)
                of, name = (type(x), str(key.name)) if is_field else (owner, field)
                below = path if is_variable(x) else (*path, key)  # as in flatten_with_path
                yield from entries(child, below, of, name, in_rounds or _takes_rounds(x))

    return list(entries(state, (), None, "", False))


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
    leaves, treedef = jtu.tree_flatten(x, is_leaf=is_hole_or_codes)
    try:
        parts = treedef.flatten_up_to(numbered)
    except ValueError:
        return None
    pairs = list(zip(leaves, parts, strict=True))
    if not all(isinstance(part, int) or is_hole(leaf) for leaf, part in pairs):
        return None
    return [
        (leaf.codes if is_codes(leaf) else leaf, [part] if isinstance(part, int) else jtu.tree_leaves(part))
        for leaf, part in pairs
    ]


def is_optimizer_state(x: object) -> bool:
    """Whether `x` is a state of a class of Optax or treekit."""
    return type(x).__name__.endswith("State") and type(x).__module__.partition(".")[0] in ("optax", "treekit")


def is_of_multi_steps(x: object) -> bool:
    """Whether `x` is the state of a `MultiSteps`, of treekit or of Optax."""
    return hasattr(x, "mini_step")


def _takes_rounds(x: object) -> bool:
    """Whether what `x` is the state of takes several updates for one step, of which a parameter may lack some.

    The last update of a step of `sam` takes back what the others did: without it, a parameter would stay perturbed.
    """
    return is_of_multi_steps(x) or isinstance(x, optax.contrib.SAMState)


def is_hole(x: object) -> bool:
    """Whether `x` is what a tree has for a leaf, or a subtree, that is left out: None or a MaskedNode."""
    return x is None or isinstance(x, optax.MaskedNode)


def is_hole_or_codes(x: object) -> bool:
    """Whether `x` is what a tree like the params has in a state instead of an array: a hole, or 8-bit codes."""
    return is_hole(x) or is_codes(x)


def is_params_placeholder(params: Params) -> bool:
    """Whether these are the placeholders that `optax.tree_map_params` passes to init to find the params in a state."""
    return type(params) is type(_PLACEHOLDER[0])


# Optax calls its first argument, as it would an init, with its placeholder: `append` keeps it.
_PLACEHOLDER: list[Any] = []
optax.tree_map_params(_PLACEHOLDER.append, jtu.tree_leaves, None)
