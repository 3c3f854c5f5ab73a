"""Which extra arguments does an optimizer take? The signatures of the functions inside say it.

Optax passes every extra argument to every transformation, so that one loop fits all optimizers, and one that nothing
takes is ignored. A PRNG key is never meant so.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax

from treekit._base.dtype import is_prng_key
from treekit._base.jax import jtu
from treekit._base.states import is_of_optax
from treekit._base.tree import is_mapping, reachable


def check_keys_are_taken(update: Callable[..., Any], extra: dict[str, Any]) -> None:
    """Raise a TypeError if an extra argument is a PRNG key, and nothing that runs in an update takes its name.

    Args:
        update: the `update` of a core.
        extra: the extra arguments, of which a function, such as the loss of a line search, takes others.
    """
    for name, x in extra.items():
        leaves = jtu.tree_leaves(x)
        if leaves and all(map(is_prng_key, leaves)) and not is_taken(name, [update, extra]):
            raise TypeError(
                f"update received a PRNG key as {name!r}, and nothing in this optimizer takes an argument of that "
                "name. To round params of 16 bits stochastically, pass key= to apply_gradients, or to apply_updates; "
                "in nnx.Optimizer, wrap the optimizer in training.in_nnx. "
                f"A transformation of yours takes {name} as a keyword of its update, and is an "
                "optax.GradientTransformationExtraArgs"
            )


def is_taken(name: str, roots: list[Any]) -> bool:
    """Whether a function that can be reached from these objects takes an argument of this name."""
    return any(_takes(x, name) for x in reachable(roots, _parts))


def _takes(x: Any, name: str) -> bool:
    """Whether a function takes an argument of this name.

    One of the user's with `**extra` takes all; those of Optax and treekit only pass them on.
    """
    if _is_call_of_own_factory(x):
        return True
    if not callable(x) or isinstance(x, (type, functools.partial)):
        return False
    parameters = _parameters(x)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return name in parameters or (takes_any and not _is_ours(x))


def _is_call_of_own_factory(x: Any) -> bool:
    """Whether a factory that is called in each update is the user's: what that returns, and takes, is not known."""
    if inspect.isfunction(x) and "inner_factory" in x.__code__.co_freevars:  # of Optax's inject_hyperparams
        return not _is_ours(inspect.getclosurevars(x).nonlocals["inner_factory"])
    call: Any = x
    is_call = is_of_optax(type(x)) and hasattr(x, "factory")  # a `Call`
    return is_call and not call.is_of_optax and not _is_ours(call.factory)


def _parameters(function: Any) -> Any:
    try:
        return inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # some functions of C have no signature
        return {}


def _is_ours(function: Any) -> bool:
    """Whether a function, or the class of a callable object, is Optax's or treekit's."""
    return is_of_optax(function if hasattr(function, "__module__") else type(function))


def _parts(x: Any) -> Iterator[Any]:
    """Yield what a function closes over, or an object has, that may be a function."""
    if isinstance(x, (type, jax.Array)):  # a tracer has any attribute
        return
    if is_mapping(x):
        yield from x.values()
    elif isinstance(x, (tuple, list)):
        yield from x
    elif isinstance(x, functools.partial):
        yield from (x.func, *x.args, *x.keywords.values())
    elif inspect.ismethod(x):
        yield from (x.__func__, x.__self__, *getattr(x.__self__, "__dict__", {}).values())
    elif hasattr(x, "__wrapped__"):  # by jax.jit or a decorator, whose own signature has been read
        yield x.__wrapped__
    elif inspect.isfunction(x):
        # Optax's wrapper of a transformation without extra arguments drops them.
        if x.__qualname__ != "with_extra_args_support.<locals>.update":
            yield from (cell.cell_contents for cell in x.__closure__ or ())
    elif is_of_optax(type(x)):
        yield from getattr(x, "__dict__", {}).values()
    elif hasattr(x, "update"):  # a stateful schedule
        yield x.update
