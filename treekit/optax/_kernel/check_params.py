"""What may a user mistake for params that can be trained?

- `check_params`: a class, a state, or a module that is not a pytree
- `check_something_is_trained`: a tree of which nothing is trained, or an object that only looks like an array
- `check_nothing_is_shared`: a model that has a variable in two places
- `check_has_params`: None, in `update`
"""

from collections import Counter

import optax

from treekit._base.dtype import has_dtype, stands_for_array
from treekit._base.flax import has_variables, is_nnx_module, is_variable, variable_class
from treekit._base.jax import is_hijax_variable, jtu
from treekit._base.predicates import is_numeric_array, is_parameter
from treekit._base.states import is_known_state
from treekit._base.tree import one_level
from treekit._base.types import LeafPredicate, Params
from treekit._names.key_path import leaf_path_text, walk
from treekit._text.describe import describe, describe_value
from treekit._text.lists import listed
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.trained import Flat


def check_params(params: Params) -> None:
    """Raise a TypeError for what a user may mistake for params: a class, a state, a module that is not a pytree."""
    for i, x in enumerate(jtu.tree_leaves(params)):
        if is_nnx_module(x) and not isinstance(x, type):
            raise TypeError(
                f"init received a module of Flax NNX, {type(x).__name__} at {leaf_path_text(params, i)}, whose class "
                "is not a pytree: pass nnx.state(model, nnx.Param), to init and to update"
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
    """Raise a TypeError for objects that look like arrays, and for arrays that cannot be trained if none can be.

    And for variables of Flax if their classes say of all of them that they are not trained.
    """
    if any(isinstance(x, optax.MaskedNode) for x in flat.leaves):  # a part, whose other leaves may all be integers
        return
    if any(flat.can_train) and not any(flat.is_trained) and has_variables(flat.tree):
        at = leaf_path_text(flat.tree, flat.can_train.index(True), is_hole)
        raise TypeError(
            f"init received variables of Flax of which none is trained, such as that at {at}: by their classes, only "
            "those of nnx.Param are, and, in an nnx.State, those of your own classes. If what you pass was filtered, "
            "select others, as nnx.state(model, nnx.Param) and wrt=nnx.Param do; to train variables of another class, "
            "set __treekit_trainable__ = True in a class of your own that inherits from it"
        )
    if any(flat.can_train):
        what, found = "cannot train", _leaves_that(_is_like_array, flat)
    else:
        what, found = "received nothing that can be trained:", _leaves_that(_looks_like_array, flat)
    if found:
        raise TypeError(
            f"init {what} {listed(found)}. Only floating-point and complex arrays are "
            "trained. Make what you want to train such an array, jnp.asarray(x, float); if an object has an array, "
            "register its class, with treekit.node or treekit.register_node, or pass the array"
        )


def _leaves_that(predicate: LeafPredicate, flat: Flat) -> list[str]:
    """Describe the leaves that cannot be trained, and for which the predicate holds."""
    return [
        f"{leaf_path_text(flat.tree, i, is_hole)}, which is {describe(x)}"
        for i, x in enumerate(flat.leaves)
        if not flat.can_train[i] and predicate(x)
    ]


def check_nothing_is_shared(flat: Flat) -> None:
    """Raise a TypeError if a variable of Flax that is trained occurs twice: JAX would make two of it."""

    def is_part(x: object) -> bool:
        return is_hole(x) or is_variable(x)

    parts = jtu.tree_leaves(flat.tree, is_leaf=is_part)
    variables = Counter(id(x) for x in parts if is_variable(x) or is_hijax_variable(x))
    if variables.total() == len(variables):  # as in most trees
        return
    answers = iter(flat.is_trained)
    for x in parts:
        is_trained = any([next(answers) for _ in jtu.tree_leaves(x, is_leaf=is_hole)])
        if is_trained and variables[id(x)] > 1:
            places = [name for name, y in walk(flat.tree) if y is x]
            raise TypeError(
                f"init received a variable {variable_class(x).__name__} that is in {len(places)} places, "
                f"{listed(places)}: JAX's transforms, and apply_updates, make a variable of each, which train apart. "
                "Pass nnx.state(model, nnx.Param), which has it once, to init and to update, and nnx.merge it in the "
                "loss"
            )


def check_has_params(params: Params) -> None:
    """Raise a ValueError if `update` did not receive the params."""
    if params is None:
        raise ValueError("update needs the params: update(updates, state, params)")


def _looks_like_array(x: object) -> bool:
    """Whether a user may take a leaf for an array that is trained: one of numbers, or an object that is like one."""
    return is_numeric_array(x) if has_dtype(x) else stands_for_array(x) or _is_like_array(x)


def _is_like_array(x: object) -> bool:
    """Whether a leaf is an object of a class that is not a pytree, and has a shape and a dtype."""
    has_both = hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type)
    return has_both and not has_dtype(x) and not stands_for_array(x)
