"""The params taken apart, into what is trained and the rest; and what a user may mistake for params.

`_trained` says which leaves are trained; of updates without params, each array of numbers is. Everything else is None
inside, except that a MaskedNode stays one.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import optax

from treekit._base.dtype import has_dtype, stands_for_array
from treekit._base.flax import is_nnx_module, shared_variable, variable_class
from treekit._base.jax import jtu
from treekit._base.memory import owned
from treekit._base.predicates import is_numeric_array, is_parameter
from treekit._base.states import is_known_state
from treekit._base.tree import one_level
from treekit._base.types import Params, PyTreeDef
from treekit._names.key_path import leaf_path_text, walk
from treekit._names.pattern_errors import listed
from treekit._text.describe import describe, describe_value
from treekit._trained.declared import declared_frozen, declares
from treekit._trained.leaves import as_arrays, which_can_be_trained
from treekit.optax._kernel.holes import is_hole


def trained(params: Params) -> Any:
    """Return the params inside: the arrays that are trained, and None for everything else."""
    return flatten(params).inside()


class Flat(NamedTuple):
    """A tree of params taken apart, with None and MaskedNode as leaves.

    Attributes:
        tree: the tree.
        treedef: its structure.
        leaves: its leaves.
        arrays: the same, with the array of each reference, and an array for each Python number that can be trained.
        can_train: for each leaf, whether it can be trained.
        is_trained: for each leaf, whether it is trained: it can be, and no class declares that it is not.
    """

    tree: Params
    treedef: PyTreeDef
    leaves: list[Any]
    arrays: list[Any]
    can_train: list[bool]
    is_trained: list[bool]

    def inside(self, parts: Iterable[Any] | None = None) -> Any:
        """Return a tree with these parts, by default the arrays, for what is trained. Arrays of NumPy are copied."""

        def seen(is_trained: bool, part: Any, leaf: Any) -> Any:
            if is_trained:
                return owned(part)
            return leaf if isinstance(leaf, optax.MaskedNode) else None

        return self.treedef.unflatten(map(seen, self.is_trained, self.arrays if parts is None else parts, self.leaves))


def flatten(tree: Params, *, are_updates: bool = False) -> Flat:
    """Take params apart; or updates, where the params are not passed."""
    classes = set[Any]()

    def stop(x: object) -> bool:
        classes.add(variable_class(x))  # of every node, so that the tree need not be walked for them
        return is_hole(x)

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=stop)
    can_train = which_can_be_trained(tree, leaves, is_hole)
    arrays = as_arrays(leaves, can_train)
    if are_updates:
        can_train = list(map(is_numeric_array, arrays))
    is_trained = can_train
    if any(map(declares, classes)):
        frozen = declared_frozen(tree, is_hole)
        is_trained = [x and not is_frozen for x, is_frozen in zip(can_train, frozen, strict=True)]
    return Flat(tree, treedef, leaves, arrays, can_train, is_trained)


def check_params(params: Params) -> None:
    """Raise a TypeError for what a user may mistake for params: a class, a state; or if they share a variable."""
    if is_nnx_module(params) and not isinstance(params, type) and jtu.all_leaves([params]):
        raise TypeError(
            f"init received the module {type(params).__name__} of Flax NNX, whose class is no pytree: pass "
            "nnx.state(model, nnx.Param), to init and to update"
        )
    if (shared := shared_variable(params)) is not None:
        places = [name for name, x in walk(params) if x is shared]
        raise TypeError(
            f"init received a {variable_class(shared).__name__} that occurs {len(places)} times, at "
            f"{listed(places)}: JAX's transforms, and apply_updates, make a variable of each, which train apart. Pass "
            "nnx.state(model, nnx.Param), which has it once, to init and to update, and nnx.merge it in the loss"
        )
    if params is not None and jtu.all_leaves([params]) and not is_parameter(params):
        advice = "an instance of this class" if isinstance(params, type) else "a pytree with arrays"
        raise TypeError(
            f"init takes the params, or a model, and received {describe_value(params)}, which has no parameters. "
            f"Pass {advice}; a class of your own must be registered, with treekit.node or treekit.register_node"
        )
    children = one_level(params)[0]
    is_of_chain = bool(children) and all(map(is_known_state, children))
    if isinstance(params, optax.GradientTransformation) or is_known_state(params) or is_of_chain:
        what = "an optimizer" if isinstance(params, optax.GradientTransformation) else "the state of an optimizer"
        raise TypeError(f"init takes the params, or a model, and received {what}")


def check_something_is_trained(flat: Flat) -> None:
    """Raise a TypeError for objects that look like arrays, and for arrays that cannot be trained if none can be."""
    if any(isinstance(x, optax.MaskedNode) for x in flat.leaves):  # a part, whose other leaves may all be integers
        return
    wrong = _is_like_array if any(flat.can_train) else _looks_like_array
    pairs = zip(flat.leaves, flat.can_train, strict=True)
    found = [
        f"{leaf_path_text(flat.tree, i, is_hole)}, which is {describe(x)}"
        for i, (x, can_train) in enumerate(pairs)
        if not can_train and wrong(x)
    ]
    if found:
        what = "cannot train" if any(flat.can_train) else "received nothing that can be trained:"
        raise TypeError(
            f"init {what} {listed(found)}. Only floating-point and complex arrays are "
            "trained. Make what you want to train such an array, jnp.asarray(x, float); if an object has an array, "
            "register its class, with treekit.node or treekit.register_node, or pass the array"
        )


def _looks_like_array(x: object) -> bool:
    """Whether a user may take a leaf for an array that is trained: one of numbers, or an object that is like one."""
    return is_numeric_array(x) if has_dtype(x) else stands_for_array(x) or _is_like_array(x)


def _is_like_array(x: object) -> bool:
    """Whether a leaf is an object of a class that is no pytree, and has a shape and a dtype."""
    has_both = hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type)
    return has_both and not has_dtype(x) and not stands_for_array(x)
