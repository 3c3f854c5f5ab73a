"""Is it of Flax? treekit does not import Flax, and knows its classes by the names of their bases and modules."""

import functools
from typing import Any

from treekit._base.jax import is_hijax_variable, jtu
from treekit._base.tree import has_node
from treekit._base.types import PyTree


def is_variable(x: object) -> bool:
    """Whether `x` is a node of Flax whose only child is `value`: a variable, or Linen's box, `Partitioned`."""
    cls: Any = type(x)
    return _has_base(cls, "flax.", "Variable", "VariableState", "Partitioned")


def is_rng_variable(x: object) -> bool:
    """Whether `x` is a variable of Flax with the key or the counter of a random stream."""
    return is_variable(x) and any(base.__name__ == "RngState" for base in type(x).__mro__)


def is_variable_class(cls: Any) -> bool:
    """Whether a class is one of NNX's variables."""
    return _has_base(cls, "flax.nnx.", "Variable")


def is_param(cls: Any) -> bool:
    """Whether a class of variables is `Param`, or inherits from it: what `nnx.grad` differentiates by default."""
    return _has_base(cls, "flax.nnx.", "Param")


@functools.lru_cache(1_000)
def holds_no_parameter(cls: Any) -> bool:
    """Whether Flax has a class of variables, or the class of Flax that it inherits from, for something else.

    That is True for all of Flax's own but `Param`: for running statistics, caches, values that were sown, random
    streams, metrics and states of optimizers. `Variable` itself is one of them: the tables of `nnx.RoPE` are its
    instances. It is False for a user's class that inherits from `Variable` directly.
    """
    if not is_variable_class(cls) or is_param(cls):
        return False
    nearest = next(base for base in cls.__mro__ if base.__module__.startswith("flax."))
    return nearest is cls or nearest.__name__ != "Variable"


def variable_class(x: object) -> Any:
    """Return the class of a variable of Flax, also of one that is a leaf; of any other object, its own class."""
    return getattr(x, "var_type", type(x)) if is_hijax_variable(x) else type(x)


def is_nnx_module(x: object) -> bool:
    """Whether `x` is a module of Flax NNX, whose children are all of its variables, or a class of such modules."""
    return _has_base(x if isinstance(x, type) else type(x), "flax.nnx.", "Module")


def is_bookkeeping(x: object) -> bool:
    """Whether `x` is the child without leaves in which Flax NNX notes the trace of a module: `_pytree__state`."""
    cls: Any = type(x)
    return _has_base(cls, "flax.nnx.", "PytreeState")


def is_nnx_state(x: object) -> bool:
    """Whether `x` is an `nnx.State` of Flax."""
    return type(x).__name__ == "State" and type(x).__module__.startswith("flax.nnx.")


def is_of_bare_values(tree: PyTree) -> bool:
    """Whether a tree is an `nnx.State` of values without their variables, as `nnx.Optimizer` passes to `update`."""
    leaves = jtu.tree_leaves(tree, is_leaf=is_variable)
    return is_nnx_state(tree) and bool(leaves) and not any(is_variable(x) or is_hijax_variable(x) for x in leaves)


def is_nnx_optimizer(x: object) -> bool:
    """Whether `x` is an `nnx.Optimizer` of Flax, which has a state and is not one."""
    cls: Any = type(x)
    return _has_base(cls, "flax.", "Optimizer")


def is_of_nnx_optimizer(x: object) -> bool:
    """Whether `x` is a variable of the class in which an `nnx.Optimizer` keeps each array of its state."""
    return is_variable(x) and any(base.__name__ == "OptState" for base in type(x).__mro__)


@functools.lru_cache(4_000)  # asked of each node; classes that are not used any more are forgotten
def _has_base(cls: type[Any], module: str, *names: str) -> bool:
    """Whether a class, or one that it inherits from, has one of these names and is of a module that begins so."""
    return any(base.__name__ in names and base.__module__.startswith(module) for base in cls.__mro__)


def has_variables(tree: PyTree) -> bool:
    """Whether a tree has variables of Flax."""
    return has_node(tree, is_variable)


def values_of_variables(tree: PyTree) -> Any:
    """Return a tree in which each variable of Flax is replaced by its value.

    `nnx.Optimizer` passes variables to `init`, and their values to `update`.
    """

    def value(x: PyTree) -> Any:
        if not is_variable(x):
            return x
        (only,) = jtu.tree_leaves(x, is_leaf=lambda y: y is not x)
        return only

    return jtu.tree_map(value, tree, is_leaf=is_variable)
