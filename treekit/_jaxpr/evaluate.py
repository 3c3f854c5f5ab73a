"""Evaluate a traced function one operation at a time, also for arrays whose values are not known.

Only single operations are compiled: conditions and loops run in Python. A result is known if it is the same for all
finite values of the arrays that are not known, such as their products with zero.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.extend.core
import numpy as np

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jtu, untyped
from treekit._base.predicates import is_array


class Unknown:
    """The place of an array whose value is not known."""


UNKNOWN: Final = Unknown()
TRACKED: Final = Unknown()  # not known either, and neither is what may depend on it

# Operations that only run their own jaxpr.
_CALLS = {"jit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"}
_UNCHANGED = {"copy", "device_put", "optimization_barrier", "reshard", "sharding_constraint", "stop_gradient"}
_ZERO_IF_ANY_IS = {"and", "dot_general", "mul"}


class Program(NamedTuple):
    """A traced function.

    Attributes:
        jaxpr: the traced computation.
        like: its result, with a shape and a dtype for each array.
    """

    jaxpr: Any
    like: Any

    def __call__(self, *args: object) -> Any:
        """Return the result for arguments like those of `trace_program`; each array may be UNKNOWN or TRACKED."""
        results = _run(self.jaxpr, [x for x in jtu.tree_leaves(args) if _is_input(x)])
        return jtu.tree_structure(self.like).unflatten(results)


def trace_program(f: Callable[..., Any], *args: object) -> Program:
    """Trace a function of trees. Their arrays are its inputs; other leaves are constants."""
    leaves, treedef = jtu.tree_flatten(args)

    def of_inputs(*inputs: object) -> Any:
        rest = iter(inputs)
        return f(*treedef.unflatten([next(rest) if _is_input(x) else x for x in leaves]))

    return Program(*untyped.make_jaxpr(of_inputs, return_shape=True)(*filter(_is_input, leaves)))


def is_zero(x: Any) -> bool:
    """Whether an array is known to be zero everywhere."""
    if isinstance(x, Unknown) or issubdtype(dtype_of(x), jax.dtypes.extended):
        return False
    return not bool(x.any()) if isinstance(x, jax.Array) else not np.any(x)


def _is_input(x: object) -> bool:
    return isinstance(x, Unknown) or is_array(x)


def _run(closed: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr, and forget each array after its last use."""
    jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

    def read(x: object) -> Any:
        return x.val if isinstance(x, jax.extend.core.Literal) else values[x]

    last_uses: dict[Any, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        last_uses.update((x, i) for x in eqn.invars if not isinstance(x, jax.extend.core.Literal))
    kept = {x for x in jaxpr.outvars if not isinstance(x, jax.extend.core.Literal)}
    for i, eqn in enumerate(jaxpr.eqns):
        results = _apply(eqn, [read(x) for x in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
        for x in eqn.invars:
            if not isinstance(x, jax.extend.core.Literal) and last_uses[x] == i and x not in kept:
                values.pop(x, None)
    return [read(x) for x in jaxpr.outvars]


def _apply(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in _CALLS:
        return _run(params.get("jaxpr") or params["call_jaxpr"], inputs)
    if name == "cond":
        return _cond(params["branches"], *inputs)
    if name == "while":
        return _while(params, inputs)
    if name in _UNCHANGED:
        return inputs
    if not any(isinstance(x, Unknown) for x in inputs):
        results = eqn.primitive.bind(*inputs, **params)
        return results if eqn.primitive.multiple_results else [results]
    if name == "select_n":
        return [_select(*inputs)]
    if (name in _ZERO_IF_ANY_IS and any(map(is_zero, inputs))) or (name == "div" and is_zero(inputs[0])):
        aval = eqn.outvars[0].aval
        return [np.broadcast_to(np.zeros((), aval.dtype), aval.shape)]
    return [_any_of(inputs)] * len(eqn.outvars)


def _select(which: Any, *cases: object) -> Any:
    chosen: set[Any] = set() if isinstance(which, Unknown) else set(np.ravel(which).tolist())
    return cases[int(chosen.pop())] if len(chosen) == 1 else _join(which, *cases)


def _cond(branches: Sequence[Any], index: Any, *inputs: object) -> Sequence[Any]:
    if not isinstance(index, Unknown):
        return _run(branches[min(max(int(index), 0), len(branches) - 1)], inputs)
    return [_join(index, *results) for results in zip(*(_run(branch, inputs) for branch in branches), strict=True)]


def _while(params: dict[str, Any], inputs: list[Any]) -> Sequence[Any]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    for_cond, for_body, carry = inputs[:first], inputs[first:second], inputs[second:]
    while isinstance(goes_on := _run(params["cond_jaxpr"], [*for_cond, *carry])[0], Unknown) or goes_on:
        after = _run(params["body_jaxpr"], [*for_body, *carry])
        if isinstance(goes_on, Unknown):  # how often it runs is not known: look for what no iteration changes
            after = [_join(goes_on, *pair) for pair in zip(carry, after, strict=True)]
            if all(a is b for a, b in zip(after, carry, strict=True)):
                return carry
        carry = after
    return carry


def _join(which: Any, *values: object) -> Any:
    """Return what is known of one of these values; `which` decides which of them."""
    is_one = all(x is values[0] for x in values) or all(map(is_zero, values))
    return values[0] if is_one else _any_of([which, *values])


def _any_of(inputs: Sequence[Any]) -> Unknown:
    return TRACKED if any(x is TRACKED for x in inputs) else UNKNOWN
