"""A function that is traced once, and called without its Python code."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core

from treekit._base.jax import jtu, untyped
from treekit._base.predicates import is_traced


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function, which can be called again without running its Python code.

    It does not contain the arrays that the function closes over, since JAX caches it: they are passed in each call.

    Attributes:
        jaxpr: the traced computation.
        like: the result, with a shape and a dtype for each array.
    """

    jaxpr: Any
    like: Any

    def __call__(self, *args: Any, consts: Any) -> Any:
        """Compute the result for other arguments, and other arrays instead of those closed over."""
        closed = jax.extend.core.ClosedJaxpr(self.jaxpr, consts)
        leaves = untyped.extend.core.jaxpr_as_fun(closed)(*jtu.tree_leaves(args))
        return jtu.tree_structure(self.like).unflatten(leaves)


def trace(f: Callable[..., Any], *args: object) -> tuple[Traced, Any]:
    """Trace a function, and return it with the arrays that it closes over.

    Under jit, the function is jitted first, so that each call adds only one equation; adding thousands of equations
    again would take as long as tracing them. Compilers inline the call. Outside of jit, JAX would keep the arrays alive
    that a jitted function closes over.
    """
    under_jit = any(map(is_traced, jtu.tree_leaves(args)))
    closed, like = untyped.make_jaxpr(untyped.jit(f) if under_jit else f, return_shape=True)(*args)
    # As of JAX 0.12, a jaxpr contains its constants: it is made again, without them.
    jaxpr = jax.extend.core.ClosedJaxpr(closed, []) if closed.jaxpr is closed else closed.jaxpr
    return Traced(jaxpr, like), closed.consts
