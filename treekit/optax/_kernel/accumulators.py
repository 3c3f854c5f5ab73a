"""Find the arrays in an optimizer's state that belong to each leaf of the params."""

from typing import Any, NamedTuple

from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.types import KeyPath, OptState, Params
from treekit.optax._functions.apply import tree_map_params


class Accumulator(NamedTuple):
    """An array in the state that belongs to one leaf of the params.

    Attributes:
        name: its field in the state, such as mu.
        path: its key path in the state.
        dtype: its dtype.
        bytes: its size in bytes.
    """

    name: str
    path: str
    dtype: str
    bytes: int


def accumulators(tx: Any, state: OptState, params: Params) -> dict[int, list[Accumulator]]:
    """Return the accumulators in a state by the index of their leaf of the params."""
    leaves, treedef = jtu.tree_flatten_with_path(state)
    param_paths, places = jtu.tree_flatten_with_path(params)
    paths = [path for path, _ in param_paths]
    owners: dict[int, int] = {}
    try:
        numbers = treedef.unflatten(range(len(leaves)))
        tree_map_params(tx, owners.__setitem__, numbers, places.unflatten(range(len(paths))))
    except Exception:  # its init does not accept a placeholder for the params; lbfgs is an example
        owners = _owners_by_path([path for path, _ in leaves], paths)
    owned: dict[int, list[Accumulator]] = {}
    for place, param in owners.items():
        owned.setdefault(param, []).append(_accumulator(*leaves[place], len(paths[param])))
    return owned


def _owners_by_path(state_paths: list[Any], paths: list[Any]) -> dict[int, int]:
    """Map each leaf of a state whose path ends with the path of a param to that param."""
    places = {path: i for i, path in enumerate(paths) if path}
    ends = [[path[i:] for i in range(len(path)) if path[i:] in places] for path in state_paths]
    return {i: places[found[0]] for i, found in enumerate(ends) if found}


def _accumulator(path: KeyPath, x: object, depth: int) -> Accumulator:
    above = path[: len(path) - depth]
    names = [str(key.name) for key in above if hasattr(key, "name")]
    return Accumulator(names[-1] if names else jtu.keystr(above), jtu.keystr(path), str(dtype_of(x)), nbytes(x))


def nbytes(x: object) -> int:
    """Return the size of an array in bytes; 0 for anything else."""
    return int(getattr(x, "nbytes", 0))
