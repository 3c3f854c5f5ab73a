"""`incremental_update` and `periodic_update`: an average, or a copy, of the params, without an optimizer."""

import operator
from typing import Any, TypeVar

import jax
from jax.typing import ArrayLike

from treekit._arrays.cast import cast_tree_like
from treekit._arrays.shapes import check_shapes
from treekit._base.dtype import cast_like, dtype_of, is_weak, promoted_dtype, resolve_array
from treekit._base.jax import jnp, jtu
from treekit._base.memory import copied
from treekit._base.predicates import is_array, is_inexact_parameter, is_parameter, is_real_number
from treekit._base.tree import is_none
from treekit._base.types import PyTree
from treekit._text.describe import describe_value
from treekit._trained.declared import declared_frozen

T = TypeVar("T")

_NAMES = ("old_tensors", "new_tensors")


def incremental_update(new_tensors: T, old_tensors: T, step_size: ArrayLike) -> T:
    """Take a step of Polyak averaging, `step_size * new + (1 - step_size) * old`, preserving the dtypes of the average.

    Leaves without an average are copied from the new tree: functions, strings, PRNG keys, fields that their class
    declares not to be trained, and counters, that is, arrays of integers or bools in both trees. A Python number is
    averaged, so that an average may start from 0.

    As in Optax, `1 - step_size` is computed in the precision of `step_size`. Pass a Python number if it is close to 1:
    of an array in f32, `1 - 0.9999` is wrong by 0.02 %.

    Args:
        new_tensors: the latest params, or raw model.
        old_tensors: the average so far.
        step_size: the weight of the new tree, a real number or array of shape ().

    Returns:
        The new average, with the structure, the shapes and the floating-point and complex dtypes of `old_tensors`;
        where that has a Python number or integers, the average is floating-point, as in Optax. It shares no array with
        the two trees, so a step may donate them.

    Raises:
        TypeError: `step_size` is not a real number.
        ValueError: the trees differ in structure or shapes; the message names the key path.

    >>> import jax.numpy as jnp
    >>> incremental_update(jnp.ones(2), jnp.zeros(2, jnp.bfloat16), 0.25)
    Array([0.25, 0.25], dtype=bfloat16)
    """

    def average(new: Any, old: Any, is_frozen: bool) -> Any:
        """Return the new average of a leaf: the first row that holds.

        | a leaf | its new average |
        |---|---|
        | is frozen, or has no average | a copy of the new one |
        | is not an array of JAX in either tree, and the step neither | what Python or NumPy computes, as in Optax |
        | any other | what JAX computes, in the dtype to which it promotes each two operands |

        An average that is a floating-point or complex array keeps its dtype.
        """
        new, old = resolve_array(new), resolve_array(old)
        if is_frozen or not _have_average(new, old):
            return copied(new)
        keeps_dtype = is_array(old) and is_inexact_parameter(old)
        if not any(isinstance(x, jax.Array) for x in (new, old, step_size)):
            total = step_size * new + (1.0 - step_size) * old
            return total.astype(old.dtype) if keeps_dtype else total
        with jax.numpy_dtype_promotion("standard"):
            terms = (operator.mul(*_promoted(*pair)) for pair in ((step_size, new), (1.0 - step_size, old)))
            total = operator.add(*_promoted(*terms))
        return cast_like(total, old) if keeps_dtype else total

    if not is_real_number(step_size):
        raise TypeError(f"step_size must be a real number of shape (), found {describe_value(step_size)}")
    olds = jtu.tree_map(_none_for_number, old_tensors, is_leaf=is_none)
    check_shapes(olds, new_tensors, is_leaf=is_none, names=_NAMES)
    news, treedef = jtu.tree_flatten(new_tensors, is_leaf=is_none)
    olds, frozen = treedef.flatten_up_to(old_tensors), declared_frozen(new_tensors, is_none)
    out: T = treedef.unflatten(map(average, news, olds, frozen))
    return out


def _promoted(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two operands in the dtype to which JAX promotes them; also floats of 8 bits, which it does not promote."""
    if is_weak(a) or is_weak(b):
        return a, b
    dtype = promoted_dtype(a, b)
    return jnp.asarray(a, dtype), jnp.asarray(b, dtype)


def _none_for_number(old: object) -> Any:
    """Return None for a Python number, which may become an average of any shape."""
    return None if isinstance(old, (int, float, complex)) else old


def _have_average(new: object, old: object) -> bool:
    """Whether a leaf is averaged; a counter, which is an integer in both trees, is taken from the new one."""
    if new is None or not is_parameter(old):
        return False
    if isinstance(old, int) and not isinstance(old, bool):  # 0, where an average starts; or a setting, then equal
        return is_parameter(new) and (is_array(new) or new != old)
    return is_inexact_parameter(old) or is_inexact_parameter(new)


def periodic_update(new_tensors: PyTree, old_tensors: T, steps: ArrayLike, update_period: ArrayLike) -> T:
    """Refresh a copy of the params, such as a target network, on every `update_period`-th step.

    Leaves without a dtype (functions, strings) are taken from the new tree; a Python number that is equal in both trees
    stays a Python number.

    Args:
        new_tensors: the latest params, or raw model.
        old_tensors: the copy so far.
        steps: the number of steps so far, an int or int array of shape ().
        update_period: the number of steps between refreshes, an int or int array of shape ().

    Returns:
        The new tree if `steps` is a multiple of `update_period`, else the old one, with the structure and dtypes of
        `old_tensors`.

    Raises:
        TypeError: a new leaf cannot be cast to the dtype of the old one; the message names the key path.
        ValueError: the trees differ in structure or shapes; the message names the key path.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> old, new = {"w": jnp.zeros(2), "f": jax.nn.relu}, {"w": jnp.ones(2), "f": jax.nn.relu}
    >>> [periodic_update(new, old, steps, update_period=2)["w"] for steps in (1, 2)]
    [Array([0., 0.], dtype=float32), Array([1., 1.], dtype=float32)]
    """
    renew = jnp.mod(steps, update_period) == 0

    def choose(new: object, old: object) -> Any:
        if dtype_of(new) is None or dtype_of(old) is None:
            return new
        same_number = not is_array(new) and not is_array(old) and new == old
        return new if same_number else jnp.where(renew, new, old)

    new, old = (jtu.tree_map(resolve_array, tree, is_leaf=is_none) for tree in (new_tensors, old_tensors))
    check_shapes(old, new, is_leaf=is_none, names=_NAMES)
    new = cast_tree_like(old, new, is_leaf=is_none)
    out: T = jtu.tree_map(choose, new, old, is_leaf=is_none)
    return out
