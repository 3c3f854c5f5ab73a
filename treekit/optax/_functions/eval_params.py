"""`get_ema` and `schedule_free_eval_params`: the params to evaluate with, from anywhere in an optimizer's state."""

from collections import OrderedDict
from typing import Any, TypeVar, overload

import optax

from treekit._base.jax import jtu
from treekit._base.key_path import flatten_with_names, path_text
from treekit._base.predicates import has_gradient, is_inexact_array
from treekit._base.tree import children_of, flatten_updates, updates_mismatch
from treekit._base.types import KeyPath, OptState, Params, PyTree, PyTreeDef
from treekit._map import cast_tree_like
from treekit.optax._kernel.state_map import is_placeholder
from treekit.optax._wrappers.params_ema import ParamsEmaState

T = TypeVar("T")
_contrib: Any = optax.contrib
# States of wrappers that do not return the updates of the transformation inside.
_CHANGING: Any = (
    optax.LookaheadState,
    _contrib.GaLoreState,
    _contrib.MechanicState,
    _contrib.SAMState,
    _contrib.ScheduleFreeState,
    _contrib.SplitRealAndImaginaryState,
)


@overload
def get_ema(state: OptState) -> Any: ...
@overload
def get_ema(state: OptState, params: T) -> T: ...
def get_ema(state: OptState, params: Params = None) -> Any:
    """Return the average of the params that `params_ema` keeps, from anywhere in an optimizer's state.

    Call it once before training, with the state that `init` returned: it raises if this average would not be that of
    the params.

    Args:
        state: the state of an optimizer with `params_ema` in it, or with one in each group of a `partition`.
        params: the params, or the raw model.

    Returns:
        Without `params`, the average in float32 at least, with None for leaves that are not numbers. With `params`, a
        tree with their structure and dtypes: it has the averages of floating-point and complex arrays, and everything
        else, including leaves that `masked` or `filtered` left out, from `params`. Before the first update, it is the
        params that `init` received.

    Raises:
        ValueError: the state has no average of the params, or several of one leaf; another transformation follows
            `params_ema` in its chain, or changes its updates; or `params` have another structure than the average.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> model = {"w": jnp.ones(2, jnp.bfloat16), "activation": jax.nn.relu}
    >>> state = optax.params_ema(0.999).init(model)
    >>> get_ema(state)
    {'activation': None, 'w': Array([1., 1.], dtype=float32)}
    >>> get_ema(state, model)["w"]
    Array([1, 1], dtype=bfloat16)
    """
    found = _find(state, ParamsEmaState, "params_ema")
    if not found:
        raise ValueError(
            "the state has no average of the params: optax.chain(optimizer, optax.params_ema(0.999)) has one"
        )
    averages = {path: ema.params_ema for path, ema in found.items()}
    if params is None and len(found) == 1:
        return averages.popitem()[1]
    if params is None:
        raise _several("averages of the params", averages, ", or pass the params too, if they are those of groups")
    leaves, treedef = jtu.tree_flatten(params)
    chosen = list(leaves)
    for i, (_, average) in _by_leaf(averages, params, "averages of the params").items():
        chosen[i] = average if has_gradient(leaves[i]) else leaves[i]
    return cast_tree_like(params, treedef.unflatten(chosen))


def schedule_free_eval_params(state: OptState, params: T) -> T:
    """Return the params to evaluate with: `optax.contrib.schedule_free_eval_params` for raw models, preserving dtypes.

    Args:
        state: the state of an optimizer with `schedule_free`, `schedule_free_adamw` or `schedule_free_sgd` anywhere in
            it: in a chain, in `MultiSteps`, in groups of a `partition`.
        params: the params that are trained, or the raw model.

    Returns:
        A tree with the structure, shapes and dtypes of `params`. Only floating-point and complex arrays differ, in
        groups only those of `schedule_free`.

    Raises:
        ValueError: the state has no `ScheduleFreeState`, or several for one leaf; another transformation follows it in
            its chain, or changes its updates; or `params` have another structure.

    Source: Defazio et al., The Road Less Scheduled, 2024.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = {"w": jnp.array([1.0, 2.0]), "name": "scale"}
    >>> state = optax.chain(optax.clip(1.0), optax.contrib.schedule_free_sgd(0.1)).init(params)
    >>> optax.contrib.schedule_free_eval_params(state, params)
    {'name': 'scale', 'w': Array([1., 2.], dtype=float32)}
    """
    found = _find(state, _contrib.ScheduleFreeState, "schedule_free")
    if not found:
        raise ValueError(
            "schedule_free_eval_params requires a ScheduleFreeState as input, or a state that has one, found a "
            f"{type(state).__name__} without"
        )
    leaves, treedef = jtu.tree_flatten(params)
    chosen = list(leaves)
    for i, (path, z) in _by_leaf({path: x.z for path, x in found.items()}, params, "states of schedule_free").items():
        if is_inexact_array(leaves[i]):
            (b1,) = jtu.tree_leaves(found[path].b1)  # in nnx it is inside a variable
            chosen[i] = (leaves[i] - (1.0 - b1) * z) / b1
    return cast_tree_like(params, treedef.unflatten(chosen))


def _find(state: OptState, kind: type[Any], name: str) -> dict[KeyPath, Any]:
    """Return the states of one class by key path; raise if the params do not get exactly the updates of one of them."""

    def stop(x: object) -> bool:
        return isinstance(x, kind)

    found = {path: x for path, x in jtu.tree_flatten_with_path(state, is_leaf=stop)[0] if stop(x)}
    for path in found:
        _check_updates_are_last(state, path, name)
    return found


def _check_updates_are_last(state: OptState, path: KeyPath, name: str) -> None:
    node: Any = state
    for key in path:
        if isinstance(node, _CHANGING):
            raise ValueError(
                f"{name} is at {path_text(path)} of the state, inside of a transformation that returns other updates "
                f"({type(node).__name__}), so they do not lead to the params that the optimizer returns. Put {name} "
                "around it, or after it in a chain"
            )
        children = children_of(node)
        later = list(children.values())[list(children).index(key) + 1 :]
        if _is_chain(node) and not all(isinstance(x, ParamsEmaState) for x in later):
            raise ValueError(
                f"{name} is at {path_text(path)} of the state, and another transformation follows it in its chain, so "
                "its updates do not lead to the params that the optimizer returns. Put it last"
            )
        node = children[key]


def _is_chain(x: object) -> bool:
    """Whether `x` is the state of a chain or of a named chain."""
    return type(x) in (tuple, list, OrderedDict)


def _by_leaf(trees: dict[KeyPath, Any], params: Params, what: str) -> dict[int, tuple[KeyPath, Any]]:
    """Return the path of a tree and its array for each leaf of the params that one of the trees has."""
    found: dict[int, tuple[KeyPath, Any]] = {}
    for path, tree in trees.items():
        for i, x in enumerate(_flatten_like(tree, params)):
            if x is not None and i in found:
                raise _several(what, trees)
            if x is not None:
                found[i] = path, x
    return found


def _several(what: str, trees: dict[KeyPath, Any], otherwise: str = "") -> ValueError:
    paths = ", ".join(map(path_text, trees))
    return ValueError(f"the state has several {what}, at {paths}: pass the part that has the one you mean{otherwise}")


def _flatten_like(tree: PyTree, params: Params) -> list[Any]:
    """Return what a tree like the params has for each of their leaves, None where they are left out."""
    treedef: PyTreeDef = jtu.tree_structure(params)
    tree = jtu.tree_map(_or_none, tree, is_leaf=is_placeholder)
    try:
        return flatten_updates(treedef, tree)
    except ValueError as error:  # in Flax, variables of the state and of the model are of other classes
        by_name = dict(flatten_with_names(tree))
        names = [name for name, _ in flatten_with_names(params)]
        if not by_name or not by_name.keys() <= set(names):
            where = updates_mismatch(treedef, tree, "tree in the state") or error
            raise ValueError(f"the tree of params does not fit the tree that was found in the state: {where}") from None
        return list(map(by_name.get, names))


def _or_none(x: object) -> Any:
    return None if is_placeholder(x) else x
