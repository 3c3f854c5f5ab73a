"""Read and change hyperparameters in a state while training: `get_hyperparams`, `set_hyperparams`."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import optax

from treekit._arrays.cast import array_like
from treekit._base.bounds import holds
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.flax import is_nnx_optimizer
from treekit._base.jax import jnp, jtu
from treekit._base.memory import copied
from treekit._base.predicates import is_traced
from treekit._base.states import is_known_state
from treekit._base.tree import has_node, is_mapping
from treekit._base.types import KeyPath, OptState, TransformationLike
from treekit._names.key_path import path_name
from treekit._text.describe import describe, describe_value, type_name
from treekit._text.lists import nearest

S = TypeVar("S")


class Hyperparam(NamedTuple):
    """The place of one hyperparameter in a state."""

    path: KeyPath  # of the state that contains it, and its name
    name: str
    leaf: int  # its index among the leaves of the whole state
    scheduled: bool


def get_hyperparams(state: OptState) -> dict[str, Any]:
    """Return the hyperparameters from anywhere in an optimizer's state, by key path and name.

    A key is the path of the state that `inject_hyperparams` made, as `jax.tree_util.keystr(path, simple=True,
    separator=".")` writes it, and the name: "learning_rate" if the whole optimizer was injected, "1.learning_rate" for
    the second part of a chain, "inner_states.head.inner_state.learning_rate" in a group of `partition`. If two of these
    keys would be equal, all are written as by `jax.tree_util.keystr(path)`.

    Args:
        state: the state of an optimizer of treekit or plain Optax, in any wrapper; also inside jit. It may be Flax's
            `nnx.Optimizer.opt_state`, or a tree of dicts that was restored from one. A state that
            `inject_hyperparams` made is known by its class; if no class of Optax is left, dicts are, by their keys:
            `count`, an integer, and `hyperparams`, one array for each name.

    Returns:
        Copies of the arrays by key, in the order of the state; empty if nothing was injected. Under a schedule, a value
        is the one that the last update used, or, before the first update, the one that it will use.

    Raises:
        TypeError: `state` is an optimizer or a model.

    >>> from treekit import optax
    >>> optimizer = optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.sgd)(0.1))
    >>> get_hyperparams(optimizer.init({"w": 0.0}))
    {'1.learning_rate': Array(0.1, dtype=float32)}
    """
    leaves = jtu.tree_leaves(state)
    return {key: copied(leaves[place.leaf]) for key, place in find_hyperparams(state).items()}


def set_hyperparams(state: S, values: Mapping[str, Any] | None = None, /, **by_name: object) -> S:
    """Return an optimizer's state with other hyperparameters.

    Each preserves its dtype, weak type, shape and sharding, so a jitted step is not traced again.

    Args:
        state: as in `get_hyperparams`, but not an `nnx.Optimizer` itself; also inside jit. It is not changed.
        values: numbers by the keys of `get_hyperparams`, to set one of several hyperparameters of the same name.
        **by_name: numbers by name, to set all hyperparameters of that name, except those in `values`.

    Returns:
        A state with the structure of `state`. It has copies of the arrays that you pass, so that a step can donate it.

    Raises:
        ValueError: no hyperparameter has this key or name (the message lists the nearest ones); it follows a
            schedule, which would overwrite the value in the next update; or, outside of jit, a value is NaN.
        TypeError: a value is not a number, has another shape, or cannot be represented (a float for an int, or an int
            that the dtype cannot hold exactly); `values` is not a dict; or `state` is an optimizer, a model or an
            `nnx.Optimizer`, of which this would change a copy.

    >>> from treekit import optax
    >>> optimizer = optax.inject_hyperparams(optax.sgd)(0.1)
    >>> state = set_hyperparams(optimizer.init({"w": 0.0}), learning_rate=0.01)
    >>> get_hyperparams(state)
    {'learning_rate': Array(0.01, dtype=float32)}
    """
    if is_nnx_optimizer(state):
        raise TypeError(
            "set_hyperparams returns a new state, and found an nnx.Optimizer, which would keep its own: write "
            "optimizer.opt_state = set_hyperparams(optimizer.opt_state, ...)"
        )
    if values is not None and not is_mapping(values):
        raise TypeError(
            f"values must be a dict by key, found {describe_value(values)}; for one by name: "
            "set_hyperparams(state, learning_rate=0.1)"
        )
    leaves, treedef = jtu.tree_flatten(state)
    places = find_hyperparams(state)
    _check_known("name", by_name, [x.name for x in places.values()])
    _check_known("key", values or {}, places)
    new = {key: by_name[x.name] for key, x in places.items() if x.name in by_name} | dict(values or {})
    if scheduled := [key for key in new if places[key].scheduled]:
        raise ValueError(
            f"{', '.join(scheduled)} follows a schedule, which would overwrite the value in the next update. Set "
            "others by key, such as the factor of a row of param_groups; pass a number in place of the schedule; or "
            "add a factor of your own: optax.inject_hyperparams(optax.scale)(1.0), after the optimizer in its chain"
        )
    for key, value in new.items():
        place = places[key].leaf
        leaves[place] = _like(leaves[place], value, key)
    out: S = treedef.unflatten(leaves)
    return out


def find_hyperparams(state: OptState) -> dict[str, Hyperparam]:
    """Return the place of each hyperparameter in a state, by the keys of `get_hyperparams`."""
    if isinstance(state, TransformationLike):
        raise TypeError("expected the state of an optimizer, found an optimizer: pass optimizer.init(params)")
    leaves, treedef = jtu.tree_flatten(state)
    has_classes = has_node(state, is_known_state)
    numbered = treedef.unflatten(itertools.starmap(_Leaf, enumerate(leaves)))
    places = list(_places((), numbered, _is_injected if has_classes else _is_restored))
    if callable(state) and not has_classes and not places:  # a model
        raise TypeError(f"expected the state of an optimizer, found {type_name(state)}")
    keys = [path_name(x.path) for x in places]
    if len(set(keys)) < len(keys):  # one label is 1, another is "1"
        keys = [jtu.keystr(x.path) for x in places]
    return dict(zip(keys, places, strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
    """What stands for a leaf of a state, to find its index."""

    index: int
    value: Any


def _places(path: KeyPath, state: OptState, is_injected: Callable[[Any], bool]) -> Iterator[Hyperparam]:
    """Yield the hyperparameters of a part of a state, which has this key path, and a `_Leaf` for each leaf."""
    for below, node in jtu.tree_flatten_with_path(state, is_leaf=is_injected)[0]:
        if not is_injected(node):
            continue
        own_path = (*path, *below)
        fields: Mapping[str, Any] = node if is_mapping(node) else node._asdict()
        for name, value in fields["hyperparams"].items():
            at = (*own_path, jax.tree_util.GetAttrKey(name))
            leaves = jtu.tree_leaves(value)  # in nnx it is inside a variable
            if len(leaves) != 1:
                raise TypeError(f"{path_name(at)} must be a number, found {type_name(value)}")
            yield Hyperparam(at, name, leaves[0].index, name in fields.get("hyperparams_states", {}))
        yield from _places((*own_path, jax.tree_util.GetAttrKey("inner_state")), fields.get("inner_state"), is_injected)


_INJECTED = (optax.InjectStatefulHyperparamsState, optax.InjectHyperparamsState)


def _is_injected(x: object) -> bool:
    return isinstance(x, _INJECTED)


def _is_restored(x: object) -> bool:
    """Whether `x` is an injected state that was restored as a mapping, as Flax and Orbax do, without empty entries.

    It has the names of the fields, an integer for `count`, and one array for each of `hyperparams`. Params or moments
    in a restored state do not, unless they have the same names and an integer parameter `count`.
    """
    if not (is_mapping(x) and {"count", "hyperparams"} <= x.keys() <= set(_INJECTED[0]._fields)):
        return False
    counts, hyperparams = jtu.tree_leaves(x["count"]), x["hyperparams"]
    is_count = len(counts) == 1 and issubdtype(dtype_of(counts[0].value), jnp.integer)
    has_one_each = is_mapping(hyperparams) and all(len(jtu.tree_leaves(each)) == 1 for each in hyperparams.values())
    return is_count and has_one_each and {*x.get("hyperparams_states", {})} <= {*hyperparams}


def _check_known(what: str, asked: Iterable[str], known: Collection[str]) -> None:
    for x in asked:
        if x not in known:
            raise ValueError(
                f"no hyperparameter of the state has the {what} {x!r}; the nearest: "
                f"{nearest(x, list(dict.fromkeys(known)))}"
                + ". optax.inject_hyperparams(optax.adam)(1e-3) stores those of adam in its state"
                * (not known)
            )


def _like(old: Any, value: Any, key: str) -> Any:
    """Return a number as an array like the one that it replaces, which has this key."""
    if issubdtype(dtype_of(value), jnp.inexact) and not is_traced(value) and np.isnan(np.asarray(value)).any():
        raise ValueError(f"{key} must be a number, found {describe_value(value)}: each update would be NaN")
    is_wrong_bool = isinstance(value, bool) and dtype_of(old) != jnp.bool_
    with contextlib.suppress(TypeError, OverflowError):
        has_right_shape = value is not None and np.shape(value) in ((), np.shape(old))
        if has_right_shape and not is_wrong_bool and holds(value, dtype_of(old)):
            return array_like(old, value)
    raise TypeError(f"{key} is {describe(old)}, and cannot become {describe_value(value)}")
