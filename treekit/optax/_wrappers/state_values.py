"""Values that a state has for params, such as averages: which states have them, and params with them."""

from collections.abc import Callable
from typing import Any, TypeVar

from treekit._arrays.cast import cast_tree_like
from treekit._base.dtype import shape_of
from treekit._base.flax import has_variables
from treekit._base.jax import jtu
from treekit._base.memory import copied
from treekit._base.tree import children_of
from treekit._base.types import KeyPath, OptState, Params, PyTree
from treekit._compare.prefix import flatten_updates
from treekit._names.key_path import flatten_with_names, leaf_path_text, path_text
from treekit._text.describe import describe
from treekit._trained.leaves import as_arrays, which_can_be_trained
from treekit.optax._kernel.holes import is_hole

T = TypeVar("T")


def states_in(state: OptState, kind: type[Any] | tuple[type[Any], ...]) -> dict[KeyPath, Any]:
    """Return the states of a class, or of several, by key path; not those inside of another one."""
    leaves = jtu.tree_flatten_with_path(state, is_leaf=lambda x: isinstance(x, kind))[0]
    return {path: x for path, x in leaves if isinstance(x, kind)}


def ancestors(state: OptState, path: KeyPath) -> list[tuple[Any, Any]]:
    """Return the nodes above a part of a state, each with the key of its child."""
    nodes = [state]
    for key in path:
        nodes.append(children_of(nodes[-1])[key])
    return list(zip(nodes, path, strict=False))


def replace_params(params: T, trees: dict[KeyPath, PyTree], what: str, value: Callable[[KeyPath, Any, Any], Any]) -> T:
    """Replace each param of which one of the trees has an array by `value(path of that tree, array, param)`.

    The result shares no array with the params: those that are not replaced are copied, and a reference becomes a copy
    of its array.
    """
    leaves, treedef = jtu.tree_flatten(params)
    can_train = which_can_be_trained(params, leaves)
    leaves = as_arrays(leaves, can_train)
    values: dict[int, Any] = {}
    for path, tree in trees.items():
        parts = _parts(tree, params, f"{what} in the state")
        for i, x in [(i, x) for i, x in enumerate(parts) if x is not None]:
            if i in values:
                paths = ", ".join(map(path_text, trees))
                raise ValueError(f"the state has several {what}, at {paths}: pass the part that has the one you mean")
            if not jtu.all_leaves([x]) or shape_of(x) != shape_of(leaves[i]):
                raise ValueError(
                    f"the {what} in the state do not fit the params: at {leaf_path_text(params, i)}, the params have "
                    f"{describe(leaves[i])}, and the {what} {describe(x)}. Pass the params that are trained"
                )
            values[i] = value(path, x, leaves[i]) if can_train[i] else copied(leaves[i])
    own = [values[i] if i in values else copied(x) for i, x in enumerate(leaves)]
    out: T = cast_tree_like(treedef.unflatten(leaves), treedef.unflatten(own))
    return out


def _parts(tree: PyTree, params: Params, what: str) -> list[Any]:
    """Return what a tree like the params has for each of their leaves, None where it leaves them out.

    Variables of Flax are found by name, since the two trees may have different classes; everything else by place.
    """

    def none_for_placeholder(x: object) -> Any:
        return None if is_hole(x) else x

    if has_variables((tree, params)):
        by_name, names = dict(flatten_with_names(tree)), [name for name, _ in flatten_with_names(params)]
        if by_name.keys() <= set(names):
            return list(map(by_name.get, names))
    tree = jtu.tree_map(none_for_placeholder, tree, is_leaf=is_hole)
    return flatten_updates(jtu.tree_structure(params), tree, what)
